"""Times and durations as people read them."""

import pytest

from refold.inspection.times import duration_words, time_words


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (0, "1970-01-01 00:00:00.000Z"),
        (1_780_000_000_123_456, "2026-05-28 20:26:40.123Z"),
        (-1, "1969-12-31 23:59:59.999Z"),
        (2**62, f"{2**62} µs"),
        (-(2**63), f"{-(2**63)} µs"),
    ],
)
def test_a_time_is_a_date_where_it_can_be_one(at: int, words: str) -> None:
    assert time_words(at) == words


@pytest.mark.parametrize(
    ("microseconds", "words"),
    [(0, "0 ms"), (340_000, "340 ms"), (1_000_000, "1.0 s"), (59_900_000, "59.9 s"), (303_000_000, "5 min 3 s")],
)
def test_a_duration_has_the_unit_that_fits(microseconds: int, words: str) -> None:
    assert duration_words(microseconds) == words
