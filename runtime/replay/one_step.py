"""One recorded step, done again by itself, for a debugger: a tool's body, or the hooks and the policy at one event.

Everything before it is folded and not run. A tool is given its recorded arguments; hooks, a prompt that is a function,
an offer, the policy and validators are given what they were given then. That is done in a process of its own, which
can write nothing and reach nothing, and has this one's terminal: what it would show goes here, and a line is read here
where it wants one, so that a debugger is used as any other. The rule: code runs where it can act, and a tool runs
whose effect is not `pure`, only if that is asked for.
"""

import io
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, aclosing
from functools import partial
from typing import Any, Final, NamedTuple, TextIO, cast

import msgspec

from refold.actors.agent.subsession import ancestors_of
from refold.actors.calls.context import SessionContext, session_context
from refold.actors.calls.middleware import Middleware
from refold.agents.agent import AnyAgent, SubagentTool
from refold.events.core.cleaning import error_words
from refold.events.core.content import Json
from refold.events.core.difference import NOTHING, json_of
from refold.events.core.errors import ConfigError
from refold.events.core.ids import SessionId, ToolCallId, kind_and_identifier
from refold.events.core.pure_core import evolve_all
from refold.events.core.records import StoredEvent, StreamHead, event_ref
from refold.events.session import events as ev
from refold.events.session.core import SESSION_CODEC, SESSION_CORE
from refold.events.session.state import SessionState, find_call
from refold.inspection.log_reading import Batches, ReadableLog, opened, session_head
from refold.replay.agent_replay import AgentReplay
from refold.replay.current_agent import AgentsReplay, CurrentAgent
from refold.replay.shadow.process import LogOfParent, Work, in_shadows
from refold.stores.event_store import EventStore
from refold.tools.dry_run import NotComparable
from refold.tools.signature import entry_of

PATIENCE_S: Final = 24 * 3600.0
"""So long a person may stand at a breakpoint."""

Debugged = Callable[[Sequence[Callable[..., Any]], TextIO | None], AbstractContextManager[object]]
"""Runs what is within it under a debugger that stops where one of the functions begins, and uses a terminal; None =
this process's own.
"""


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
        at: version of an event: a call's start or end for the body of its tool, an input or an answer for hooks.
        debugged: the debugger; called in the process in which the step is done.
        deps: what its functions depend on; opened already.
        side_effects: whether the step is done in this process, where code can act, and the body of a tool may run
            whose effect is not `pure`.
        hooks: whether, of a tool's result, its hooks run and not its body.

    Raises:
        ConfigError: there is no such session or event, no code of the agent runs there, or the tool may not run.
    """
    async with opened(log) as store:
        wanted = _Wanted(SessionId(session), at, agent, deps, side_effects, hooks)
        if side_effects:
            return await _done(store, wanted, lambda functions: debugged(functions, None))

        def begin(store: EventStore, page: object) -> Work:
            terminal = ParentTerminal(partial(cast("LogOfParent", store).call, "show"))

            async def work(job: str, gone: object) -> StepDone:
                return await _done(store, wanted, lambda functions: debugged(functions, cast("TextIO", terminal)))

            return work

        served = cast("EventStore", LogWithTerminal(store))
        shadows = in_shadows(served, _only(session), begin, processes=1, answer_s=PATIENCE_S, told=None)
        async with aclosing(shadows) as found:
            done: StepDone = await anext(found)
            return done


class _Wanted(NamedTuple):
    """What is to be done; see `one_step`."""

    session: SessionId
    at: int
    agent: AnyAgent
    deps: object
    side_effects: bool
    hooks: bool


async def _only(job: str) -> AsyncIterator[str]:
    yield job


Stopping = Callable[[Sequence[Callable[..., Any]]], AbstractContextManager[object]]


async def _done(store: EventStore, wanted: _Wanted, debugged: Stopping) -> StepDone:
    head = await session_head(store, wanted.session)
    before = await _before(store, head, wanted)
    place = event_ref(head.stream, wanted.at)
    event = SESSION_CODEC.decode(next(each for each in before.batch if each.version == wanted.at))
    call = getattr(event, "call", None)
    if not wanted.hooks and isinstance(call, str) and _is_of_body(event):
        of = session_context(wanted.session, before.ancestors, before.state)
        return await _body(before, place, event, ToolCallId(call), of, debugged, side_effects=wanted.side_effects)
    functions = functions_of(before.current.agent)
    if not functions:
        raise ConfigError(f"the agent {before.current.agent.name!r} has no hook, policy or prompt function to stop in")
    with debugged(functions):
        found = await before.again.take(before.batch)
    missed = [
        f"not compared: {each.why}"
        for compared in before.agents.findings.comparisons()
        for each in compared.not_compared
    ]
    return StepDone(
        place=event_ref(head.stream, before.batch[0].version),
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


async def _before(store: EventStore, head: StreamHead, wanted: _Wanted) -> _Before:
    agent, at = wanted.agent, wanted.at
    agents = AgentsReplay(store, agent, PATIENCE_S, wanted.deps, lambda _: None)
    state = SESSION_CORE.initial()
    session = SessionId(kind_and_identifier(head.stream)[1])
    ancestors: tuple[SessionId, ...] = ()
    again: AgentReplay | None = None
    current: CurrentAgent | None = None
    async for batch in Batches(store, head.stream):
        events = SESSION_CODEC.decode_all(batch)
        if again is None or current is None:
            name = events[0].agent if isinstance(events[0], ev.SessionOpened) else ""
            current = agents.current(name)
            if current is None:
                raise ConfigError(f"the session is one of the agent {name!r}, and not of {agent.name!r}")
            again = AgentReplay(head.stream, current, agents)
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
    debugged: Stopping,
    *,
    side_effects: bool,
) -> StepDone:
    current, call = before.current, find_call(before.state, name)
    if call is None and isinstance(event, ev.ToolCallStarted):
        raise ConfigError(f"{place} starts a call of the same batch; name the event that ends it")
    if call is None:
        raise ConfigError(f"{place} is of no call of the turn under way")
    tool = current.tools.get(call.name)
    if tool is None:
        raise ConfigError(f"the agent {current.agent.name!r} has no tool {call.name!r} any more")
    if isinstance(tool, SubagentTool):
        raise ConfigError(f"{call.name} is carried out by another agent; debug a step of its session")
    if tool.spec.effect != "pure" and not side_effects:
        raise ConfigError(
            f"the effect of the tool {call.name} is {tool.spec.effect!r}, so its body would act again; --side-effects "
            "runs it nevertheless, and --hooks runs the hooks of its result"
        )
    context = current.context_of(call, of, before.state.at)
    now: Json
    with debugged([entry_of(tool.function)]):
        try:
            gave = await before.agents.dry_run.answer(
                call.name, lambda: current.tools.run_again(tool, call.input, context)
            )
            now = error_words(gave) if isinstance(gave, Exception) else _shown(gave)
        except NotComparable as error:
            now = f"not done: {error}"
        finally:
            current.tools.pool.close()
    recorded = json_of(getattr(event, "content", NOTHING))
    return StepDone(place=place, step=f"body of the tool {call.name}", recorded=recorded, now=now)


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


Show = Callable[[str, bool], str]
"""Shows a text, and returns the line that is typed behind it where one is wanted; the end of the input is no text."""


class LogWithTerminal:
    """A log, and the terminal of this process: what a child process has of its parent."""

    def __init__(self, store: EventStore) -> None:
        self._store = store

    def __getattr__(self, method: str) -> Any:
        return getattr(self._store, method)

    async def show(self, text: str, wants_line: bool) -> str:
        """Show a text, and return the line that is typed behind it, if one is wanted."""
        if wants_line and sys.stdin.isatty():
            try:
                return input(text) + "\n"  # noqa: ASYNC250 - Nothing else goes on meanwhile.
            except EOFError:
                return ""
        sys.stdout.write(text)
        sys.stdout.flush()
        return sys.stdin.readline() if wants_line else ""


class ParentTerminal(io.TextIOBase):
    """The terminal of the parent, as a file to read and to write."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._held = ""

    def write(self, text: str) -> int:
        """Hold a text until it is flushed, or a line is read."""
        self._held += text
        return len(text)

    def flush(self) -> None:
        """Show the lines that are held; what begins another one may be the prompt of what is typed."""
        lines, end, rest = self._held.rpartition("\n")
        self._held = rest
        if end:
            self._show(lines + end, False)

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        """Show what is held, and return what is typed behind it."""
        shown, self._held = self._held, ""
        return self._show(shown, True)
