"""Long random lives keep every rule, put nearly all of them to the test, and find a fault."""

import io
import re

import pytest

from refold.events.session import react as session_decisions
from tests.events.life import Life, main
from tests.selfcheck.exhaustive.rules import RULES

STEPS = 40_000
"""Of the long test."""


def verdicts(steps: int, seed: int) -> tuple[int, dict[str, str]]:
    out = io.StringIO()
    code = main(steps, seed, out)
    assert out.getvalue().startswith(f"{steps:,} steps in ")
    return code, dict(re.findall(r"^(\w+) +(hold|violated|not exercised) ", out.getvalue(), re.MULTILINE))


def test_every_rule_holds_in_long_lives_and_is_put_to_the_test_there() -> None:
    code, found = verdicts(2_000, seed=2)
    assert code == 0
    assert set(found) == set(RULES)
    assert [rule for rule, verdict in found.items() if verdict != "hold"] == ["INV5"]  # Of stores.


@pytest.mark.slow(seconds=20)
def test_every_rule_holds_in_tens_of_thousands_of_steps() -> None:
    code, found = verdicts(STEPS, seed=1)
    assert code == 0
    assert [rule for rule, verdict in found.items() if verdict != "hold"] == ["INV5"]


def test_a_seed_leads_to_the_same_life_again_and_another_to_another() -> None:
    lives = [Life(seed) for seed in (3, 3, 4)]
    for life in lives:
        life.go(100)
    assert lives[0].log == lives[1].log != lives[2].log
    assert {life.configuration.max_turns for life in lives} <= {2, 4, 8}


def test_a_fault_is_found_and_said_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_decisions, "CANCELLED_TEXT", "Gone")
    out = io.StringIO()
    assert main(5_000, 1, out) == 1
    assert re.search(r"^KINDS +violated ", out.getvalue(), re.MULTILINE)
    assert re.search(r"KINDS: call_\d+_\d+ is answered as cancelled .* \(seed \d+, step \d+, ", out.getvalue())
