"""What every event of every stream has."""

from typing import Annotated, Final, TypeAlias

import msgspec

from refold.events.core.cleaning import INTEGER_MAX, INTEGER_MIN

SECOND_US: Final = 1_000_000
"""A second in the unit of every time that events and cores have: `event.at + 5 * SECOND_US` is five seconds later."""

Microseconds: TypeAlias = Annotated[int, msgspec.Meta(ge=INTEGER_MIN, le=INTEGER_MAX)]
"""A recorded time or duration. A log that has a larger one is damaged: no clock, database or float holds it."""


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """What every event of every stream has."""

    at: int = 0
    """Microseconds since the epoch, UTC, of its batch. Stamped when the batch is made; the log keeps it in a
    column and the codec restores it, so it is not part of the JSON."""
