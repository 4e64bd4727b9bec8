"""Check that a wheel holds the files of the five folders under `refold/`, and nothing else."""

import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PREFIXES = {
    "runtime": "refold",
    "events": "refold/events",
    "stores": "refold/stores",
    "actors": "refold/actors",
    "scenarios": "refold/scenarios",
}


def expected_files() -> set[str]:
    return {
        f"{prefix}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, prefix in PREFIXES.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def main(wheel: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if not name.partition("/")[0].endswith(".dist-info")}
    missing, foreign = sorted(expected_files() - files), sorted(files - expected_files())
    if missing or foreign:
        sys.exit(f"{wheel}: missing {missing}, does not belong there {foreign}")
    print(f"{wheel}: {len(files)} files, all under refold/, none missing")


if __name__ == "__main__":
    main(*sys.argv[1:])
