"""Forks of every state that the exhaustive search comes to: what one is in, and that nothing is done again in it.

A fork is no command of its session: its one event begins another stream. So each state that is found is forked once
with its run and once without, and what becomes of that is judged by what the state was.
"""

import pickle

import msgspec

from refold.events.core.content import TextBlock, ToolResultBlock, tool_uses
from refold.events.core.errors import CommandRejected
from refold.events.core.ids import SessionId
from refold.events.core.pure_core import Effect, Recorded, plan
from refold.events.session import commands
from refold.events.session.core import SESSION_CORE
from refold.events.session.events import SessionEvent, SessionForked
from refold.events.session.react import RunTool
from refold.events.session.state import SessionState, history
from tests.selfcheck.exhaustive.exploration import OnBatch
from tests.selfcheck.exhaustive.scope import AGENT, AT, SESSION, TOOLS

FORK = SessionId("bob")
RESUME = commands.ResumeRun(tools=tuple(spec.name for spec in TOOLS), asked=True)
INPUT = commands.SendInput(content=(TextBlock(text="Hello"),))


def noted_faults(faults: list[str], forked: set[bytes]) -> OnBatch:
    """Return what forks each state of an exploration, and adds what is wrong with the forks to a list.

    Args:
        faults: is added to.
        forked: the states that were forked, which are not forked again; is added to.
    """

    def note(_before: SessionState, _batch: tuple[SessionEvent, ...], after: SessionState) -> None:
        known = msgspec.msgpack.encode(after)
        if known not in forked:
            forked.add(known)
            for keeps_run in (False, True):
                faults.extend(_faults(after, keeps_run))

    return note


def _faults(origin: SessionState, keeps_run: bool) -> list[str]:
    fork = _forked(origin, keeps_run)
    calls = origin.turn.calls if origin.turn is not None else []
    once = {call.id for call in calls if call.started and call.policy.effect != "pure"}
    found: list[str] = []

    def expect(kept: bool, message: str) -> None:
        if not kept:
            found.append(f"{message}: forked with its run: {keeps_run}, at version {origin.version}")

    expect(SESSION_CORE.pending(fork) == [], "a fork has work in flight")
    expect(not (fork.queue or fork.scheduled), "what waited went along")
    expect(origin.keys.keys() <= fork.keys.keys(), "a key was forgotten")
    waits = keeps_run and origin.run is not None
    expect((fork.run is not None, fork.run is not None and fork.run.parked) == (waits, waits), "the run is not parked")
    expect(fork.messages[: len(origin.messages)] == origin.messages, "the history is another one")
    uses = [use.id for message in history(fork) for use in tool_uses(message.content)]
    results = [block for message in history(fork) for block in message.content if type(block) is ToolResultBlock]
    expect(sorted(uses) == sorted(result.tool_use_id for result in results), "a call is not answered once")
    if not waits:
        expect(bool(_after(_forked(origin, keeps_run), INPUT)), "an input begins no run")
        return found
    resumed = _after(_forked(origin, keeps_run), RESUME)
    expect(not any(isinstance(effect, RunTool) and effect.call in once for effect in resumed), "a call runs again")
    expect(not _after(_forked(origin, keeps_run), commands.CancelRun()), "a cancelled run goes on")
    return found


def _forked(origin: SessionState, keeps_run: bool) -> SessionState:
    event = SessionForked(
        session=FORK,
        agent=AGENT,
        origin=SESSION,
        version=origin.version,
        chain="0" * 64,
        origin_at=AT,
        keeps_run=keeps_run,
    )
    state: SessionState = pickle.loads(pickle.dumps(origin))
    return SESSION_CORE.evolve(state, event)


def _after(state: SessionState, command: commands.SessionCommand) -> list[Effect]:
    """Return what is in flight after a command; nothing where it is refused."""
    try:
        planned = plan(SESSION_CORE, state, command, AT)
    except CommandRejected:
        return []
    return [] if isinstance(planned, Recorded) else list(SESSION_CORE.pending(planned.state))
