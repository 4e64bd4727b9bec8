"""Two values of a replay, compared: what was recorded, and what today's code makes of it.

The rule: a difference that is accepted (`refold.replay.meant`) hides no other one; the comparison goes on behind it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from refold.actors.calls.recall import Remembered
from refold.events.core.content import Json, Message, is_json_object
from refold.events.core.difference import NOTHING, Difference, differences, json_of
from refold.events.core.word_diff import word_changes
from refold.events.model.configuration import ToolSpec
from refold.events.model.messages import ModelRequest
from refold.events.secrets.redaction import REDACTED

Accepts: TypeAlias = Callable[[Difference], bool]
"""Says of a difference whether it is meant."""

_encode = msgspec.json.Encoder().encode


class Mismatch(NamedTuple):
    """The first place where two things differ, and the part of each that it is in."""

    difference: Difference
    recorded: Json
    now: Json


def nothing_accepted(difference: Difference) -> bool:
    """Accept no difference."""
    return False


class Comparison:
    """Compares values, but for what is accepted.

    Args:
        accepts: called with each difference that is found, in order.
    """

    def __init__(self, accepts: Accepts = nothing_accepted) -> None:
        self.accepts = accepts

    def difference(self, recorded: object, now: object, path: str) -> Difference | None:
        """Return where two values differ first. The same JSON is the quick answer, and nearly always the answer."""
        if _encode(recorded) == _encode(now):
            return None
        return next((each for each in differences(recorded, now, path) if not self.accepts(each)), None)

    def mismatch(self, recorded: object, now: object, path: str) -> Mismatch | None:
        """Return the same with both values."""
        difference = self.difference(recorded, now, path)
        return Mismatch(difference, json_of(recorded), json_of(now)) if difference is not None else None

    def requests(self, recorded: ModelRequest, now: ModelRequest, path: str) -> Mismatch | None:
        """Return where two requests differ first, with the message, the tool or the field in which they do."""
        return self._first(self._in_requests(recorded, now, path))

    def recall(self, recorded: Remembered, now: Remembered) -> Mismatch | None:
        """Return where what entered a request of the memories differs first."""
        left, right = msgspec.structs.replace(recorded, notes=()), msgspec.structs.replace(now, notes=())
        return self.mismatch(left, right, "recall")

    def whole(self, recorded: Json, now: Json, path: str) -> Mismatch | None:
        """Return whether two values, of which one may be nothing, are not the same, as one difference."""
        if recorded == now:
            return None
        difference = Difference(path=path, left=recorded, right=now)
        return None if self.accepts(difference) else Mismatch(difference, recorded, now)

    def _first(self, found: Iterable[Mismatch | None]) -> Mismatch | None:
        return next((each for each in found if each is not None), None)

    def _in_requests(self, recorded: ModelRequest, now: ModelRequest, path: str) -> Iterator[Mismatch | None]:
        for field in recorded.__struct_fields__:
            left, right = getattr(recorded, field), getattr(now, field)
            if field == "messages":
                yield from self._in_sequences(left, right, f"{path}.{field}")
            elif field == "tools":
                yield from self._in_tools(left, right, f"{path}.{field}")
            else:
                yield self.mismatch(left, right, f"{path}.{field}")

    def _in_sequences(self, left: Sequence[object], right: Sequence[object], path: str) -> Iterator[Mismatch | None]:
        if left == right:
            return
        for place in range(max(len(left), len(right))):
            mine = left[place] if place < len(left) else NOTHING
            other = right[place] if place < len(right) else NOTHING
            if mine is NOTHING or other is NOTHING:
                yield self.whole(json_of(mine), json_of(other), f"{path}[{place}]")
            elif mine != other:
                yield self.mismatch(mine, other, f"{path}[{place}]")

    def _in_tools(self, recorded: Sequence[ToolSpec], now: Sequence[ToolSpec], path: str) -> Iterator[Mismatch | None]:
        """Give where what a model is told of its tools differs, by the tool's name.

        What only people and the runtime read (its shown name, tier, effect, times, retries) is no part of a request.
        """
        left, right = ({tool.name: _as_told(tool) for tool in tools} for tools in (recorded, now))
        for name in [*left, *(name for name in right if name not in left)]:
            mine, other = left.get(name, NOTHING), right.get(name, NOTHING)
            if mine is NOTHING or other is NOTHING:
                yield self.whole(mine, other, f"{path}.{name}")
            else:
                yield self.mismatch(mine, other, f"{path}.{name}")
        if left.keys() == right.keys():
            yield self.mismatch(list(left), list(right), f"{path}.order")


def _as_told(tool: ToolSpec) -> Json:
    return {"description": tool.description, "input_schema": tool.input_schema}


JUDGED = ("recall", "call", "answer.verdicts", "answer.trip", "answer.rejected")
"""What is decided from words: paths of differences that may follow from any of them."""


def is_of_taken_out(found: Mismatch, judged: Sequence[Message] = ()) -> bool:
    """Tell whether a difference may follow from what was taken out of a bundle.

    Args:
        found: the difference.
        judged: messages that it follows from, beside its sides.
    """
    if REDACTED.encode() in msgspec.json.encode(judged):
        return True
    if found.difference.path.startswith(JUDGED):
        words = [side.get("content", side) if is_json_object(side) else side for side in (found.recorded, found.now)]
        return any(map(_times_redacted, words))
    left, right = found.difference.left, found.difference.right
    if isinstance(left, str) and isinstance(right, str):
        return any(each.left.count(REDACTED) != each.right.count(REDACTED) for each in word_changes(left, right))
    return _times_redacted(left) != _times_redacted(right)


def _times_redacted(side: Json) -> int:
    return 0 if side is NOTHING else msgspec.json.encode(side).count(REDACTED.encode())
