"""The command line of the exhaustive check, and the everyday check itself."""

import io
import re
from pathlib import Path

import pytest

from refold.actors.kernel.clock import ManualClock
from refold.events.session import react as session_decisions
from refold.scenarios.workers import done_in_processes
from tests.selfcheck.exhaustive.__main__ import main
from tests.selfcheck.exhaustive.exploration import Exploration, explore
from tests.selfcheck.exhaustive.forked_states import noted_faults
from tests.selfcheck.exhaustive.rules import RULES
from tests.selfcheck.exhaustive.scope import EVERYDAY, Scope
from tests.selfcheck.exhaustive.state_table import Decision, as_table, is_in_table, noted_in

SMALL = ("queue", "import", "steps", "breaking stops", "rejecting")
"""Names of scopes that are explored in a second."""


FORKED = ("import", "users")
"""Names of scopes of which each state is forked."""

FORKED_SLOWLY = ("steps", "people", "questions", "attempts")
"""Further ones."""


ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = ROOT / "docs" / "architecture.md"


def printed(*arguments: str) -> tuple[int, str]:
    out = io.StringIO()
    return main(arguments, out, ManualClock()), out.getvalue()


def test_every_rule_holds_in_the_smallest_scopes_and_what_they_decide_is_in_the_document() -> None:
    """As much of the everyday check as takes a moment; the whole of it is a slow test."""
    scopes = [scope for scope in EVERYDAY if scope.name in SMALL]
    assert [scope.name for scope in scopes] == list(SMALL)
    decisions: set[Decision] = set()
    for scope in scopes:
        assert explore(scope, on_batch=noted_in(decisions)).counterexamples == {}
    page = DOCUMENT.read_text(encoding="utf-8")
    assert len(decisions) > 50
    assert [decision for decision in decisions if not is_in_table(decision, page)] == []


@pytest.mark.parametrize("names", [FORKED, pytest.param(FORKED_SLOWLY, marks=pytest.mark.slow(seconds=15))])
def test_what_is_forked_from_any_state_does_nothing_again_and_takes_inputs(names: tuple[str, ...]) -> None:
    faults: list[str] = []
    forked: set[bytes] = set()
    for scope in EVERYDAY:
        if scope.name in names:
            explore(scope, on_batch=noted_faults(faults, forked))
    assert faults == []
    assert len(forked) > 400


def explored(scope: Scope) -> tuple[Exploration, set[Decision]]:
    """Return what is found in a scope, and what is decided there."""
    decisions: set[Decision] = set()
    return explore(scope, on_batch=noted_in(decisions)), decisions


@pytest.mark.slow(seconds=35)
def test_every_rule_holds_in_the_everyday_scopes_is_exercised_and_what_they_decide_is_in_the_document(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT)  # Other processes import this module.
    found = list(done_in_processes(explored, iter(EVERYDAY), 2))
    assert {each.scope: each.counterexamples for each, _ in found if each.counterexamples} == {}
    assert {rule for rule in RULES if not any(each.met.get(rule) for each, _ in found)} == {"INV5"}
    decisions = set[Decision]().union(*(each for _, each in found))
    assert as_table(decisions) in DOCUMENT.read_text(encoding="utf-8")


def test_a_violation_is_an_exit_code_and_is_shown_with_the_fewest_commands_to_it_and_its_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_decisions, "CANCELLED_TEXT", "Gone")
    code, text = printed("--stop-at-first")
    assert code == 1
    assert re.search(r"^KINDS +violated ", text, re.MULTILINE)
    assert "KINDS is violated in scope 'calls': call_6_0 is answered as cancelled ('Gone')" in text
    told = re.findall(r"^  (\w+)\(", text, re.MULTILINE)
    assert told == ["OpenSession", "Configure", "SendInput", "RecordModelResponse", "CancelRun"]
    assert text.splitlines()[-1].startswith('  10  RunCancelled(run="run_3", totals=')


def test_one_scope_can_be_named() -> None:
    code, text = printed("--scope=rejecting")
    assert code == 0
    assert len(re.findall(r" 0\.0$", text, re.MULTILINE)) == 1
    assert re.search(r"^rejecting +[\d,]+ +[\d,]+ +[\d,]+ +\d+ +0\.0$", text, re.MULTILINE)
    verdicts = dict(re.findall(r"^(\w+) +(hold|violated|not exercised) ", text, re.MULTILINE))
    assert verdicts.keys() == RULES.keys()
    assert (verdicts["OUTCOME"], verdicts["INV5"]) == ("hold", "not exercised")


def test_files_that_the_document_names_exist() -> None:
    page = DOCUMENT.read_text(encoding="utf-8")
    links = re.findall(r"\]\(\.\./([^)]+)\)", page)
    drawn = re.findall(r"\b(?:events|stores|actors|runtime|scenarios)/[\w/]+(?:\.py|\.sql)?", page)
    assert [name for name in (*links, *drawn) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("argument", ["--everything", "--scope=nowhere"])
def test_wrong_arguments_are_refused(argument: str) -> None:
    with pytest.raises(SystemExit):
        printed(argument)
