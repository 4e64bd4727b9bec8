"""`docs/architecture.md` shows what a session decides in each phase, as the exhaustive search finds it."""

import re
from pathlib import Path

import pytest

from tests.selfcheck.exhaustive.scope import EVERYDAY
from tests.selfcheck.exhaustive.state_table import Decision, as_table, decisions_in, is_in_table
from tests.selfcheck.exhaustive.test_exhaustive import SMALL

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = ROOT / "docs" / "architecture.md"


def test_what_small_scopes_decide_is_in_the_document() -> None:
    page = DOCUMENT.read_text(encoding="utf-8")
    found = decisions_in(scope for scope in EVERYDAY if scope.name in SMALL)
    assert len(found) > 50
    assert [decision for decision in found if not is_in_table(decision, page)] == []


@pytest.mark.slow(seconds=50)
def test_the_document_has_the_table_that_the_everyday_scopes_give() -> None:
    assert as_table(decisions_in(EVERYDAY)) in DOCUMENT.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("before", "stimulus", "consequences", "after", "stands"),
    [
        ("model", "ModelFailed", {"RetryScheduled"}, "waiting", True),
        ("model", "ModelFailed", {"RetryScheduled", "RunFailed"}, "idle", True),
        ("model", "ModelFailed", {"RunCompleted"}, "idle", False),
        ("model", "ModelFailed", {"RunFailed"}, "tools", False),
        ("idle", "ModelFailed", {"RunFailed"}, "idle", False),
        ("idle", "InputQueued", set[str](), "idle", True),
    ],
)
def test_a_decision_is_looked_for_with_its_consequences_and_its_phase(
    before: str, stimulus: str, consequences: set[str], after: str, stands: bool
) -> None:
    table = as_table(
        {
            Decision("model", "ModelFailed", frozenset({"RetryScheduled"}), "waiting"),
            Decision("model", "ModelFailed", frozenset({"RunFailed"}), "idle"),
            Decision("idle", "InputQueued", frozenset(), "idle"),
        }
    )
    assert is_in_table(Decision(before, stimulus, frozenset(consequences), after), table) == stands


def test_files_that_the_document_names_exist() -> None:
    page = DOCUMENT.read_text(encoding="utf-8")
    links = re.findall(r"\]\(\.\./([^)]+)\)", page)
    drawn = re.findall(r"\b(?:events|stores|actors|runtime|scenarios)/[\w/]+(?:\.py|\.sql)?", page)
    assert [name for name in (*links, *drawn) if not (ROOT / name).exists()] == []
