"""Whether a user's function left the state alone that it was shown.

A state that anything but `evolve` changes is not what the log adds up to: the live actor decides by it, and the next
one, folded from the log, does not. So the state is written down before and after `admit`, `react` and `pending`, and
compared. The rule: this costs some microseconds on average, also where states are large. A state of up to `SMALL_BYTES`
is always looked at, a larger one once for each `BYTES_PER_CALL` that it has, and one beyond `LARGE_BYTES` even less;
`refold.scenarios.core_exploration` looks always.
"""

import msgspec

from refold.events.pure_core import State

SMALL_BYTES = 1024
"""A state that takes no more is looked at in every call."""

BYTES_PER_CALL = 256
"""So much of a larger state is written down for a call, on average."""

LARGE_BYTES = 1024 * 1024
"""To write down a state that takes more keeps the loop for long, so it is done the more seldom the longer it takes."""

UNWRITABLE_REST = 1_000
"""Calls that pass before a state is tried again that could not be written down."""

_encode = msgspec.msgpack.Encoder().encode


class StateWatch:
    """Looks at the states of one kind of actors.

    Args:
        state_type: of those states.
        always: however large they are.
    """

    def __init__(self, state_type: type[State], *, always: bool = False) -> None:
        self._fields = tuple(name for name in state_type.__struct_fields__ if name != "keys")  # Which grow for ever.
        self._always = always
        self._rests: dict[str, int] = {}
        """Calls of each function that pass unseen before the next look."""

    def before(self, function: str, state: State) -> bytes | None:
        """Return what `changed` needs to know of a state before `function` gets it; None = nobody looks this time."""
        rest = self._rests.get(function, 0)
        if rest > 0 and not self._always:
            self._rests[function] = rest - 1
            return None
        written = self._written(state)
        if written is None:
            self._rests[function] = UNWRITABLE_REST
        elif len(written) > SMALL_BYTES:
            self._rests[function] = len(written) // BYTES_PER_CALL * (1 + len(written) // LARGE_BYTES)
        return written

    def changed(self, state: State, before: bytes | None) -> bool:
        """Tell whether a state is another one now."""
        return before is not None and self._written(state) != before

    def _written(self, state: State) -> bytes | None:
        try:
            return _encode([getattr(state, name) for name in self._fields])
        except (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError, TypeError, ValueError):
            return None
