"""`docs/pykka.md` names a test for each difference, and these tests exist; no difference is left out."""

import ast
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent
DOCUMENT = (FOLDER.parents[2] / "docs" / "pykka.md").read_text(encoding="utf-8")


def names_of_tests(path: Path) -> set[str]:
    module = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {function.name for function in functions if function.name.startswith("test_")}


def rows(heading: str) -> list[list[str]]:
    """Return the cells of each row of the table under a heading, without its head."""
    section = DOCUMENT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


DIFFERENCES = names_of_tests(FOLDER / "test_differences.py")
OF_OURS_ALONE = set[str]().union(*map(names_of_tests, (FOLDER.parent / "kernel").glob("test_*.py")))
NAMED = {row[0]: re.findall(r"`(test_\w+)`", row[4]) for row in rows("What differs")}


@pytest.mark.parametrize("difference", NAMED)
def test_a_difference_names_the_tests_that_show_it(difference: str) -> None:
    assert NAMED[difference]
    assert set(NAMED[difference]) <= DIFFERENCES | OF_OURS_ALONE


def test_each_test_of_a_difference_is_named_once() -> None:
    named = [name for names in NAMED.values() for name in names]
    assert len(named) == len(set(named))
    assert set(named) >= DIFFERENCES


def test_each_theme_that_is_the_same_names_its_tests() -> None:
    named = {name for row in rows("The same") for name in re.findall(r"`(test_\w+)\.py`", row[2])}
    themes = {path.stem for path in FOLDER.glob("test_*.py")} - {"test_differences", "test_pykka_document"}
    assert named == themes
