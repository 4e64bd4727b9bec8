"""A sample of damages: each is refused, reported, or of no effect; and what repair saves is what was there."""

import io

import pytest

from tests.selfcheck.damage.rehearsal import main, outcomes, table


def test_drawn_damages_are_never_silent() -> None:
    out = io.StringIO()
    assert main(["--count=40"], out) == 0, out.getvalue()


def test_drawn_damages_between_two_lives_are_never_silent() -> None:
    out = io.StringIO()
    assert main(["--count=8", "--between-lives"], out) == 0, out.getvalue()


@pytest.mark.slow(seconds=10)
def test_every_outcome_is_met_by_many_damages() -> None:
    found = list(outcomes(range(300), 1, 1))
    assert not [one for one in found if one.fault or one.verdict == "SILENT"]
    counts = table(found)["all"]
    assert all(counts[verdict] for verdict in ("refused", "reported", "no effect", "saved whole", "saved in part"))
