"""Copies of the package that have a fault in them."""

import ast
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[2]

LAYERS = ("events", "stores", "actors", "scenarios")
"""The folders beside `runtime/`, which holds the package itself."""


class Edit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A small change of a function's source."""

    at: str
    """`module:function`, as `refold.actors.shell.journal:Journal.append`; nothing after the colon: the whole module."""
    original: str
    """Stands once in the function. Lines after its first are indented from the line where it begins."""
    planted: str
    """Takes its place."""

    @property
    def module(self) -> str:
        """The import name of the module."""
        return self.at.partition(":")[0]

    @property
    def function(self) -> str:
        """The function's name within its module, such as `Journal.append`."""
        return self.at.partition(":")[2]


def copy_package(folder: Path) -> None:
    """Make `folder` hold an importable copy of the package, of links to its files, among them those of bytecode."""
    half_written = shutil.ignore_patterns("*.pyc.*")  # Another process may be at it; it gets its name when it is whole.
    shutil.copytree(ROOT / "runtime", folder / "refold", ignore=half_written, copy_function=os.symlink)
    for layer in LAYERS:
        shutil.copytree(ROOT / layer, folder / "refold" / layer, ignore=half_written, copy_function=os.symlink)


def plant(folder: Path, edit: Edit) -> None:
    """Make an edit in the copy of the package in `folder`."""
    module = folder.joinpath(*edit.module.split("."))
    module = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    source = edited(module.read_text(encoding="utf-8"), edit)
    module.unlink()
    module.write_text(source, encoding="utf-8")
    # Python tells bytecode that is out of date by size and whole second, which may both be the same.
    for bytecode in module.parent.glob(f"__pycache__/{module.stem}.*.pyc"):
        bytecode.unlink()


def edited(source: str, edit: Edit) -> str:
    """Return the source of the edit's module with the edit made."""
    lines = source.splitlines(keepends=True)
    first, last = 0, len(lines)
    node: ast.AST = _parsed(source)
    for name in filter(None, edit.function.split(".")):
        node = next(child for child in _definitions(node) if child.name == name)
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
        last = node.end_lineno or first
    offset = len("".join(lines[:first]))
    found = list(_places("".join(lines[first:last]), edit.original))
    assert len(found) == 1, f"{edit.original!r} must stand once in {edit.at}; adapt the fault"
    start, end, indentation = found[0]
    return source[: offset + start] + _indented(edit.planted, indentation) + source[offset + end :]


_parsed = functools.lru_cache(maxsize=16)(ast.parse)
"""The faults of one module come one after another."""


def run_copy(folder: Path, *arguments: str, timeout_s: float, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python on the copy of the package in `folder`, and with the tests of this repository."""
    return subprocess.run(
        [sys.executable, "-P", "-B", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "PYTHONASYNCIODEBUG": "", **environment},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def _definitions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if "overload" not in [ast.unparse(decorator) for decorator in child.decorator_list]:
                yield child
        else:
            yield from _definitions(child)


def _places(source: str, text: str) -> Iterator[tuple[int, int, str]]:
    """Yield where a text begins and ends, and the indentation of the line where it begins."""
    head, start = text.partition("\n")[0], -1
    while (start := source.find(head, start + 1)) >= 0:
        line = source[source.rfind("\n", 0, start) + 1 :]
        indentation = line[: len(line) - len(line.lstrip())]
        whole = _indented(text, indentation)
        if source.startswith(whole, start):
            yield start, start + len(whole), indentation


def _indented(text: str, indentation: str) -> str:
    """Return a text, its first line unchanged, its other lines moved to the right."""
    return "\n".join(indentation + line if index and line else line for index, line in enumerate(text.split("\n")))
