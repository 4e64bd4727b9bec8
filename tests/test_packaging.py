"""What is installed is one import package, `refold`, with everything that lies in the five folders and nothing else."""

import fnmatch
import re
import tomllib
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT: dict[str, Any] = PYPROJECT["project"]
SETUPTOOLS: dict[str, Any] = PYPROJECT["tool"]["setuptools"]
FOLDERS: dict[str, str] = SETUPTOOLS["package-dir"]
"""Import name of each layer → its folder."""

REQUIREMENTS: list[str] = [
    *PYPROJECT["build-system"]["requires"],
    *PROJECT["dependencies"],
    *(requirement for extra in PROJECT["optional-dependencies"].values() for requirement in extra),
]


def packages() -> dict[str, Path]:
    """Return every package in the five folders: import name → folder."""
    found: dict[str, Path] = {}
    for name, folder in FOLDERS.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            inner = init.parent.relative_to(ROOT / folder).parts
            found[".".join((name, *inner))] = init.parent
    return found


def requirement_name(requirement: str) -> str:
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name, requirement
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def test_every_package_folder_is_listed() -> None:
    assert set(SETUPTOOLS["packages"]) == set(packages())


def test_every_folder_with_modules_is_a_package() -> None:
    with_modules = {path.parent for folder in FOLDERS.values() for path in (ROOT / folder).rglob("*.py")}
    assert with_modules == set(packages().values())


def test_no_runtime_module_hides_a_layer() -> None:
    layers = {name.partition(".")[2] for name in FOLDERS} - {""}
    assert layers.isdisjoint(path.stem for path in (ROOT / "runtime").iterdir())


def test_every_data_file_is_shipped() -> None:
    patterns: dict[str, list[str]] = SETUPTOOLS["package-data"]
    forgotten = [
        str(path.relative_to(ROOT))
        for name, folder in packages().items()
        for path in folder.iterdir()
        if path.is_file()
        and path.suffix not in {".py", ".pyc"}
        and not any(fnmatch.fnmatch(path.name, pattern) for pattern in patterns.get(name, []))
    ]
    assert forgotten == []


@pytest.mark.parametrize(("package", "name"), [("refold", "py.typed"), ("refold.stores.sqlite", "schema.sql")])
def test_a_data_file_is_found_in_the_installed_package(package: str, name: str) -> None:
    assert resources.files(package).joinpath(name).is_file()


def test_no_test_lies_inside_a_layer() -> None:
    inside = [
        str(path.relative_to(ROOT))
        for folder in FOLDERS.values()
        for pattern in ("test_*.py", "*_test.py", "conftest.py")
        for path in (ROOT / folder).rglob(pattern)
    ]
    assert inside == []


def test_the_tests_are_no_package() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []


def test_one_import_name_is_installed() -> None:
    assert (metadata.distribution("refold").read_text("top_level.txt") or "").split() == ["refold"]


def test_the_installed_version_is_the_declared_one() -> None:
    assert metadata.version("refold") == PROJECT["version"]


@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_every_requirement_has_a_lower_bound_and_an_upper_one_for_a_private_name(
    requirement: str,
) -> None:
    assert ">=" in requirement
    bounds = re.findall(r"(?:<|==|~=).*", requirement)
    assert bounds == (["<0.23"] if requirement_name(requirement) == "aiosqlite" else [])


def test_every_requirement_is_pinned_in_the_constraints() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.lstrip().startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[a-z0-9-]+==\S+", pin)] == []
    assert {requirement_name(requirement) for requirement in REQUIREMENTS} <= {pin.partition("==")[0] for pin in pins}
