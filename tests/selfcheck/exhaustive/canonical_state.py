"""When two states of a session are the same for every future: the key under which the exploration knows them.

Three reductions, all sound because of what the four functions read:

- *Renumbering.* The session makes every identifier from a version and afterwards only compares identifiers, so two
  states that differ by an order-preserving renumbering of versions behave alike up to that renumbering. Without it no
  exploration would end: each crash and each late result is one more event, which shifts all that comes later.
- *The version itself* says only that the next event is later than all there are.
- *The closed past.* What was said before the turn under way is only appended to, never decided from, but for whether a
  summary may stand for it, which every move says of a history that it holds for, and for what a provider may refuse,
  which is part of the key where it may; neither are results that are there, usage, and how the last run ended. Each is
  judged when it is written, and then left out. Digests of keyed commands, which contain identifiers, are left out
  because the observed session keeps the commands.

The observed session is part of the key: two states that a fault has made equal, though their logs say different things,
must stay two. `tests/selfcheck/exhaustive/test_canonical_state.py` checks the claim itself: merged states have the same
successors.
"""

import re

import msgspec

from refold.events.core.content import Message, ToolResultBlock
from refold.events.model.messages import Usage
from refold.events.model.refused import INPUT_NOTE, inputs_unanswered
from refold.events.session.state import SessionState, Turn
from tests.selfcheck.exhaustive.log_reader import ObservedSession

_FIELDS = (
    rb"handed_off|version|input|started|asked|failed|retry|requested|terminal|cancelled|configured|summarised|set_at"
)
_VERSION = re.compile(rb'(run_|call_|input:|"(?:' + _FIELDS + rb')":|(?<=_)[0-9]":)([0-9]+)')
"""A version, behind what says that it is one; the last choice finds `"call_7_0":9`, the start of a call."""

_encoder = msgspec.json.Encoder()


def canonical_key(
    state: SessionState, observed: ObservedSession, *, refuses: bool = False, guards: bool = False
) -> bytes:
    """Return a text that two states share only if they have the same future, up to renumbering.

    Args:
        state: what the four functions read.
        observed: what the log says.
        refuses: a provider may refuse what it has not taken yet, so that this is no closed past.
        guards: guardrails may trip on what no model has answered yet.
    """
    told = (_refusable(state) if refuses else (), inputs_unanswered(state.messages, state.accepted) if guards else ())
    return renumbered(_encoder.encode((_without_past(state), msgspec.structs.replace(observed, version=0), told)))


def _refusable(state: SessionState) -> tuple[object, ...]:
    """Return what was set aside together, and whether the first message, which moves say is refused, was."""
    first = state.messages[0] if state.messages else Message("user", ())
    return INPUT_NOTE in first.text, [[one.place for one in aside] for aside in state.asides.values()]


def renumbered(text: bytes) -> bytes:
    """Return JSON `text` with its n-th smallest version replaced by n."""
    parts = _VERSION.split(text)
    versions = sorted({int(version) for version in parts[2::3]})
    ranks = {version: b"%d" % rank for rank, version in enumerate(versions)}
    parts[2::3] = [ranks[int(version)] for version in parts[2::3]]
    return b"".join(parts)


def _without_past(state: SessionState) -> SessionState:
    """Return a copy of `state` that lacks what no decision reads."""
    return msgspec.structs.replace(
        state,
        version=0,
        configuration=None,
        policies={},
        messages=[Message(state.messages[-1].role, ())] if state.messages else [],
        last_run=None,
        usage=Usage(),
        run=msgspec.structs.replace(state.run, usage=Usage(), final=(), latest_input=0)
        if state.run is not None
        else None,
        turn=_without_results(state.turn) if state.turn is not None else None,
        allowed_actions=dict.fromkeys(state.allowed_actions, 0),
        cleared=0,
        accepted=0,
        asides={},
        cleared_calls={},
        marks=[],
        keys={key: msgspec.structs.replace(record, digest="", finished=None) for key, record in state.keys.items()},
    )


def _without_results(turn: Turn) -> Turn:
    return msgspec.structs.replace(
        turn,
        calls=[
            call
            if call.result is None
            else msgspec.structs.replace(call, result=ToolResultBlock(tool_use_id=call.id, content=()))
            for call in turn.calls
        ],
    )
