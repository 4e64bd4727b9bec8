"""What the numbers of a scenario may be: checked where one is made, in Python or from a file.

The rule: what cannot be played is refused here with the name of the field, and is never taken for a broken promise.
"""

import math
from collections.abc import Collection
from typing import Final

import msgspec

from refold.events.errors import ConfigError

SECONDS_MAX: Final = 10_000_000.0
"""Nothing in a scenario takes longer or comes later: virtual seconds, about four months."""

COUNT_MAX: Final = 100_000_000
"""Nothing is done, or is as long, more often than this at one place of a scenario."""

DRAWN_MAX: Final = 10_000
"""A drawn scenario has at most so many acts, sessions and faults."""

COUNTS: Final = ("times", "capacity", "appends", "operations", "characters")
"""Fields that count something, from 1."""


def check_fields(struct: msgspec.Struct, *, backward: bool = False) -> None:
    """Check the seconds and counts of an act, a fault or a scenario.

    Args:
        struct: fields whose names end in `_s`, and `seconds`, are virtual seconds.
        backward: whether seconds may be negative.

    Raises:
        ConfigError: one of them is out of bounds, or no number.
    """
    for name in struct.__struct_fields__:
        value: object = getattr(struct, name)
        if value is None or not isinstance(value, int | float) or isinstance(value, bool):
            continue
        if name.endswith("_s") or name == "seconds":
            least = -SECONDS_MAX if backward else 0.0
            if name == "calm_s" and value == math.inf:  # Whoever plays it says when faults are over.
                continue
            if not (math.isfinite(value) and least <= value <= SECONDS_MAX):
                raise ConfigError(
                    f"{type(struct).__name__}.{name} is from {least:,.0f} to {SECONDS_MAX:,.0f} seconds, and is {value}"
                )
        elif name in COUNTS and not 1 <= value <= COUNT_MAX:
            raise ConfigError(f"{type(struct).__name__}.{name} is from 1 to {COUNT_MAX:,}, and is {value}")


def check_choice(name: str, value: object, choices: Collection[object]) -> None:
    """Check that something is one of a few.

    Raises:
        ConfigError: it is another.
    """
    if value not in choices:
        raise ConfigError(f"{name} is one of {', '.join(map(repr, choices))}, and not {value!r:.80}")


def check_whole(name: str, value: object, *, least: int, most: int) -> None:
    """Check that something is a whole number within bounds, both inclusive.

    Raises:
        ConfigError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"{name} is a whole number from {least:,} to {most:,}, and not {value!r:.80}")
