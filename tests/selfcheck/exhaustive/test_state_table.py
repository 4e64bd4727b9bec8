"""`docs/architecture.md` shows what a session decides in each phase; what is in it is compared in `test_exhaustive`."""

import re

import pytest

from tests.selfcheck.exhaustive.state_table import Decision, as_table, is_in_table
from tests.selfcheck.exhaustive.test_exhaustive import DOCUMENT, ROOT


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
