"""A session goes on from before its first difference, in a child process, on a log in memory.

The agent is today's with three things in their places: its model is asked by the parent, which counts what that costs;
the bodies of its tools do not run, and give what was recorded; and people decide as they did. Its middleware, policy,
prompt function, guardrails, windows and memories run, under the rules of the shadow: they can write nothing and reach
nothing. What they try, and what the log has no answer for, ends the trial of the session there.

The scratch log has what the session was before its first difference, and its memories as they were then. The clock goes
on from that moment.

The rule: nothing is made up. A result is that of a call with the same arguments, else that of the call at the same
place, which is counted; a decision is one about the same call. A tool that may act once gives each of its results
once. What the log does not have ends the trial there.
"""

import asyncio
import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import msgspec

from refold.actors.agent.compaction import Summarising
from refold.actors.agent.subsession import ancestors_of
from refold.actors.calls.middleware import Hooks
from refold.actors.calls.policy import Allow, Decision, Deny
from refold.actors.calls.questions import CallFailed
from refold.actors.calls.results import lost_connection
from refold.actors.calls.tool_context import ToolContext
from refold.actors.kernel.clock import SystemClock
from refold.agents.agent import AgentTool, AnyAgent, HandoffTool, is_agent, with_subagents
from refold.agents.redact import redaction_of_agents
from refold.agents.skill import LOAD_SKILL
from refold.events.core.cleaning import error_words
from refold.events.core.content import ErrorKind, JsonObject, ResultContent, text_of, tool_uses
from refold.events.core.errors import ProviderError, RefoldError
from refold.events.core.ids import AgentId, PayloadHash, SessionId, StreamName, ToolCallId, stream_name
from refold.events.core.records import StreamHead, batch_of
from refold.events.model.configuration import EffectClass, ToolSpec
from refold.events.model.messages import ModelRequest, ModelResponse
from refold.events.secrets.redaction import Redaction
from refold.events.session import events as ev
from refold.events.session.core import SESSION_KIND
from refold.inspection.log_reading import Batches, kind_of
from refold.keeping.belongings import belongings_of
from refold.life.lifecycle import Lifecycle
from refold.lineage.recorded import whole_content
from refold.options import checked_options
from refold.replay.answers.asked import SUMMARIES, BudgetSpent, LogWithModels
from refold.replay.answers.bodies import RecordedBodies
from refold.replay.current_agent import replayed_deps
from refold.replay.trial.beginning import RunAgain, Script
from refold.sessions.access import SessionAccess
from refold.sessions.outcome import Failed, RunResult
from refold.sessions.sent_input import begin
from refold.sessions.session import Session
from refold.stores.event_store import EventStore
from refold.stores.memory import InMemoryStore
from refold.tools.dry_run import tried_acts
from refold.tools.registry import AnyTool

if TYPE_CHECKING:
    from refold.replay.shadow.process import Page


PATIENCE_S = 24 * 3600.0
"""So long messages between actors may take."""


class GivenResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a recorded call had as its result."""

    call: ToolCallId
    arguments: JsonObject
    content: tuple[ResultContent, ...]
    kind: ErrorKind | None
    """Why it failed; None = it did not."""
    ends_run: bool


class _Results:
    """The results of one tool."""

    def __init__(self) -> None:
        self.before: list[GivenResult] = []
        self.behind: list[GivenResult] = []
        self.given: set[ToolCallId] = set()
        self.calls = 0


class RecordedWorld:
    """The results and decisions that a session recorded.

    Attributes:
        guessed: how many calls were given the result of one with other arguments.
    """

    def __init__(self) -> None:
        self.guessed = 0
        self._results: dict[str, _Results] = {}
        self._decisions: dict[str, list[ev.ToolApprovalDecided]] = {}
        self._answered: dict[ToolCallId, GivenResult] = {}

    @classmethod
    async def read(cls, store: EventStore, events: Sequence[ev.SessionEvent], behind: int) -> "RecordedWorld":
        """Return what the events of a session hold.

        Args:
            behind: version of the last event that is not done again.
        """
        world = cls()
        uses: dict[ToolCallId, tuple[str, JsonObject, bool]] = {}
        for version, event in enumerate(events, 1):
            match event:
                case ev.ModelResponded(content=content):
                    uses.update((use.id, (use.name, use.input, version > behind)) for use in tool_uses(content))
                case ev.ToolApprovalDecided(call=call) if call in uses:
                    name, arguments, is_behind = uses[call]
                    if is_behind:
                        world._decisions.setdefault(_key(name, arguments), []).append(event)
                    if event.input is not None:
                        uses[call] = (name, event.input, is_behind)
                case ev.ToolCallCompleted(call=call) | ev.ToolCallFailed(call=call) if call in uses:
                    if isinstance(event, ev.ToolCallFailed) and (not event.started or event.kind == "cancelled"):
                        continue
                    name, arguments, is_behind = uses[call]
                    result = GivenResult(
                        call=call,
                        arguments=arguments,
                        content=await whole_content(
                            store, event.original if event.original is not None else event.content
                        ),
                        kind=event.kind if isinstance(event, ev.ToolCallFailed) else None,
                        ends_run=isinstance(event, ev.ToolCallCompleted) and event.ends_run,
                    )
                    results = world._results.setdefault(name, _Results())
                    (results.behind if is_behind else results.before).append(result)
                case _:
                    pass
        order = {call: place for place, call in enumerate(uses)}
        for results in world._results.values():
            results.behind.sort(key=lambda each: order[each.call])
        return world

    def result(self, call: ToolCallId, tool: str, arguments: JsonObject, effect: EffectClass) -> GivenResult | None:
        """Return what a call is given, each attempt at it the same; None = the log has nothing for it."""
        if call not in self._answered and (found := self._result(tool, arguments, effect)) is not None:
            self._answered[call] = found
            self.guessed += found.arguments != arguments
        return self._answered.get(call)

    def _result(self, tool: str, arguments: JsonObject, effect: EffectClass) -> GivenResult | None:
        results = self._results.get(tool)
        if results is None:
            return None
        place, results.calls = results.calls, results.calls + 1
        same = [each for each in results.behind if each.arguments == arguments]
        found = next((each for each in same if each.call not in results.given), None)
        if found is None and effect != "once":
            same += [each for each in results.before if each.arguments == arguments]
            found = same[-1] if same else None
        if found is None and place < len(results.behind):
            found = results.behind[place]
            if effect == "once" and found.call in results.given:
                return None
        if found is not None:
            results.given.add(found.call)
        return found

    def decision(self, tool: str, arguments: JsonObject) -> Decision | None:
        """Return what people decided about the same call; None = the log does not say."""
        decided = self._decisions.get(_key(tool, arguments))
        if not decided:
            return None
        event = decided.pop(0) if len(decided) > 1 else decided[0]
        if not event.allowed:
            return Deny(event.reason)
        return Allow(always=event.always, arguments=event.input)


def _key(tool: str, arguments: JsonObject) -> str:
    return msgspec.json.encode((tool, arguments), order="sorted").decode()


class ModelSaid(msgspec.Struct, frozen=True, kw_only=True):
    """What the parent says of a model call."""

    response: ModelResponse | None = None
    failure: dict[str, Any] | None = None
    """Arguments of the ProviderError that it raised, its message under `message`."""
    spent: str | None = None
    """Why the model was not asked any more."""


class LogAndModel(LogWithModels):
    """A log, and the models whose failures a session that goes on answers as ever."""

    async def ask_model(self, agent: str, request: ModelRequest) -> ModelSaid:
        try:
            return ModelSaid(response=await self._models[agent].complete(request))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return ModelSaid(failure={"message": "the provider let out a CancelledError of its own"})
        except BudgetSpent as error:
            return ModelSaid(spent=str(error))
        except Exception as error:  # noqa: BLE001 - The border to the provider, which is user code.
            failed = error if isinstance(error, ProviderError) else lost_connection(error)
            failed = failed or ProviderError(error_words(error))
            return ModelSaid(failure={"message": str(failed), **vars(failed)})


class Stopped(msgspec.Struct, frozen=True):
    """Why a trial goes no further."""

    why: str
    by_budget: bool = False


class WentOn(msgspec.Struct, frozen=True, kw_only=True):
    """How far a session went."""

    scratch: InMemoryStore
    steps: int
    """That were done to their ends."""
    stopped: Stopped | None
    acts: tuple[str, ...]
    guessed: int


class _Trial:
    """What the parts of one trial share."""

    def __init__(self, page: "Page", place: str, given: ModelResponse | None, world: RecordedWorld) -> None:
        self.page = page
        self.place = place
        self.given = given
        self.world = world
        self.acts: list[str] = []
        self.progress = 0
        self.stopped: asyncio.Future[Stopped] = asyncio.get_running_loop().create_future()

    def begin(self) -> None:
        """Say that code of the agent may run now."""
        self.progress += 1
        self.page.tell(self.place)

    def stop(self, why: str, *, by_budget: bool = False) -> None:
        if not self.stopped.done():
            self.stopped.set_result(Stopped(why, by_budget))

    async def stop_here(self, why: str, *, by_budget: bool = False) -> Any:
        """End the trial; what asked waits until it is closed."""
        self.stop(why, by_budget=by_budget)
        await asyncio.get_running_loop().create_future()

    def note_acts(self) -> bool:
        """Return whether the agent's code has tried anything outside, which ends the trial."""
        tried = tried_acts()
        self.acts += [str(each) + (f" {each.on}" if each.on else "") for each in tried]
        if self.acts:
            self.stop(f"the agent's code needs something outside: {self.acts[0]}")
        return bool(self.acts)


class _ParentsModel:
    """A provider that has the parent ask the agent's own."""

    def __init__(self, agent: str, log: LogAndModel, trial: _Trial) -> None:
        self._agent, self._log, self._trial = agent, log, trial

    async def complete(self, request: ModelRequest) -> ModelResponse:
        trial = self._trial
        if trial.stopped.done() or trial.note_acts():
            await asyncio.get_running_loop().create_future()
        given, trial.given = trial.given, None
        if given is not None:
            return given
        trial.page.tell("")  # The model may take its time.
        answer = await self._log.ask_model(
            self._agent, msgspec.structs.replace(request, messages=tuple(request.messages))
        )
        trial.begin()
        if answer.spent is not None:
            await trial.stop_here(answer.spent, by_budget=True)
        if answer.failure is not None:
            raise ProviderError(**answer.failure)
        assert answer.response is not None
        return answer.response


class _RecordedBodies(RecordedBodies):
    """Tools whose bodies do not run; those of Refold's own that act on nothing do."""

    def __init__(self, agent: AnyAgent, hooks: Hooks | None, redaction: Redaction, trial: _Trial) -> None:
        super().__init__(agent, hooks or Hooks(()), redaction, keeps=agent.keep_originals)
        self._trial = trial
        self._has_skills = bool(agent.skills)

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return the descriptions of all tools; a recorded failure is the last one, and not tried again."""
        return tuple(msgspec.structs.replace(spec, retries=msgspec.UNSET) for spec in super().specs())

    async def _given(
        self, tool: AnyTool | None, name: str, arguments: JsonObject, context: ToolContext[object]
    ) -> object:
        self._trial.begin()
        if tool is not None and (isinstance(tool, HandoffTool) or (name == LOAD_SKILL and self._has_skills)):
            return await tool.run_body(arguments, context, self.pool)
        effect = tool.spec.effect if tool is not None else "once"
        found = self._trial.world.result(context.call, name, arguments, effect)
        if found is None:
            shown = msgspec.json.encode(arguments).decode()
            await self._trial.stop_here(f"the log has no result for {name} with {shown:.200}")
            raise AssertionError("unreachable")
        if found.kind is not None:
            raise CallFailed(text_of(found.content), result_kind=found.kind)
        if found.ends_run:
            context.finished = text_of(found.content)
        return found.content or None


class _ClockOfThen(SystemClock):
    """The machine's clock, set to a moment of the log."""

    def __init__(self, now_us: int) -> None:
        self._behind_us = super().now_us() - now_us

    def now_us(self) -> int:
        return super().now_us() - self._behind_us


async def go_on(
    log: EventStore,
    model: LogAndModel,
    head: StreamHead,
    script: Script,
    world: RecordedWorld,
    agent: AnyAgent,
    deps: object,
    page: "Page",
    silence_s: float,
) -> WentOn:
    """Have a session go on from before its first difference, and return how far it went.

    Args:
        page: is told when code of the agent may run.
        silence_s: after so many seconds in which nothing happens the trial ends.
    """
    session = SessionId(head.stream.partition("/")[2])
    trial = _Trial(page, f"session {session}", script.given, world)
    scratch = await _scratch_of(log, head, session, script)
    tried_acts()
    steps = 0
    try:
        lifecycle = _lifecycle(agent, scratch, model, trial, deps, script)
        await lifecycle.open()
        lifecycle.context.dependencies.main = replayed_deps(agent, agent, deps)
        for each in with_subagents(agent)[1:]:
            lifecycle.context.dependencies.of_agents[AgentId(each.name)] = replayed_deps(each, agent, deps)
    except RefoldError as error:
        return WentOn(scratch=scratch, steps=0, stopped=Stopped(f"{error}"), acts=tuple(trial.acts), guessed=0)
    trial.begin()
    ticking = asyncio.ensure_future(_watch(lifecycle, session, trial, silence_s))
    try:
        for number, step in enumerate(script.steps):
            doing = asyncio.ensure_future(_do(lifecycle, session, step, log, is_first=number == 0))
            first: list[asyncio.Future[Any]] = [doing, trial.stopped]
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                doing.cancel()
                await asyncio.wait([doing])
                break
            if (failure := doing.exception()) is not None:
                if not isinstance(failure, RefoldError):
                    raise failure
                trial.stop(str(failure))
                break
            ended = doing.result().outcome
            if isinstance(ended, Failed) and ended.error.kind == "provider":
                trial.stop(f"the model could not be asked: {ended.error.message}")
            if trial.note_acts() or trial.stopped.done():
                break
            steps += 1
    finally:
        ticking.cancel()
        await asyncio.wait([ticking])
        await lifecycle.close(cancel=False)
        page.tell("")
    stopped = trial.stopped.result() if trial.stopped.done() else None
    if stopped is None and script.why:
        stopped = Stopped(script.why)
    return WentOn(scratch=scratch, steps=steps, stopped=stopped, acts=tuple(trial.acts), guessed=world.guessed)


async def _do(
    lifecycle: Lifecycle, session: SessionId, step: RunAgain, log: EventStore, *, is_first: bool
) -> RunResult[Any]:
    context = lifecycle.context
    if not step.content:
        handle = Session[object](context, session)
        if is_first:
            await handle.resume()
        return await (await handle.run(step.run)).result()
    said = await whole_content(log, step.content)
    sent = begin(SessionAccess(context, session), said, cancel=None, key=None, options=step.options)
    await sent.done()
    return sent.result()


async def _watch(lifecycle: Lifecycle, session: SessionId, trial: _Trial, silence_s: float) -> None:
    """Show that the loop runs, and end a trial in which nothing happens any more."""
    access = SessionAccess(lifecycle.context, session)
    ticks = 4
    silent, seen = 0, (0, 0)
    while True:
        await asyncio.sleep(silence_s / ticks)
        trial.page.tell(trial.place)
        try:
            version, waits = await access.read(
                lambda state: (state.version, state.run is not None and state.run.phase == "waiting"), vital=True
            )
        except RefoldError as error:
            trial.stop(str(error))
            return
        now = (version, trial.progress)
        silent, seen = 0 if waits or now != seen else silent + 1, now
        if silent > ticks:
            trial.stop(f"nothing happened for {silence_s:g} seconds")


def _lifecycle(
    agent: AnyAgent, scratch: InMemoryStore, model: LogAndModel, trial: _Trial, deps: object, script: Script
) -> Lifecycle:
    made: dict[int, AnyAgent] = {}
    tried = _tried(agent, model, trial, made)
    options = checked_options(
        {
            "log": scratch,
            "auto_resume": False,
            "ask_timeout_s": PATIENCE_S,  # The loop stands still while the model is asked.
            "snapshot_every": None,
            "passivate_after_s": None,
            "cancel_grace_s": 0.05,
            "close_grace_s": 0.05,
            "clock": _ClockOfThen(script.time),
        }
    )
    lifecycle = Lifecycle(tried, options)
    lifecycle.agents.redaction = redaction_of_agents(with_subagents(agent))  # Knows the keys of the real providers.
    for each in lifecycle.agents:
        each.tools = _RecordedBodies(each.agent, each.hooks, lifecycle.agents.redaction, trial)
    return lifecycle


def _tried(agent: AnyAgent, model: LogAndModel, trial: _Trial, made: dict[int, AnyAgent]) -> AnyAgent:
    """Return an agent whose model is asked by the parent, and whose approvals are those of the log."""
    if id(agent) in made:
        return made[id(agent)]

    async def decide(session: SessionId, request: ev.ToolApprovalRequested) -> Decision | None:
        decision = trial.world.decision(request.tool, request.input)
        if decision is None:
            shown = msgspec.json.encode(request.input).decode()
            trial.stop(f"{request.tool} with {shown:.200} waits for approval, about which nobody decided then")
        return decision

    def leading(tool: object) -> Any:
        led = cast("AgentTool[..., object]", tool) if isinstance(tool, AgentTool) else None
        if led is None or isinstance(led.agent, str):
            return cast("Any", tool)
        return replace(led, agent=_tried(led.agent, model, trial, made))

    tools = [leading(tool) for tool in agent.tools]
    handoffs = [_tried(given, model, trial, made) if is_agent(given) else leading(given) for given in agent.handoffs]
    window = agent.context
    if isinstance(window, Summarising) and window.provider is not None:
        window = copy.copy(window)
        window.provider = _ParentsModel(agent.name + SUMMARIES, model, trial)
    made[id(agent)] = msgspec.structs.replace(
        agent,
        provider=_ParentsModel(agent.name, model, trial),
        context=window,
        approval=decide,
        deps=None,
        tools=tools,
        handoffs=handoffs,
    )
    return made[id(agent)]


async def _scratch_of(log: EventStore, head: StreamHead, session: SessionId, script: Script) -> InMemoryStore:
    """Return a log in memory with a session up to a version, and what its memories held at that time."""
    scratch = _Scratch(log)
    await _copy(log, scratch, head.stream, until=lambda batch: batch[-1].version <= script.at)
    [first] = await log.read_stream(head.stream, limit=1)
    above = [stream_name(SESSION_KIND, each) for each in await ancestors_of(log, session, first)]
    memories = [each for each in (await belongings_of(log, [session])).streams if kind_of(each) != SESSION_KIND]
    for stream in (*above, *memories):  # A session that a call began goes on while that call is open.
        await _copy(log, scratch, stream, until=lambda batch: batch[-1].position <= script.position)
    return scratch


class _Scratch(InMemoryStore):
    """A log in memory that has the payloads of another one, too."""

    def __init__(self, origin: EventStore) -> None:
        super().__init__()
        self._origin = origin

    async def read_payloads(self, hashes: Iterable[PayloadHash]) -> dict[PayloadHash, bytes]:
        wanted = list(hashes)
        own = await super().read_payloads(wanted)
        return own | await self._origin.read_payloads([each for each in wanted if each not in own])


async def _copy(
    log: EventStore, scratch: InMemoryStore, stream: StreamName, until: Callable[[Sequence[Any]], bool]
) -> None:
    async for batch in Batches(log, stream):
        if not until(batch):
            return
        await scratch.append([msgspec.structs.replace(batch_of(batch), stream=stream)])
