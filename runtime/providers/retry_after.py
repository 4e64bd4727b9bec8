"""How long a provider asks us to wait, from the headers of its refusal.

`Retry-After` is seconds or a date (RFC 9110, section 10.2.3). A date is compared with the response's own `Date`, so
that neither this machine's clock nor its difference from the server's matters.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from refold.events.retrying import RETRY_AFTER_S_MAX

_NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+", re.ASCII)


def retry_after_s(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Return the pause that a response asks for, in seconds from 0 to `RETRY_AFTER_S_MAX`; None = none, or no sense.

    `retry-after-ms`, which some providers send besides, is more exact and comes first.

    Args:
        headers: of the response, by lower-case name.
        now: what a date is compared with where the response has no `Date`; with a time zone.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return _bounded(milliseconds / 1000)
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None:
        return _bounded(seconds)
    until = _date(text)
    since = _date(headers.get("date")) or now
    if until is None or since is None:
        return None
    return _bounded((until - since).total_seconds())


def _bounded(seconds: float) -> float:
    return min(max(seconds, 0.0), RETRY_AFTER_S_MAX)


def _number(text: str | None) -> float | None:
    stripped = text.strip() if text is not None else ""
    return float(stripped) if _NUMBER.fullmatch(stripped) else None


def _date(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        date = parsedate_to_datetime(text.strip())
    except (ValueError, TypeError, IndexError, OverflowError):  # Junk of all kinds; the parser is meant for e-mail.
        return None
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)
