"""Cases of conformance: what is done to one session, and what its caller, its history, its log and its model then show.

Each case is played live, and a new runtime that reads its log shows the same. Where each step may be done again (it
asks for no time, no restart and no second turn), the case is also played with a crash after each of its commits: the
steps are then done from the beginning by a caller who does not know how far he came, and nothing may differ.

Read `Case` first; what is done is in `tests.conformance.steps`.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import pytest

import refold
from refold.actors import ManualClock
from refold.events import SESSION_CODEC
from refold.stores import EventStore, InMemoryStore
from tests.conformance import sessions
from tests.conformance.failing_store import FailingStore

BEGINNING = datetime(2030, 1, 1, tzinfo=UTC)
"""What the clock of a case says at first, if the case has one."""


def after(seconds: float) -> datetime:
    return BEGINNING + timedelta(seconds=seconds)


@dataclass(frozen=True)
class Held:
    """An answer of the script that comes when it is let go."""

    answer: Any


@dataclass(frozen=True)
class Fails:
    """The end of a run that fails with an error of a kind, in whose message some words stand."""

    kind: str | None = None
    words: str = ""
    message: str | None = None
    """All of its words."""


CaseTest: TypeAlias = Callable[..., Awaitable[None]]

End = str | refold.Completed | refold.Tripped | refold.Cancelled | Fails
"""How a run ends; a text is that of its answer."""


@dataclass(frozen=True)
class Step:
    """Something that is done to the session, or looked at."""

    act: Callable[["Play"], Awaitable[Any]]
    repeatable: bool = True
    crashes: bool = False
    """Whether it lets the runtime crash."""


Steps: TypeAlias = "Sequence[Step | Steps]"


def _steps_of(steps: Steps) -> Iterator[Step]:
    for each in steps:
        yield from [each] if isinstance(each, Step) else _steps_of(each)


@dataclass(frozen=True)
class Case:
    """What the model answers, what is done, and what must be seen; what is not given is not compared.

    Lines and types that begin with "..." are those at the end.
    """

    script: Sequence[Any] | Callable[["Play"], Sequence[Any]]
    """What the model answers; it goes on after a restart. `Held` answers wait to be let go."""
    do: "Steps"
    """Steps, or groups of steps that belong together."""
    _: KW_ONLY
    tools: Sequence[Any] | Callable[["Play"], Sequence[Any]] = ()
    """Besides those of `Bench`; or a function that makes them."""
    config: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] | Callable[["Play"], Mapping[str, Any]] = field(default_factory=dict)
    """Of the runtime and its agent; or a function that makes them."""
    clock: bool = False
    """Whether time stands still until a step says otherwise."""
    crashes: bool = True
    """False where a crash may change what is seen, as with a body that must not run twice."""

    results: Sequence[str] | None = None
    """Texts of all tool results in the history."""
    kinds: Sequence[str | None] | None = None
    """Kinds of the errors of all tool results in the history; None for a good one."""
    history: Sequence[str] | None = None
    """The history as lines."""
    requests: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """The messages of some requests as lines, by their places."""
    asked: int | None = None
    """How many requests have reached the model."""
    events: Sequence[str] | None = None
    """Types of events in the log."""
    count: Mapping[str, int] = field(default_factory=dict)
    """How many events of some types there are."""
    done: Sequence[Any] | None = None
    """What the bodies of tools have noted."""

    @property
    def steps(self) -> list[Step]:
        return list(_steps_of(self.do))

    @property
    def repeatable(self) -> bool:
        return self.crashes and not self.clock and self.events != [] and all(step.repeatable for step in self.steps)


def played(cases: Mapping[str, Case], *, clock: bool | None = None) -> list[Any]:
    """Return the cases of a table as parameters, or those with or without a clock; the sentence of each is its id."""
    return [pytest.param(case, id=name) for name, case in cases.items() if clock in (None, case.clock)]


def as_tests(cases: Mapping[str, Case], *, clock: bool | None = None) -> tuple[CaseTest, CaseTest]:
    """Return two tests of a table: each case is played and read again; each is played with a crash after each commit.

    A fourth of the cases is played with crashes every day, and all in the slow run. With `clock`, those without or with
    one are left out of the first test.
    """
    able = [(sentence, case) for sentence, case in cases.items() if case.repeatable]
    crashing = [
        pytest.param(case, id=sentence, marks=[pytest.mark.slow] if place % 4 else [])
        for place, (sentence, case) in enumerate(able)
    ]

    @pytest.mark.parametrize("case", played(cases, clock=clock))
    async def play(case: Case, log: EventStore) -> None:
        await play_case(case, log)

    @pytest.mark.parametrize("case", crashing)
    async def crash(case: Case) -> None:
        await play_with_crashes(case)

    return play, crash


class Bench:
    """The tools of every case: they note what they do, and some wait until they are let go."""

    def __init__(self, changed: asyncio.Event | None = None) -> None:
        self.done: list[Any] = []
        self.begun: list[str] = []
        self.gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._changed = changed

        @refold.tool(tier="observe", effect="pure")
        async def look(at: str = "it") -> str:
            """Look."""
            return self.note(f"saw {at}")

        @refold.tool(tier="confirm", effect="pure")
        async def pay(amount: int = 1) -> str:
            """Pay, if allowed."""
            return self.note(f"paid {amount}")

        @refold.tool(tier="confirm", effect="pure", action=lambda path: path.split("/")[0])
        async def delete(path: str) -> str:
            """Delete, if allowed; what is allowed always is allowed for a folder."""
            return self.note(f"deleted {path}")

        @refold.tool(tier="observe", effect="pure")
        async def park(name: str) -> str:
            """Wait, beside others."""
            return await self.parked(name)

        @refold.tool(tier="act", effect="pure")
        async def act(name: str) -> str:
            """Wait, alone."""
            return await self.parked(name)

        @refold.tool(tier="observe", effect="once")
        async def once(name: str) -> str:
            """Wait; not run again."""
            return await self.parked(name)

        @refold.tool(tier="confirm", effect="once")
        async def sign(context: refold.ToolContext[Any], name: str) -> str:
            """Wait, if allowed; not run again unless that is allowed again."""
            self.note(context.idempotency_key)
            return await self.parked(name)

        @refold.tool(tier="observe", effect="pure")
        async def finish(context: refold.ToolContext[Any], text: str) -> str:
            """End the run."""
            context.finish(text)
            return "what the body returns is not the result"

        @refold.tool(tier="observe", effect="pure")
        async def finish_later(context: refold.ToolContext[Any], text: str) -> str:
            """End the run when it is let go."""
            await self.parked(text)
            return context.finish(text)

        self.tools: list[Any] = [look, pay, delete, park, act, once, sign, finish, finish_later]

    def note(self, what: str) -> str:
        self.done.append(what)
        return what

    async def parked(self, name: str) -> str:
        self.begun.append(name)
        if self._changed is not None:
            self._changed.set()
        await self.gates[name].wait()
        return f"{name} returned"


class Play:
    """One playing of a case: its session, in one runtime after another on one log."""

    def __init__(self, case: Case, log: EventStore, *, live: bool = True) -> None:
        self.case = case
        self.log = log
        self.live = live
        """Whether this is the first playing, in which nothing goes wrong."""
        self.place = 0
        """Of the step that is done, in the case."""
        self.clock = ManualClock(round(BEGINNING.timestamp() * 1_000_000)) if case.clock else None
        self.changed = asyncio.Event()
        """Set when anything happens that a step may wait for."""
        self.bench = Bench(self.changed)
        self.kept: dict[Any, Any] = {}
        """What a step has kept for a later one."""
        self.token = refold.CancellationToken()
        self.callers: list[asyncio.Task[Any]] = []
        self.heard: list[str] = []
        """Types of the events that callers were told of."""
        self.sent: list[refold.RunResult] = []
        self.turns: list[refold.TurnResult] = []
        self.ended: dict[str, tuple[Any, refold.RunResult]] = {}
        """What was sent with each key, and how its run ended."""
        self.providers: list[refold.ScriptedProvider] = []
        self.tools = [*self.bench.tools, *(case.tools(self) if callable(case.tools) else case.tools)]
        self.options = dict(case.options(self) if callable(case.options) else case.options)
        script = case.script(self) if callable(case.script) else case.script
        self.script = [sessions.HeldAnswer(item.answer) if isinstance(item, Held) else item for item in script]
        self.held = [item for item in self.script if isinstance(item, sessions.HeldAnswer)]

    @property
    def requests(self) -> list[refold.ModelRequest]:
        return [request for provider in self.providers for request in provider.requests]

    async def open(self, **changed: Any) -> None:
        """Open a runtime on the log, whose model goes on where the log says that it was."""
        config = refold.AgentConfig(**({"model": "m"} | dict(self.case.config) | changed.pop("config", {})))
        options: dict[str, Any] = {"close_grace_s": 0} | self.options | changed
        if self.clock is not None:
            options |= {"clock": self.clock, "ask_timeout_s": 1e6}
        self.providers.append(refold.ScriptedProvider(self.script[await self._answered() :]))
        options = {"tools": self.tools, "provider": self.providers[-1], "config": config} | options
        self.runtime = await sessions.runtime_of(self.log, **options).open()
        self.runtime.subscribe(lambda _: self.changed.set(), session="s")
        self.session = await self.runtime.session("s")

    async def _answered(self) -> int:
        """Return how many answers of the script have been used up, by calls that are over."""
        used, waiting = 0, False
        for event in await self.events():
            match type(event).__name__:
                case "ModelRequested":
                    waiting = True
                case "GuardrailTripped":
                    waiting = False
                case "ModelResponded" | "ModelFailed":
                    used, waiting = used + 1, False
                case "RunCancelled" | "RunFailed":
                    used, waiting = used + waiting, False
        return used

    async def close(self) -> None:
        """Close the runtime in order; those who wait for runs are told that it is over."""
        await self.runtime.close()
        await self._dismiss_callers()

    async def _dismiss_callers(self) -> None:
        await asyncio.gather(*self.callers, return_exceptions=True)
        self.callers.clear()

    async def die(self) -> None:
        """End the runtime as a crash does."""
        assert isinstance(self.log, FailingStore)
        await sessions.crash(self.runtime, self.log, self.clock)
        await self._dismiss_callers()

    async def events(self, kind: type[Any] | None = None) -> list[Any]:
        """Return the session's events in the log, or those of one type."""
        events = SESSION_CODEC.decode_all(await self.log.read_stream("session/s"))
        return [event for event in events if kind is None or isinstance(event, kind)]

    async def until(self, found: Callable[[], Awaitable[Any]]) -> Any:
        """Return what is found, once it is something; a clock that stands still lets what is due happen meanwhile."""
        while True:
            self.changed.clear()  # Before it is looked, so that what happens meanwhile is not missed.
            if value := await found():
                return value
            if self.clock is not None:
                await self.clock.advance(0)
            else:
                await self.changed.wait()

    async def outcome(self, task: asyncio.Task[Any]) -> Any:
        """Return what a task returns."""
        task.add_done_callback(lambda _: self.changed.set())

        async def done() -> bool:
            return task.done()

        await self.until(done)
        return task.result()

    def keyed(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a step; where it may be done again, its key is that of its place."""
        return dict(options) if self.live else {"key": f"step {self.place}", **options}

    def compare(self, result: refold.RunResult, expected: End | None, turns: int | None = None) -> None:
        self.sent.append(result)
        match expected:
            case str():
                assert (result.outcome, result.text) == (refold.Completed(), expected)
            case Fails(kind, words, message):
                assert isinstance(result.outcome, refold.Failed)
                assert kind in (None, result.outcome.error.kind)
                assert words in str(result.outcome.error)
                assert message in (None, str(result.outcome.error))
                assert result.text == ""
            case refold.Cancelled():
                assert (result.outcome, result.text) == (refold.Cancelled(), "")
            case _:
                assert expected is None or result.outcome == expected
        assert turns in (None, result.turns)

    async def assert_seen(self) -> None:
        """Check what the session shows when all steps are done."""
        case, blocks = self.case, await sessions.results_of(self.session)
        assert case.results is None or [block.text for block in blocks] == list(case.results)
        assert case.kinds is None or [block.kind for block in blocks] == list(case.kinds)
        assert_lines(sessions.shown(await self.session.history()), case.history)
        if not self.live:
            assert case.done is None or set(self.bench.done) == set(case.done)
            return
        types = await sessions.types_of(self.session)
        assert_lines(types, case.events)
        assert {name: types.count(name) for name in case.count} == case.count
        assert case.done is None or self.bench.done == list(case.done)
        requests = self.requests
        assert case.asked is None or len(requests) == case.asked
        for place, lines in case.requests.items():
            assert_lines(sessions.shown(requests[place].messages), lines)
        for request in requests:
            sessions.assert_accepted(request.messages)

    async def assert_again_from_the_log(self) -> None:
        """Check that a runtime which has done nothing itself shows the same, and asks no model for it."""
        history, events = await self.session.history(), [item async for item in self.session.events()]
        await self.close()
        asked = len(self.requests)
        async with refold.AgentRuntime(self.runtime.agent, log=self.log, auto_resume=False) as runtime:
            session = await runtime.session("s")
            assert await session.history() == history
            assert [item async for item in session.events()] == events
            for key, (content, result) in self.ended.items():
                assert await session.send(content, key=key) == result
        assert len(self.requests) == asked


def assert_lines(found: Sequence[str], expected: Sequence[str] | None) -> None:
    if expected is not None and list(expected[:1]) == ["..."]:
        assert list(found[len(found) - len(expected) + 1 :]) == list(expected[1:])
    elif expected is not None:
        assert list(found) == list(expected)


async def play_case(case: Case, log: EventStore) -> None:
    """Play a case live, and see the same again from its log."""
    play = Play(case, FailingStore(log) if any(step.crashes for step in case.steps) else log)
    await play.open()
    try:
        await _do_all(play)
        await play.assert_again_from_the_log()
    finally:
        await play.close()


async def _do_all(play: Play) -> None:
    for place, step in enumerate(play.case.steps):
        play.place = place
        await step.act(play)
    await play.assert_seen()


async def play_with_crashes(case: Case) -> None:
    """Play a case again and again, each time with a crash after another of its commits."""
    commits = 1
    while await _crashed_after(commits, case):
        commits += 1
    assert commits > 1, "nothing was committed"


async def _crashed_after(commits: int, case: Case) -> bool:
    """Play a case with a crash after so many commits, if it has as many; return whether it has."""
    log = InMemoryStore()
    store = FailingStore(log)
    play = Play(case, store, live=False)
    await play.open()
    off = store.go_off_after(commits)
    doing, dying = asyncio.create_task(_do_all(play)), asyncio.create_task(off.wait())
    await asyncio.wait([doing, dying], return_when=asyncio.FIRST_COMPLETED)
    dying.cancel()
    crashed = off.is_set()
    if crashed:
        await play.die()
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)  # Its step may have been told that the runtime is gone.
        await play.open()
        await _do_all(play)
    else:
        await doing
    store.mend()
    await play.close()
    await sessions.assert_sound(log)
    return crashed
