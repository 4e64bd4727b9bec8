"""What every event of every stream has."""

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """What every event of every stream has."""

    at: int = 0
    """Microseconds since the epoch, UTC, of its batch. Stamped when the batch is made; the log keeps it in a
    column and the codec restores it, so it is not part of the JSON."""
