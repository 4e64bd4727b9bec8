"""Copies of the package with one text replaced."""

import os
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def copy_package(folder: Path) -> None:
    """Make `folder` hold an importable copy of the package, of links to its files, among them those of bytecode."""
    half_written = shutil.ignore_patterns("*.pyc.*")  # Another process may be at it; it gets its name when it is whole.
    shutil.copytree(ROOT / "runtime", folder / "refold", ignore=half_written, copy_function=os.symlink)
    for layer in ("events", "stores", "actors", "scenarios"):
        shutil.copytree(ROOT / layer, folder / "refold" / layer, ignore=half_written, copy_function=os.symlink)


def plant(folder: Path, file: str, original: str, planted: str) -> None:
    """Replace a text that stands once in a file, such as `actors/journal.py`, of the copy in `folder`."""
    module = folder / "refold" / file.removeprefix("runtime/")
    source = module.read_text(encoding="utf-8")
    assert source.count(original) == 1, f"{original!r} must stand once in {file}; adapt the fault"
    module.unlink()
    module.write_text(source.replace(original, planted), encoding="utf-8")
    # Python tells bytecode that is out of date by size and whole second, which may both be the same.
    for bytecode in module.parent.glob(f"__pycache__/{module.stem}.*.pyc"):
        bytecode.unlink()
