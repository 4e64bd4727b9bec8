"""Write the bill of materials of an environment, as CycloneDX JSON, and refuse licences that are not allowed.

python sbom.py ENVIRONMENT OUTPUT      ENVIRONMENT is the folder of a venv into which refold is installed
"""

import json
import re
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

ALLOWED = re.compile(
    r"\b(MIT|BSD|Apache|ISC|PSF|Python Software Foundation|MPL|Mozilla|0BSD|Zlib|CC0|Unlicense)\b", re.I
)
"""One of these stands in what a package says of its licence; parts under others are looked at by hand, see EXAMINED."""
EXAMINED: dict[str, str] = {}
"""What a package is licensed under where it does not say so by such a name: package → SPDX expression."""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def licence(package: Distribution) -> str:
    """Return what a package says of its licence: an SPDX expression, the name, or its classifiers."""
    said = package.metadata
    classifiers = (line.rpartition(" :: ")[2] for line in said.get_all("Classifier", ()) if line.startswith("License"))
    expression = said.get("License-Expression") or ", ".join(classifiers) or (said.get("License") or "").split("\n")[0]
    return EXAMINED.get(normal(said["Name"]), expression)


def identity(package: Distribution) -> str:
    return f"pkg:pypi/{normal(package.metadata['Name'])}@{package.version}"


def component(package: Distribution) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": identity(package),
        "name": package.metadata["Name"],
        "version": package.version,
        "licenses": [{"license": {"name": licence(package)}}],
        "purl": identity(package),
    }


def bill_of(packages: dict[str, Distribution]) -> dict[str, Any]:
    """Return the bill of refold and of the packages that are installed with it, in the order of their names."""
    refold = packages["refold"]
    needs = {
        name: sorted(
            identity(packages[needed])
            for needed in {normal(re.split(r"[^\w.-]", line)[0]) for line in package.requires or ()} & packages.keys()
        )
        for name, package in packages.items()
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component(refold)},
        "components": [component(package) for _, package in sorted(packages.items()) if package is not refold],
        "dependencies": [{"ref": identity(packages[name]), "dependsOn": needs[name]} for name in sorted(packages)],
    }


def main(environment: str, output: str) -> None:
    folders = [str(folder) for folder in Path(environment).glob("lib*/python*/site-packages")]
    packages = {normal(package.metadata["Name"]): package for package in distributions(path=folders)}
    licences = {name: licence(package) for name, package in packages.items()}
    if refused := [f"{name} ({said!r})" for name, said in sorted(licences.items()) if not ALLOWED.search(said)]:
        sys.exit(f"licences that are not in the list of those allowed: {', '.join(refused)}")
    Path(output).write_text(json.dumps(bill_of(packages), indent=1) + "\n", encoding="utf-8")
    print(f"{output}: {len(packages)} packages, all under licences that are allowed")


if __name__ == "__main__":
    main(*sys.argv[1:])
