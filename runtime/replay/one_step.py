"""One recorded step, done again by itself, for a debugger: a tool's body, or the hooks and the policy at one event.

Everything before it is folded and not run. A tool is given its recorded arguments; hooks, a prompt that is a function,
an offer, the policy and validators are given what they were given then. The code runs for real, so a tool whose effect
is not `pure` runs only where that is asked for.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec

from refold.actors.agent.subsession import ancestors_of
from refold.actors.calls.middleware import Middleware
from refold.actors.calls.questions import Questions
from refold.actors.calls.tool_context import SessionContext, ToolContext, session_context
from refold.actors.cancellation import CancellationToken
from refold.actors.thread_pool import ThreadPool
from refold.agents.agent import AnyAgent, SubagentTool
from refold.events.core.content import Json
from refold.events.core.difference import NOTHING, json_of
from refold.events.core.errors import ConfigError, ToolError
from refold.events.core.ids import SessionId, ToolCallId, event_ref, kind_and_identifier
from refold.events.core.pure_core import evolve_all
from refold.events.core.records import StoredEvent, StreamHead
from refold.events.session import events as ev
from refold.events.session.core import SESSION_CODEC, SESSION_CORE
from refold.events.session.state import SessionState, find_call
from refold.inspection.log_reading import Batches, ReadableLog, opened, session_head
from refold.replay.agent_replay import AgentReplay, AgentsReplay
from refold.replay.current_agent import CurrentAgent
from refold.stores.event_store import EventStore
from refold.tools.signature import entry_of

if TYPE_CHECKING:
    from refold.tools.tool import Tool

PATIENCE_S: Final = 24 * 3600.0
"""So long a person may stand at a breakpoint."""

Debugged = Callable[[Sequence[Callable[..., Any]]], AbstractContextManager[object]]
"""Runs what is within it under a debugger that stops where one of the functions begins."""


class StepDone(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one step."""

    place: str
    """Such as `session/alice@12`."""
    step: str
    """What was done again, in words."""
    recorded: Json = NOTHING
    now: Json = NOTHING
    differs: tuple[str, ...] = ()
    """Of hooks and the policy: where today's differ from what is recorded."""


async def one_step(
    log: ReadableLog,
    session: str,
    at: int,
    *,
    agent: AnyAgent,
    debugged: Debugged,
    deps: object = None,
    side_effects: bool = False,
    hooks: bool = False,
) -> StepDone:
    """Do one recorded step again, under a debugger.

    Args:
        log: path of the file, or an open store.
        session: its name.
        at: version of an event: a call's start or end for the body of its tool, an input or an answer for hooks.
        agent: today's.
        debugged: the debugger.
        deps: what its functions depend on; opened already.
        side_effects: whether the body of a tool may run whose effect is not `pure`.
        hooks: whether, of a tool's result, its hooks run and not its body.

    Raises:
        ConfigError: there is no such session or event, no code of the agent runs there, or the tool may not run.
        LogFormatError: the log is damaged.
        PersistenceError: it cannot be read.
    """
    async with opened(log) as store:
        head = await session_head(store, session)
        before = await _before(store, head, at, agent, deps)
        place = event_ref(head.stream, at)
        event = SESSION_CODEC.decode(next(each for each in before.batch if each.version == at))
        call = getattr(event, "call", None)
        if not hooks and isinstance(call, str) and _is_of_body(event):
            of = session_context(SessionId(session), before.ancestors, before.state)
            return await _body(before, place, event, ToolCallId(call), of, debugged, side_effects=side_effects)
        functions = functions_of(before.current.agent)
        if not functions:
            raise ConfigError(
                f"the agent {before.current.agent.name!r} has no hook, policy or prompt function to stop in"
            )
        with debugged(functions):
            found = await before.again.take(before.batch)
        missed = [
            f"not compared: {each.why}" for compared in before.agents.tally.report() for each in compared.not_compared
        ]
        return StepDone(
            place=place,
            step=f"hooks and policy at {type(SESSION_CODEC.decode(before.batch[0])).__name__}",
            differs=(*map(str, found), *missed),
        )


class _Before(NamedTuple):
    """A session as it was before an event."""

    batch: list[StoredEvent]
    """With the event."""
    state: SessionState
    """Before the batch."""
    ancestors: tuple[SessionId, ...]
    current: CurrentAgent
    again: AgentReplay
    agents: AgentsReplay


async def _before(store: EventStore, head: StreamHead, at: int, agent: AnyAgent, deps: object) -> _Before:
    agents = AgentsReplay(store, agent, PATIENCE_S, deps, lambda _: None)
    state = SESSION_CORE.initial()
    session = SessionId(kind_and_identifier(head.stream)[1])
    ancestors: tuple[SessionId, ...] = ()
    again: AgentReplay | None = None
    current: CurrentAgent | None = None
    async for batch in Batches(store, head.stream):
        events = SESSION_CODEC.decode_all(batch)
        if again is None or current is None:
            name = events[0].agent if isinstance(events[0], ev.SessionOpened) else ""
            again, current = agents.session(head.stream, name), agents.current(name)
            if again is None or current is None:
                raise ConfigError(f"the session is one of the agent {name!r}, and not of {agent.name!r}")
            ancestors = await ancestors_of(store, session, batch[0])
        if batch[-1].version >= at:
            now = agents.current(state.agent) if state.agent is not None else current
            if now is None:
                raise ConfigError(f"the session was handed to the agent {state.agent!r}, which is none of today's")
            return _Before(batch, state, ancestors, now, again, agents)
        await again.take(batch, compared=False)
        state = evolve_all(SESSION_CORE, events, state)
    raise ConfigError(f"{head.stream} has {head.version:,} events, and none of version {at}")


def _is_of_body(event: ev.SessionEvent) -> bool:
    return isinstance(event, ev.ToolCallStarted | ev.ToolCallCompleted | ev.ToolAttemptFailed | ev.ToolCallFailed)


async def _body(
    before: _Before,
    place: str,
    event: ev.SessionEvent,
    name: ToolCallId,
    of: SessionContext,
    debugged: Debugged,
    *,
    side_effects: bool,
) -> StepDone:
    current, call = before.current, find_call(before.state, name)
    if call is None and isinstance(event, ev.ToolCallStarted):
        raise ConfigError(f"{place} starts a call of the same batch; name the event that ends it")
    if call is None:
        raise ConfigError(f"{place} is of no call of the turn under way")
    tool = cast("Tool[..., Any] | None", current.tools.get(call.name))
    if tool is None:
        raise ConfigError(f"the agent {current.agent.name!r} has no tool {call.name!r} any more")
    if isinstance(tool, SubagentTool):
        raise ConfigError(f"{call.name} is carried out by another agent; debug a step of its session")
    if tool.spec.effect != "pure" and not side_effects:
        raise ConfigError(
            f"the effect of the tool {call.name} is {tool.spec.effect!r}, so its body would act again; --side-effects "
            "runs it nevertheless, and --hooks runs the hooks of its result"
        )
    context: ToolContext[object] = ToolContext(
        call=call.id,
        session=of.session,
        deps=current.deps,
        cancel=CancellationToken(),
        report=lambda _: None,
        session_context=of,
        questions=Questions(
            call.id,
            call.failed_attempts + 1,
            call.answers,
            describe=current.tools.described,
            now_us=lambda: before.state.at,
            end_body=_no_answer,
        ),
    )
    pool = ThreadPool(name="debugged tool")
    with debugged([entry_of(tool.function)]):
        try:
            now = _shown(await tool.run(call.input, context, pool))
        except ToolError as error:
            now = f"ToolError: {error}"
        finally:
            pool.close()
    recorded = json_of(getattr(event, "content", NOTHING))
    return StepDone(place=place, step=f"body of the tool {call.name}", recorded=recorded, now=now)


def _no_answer() -> None:
    raise ToolError("the log has no answer yet to what is asked here")


def _shown(value: object) -> Json:
    try:
        return json_of(value)
    except (TypeError, ValueError):
        return repr(value)


def functions_of(agent: AnyAgent) -> list[Callable[..., Any]]:
    """Return the functions of an agent that decide: where a debugger stops."""
    hooks = [
        getattr(middleware, name)
        for middleware in agent.middleware
        for name in vars(Middleware)
        if name.startswith("on_") and getattr(type(middleware), name) is not getattr(Middleware, name)
    ]
    given = [agent.config.prompt_function, agent.offer, agent.policy, *hooks]
    return [function for function in given if callable(function)]
