"""What a new runtime makes of a run that an earlier one left: rows A14, A22, A24, B10, B11, B15, B20 and B21.

Some processes here are killed with SIGKILL for real. Elsewhere a crash is a log that takes nothing more from one moment
on, so that a run can be cut at every one of its commits.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.actors import ManualClock
from refold.events import SESSION_CODEC
from refold.events.core.content import CANCELLED_TEXT, CRASHED_TEXT
from refold.events.session.events import RunCompleted, RunParked, RunResumed
from refold.stores import EventStore, SQLiteStore
from tests.conformance.cases import Case, Held, Play, play_case, played
from tests.conformance.crashes import OPENING, CutStore, assert_sound_file, runtime_on, sent_until_cut
from tests.conformance.failing_store import When
from tests.conformance.processes import BEGINNING, command_line, kill, read_until, started
from tests.conformance.sessions import Seen, assert_accepted, requests_of, results_of, runtime_of, types_of
from tests.conformance.steps import (
    asked,
    begin,
    cancel,
    check,
    crash_and_restart,
    ends,
    last,
    let_go,
    ran,
    refused,
    requested,
    restart,
    resume,
    send,
    until,
    waits,
)

# A14: a run that is cut at every commit


class Errands:
    """An agent whose run has all tiers and effect classes, and what of it was done."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.asked: list[str] = []

        @refold.tool(tier="observe", effect="pure")
        async def look(at: str) -> str:
            self.done.append(f"look {at}")
            return f"saw {at}"

        @refold.tool(tier="observe", effect="once")
        async def peek() -> str:
            self.done.append("peek")
            return "peeked"

        @refold.tool(tier="act", effect="idempotent")
        async def order(context: refold.ToolContext[Any]) -> str:
            self.done.append(f"order {context.idempotency_key}")
            return "ordered"

        @refold.tool(tier="act", effect="once")
        def note() -> str:
            self.done.append("note")
            return "noted"

        @refold.tool(tier="confirm", effect="once")
        async def pay() -> str:
            self.done.append("pay")
            return "paid"

        self.tools = [look, peek, order, note, pay]

    def approve(self, session: Any, request: Any) -> refold.Allow:
        self.asked.append(request.tool)
        return refold.Allow()

    def answer(self, request: refold.ModelRequest) -> Any:
        """Return what the model says next; it needs nothing but the request."""
        turns = sum(message.role == "assistant" for message in request.messages)
        return [
            [refold.use("look", {"at": "a"}), refold.use("peek"), refold.use("look", {"at": "b"})],
            [refold.use("order"), refold.use("note")],
            refold.use("pay"),
            refold.say("all done"),
        ][turns]

    def runtime(self, log: EventStore, **options: Any) -> refold.AgentRuntime:
        script = [self.answer] * 20
        return runtime_of(log, *script, tools=self.tools, approval=self.approve, close_grace_s=0, **options)

    RESULTS = ("saw a", "peeked", "saw b", "ordered", "noted", "paid")

    async def assert_done(self, session: refold.Session) -> None:
        """Check how the run has ended, and that nothing was done oftener than its effect class allows."""
        results = [block.text for block in await results_of(session)]
        assert len(results) == len(self.RESULTS)
        for text, whole in zip(results, self.RESULTS, strict=True):
            assert text == whole or (whole in ("peeked", "noted") and text == CRASHED_TEXT)
        assert self.done.count("peek") <= 1
        assert self.done.count("note") <= 1
        assert 1 <= self.done.count("pay") <= len(self.asked), "a person allows each attempt"
        assert len({entry for entry in self.done if entry.startswith("order")}) == 1, "always the same key"
        assert_accepted(await session.history())
        types = await types_of(session)
        assert types[-1] == "RunCompleted"
        assert types.count("RunStarted") == types.count("RunCompleted") == types.count("InputQueued") == 1


APPENDS = 20
"""More than the run takes."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", range(OPENING + 1, APPENDS))
async def test_a14_case_n09_a_run_that_a_crash_cuts_at_any_commit_gets_done_in_the_next_runtime(
    log: EventStore, at: int, when: When
) -> None:
    errands, store = Errands(), CutStore(log, at=at, when=when)
    sending = await sent_until_cut(errands.runtime(store), store)
    async with errands.runtime(log) as runtime:
        session = await runtime.session("s")
        result = await session.send("go", key="k")
        assert (result.outcome, result.text) == (refold.Completed(), "all done")
        await errands.assert_done(session)
    assert sending.exception() or result == sending.result(), "what the caller was told stays true"


def committed_by(committed: asyncio.Event) -> Callable[[Any], None]:
    """Return a subscriber that says when a batch is durable that is more than the resumption of a run."""

    def see(recorded: Any) -> None:
        if recorded.version == recorded.batch and not isinstance(recorded.event, RunResumed):
            committed.set()

    return see


async def test_a14_a_run_that_is_stopped_after_each_of_its_commits_gets_done_in_the_end(log: EventStore) -> None:
    errands, lives = Errands(), 0
    config = refold.AgentConfig(model="m", resumes_max=0)
    types: list[str] = []
    while "RunCompleted" not in types:
        lives += 1
        assert lives < 40
        committed = asyncio.Event()
        async with errands.runtime(log, config=config) as runtime:
            runtime.subscribe(committed_by(committed))
            session = await runtime.session("s")
            sending = asyncio.create_task(session.send("go", key="k"))
            await committed.wait()
            await runtime.close()
        await asyncio.gather(sending, return_exceptions=True)
        types = [type(item.event).__name__ for item in SESSION_CODEC.recorded(await log.read_stream("session/s"))]
    async with errands.runtime(log, config=config) as runtime:
        session = await runtime.session("s")
        assert (await session.send("go", key="k")).text == "all done"
        await errands.assert_done(session)
    assert lives > 5
    assert "RunParked" not in types, "a deploy is no crash"


# A22: keys; A24, B21: parking; and runs that wait for `resume`

PARK = refold.use("park", {"name": "a"})
DONE = [let_go(), resume(), send("go", "done", key="k")]
AGAIN = crash_and_restart()
AWAY = crash_and_restart(auto_resume=False)


async def of_another(play: Play) -> str:
    """Return what is answered to the same key in another session."""
    return (await (await play.runtime.session("another")).send("go", key="k")).text


async def reason(play: Play) -> bool:
    (parked,) = await play.events(RunParked)
    return "3 times without progress" in parked.reason


CASES = {
    "A22: a key of send is the same run after a crash and a restart, and belongs to its session": Case(
        [Held(refold.say("done")), refold.say("other")],
        [
            [begin("go", key="k"), asked(), crash_and_restart(), let_go(), send("go", "done", key="k")],
            [restart(), send("go", "done", key="k"), refused("key 'k'", send("something else", key="k"))],
            check(of_another, "other"),
        ],
        count={"InputQueued": 1},
    ),
    "A22: a key of cancel means its first run after a restart too": Case(
        [Held(refold.say("never")), Held(refold.say("done"))],
        [
            [begin("one"), asked(), cancel(key="c"), ends(refold.Cancelled()), restart()],
            [begin("two"), asked(1), cancel(key="c"), let_go(), ends("done")],
        ],
        count={"CancelRequested": 1},
    ),
    "A24, B21, case M09: a run that crashes its process three times waits for `resume`, and others run": Case(
        [PARK, refold.say("done"), refold.say("next")],
        [
            [begin("go", key="k"), *(step for life in range(1, 5) for step in (ran(life), AGAIN))],
            [until("RunParked"), check(reason), begin("another"), waits(), check(of_another, "done")],
            [restart(), waits(), check(lambda play: len(play.bench.begun), 4), *DONE, until("RunCompleted", 2)],
        ],
        history=["...", "result: a returned", "assistant: done", "user: another", "assistant: next"],
        count={"RunParked": 1, "RunResumed": 5},
    ),
    "A24: progress between two crashes starts the count anew": Case(
        [[refold.use("act", {"name": name}) for name in "abcd"], refold.say("done")],
        [
            begin("go", key="k"),
            *(
                [
                    ran(4 * place + 1),
                    AGAIN,
                    ran(4 * place + 2),
                    AGAIN,
                    ran(4 * place + 3),
                    let_go(name),
                    ran(4 * place + 4),
                    AGAIN,
                ]
                for place, name in enumerate("abc")
            ),
            DONE,
        ],
        count={"RunResumed": 9, "ToolCallCompleted": 4, "RunParked": 0},
    ),
    "without auto_resume nothing goes on before it is resumed": Case(
        [PARK, refold.say("done"), refold.say("next")],
        [
            [begin("go", key="k"), ran(1), AWAY, begin("another"), last("ToolCallStarted", "InputQueued"), waits()],
            [check(lambda play: len(play.bench.begun), 1), *DONE, until("RunCompleted", 2)],
        ],
        history=["user: go", "use park", "result: a returned", "assistant: done", "user: another", "assistant: next"],
        count={"RunResumed": 1},
    ),
    "a run of another agent waits until it is resumed here": Case(
        [Held(refold.say("done"))],
        [
            begin("go", key="k"),
            asked(),
            restart(name="another"),
            waits(),
            requested(1),
            let_go(),
            resume(),
            send("go", "done", key="k"),
        ],
    ),
    "without auto_resume a run can be cancelled and the next one begins": Case(
        [PARK, refold.say("next")],
        [begin("go"), ran(1), AWAY, cancel(), send("another", "next")],
        results=[CANCELLED_TEXT],
        count={"ToolCallStarted": 1},
    ),
}


@pytest.mark.parametrize("case", played(CASES))
async def test_crash_recovery(case: Case, log: EventStore) -> None:
    await play_case(case, log)


# B11: who reads while it grows


# B20: kill -9


CHILD = (
    BEGINNING
    + """
effect, calls = sys.argv[2], int(sys.argv[3])

@tool(tier="observe", effect=effect)
async def work(context: ToolContext[object], n: int) -> str:
    if n == 0:
        return "done early"
    print("working", n, flush=True)
    await asyncio.Event().wait()
    return "unreachable"

async def main():
    provider = ScriptedProvider([[use("work", {"n": n}) for n in range(calls)]])
    async with AgentRuntime(AgentConfig(model="m"), provider=provider, tools=[work], log=log) as runtime:
        runtime.subscribe(lambda recorded: print("recorded", type(recorded.event).__name__, flush=True))
        await (await runtime.session("s")).send("go", key="k")

asyncio.run(main())
"""
)


def killed(log: Path, effect: str, calls: int) -> None:
    """Kill a process in a run on a log, in all its calls but the first one, which has ended."""
    until = [*(f"working {n}" for n in range(1, calls)), "recorded ToolCallCompleted"]
    with started(command_line("-c", CHILD, log, effect, calls)) as child:
        read_until(child, *until)
        kill(child)


def runtime_after(log: Path, *script: Any, ran: list[str], effect: Any = "once", **options: Any) -> refold.AgentRuntime:
    @refold.tool(tier="observe", effect=effect)
    async def work(context: refold.ToolContext[object], n: int) -> str:
        ran.append(context.idempotency_key)
        return f"again {n}"

    return runtime_on(log, *script, **{"tools": [work]} | options)


async def ended(runtime: refold.AgentRuntime) -> refold.Session:
    """Return the session once its open run has ended by itself."""
    session = await runtime.session("s", restore=True)
    seen = Seen(runtime, session)
    if (await session.state_at()).run is not None:
        await seen.first(RunCompleted)
    return session


@pytest.mark.parametrize(
    "effect", ["once", *(pytest.param(effect, marks=pytest.mark.slow) for effect in ("pure", "idempotent"))]
)
async def test_b20_case_m02_a_run_killed_in_its_tools_resumes_by_itself_and_before_any_time_has_passed(
    effect: str, tmp_path: Path
) -> None:
    """What may run once has an unknown outcome; what is repeatable runs again, under the same keys."""
    log, clock, ran = tmp_path / "events.db", ManualClock(), list[str]()
    killed(log, effect, 3)
    async with await SQLiteStore.open(log, read_only=True) as store:
        before = SESSION_CODEC.recorded(await store.read_stream("session/s"))
    async with runtime_after(log, refold.say("checked"), ran=ran, effect=effect, clock=clock) as runtime:
        session = await ended(runtime)
        result = await session.send("go", key="k")
        results = await results_of(session)
        events = [recorded async for recorded in session.events()]
        assert clock.monotonic_s() == 0, "nothing waits for a lease"
        assert len(requests_of(runtime)) == 1
    assert (result.outcome, result.text) == (refold.Completed(), "checked")
    assert events[: len(before)] == before, "every acknowledged event is there"
    responded = next(item.version for item in events if type(item.event).__name__ == "ModelResponded")
    types = [type(item.event).__name__ for item in events[len(before) :]]
    if effect == "once":
        assert [block.text for block in results] == ["done early", CRASHED_TEXT, CRASHED_TEXT]
        assert [block.kind for block in results] == [None, "crashed", "crashed"]
        assert ran == []
    else:
        assert [block.text for block in results] == ["done early", "again 1", "again 2"]
        assert sorted(ran) == [f"s/call_{responded}_{n}" for n in (1, 2)]
        after = ["ToolCallCompleted"] * 2 + ["ModelRequested", "ModelResponded", "RunCompleted"]
        assert types[-6:] == ["RunResumed", *after]
    await assert_sound_file(log)


async def test_b20_a_repeatable_tool_that_no_longer_exists_is_answered_and_not_run(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    killed(log, "pure", 2)
    async with runtime_after(log, refold.say("fine"), ran=[], tools=[]) as runtime:
        assert (await results_of(await ended(runtime)))[1].text == CRASHED_TEXT
    await assert_sound_file(log)
