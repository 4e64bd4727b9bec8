"""What an application depends on: opened with the runtime, given to its functions, and another for a session or run."""

import asyncio
import contextlib
import gc
import logging
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

import refold
from refold import Agent, AgentConfig, AgentRuntime, ConfigError, HookContext, RunContext, ScriptedProvider, use
from refold.actors import ManualClock
from refold.events import ToolSpec
from refold.events.core.content import text_of
from refold.events.session import events as ev
from refold.replay import replay
from refold.stores import EventStore, InMemoryStore
from tests.conformance.agents.delegating import agent_of, waiting_in
from tests.conformance.agents.delegating import asking as asked_of
from tests.conformance.crashes import CutStore
from tests.conformance.sessions import HOOKS, Hooked, happened, runtime_of, session_in

CONFIG = AgentConfig(model="m", system_prompt="")


class Desk:
    """What the tests' tools work with."""

    def __init__(self, name: str = "desk") -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


@refold.tool(tier="observe", effect="pure")
async def ask(context: refold.ToolContext[Desk]) -> str:
    """Say whose desk it is."""
    return context.deps.name


@refold.tool(tier="observe", effect="pure")
def ask_in_a_thread() -> str:
    """Say whose desk it is."""
    return str(refold.current_context().deps)


def asking(**parts: Any) -> Agent:
    """Return an agent that calls a tool once in each of many runs, and says what the tool said."""
    return Agent(config=CONFIG, provider=Echo(), tools=parts.pop("tools", [ask]), **parts)


class Echo:
    """Calls the first tool, and then says what that has said."""

    async def complete(self, request: refold.ModelRequest) -> refold.ModelResponse:
        last = request.messages[-1]
        results = [block for block in last.content if isinstance(block, refold.ToolResultBlock)]
        if not results:
            return refold.ModelResponse(content=(refold.ToolUse(name=request.tools[0].name),), stop_reason="tool_use")
        return refold.ModelResponse(content=(refold.TextBlock(text=text_of(results[0].content)),))


def desk_in(seen: list[str], name: str = "desk") -> Callable[[], contextlib.AbstractAsyncContextManager[Desk]]:
    @asynccontextmanager
    async def open_desk() -> AsyncIterator[Desk]:
        entered = asyncio.current_task()
        with plain_desk_in(seen, name)() as desk:
            yield desk
            assert asyncio.current_task() is entered, "as the cancel scopes of anyio insist on"

    return open_desk


def plain_desk_in(seen: list[str], name: str = "desk") -> Callable[[], contextlib.AbstractContextManager[Desk]]:
    @contextlib.contextmanager
    def open_desk() -> Iterator[Desk]:
        seen.append(f"{name} opens")
        try:
            yield Desk(name)
        finally:
            seen.append(f"{name} closes")

    return open_desk


async def _made() -> Desk:
    return Desk()


@pytest.mark.parametrize(
    ("deps", "happens"),
    [
        (lambda seen: Desk(), []),
        (lambda seen: lambda: Desk(), []),
        (lambda seen: Desk, []),
        (lambda seen: partial(Desk, "desk"), []),
        (lambda seen: _made, []),
        (lambda seen: desk_in(seen), ["desk opens", "desk closes"]),
        (lambda seen: desk_in(seen)(), ["desk opens", "desk closes"]),
        (lambda seen: plain_desk_in(seen), ["desk opens", "desk closes"]),
        (lambda seen: plain_desk_in(seen)(), ["desk opens", "desk closes"]),
    ],
    ids=[
        *("value", "function", "class", "partial", "async function", "function of a manager", "manager"),
        *("function of a plain manager", "plain manager"),
    ],
)
async def test_deps_are_opened_once_with_a_runtime_and_closed_with_it(
    deps: Callable[[list[str]], object], happens: list[str], log: EventStore
) -> None:
    seen: list[str] = []
    async with AgentRuntime(asking(deps=deps(seen)), log=log) as runtime:
        for name in ("a", "b"):
            assert (await (await runtime.session(name)).send("Who?")).text == "desk"
        assert seen == happens[:1]
    assert seen == happens


async def test_a_tool_is_over_before_deps_close_and_a_runtime_that_was_given_some_opens_those_instead() -> None:
    seen: list[str] = []

    @refold.tool
    async def work(context: refold.ToolContext[Desk]) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(f"{context.deps} is left")
        return ""

    agent = asking(deps=desk_in(seen, "agent's"), tools=[work])
    async with session_in(AgentRuntime(agent, deps=desk_in(seen, "runtime's")), "a") as (runtime, session):
        sending = asyncio.ensure_future(session.send("Work"))
        await happened(session, ev.ToolCallStarted)
        await asyncio.sleep(0)
        await runtime.close(cancel=True)
        await sending
    assert seen == ["runtime's opens", "runtime's is left", "runtime's closes"]


@pytest.mark.parametrize("tool", [ask, ask_in_a_thread])
async def test_an_input_has_its_own_deps_before_its_sessions_and_these_before_the_agents(
    tool: refold.Tool[..., object], log: EventStore
) -> None:
    async with AgentRuntime(asking(deps=Desk("agent's"), tools=[tool]), log=log) as runtime:
        plain, own = await runtime.session("a"), await runtime.session("a", deps=Desk("session's"))
        run = Desk("run's")
        assert (await plain.send("Who?")).text == "agent's"
        assert (await own.send("Who?")).text == "session's"
        assert (await own.send("Who?", deps=run)).text == "run's"
        async with own.stream("Who?", deps=run) as stream:
            async for _ in stream:
                pass
        assert stream.result.text == "run's"
        assert (await own.next_turn("Who?", deps=run)).result is None
        ended = await own.next_turn()
        assert ended.result is not None
        assert ended.result.text == "run's"
        assert (await plain.send("Who?")).text == "agent's", "nothing is left of what other runs had"


async def test_an_input_with_deps_says_whose_its_session_is_and_functions_are_told() -> None:
    seen: list[tuple[str | None, dict[str, str]]] = []

    def see(context: HookContext | RunContext[Desk], _: object = None) -> None:
        seen.append((context.user, dict(context.metadata)))

    def prompt(context: RunContext[Desk]) -> str:
        see(context)
        return f"You serve {context.user}."

    store = InMemoryStore()
    doorman, config = Hooked(on_user_message=see, on_tool_result=see), AgentConfig(model="m", system_prompt=prompt)
    agent = Agent(config=config, provider=Echo(), tools=[ask], middleware=[doorman])
    async with AgentRuntime(agent, log=store) as runtime:
        session = await runtime.session("a", user="ann", metadata={"plan": "free"})
        assert (await session.send("Who?", deps=Desk("ann's"))).text == "ann's"
        described = await session.metadata()
        assert described is not None
        assert described.user == "ann"
        assert (await (await runtime.session("a", metadata={"plan": "gold"})).send("Who?", deps=Desk())).text == "desk"
        await session.send("Who?", deps=Desk())
    assert seen == [("ann", {"plan": "free"})] * 4 + [("ann", {"plan": "gold"})] * 8
    (await replay(store, agent=agent, deps=Desk())).raise_for_divergence()


async def test_all_times_of_a_reminder_have_the_deps_that_it_was_given_until_it_is_cancelled() -> None:
    clock, said = ManualClock(), list[str]()

    @refold.tool(tier="observe", effect="pure")
    async def note(context: refold.ToolContext[Desk]) -> str:
        said.append(context.deps.name)
        return ""

    async with AgentRuntime(asking(deps=Desk("agent's"), tools=[note]), clock=clock) as runtime:
        desk = Desk("reminder's")
        kept = weakref.ref(desk)
        own = await runtime.session("a", deps=desk)
        run = await own.remind("Who?", every=timedelta(hours=1))
        for _ in range(2):
            await clock.advance(3_600)
        session = await runtime.session("a")
        await session.send("Who?")
        await session.cancel(run=run)
        del desk, own
        gc.collect()
        assert kept() is None
    assert said == ["reminder's", "reminder's", "agent's"]


async def test_what_a_deleted_session_would_have_depended_on_is_let_go() -> None:
    async with AgentRuntime(asking(deps=Desk("agent's"))) as runtime:
        desk = Desk("reminder's")
        kept = weakref.ref(desk)
        own = await runtime.session("a", deps=desk)
        await own.remind("Who?", every=timedelta(days=1))
        await runtime.delete("a", cancel=True)
        del desk, own
        gc.collect()
        assert kept() is None


async def test_many_runs_at_once_have_each_their_own(log: EventStore) -> None:
    async with AgentRuntime(asking(deps=Desk("agent's")), log=log) as runtime:

        async def sent(name: str, number: int) -> tuple[str, str]:
            session = await runtime.session(name)
            deps = Desk(f"{name}{number}") if number % 3 else None
            result = await session.send(f"Who {number}?", key=f"k{number}", deps=deps)
            return result.text, "agent's" if deps is None else deps.name

        told = await asyncio.gather(*(sent(name, number) for name in "abcd" for number in range(12)))
    assert [said for said, _ in told] == [wanted for _, wanted in told]


async def test_what_a_run_depended_on_is_let_go_when_it_is_over(log: EventStore) -> None:
    async with session_in(AgentRuntime(asking(), log=log), "a") as (runtime, session):
        kept: list[weakref.ref[Desk]] = []

        async def sent(**given: Any) -> None:
            desk = Desk()
            kept.append(weakref.ref(desk))
            await session.send("Who?", deps=desk, **given)

        cancelled = refold.CancellationToken()
        cancelled.cancel()
        await sent(key="k")
        await sent(key="k")
        await sent(cancel=cancelled)
        for ends in ("while it waits for its time", "at its time"):
            desk = Desk()
            kept.append(weakref.ref(desk))
            own = await runtime.session("a", deps=desk)
            later = datetime.now(UTC) + timedelta(days=ends == "while it waits for its time")
            run = await own.remind("Who?", at=later, key=ends)
            if later > datetime.now(UTC):
                await own.cancel(run=run)
            else:
                assert (await session.send("Who?", key=ends)).text == "desk"
            del desk, own
        gc.collect()
        assert [desk() for desk in kept] == [None] * 5


async def test_all_functions_of_an_application_see_the_deps_of_the_run_that_they_are_called_for() -> None:
    seen: dict[str, object] = {}

    def note(what: str, answer: Any = None) -> Any:
        context = refold.current_context()
        assert context.session == "a"
        seen[what] = context.deps
        return answer

    def see_hook(hook: str, context: HookContext, _: object) -> None:
        assert refold.current_context().deps is context.deps
        seen[hook] = context.deps

    class Memory:
        async def look(self, agent: str, query: str, limit: int) -> Sequence[Any]:
            found: Sequence[Any] = note("memory", [])
            return found

        def note_recalled(self, ids: object, key: str | None = None) -> None: ...

        async def prompt_text(self) -> str:
            return str(note("working memory", ""))

    class Model(Echo):
        async def complete(self, request: refold.ModelRequest) -> refold.ModelResponse:
            note("provider")
            return await super().complete(request)

    def prompt(context: RunContext[Desk]) -> str:
        assert (context.session, context.run, context.turn > 0) == ("a", "run_3", True)
        seen["system_prompt"] = context.deps
        return f"You work at {context.deps.name}."

    def policy(call: refold.ProposedCall) -> refold.Ask:
        seen["policy"] = call.deps
        return refold.Ask()

    def offer(session: str, spec: ToolSpec) -> bool:
        return bool(note("offer", True))

    agent = Agent(
        config=AgentConfig(model="m", system_prompt=prompt),
        provider=Model(),
        tools=[ask],
        policy=policy,
        approval=lambda session, request: note("approval", refold.Allow()),
        offer=offer,
        middleware=[Hooked(**{hook: partial(see_hook, hook) for hook in HOOKS})],
        memory=Memory(),
        working_memory=Memory(),
        deps=Desk("agent's"),
    )
    async with AgentRuntime(agent) as runtime:
        desk = Desk("run's")
        assert (await (await runtime.session("a")).send("Who?", deps=desk)).text == "run's"
    functions = ["memory", "working memory", "provider", "system_prompt", "policy", "approval", "offer"]
    assert seen == dict.fromkeys([*HOOKS, *functions], desk)
    with pytest.raises(ConfigError, match="for a run"):
        refold.current_context()


@pytest.mark.parametrize(("own", "said"), [(None, "run's"), (Desk("helper's"), "helper's")])
async def test_a_subagent_has_deps_of_its_own_or_those_of_the_call(
    own: Desk | None, said: str, log: EventStore
) -> None:
    helper = asking(name="helper", deps=own)
    main = Agent(
        config=CONFIG,
        provider=ScriptedProvider([use("helper", {"task": "Who?"}), refold.say("Done.")]),
        tools=[helper.as_tool()],
        deps=Desk("agent's"),
    )
    async with session_in(AgentRuntime(main, log=log), "a") as (_, session):
        await session.send("Have it asked", deps=Desk("run's"))
        (child,) = await session.children()
        history = await child.history()
    assert history[-1].text == said


async def test_one_source_is_opened_once_for_all_agents_that_have_it() -> None:
    seen: list[str] = []
    open_desk = desk_in(seen)
    helper = asking(name="helper", deps=open_desk)
    async with AgentRuntime(asking(deps=open_desk, tools=[helper.as_tool()])):
        assert seen == ["desk opens"]
    assert seen == ["desk opens", "desk closes"]


async def cut_log(agent: Agent, at: int) -> InMemoryStore:
    """Return a log that a run with deps of its own has left, with nothing behind one of its appends."""
    store = InMemoryStore()
    cut = CutStore(store, at=at, when="after")
    async with session_in(AgentRuntime(agent, log=cut, close_grace_s=0, cancel_grace_s=0), "a") as (_, session):
        sending = asyncio.ensure_future(session.send("Who?", key="k", deps=Desk("run's")))
        await cut.off.wait()
    with pytest.raises(refold.RefoldError):
        await sending
    return store


GOES_ON: dict[str, tuple[dict[str, Any], Callable[[AgentRuntime], Any], str]] = {
    "by itself": ({}, lambda runtime: runtime.session("a"), "agent's"),
    "by a session with deps": (
        {"auto_resume": False},
        lambda runtime: runtime.session("a", deps=Desk("session's")),
        "session's",
    ),
}


@pytest.mark.parametrize("how", GOES_ON)
async def test_a_run_that_goes_on_after_a_crash_has_the_deps_that_it_is_given_then_or_its_agents(how: str) -> None:
    options, session_of, said = GOES_ON[how]
    agent = asking(deps=Desk("agent's"))
    store = await cut_log(agent, at=4)  # The answer that asks for the call is the last thing in the log.
    async with AgentRuntime(agent, log=store, **options) as runtime:
        session = await session_of(runtime)
        if options:
            await session.resume()
        assert (await session.send("Who?", key="k")).text == said


async def test_an_input_that_is_sent_again_after_a_crash_brings_its_deps_again() -> None:
    gate = asyncio.Event()

    @refold.tool(tier="observe", effect="pure")
    async def ask_later(context: refold.ToolContext[Desk]) -> str:
        if context.deps.name == "agent's":
            await gate.wait()  # As it would not, had the input not been sent again by then.
        return context.deps.name

    agent = asking(deps=Desk("agent's"), tools=[ask_later])
    store = await cut_log(agent, at=3)
    async with session_in(AgentRuntime(agent, log=store, auto_resume=False), "a") as (_, session):
        sending = asyncio.ensure_future(session.send("Who?", key="k", deps=Desk("run's")))
        await asyncio.sleep(0)
        await session.resume()
        assert (await sending).text == "run's"


@pytest.mark.parametrize("auto_resume", [True, False])
@pytest.mark.parametrize("through", ["its own session", "the session above"])
@pytest.mark.parametrize(
    ("callers", "own", "said"),
    [
        (None, None, "person's"),
        (Desk("caller's"), None, "person's"),
        (None, Desk("helper's"), "person's or helper's"),
    ],
)
async def test_a_decision_about_the_call_of_a_child_brings_its_deps_after_a_restart(
    callers: Desk | None, own: Desk | None, said: str, through: str, auto_resume: bool
) -> None:
    store, clock = InMemoryStore(), ManualClock()
    helper = asking(name="helper", deps=own, policy=lambda call: refold.Ask())
    caller = agent_of("caller", asked_of("helper"), refold.say("Done."), tools=[helper.as_tool()], deps=callers)
    main = agent_of("main", asked_of("caller"), refold.say("Done."), tools=[caller.as_tool(), ask], deps=Desk())
    async with session_in(AgentRuntime(main, log=store, clock=clock), "a") as (_, session):
        sending = asyncio.ensure_future(session.send("Have it asked", key="k", deps=Desk("run's")))
        await waiting_in(session, clock)
    with pytest.raises(refold.ActorStopped):
        await sending
    async with AgentRuntime(main, log=store, clock=clock, auto_resume=auto_resume) as runtime:
        session = await runtime.session("a", deps=Desk("person's"))
        [asked] = await waiting_in(session, clock)
        child = await runtime.session(asked.session, deps=Desk("person's"))
        await (session if through == "the session above" else child).decide(asked, allow=True)
        plain = await runtime.session("a")
        if not auto_resume:
            await plain.resume()
        await (await plain.run(key="k")).result()
        history = await child.history()
    assert history[-1].text == {"its own session": said.split(" or ")[0]}.get(through, said.split(" or ")[-1])


async def _no_decorator() -> AsyncIterator[Desk]:
    yield Desk()


def _broken() -> Desk:
    raise ValueError("no database")


def _raising(error: BaseException) -> Callable[[], Desk]:
    def open_desk() -> Desk:
        raise error

    return open_desk


class _UnsayableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot be said")


@asynccontextmanager
async def _broken_manager() -> AsyncIterator[Desk]:
    raise OSError("no network")
    yield Desk()


@pytest.mark.parametrize(
    ("deps", "words"),
    [
        (
            lambda: _broken,
            r"the deps of the agent 'agent' cannot be opened at .*test_dependencies.py:\d+: ValueError: no database$",
        ),
        *(
            (lambda error=error: _raising(error), rf"the deps of the agent 'agent' cannot be opened at .*: {said}$")
            for error, said in (
                (SystemExit(3), "SystemExit: 3"),
                (asyncio.CancelledError(), "CancelledError"),
                (BaseExceptionGroup("two", [SystemExit(1)]), r"BaseExceptionGroup: two \(1 sub-exception\)"),
                (_UnsayableError(), r"_UnsayableError: \(its text cannot be had: RuntimeError\)"),
            )
        ),
        (lambda: _broken_manager, r"cannot be opened at .*: OSError: no network$"),
        (lambda: _no_decorator, "are a generator; put @asynccontextmanager above the function"),
        (lambda: _made(), "are a coroutine; give the function"),
        (lambda: lambda needed: needed, r"cannot be opened.*: TypeError: .*needed"),
    ],
)
async def test_a_runtime_whose_deps_cannot_be_opened_says_why_and_closes_what_was_open(
    deps: Callable[[], object], words: str
) -> None:
    seen: list[str] = []
    helper, store = asking(name="helper", deps=deps()), InMemoryStore()
    for agent in (asking(deps=helper.deps), asking(deps=desk_in(seen), tools=[helper.as_tool()])):
        told = words if agent.tools == [ask] else words.replace("'agent'", "'helper'")
        with pytest.raises(ConfigError, match=told):
            await AgentRuntime(agent, log=store).open()
    assert seen == ["desk opens", "desk closes"]
    async with AgentRuntime(asking(deps=Desk()), log=store) as runtime:  # Nothing holds the log.
        assert (await (await runtime.session("a")).send("Who?")).text == "desk"


async def test_a_manager_that_can_be_entered_once_only_says_so_the_second_time() -> None:
    agent = asking(deps=desk_in([])())
    async with AgentRuntime(agent):
        pass
    with pytest.raises(ConfigError, match="the function that makes it: deps=open_deps"):
        await AgentRuntime(agent).open()


@pytest.mark.parametrize("ends", ["raises", "exits", "hangs"])
async def test_deps_that_do_not_close_keep_no_runtime_open(ends: str, caplog: pytest.LogCaptureFixture) -> None:
    clock, hanging = ManualClock(), asyncio.Event()

    @asynccontextmanager
    async def open_desk() -> AsyncIterator[Desk]:
        yield Desk()
        if ends == "raises":
            raise ValueError("cannot close")
        if ends == "exits":
            raise SystemExit(3)
        hanging.set()
        await asyncio.Event().wait()

    runtime = AgentRuntime(asking(deps=open_desk), clock=clock, close_grace_s=3)
    await runtime.open()
    with caplog.at_level(logging.WARNING, logger="refold"):
        closing = asyncio.ensure_future(runtime.close())
        if ends == "hangs":
            await hanging.wait()
            await clock.advance(3)
        await closing
    assert ("did not close in order" in caplog.text) == (ends != "hangs")


async def test_a_runtime_that_is_cancelled_while_its_deps_open_lets_go_of_the_log() -> None:
    begun, seen, store = asyncio.Event(), list[str](), InMemoryStore()

    @asynccontextmanager
    async def open_desk() -> AsyncIterator[Desk]:
        try:
            begun.set()
            await asyncio.Event().wait()
            yield Desk()
        finally:
            seen.append("left")

    opening = asyncio.ensure_future(AgentRuntime(asking(deps=open_desk), log=store).open())
    await begun.wait()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert seen == ["left"]
    async with AgentRuntime(asking(deps=Desk()), log=store):
        pass


async def test_deps_that_other_code_closes_by_cancelling_all_tasks_are_opened_again() -> None:
    opened: asyncio.Queue[Desk] = asyncio.Queue()

    @asynccontextmanager
    async def open_desk() -> AsyncIterator[Desk]:
        desk = Desk()
        opened.put_nowait(desk)
        yield desk

    async with AgentRuntime(asking(deps=open_desk)) as runtime:
        first = await opened.get()
        (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "what agents depend on"]
        task.cancel()
        assert await opened.get() is not first
        assert (await (await runtime.session("a")).send("Who?")).text == "desk"


async def test_a_tool_that_works_with_deps_does_not_run_without_and_the_run_fails(log: EventStore) -> None:
    @refold.tool
    def may_do_without(context: refold.ToolContext[Desk | None]) -> str:
        return f"{context.deps}"

    async with runtime_of(
        log, use("ask", {}), use("may_do_without", {}), "Done.", tools=[ask, may_do_without]
    ) as runtime:
        session = await runtime.session("a")
        failed = await session.send("Who?")
        assert isinstance(failed.outcome, refold.Failed)
        assert "the tool ask works with deps of the type Desk, and there are none; give Agent(deps=…)" in str(
            failed.outcome.error
        )
        assert isinstance((await session.send("Then do without")).outcome, refold.Completed)


@pytest.mark.parametrize("how", ["resume", "decide"])
async def test_a_call_that_waited_for_a_person_over_a_restart_has_the_deps_of_the_session_that_decides(
    how: str,
) -> None:
    @refold.tool(tier="confirm", effect="pure")
    async def pay(context: refold.ToolContext[Desk]) -> str:
        return context.deps.name

    store, agent = InMemoryStore(), asking(deps=Desk("agent's"), tools=[pay])
    async with session_in(AgentRuntime(agent, log=store), "a") as (_, session):
        sending = asyncio.ensure_future(session.send("Pay", deps=Desk("run's")))
        await happened(session, ev.ToolApprovalRequested)
    with pytest.raises(refold.ActorStopped):
        await sending
    async with AgentRuntime(agent, log=store, auto_resume=how != "resume") as runtime:
        session = await runtime.session("a", deps=Desk("session's"))
        if how == "resume":
            await session.resume()
            session = await runtime.session("a")
        (waiting,) = await session.approvals()
        await session.decide(waiting, allow=True)
        await happened(session, ev.RunCompleted)
        history = await session.history()
    assert history[-1].text == "session's"
