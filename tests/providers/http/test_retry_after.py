"""How long a refusal asks us to wait: numbers, dates, junk."""

from datetime import UTC, datetime

import pytest

from refold.events.model.configuration import RETRY_AFTER_S_MAX
from refold.providers.http.exchange import retry_after_s

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
DATE = "Sun, 01 Mar 2026 12:00:00 GMT"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("7", 7.0),
        (" 7 ", 7.0),
        ("1.25", 1.25),
        (".5", 0.5),
        ("86400", RETRY_AFTER_S_MAX),
        ("9" * 400, RETRY_AFTER_S_MAX),
    ],
)
def test_seconds(text: str, seconds: float) -> None:
    assert retry_after_s({"retry-after": text}) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Sun, 01 Mar 2026 12:00:30 GMT", 30.0),
        ("Sunday, 01-Mar-26 12:00:30 GMT", 30.0),
        ("Sun Mar  1 12:00:30 2026", 30.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("Wed, 21 Oct 2099 07:28:00 GMT", RETRY_AFTER_S_MAX),
    ],
)
def test_case_k01_a_date_is_compared_with_the_responses_own_or_the_time_that_is_given(
    text: str, seconds: float
) -> None:
    assert retry_after_s({"retry-after": text, "date": DATE}) == seconds
    assert retry_after_s({"retry-after": text}, NOW) == seconds
    # The response's own comes first: this machine's clock may be wrong.
    assert retry_after_s({"retry-after": text, "date": DATE}, datetime(1999, 1, 1, tzinfo=UTC)) == seconds


def test_a_date_that_cannot_be_compared_says_nothing() -> None:
    assert retry_after_s({"retry-after": DATE}) is None
    assert retry_after_s({"retry-after": DATE, "date": "yesterday"}) is None


@pytest.mark.parametrize(
    "text", ["", "soon", "-1", "+1", "1e3", "nan", "inf", "1_000", "\u0661", "1,5", "0x10", "Sun, 99 Foo 2026", ", , ,"]
)
def test_junk_says_nothing(text: str) -> None:
    assert retry_after_s({"retry-after": text, "date": DATE}) is None


def test_milliseconds_are_more_exact_and_come_first() -> None:
    assert retry_after_s({"retry-after-ms": "1500", "retry-after": "2"}) == 1.5
    assert retry_after_s({"retry-after-ms": "junk", "retry-after": "2"}) == 2
    assert retry_after_s({}) is None
