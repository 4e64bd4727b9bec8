"""Where what is recorded and what is done today differ first, with the part of each that it is in."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from refold.actors.calls.recall import Remembered
from refold.events.core.content import Json
from refold.events.core.difference import NOTHING, Difference, json_of
from refold.events.model.configuration import ToolSpec
from refold.events.model.messages import ModelRequest
from refold.replay.core_replay import difference_of


class Mismatch(NamedTuple):
    """The first place where two things differ, and the part of each that it is in."""

    difference: Difference
    recorded: Json
    now: Json


def mismatch(recorded: object, now: object, path: str) -> Mismatch | None:
    """Return where two values differ first, with both."""
    difference = difference_of(recorded, now, path)
    return Mismatch(difference, json_of(recorded), json_of(now)) if difference is not None else None


def in_requests(recorded: ModelRequest, now: ModelRequest, path: str) -> Mismatch | None:
    """Return where two requests differ first, with the message, the tool or the field in which they do."""
    for field in recorded.__struct_fields__:
        left, right = getattr(recorded, field), getattr(now, field)
        if field == "messages":
            found = _in_sequences(left, right, f"{path}.{field}")
        elif field == "tools":
            found = _in_tools(left, right, f"{path}.{field}")
        else:
            found = mismatch(left, right, f"{path}.{field}")
        if found is not None:
            return found
    return None


def _in_sequences(left: Sequence[object], right: Sequence[object], path: str) -> Mismatch | None:
    if left == right:
        return None
    for place in range(max(len(left), len(right))):
        mine = left[place] if place < len(left) else NOTHING
        other = right[place] if place < len(right) else NOTHING
        if mine is NOTHING or other is NOTHING:
            whole = Difference(path=f"{path}[{place}]", left=json_of(mine), right=json_of(other))
            return Mismatch(whole, whole.left, whole.right)
        if mine != other and (found := mismatch(mine, other, f"{path}[{place}]")) is not None:
            return found
    return None


def _in_tools(recorded: Sequence[ToolSpec], now: Sequence[ToolSpec], path: str) -> Mismatch | None:
    """Return where what a model is told of its tools differs first, by the tool's name.

    What only people and the runtime read (its shown name, tier, effect, times, retries) is no part of a request.
    """
    left, right = ({tool.name: _as_told(tool) for tool in tools} for tools in (recorded, now))
    for name in [*left, *(name for name in right if name not in left)]:
        mine, other = left.get(name, NOTHING), right.get(name, NOTHING)
        if mine is NOTHING or other is NOTHING:
            return Mismatch(Difference(path=f"{path}.{name}", left=mine, right=other), mine, other)
        if (found := mismatch(mine, other, f"{path}.{name}")) is not None:
            return found
    return mismatch(list(left), list(right), f"{path}.order")


def _as_told(tool: ToolSpec) -> Json:
    return {"description": tool.description, "input_schema": tool.input_schema}


def in_recall(recorded: Remembered, now: Remembered) -> Mismatch | None:
    """Return where what entered a request of the memories differs first."""
    left, right = msgspec.structs.replace(recorded, notes=()), msgspec.structs.replace(now, notes=())
    return mismatch(left, right, "recall")


def in_summary(recorded: int | None, now: int | None) -> Mismatch | None:
    """Return whether a summary stands for another number of messages; None = none was made."""
    if recorded == now:
        return None
    left: Json = NOTHING if recorded is None else recorded
    right: Json = NOTHING if now is None else now
    return Mismatch(Difference(path="summary.replaced", left=left, right=right), left, right)
