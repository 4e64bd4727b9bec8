"""Tell what pip-audit found; exits 1 where a package that we lock has a known fault.

python audited.py ANSWER      ANSWER is the JSON that pip-audit wrote, or is missing where it reached no database
"""

import json
import sys
from pathlib import Path

ACCEPTED: dict[str, str] = {}
"""Faults that cannot harm here: identifier → why."""


def main(answer: str) -> None:
    path = Path(answer)
    packages = json.loads(path.read_text(encoding="utf-8"))["dependencies"] if path.exists() else []
    asked = [package for package in packages if "skip_reason" not in package]
    found = [
        f"{package['name']} {package['version']}: {fault['id']}, mended in {fault['fix_versions'] or 'no version'}"
        for package in asked
        for fault in package["vulns"]
        if not ACCEPTED.keys() & {fault["id"], *fault["aliases"]}
    ]
    if found:
        sys.exit("\n".join(found))
    left_out = f", {len(packages) - len(asked)} are not known to the database" if len(asked) < len(packages) else ""
    print(f"no known fault in {len(asked)} packages{left_out}" if asked else "NOT AUDITED: no database answers here")


if __name__ == "__main__":
    main(*sys.argv[1:])
