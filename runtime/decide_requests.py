"""Where two requests, or what was done for them, differ first; see `refold.decide_replay`."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from refold.actors.outgoing_request import WantedRequest
from refold.actors.recalling import Remembered
from refold.events import difference as differences
from refold.events.content import Json
from refold.events.difference import NOTHING, first_difference, json_of
from refold.events.model import ModelRequest, RequestReference
from refold.events.prepared import Prepared


class Difference(NamedTuple):
    """The first place where two things differ, and the part of each that it is in."""

    difference: differences.Difference
    recorded: Json
    now: Json


class RequestPair(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded request, and what the one of today is made from."""

    request: ModelRequest
    reference: RequestReference
    prepared: Prepared
    """What had been done to it."""
    wanted: WantedRequest


def in_requests(recorded: ModelRequest, now: ModelRequest, path: str) -> Difference | None:
    """Return where two requests differ first, with the message, the tool or the field in which they do."""
    for field in recorded.__struct_fields__:
        left, right = getattr(recorded, field), getattr(now, field)
        if field in ("messages", "tools"):
            found = _in_sequences(left, right, f"{path}.{field}")
        else:
            difference = first_difference(left, right, f"{path}.{field}")
            found = Difference(difference, json_of(left), json_of(right)) if difference is not None else None
        if found is not None:
            return found
    return None


def _in_sequences(left: Sequence[object], right: Sequence[object], path: str) -> Difference | None:
    if left == right:
        return None
    for place in range(max(len(left), len(right))):
        mine = left[place] if place < len(left) else NOTHING
        other = right[place] if place < len(right) else NOTHING
        if mine is NOTHING or other is NOTHING:
            whole = differences.Difference(path=f"{path}[{place}]", left=json_of(mine), right=json_of(other))
            return Difference(whole, whole.left, whole.right)
        if mine != other and (difference := first_difference(mine, other, f"{path}[{place}]")) is not None:
            return Difference(difference, json_of(mine), json_of(other))
    return None


def in_recall(recorded: Remembered, now: Remembered) -> Difference | None:
    """Return where what entered a request of the memories differs first."""
    left, right = msgspec.structs.replace(recorded, notes=()), msgspec.structs.replace(now, notes=())
    difference = first_difference(left, right, "recall")
    return Difference(difference, json_of(left), json_of(right)) if difference is not None else None


def in_summary(recorded: int | None, now: int | None) -> Difference | None:
    """Return whether a summary stands for another number of messages; None = none was made."""
    if recorded == now:
        return None
    left: Json = NOTHING if recorded is None else recorded
    right: Json = NOTHING if now is None else now
    return Difference(differences.Difference(path="summary.replaced", left=left, right=right), left, right)
