"""Which differences are one, and which are another: what is expected must not cover more than it says."""

from typing import Any

import pytest

from refold.events.core.difference import Difference
from refold.replay.comparing import Accepting, ExpectedDifference, MeantDifferences, said_of

WORDS = [f"word{number}" for number in range(400)]
LONG = " ".join(WORDS)


def changed(*places: int, to: str = "x") -> str:
    return " ".join(f"{to}{place}" if place in places else word for place, word in enumerate(WORDS))


@pytest.mark.parametrize(
    ("left", "right", "others"),
    [
        (LONG, changed(7), [changed(7, 9), changed(8), LONG + " more"]),
        (LONG, changed(*range(0, 400, 20)), [changed(*range(0, 380, 20)), changed(*range(0, 400, 20), 391)]),
        (LONG, changed(*range(100, 200)), [changed(*range(100, 200), to="y"), changed(*range(100, 201))]),
        ({"a": [1] * 300}, {"a": [1] * 301}, [{"a": [1] * 302}, {}]),
        (1, 2, [3, "2", None]),
    ],
)
def test_another_difference_is_not_covered_by_an_expected_one(left: Any, right: Any, others: list[Any]) -> None:
    difference = Difference(path="request.system_prompt", left=left, right=right)
    expected = ExpectedDifference(path="request.system_prompt", said=said_of(difference))
    accepts = Accepting(MeantDifferences(expected=(expected,)))
    assert accepts(difference)
    assert not accepts(Difference(path="request.model", left=left, right=right))
    for other in others:
        assert not accepts(Difference(path="request.system_prompt", left=left, right=other)), other


def test_the_same_words_in_another_sessions_text_are_the_same_difference() -> None:
    expected = ExpectedDifference(path="x", said=said_of(Difference(path="x", left=LONG, right=changed(7))))
    accepts = Accepting(MeantDifferences(expected=(expected,)))
    assert accepts(Difference(path="x", left=f"Dear Ann. {LONG}", right=f"Dear Ann. {changed(7)}"))
