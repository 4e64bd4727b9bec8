"""What people and user code may say about a tool call before it runs."""

from typing import TypeAlias

import msgspec

from refold.events.cleaning import clean_text
from refold.events.configuration import EffectClass, Tier
from refold.events.content import JsonObject
from refold.events.ids import RunId, SessionId

REASON_CHARACTERS_MAX = 10_000
"""A reason is cut after so many characters before it is recorded."""


class Allow(msgspec.Struct, frozen=True):
    """The call may run."""

    always: bool = False
    """Said of an approval: later calls of the same action need none in this session."""


class Deny(msgspec.Struct, frozen=True):
    """The call does not run."""

    reason: str = ""
    """What the model is told."""


class Ask(msgspec.Struct, frozen=True):
    """Somebody has to allow the call first."""

    reason: str = ""
    """What that person is told."""


Judgement: TypeAlias = Allow | Deny | Ask
"""What a policy says: `Allow` leaves it to the tool's tier whether somebody has to approve."""

Decision: TypeAlias = Allow | Deny
"""What an approval handler says."""


class ProposedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that a model asks for, as a policy sees it: what is shown here is what would run."""

    session: SessionId
    run: RunId
    turn: int
    tool: str
    input: JsonObject
    """The arguments, a copy of the policy's own."""
    tier: Tier
    effect: EffectClass


def recorded_reason(reason: object) -> str:
    """Return a reason as it is recorded: valid text that no reader, and no event, is too small for; it never raises."""
    try:
        said = "" if reason is None else str.__str__(str(reason))
    except Exception as error:  # noqa: BLE001 - `__str__` is user code, and what the reason is given for must not fail.
        said = f"(a reason that cannot be had: {type(error).__name__})"
    return clean_text(said[:REASON_CHARACTERS_MAX])
