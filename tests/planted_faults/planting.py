"""Copies of the package with one text replaced."""

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def copy_package(folder: Path) -> None:
    """Make `folder` hold an importable copy of the package."""
    shutil.copytree(ROOT / "runtime", folder / "refold", ignore=shutil.ignore_patterns("__pycache__"))
    for layer in ("events", "stores", "actors", "scenarios"):
        shutil.copytree(ROOT / layer, folder / "refold" / layer, ignore=shutil.ignore_patterns("__pycache__"))


def plant(folder: Path, file: str, original: str, planted: str) -> None:
    """Replace a text that stands once in a file, such as `actors/journal.py`, of the copy in `folder`."""
    module = folder / "refold" / file.removeprefix("runtime/")
    source = module.read_text(encoding="utf-8")
    assert source.count(original) == 1, f"{original!r} must stand once in {file}; adapt the fault"
    module.write_text(source.replace(original, planted), encoding="utf-8")
