"""Times and durations in microseconds, as people read them.

Apart from the words of events, so that the help of a command loads none of those.
"""

from datetime import UTC, datetime


def time_words(at: int) -> str:
    """Return a time in microseconds since the epoch as `2026-07-01 12:00:00.000Z`."""
    try:
        moment = datetime.fromtimestamp(at // 1_000_000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{at} µs"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{at % 1_000_000 // 1000:03}Z"


def duration_words(microseconds: int) -> str:
    """Return how long something took: `340 ms`, `1.2 s`, `5 min 3 s`."""
    seconds = microseconds / 1e6
    if seconds < 1:
        return f"{microseconds / 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60):,} min {int(seconds % 60)} s"
