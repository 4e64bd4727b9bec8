"""What a crash leaves of a parent and its children goes on by itself, and nothing of it is done twice: A20."""

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest

from refold import Agent, AgentRuntime, Cancelled, Completed, PersistenceError, ScriptedProvider, say, tool, use
from refold.actors import ManualClock
from refold.events import SESSION_CODEC
from refold.events.core.content import CRASHED_TEXT
from refold.events.session.events import ModelRequested, RunCancelled
from refold.stores import EventStore, InMemoryStore, SQLiteStore
from tests.conformance.failing_store import FailingStore
from tests.conformance.killed_process.delegation import ERRANDS, STEPS
from tests.conformance.sessions import CONFIG, HeldAnswer, Seen, assert_sound, crash, results_of, types_of
from tests.conformance.test_crash_recovery import CutStore

OPENING = 2
"""Appends before the first input."""

APPENDS = 22
"""More than the runs take."""

PROGRAM = Path(__file__).parent / "killed_process" / "delegation.py"


class Delegation:
    """An agent that has another one do two things beside each other, and what of it was done."""

    def __init__(self) -> None:
        self.noted: list[str] = []

        @tool(effect="once")
        async def note(what: str) -> str:
            """Note, once."""
            self.noted.append(what)
            return f"noted {what}"

        self.note = note

    def runtime(self, log: EventStore, **options: Any) -> AgentRuntime:
        def helper_says(request: Any) -> Any:
            last = request.messages[-1].content[0]
            return use("note", {"what": last.text}) if len(request.messages) == 1 else say(f"said: {last.text}")

        def boss_says(request: Any) -> Any:
            if len(request.messages) == 1:
                return [use("helper", {"task": "a"}), use("helper", {"task": "b"})]
            return say("; ".join(block.text for block in request.messages[-1].content))

        script = ScriptedProvider([helper_says] * 50)
        helper = Agent(name="helper", config=CONFIG, provider=script, tools=[self.note])
        boss = Agent(
            name="boss",
            config=CONFIG,
            provider=ScriptedProvider([boss_says] * 50),
            tools=[helper.as_tool(tier="observe")],
        )
        return AgentRuntime(boss, log=log, close_grace_s=0, **options)


async def assert_once_each(runtime: AgentRuntime, noted: list[str]) -> None:
    """Check that there are two children, that each took one run, and that nothing was noted twice."""
    names = await runtime.sessions()
    assert len(names) == 3
    assert [name[: len("s/call_")] for name in names] == ["s", "s/call_", "s/call_"]
    for name in names:
        types = Counter(await types_of(await runtime.session(name)))
        assert [types[name] for name in ("SessionOpened", "InputQueued", "RunStarted", "RunCompleted")] == [1, 1, 1, 1]
    assert len(noted) == len(set(noted))


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "at", [pytest.param(at, marks=() if at % 3 == 0 else pytest.mark.slow) for at in range(OPENING + 1, APPENDS)]
)
async def test_parent_and_children_that_a_crash_cuts_at_any_commit_get_done_in_the_next_runtime(
    memory: InMemoryStore, at: int, when: Literal["before", "after"]
) -> None:
    delegation, store = Delegation(), CutStore(memory, at=at, when=when)
    async with delegation.runtime(store) as runtime:
        sending = asyncio.create_task((await runtime.session("s")).send("go", key="k"))
        off = asyncio.create_task(store.off.wait())
        await asyncio.wait([sending, off], return_when=asyncio.FIRST_COMPLETED)
        off.cancel()
    await asyncio.gather(sending, off, return_exceptions=True)
    async with delegation.runtime(memory) as runtime:
        session = await runtime.session("s")
        result = await session.send("go", key="k")
        assert result.outcome == Completed()
        for task, said in zip("ab", result.text.split("; "), strict=True):
            assert said in (f"said: noted {task}", f"said: {CRASHED_TEXT}")
        await assert_once_each(runtime, delegation.noted)


@pytest.mark.parametrize("seed", [pytest.param(n, marks=() if n < 4 else pytest.mark.slow) for n in range(40)])
async def test_however_a_cancelled_parent_crashes_no_child_goes_on_without_it(memory: InMemoryStore, seed: int) -> None:
    random, delegation = Random(seed), Delegation()
    at = random.randint(4, 30)
    store = CutStore(memory, at=random.randint(6, 16), when=random.choice(["before", "after"]))
    seen, cancelling = list[Any](), list[asyncio.Task[None]]()
    async with delegation.runtime(store) as runtime:
        session = await runtime.session("s")

        def see(recorded: Any) -> None:
            seen.append(recorded)
            if len(seen) >= at and not cancelling:
                cancelling.append(asyncio.get_running_loop().create_task(session.cancel()))

        runtime.subscribe(see)
        sending = asyncio.create_task(session.send("go", key="k"))
        off = asyncio.create_task(store.off.wait())
        await asyncio.wait([sending, off], return_when=asyncio.FIRST_COMPLETED)
        off.cancel()
    await asyncio.gather(sending, off, *cancelling, return_exceptions=True)
    was_cancelled = "RunCancelled" in [
        type(event).__name__ for event in SESSION_CODEC.decode_all(await memory.read_stream("session/s"))
    ]
    steps = len(seen)
    async with delegation.runtime(memory) as runtime:
        runtime.subscribe(seen.append)
        outcome = (await (await runtime.session("s")).send("go", key="k")).outcome
        for child in await (await runtime.session("s")).children():
            await child.approvals()  # It has been taken up now.
        requested = [item.stream for item in seen[steps:] if isinstance(item.event, ModelRequested)]
    assert (outcome == Cancelled()) == was_cancelled
    assert [head.pending for head in await memory.list_streams(prefix="session/", with_pending=True)] == []
    assert not (was_cancelled and requested), "nobody asked for that any more"


async def test_children_resume_by_themselves_before_their_parent_asks(memory: InMemoryStore) -> None:
    store, held = FailingStore(memory), HeldAnswer("never")
    helper = Agent(name="h", config=CONFIG, provider=ScriptedProvider([held]))
    boss = Agent(
        name="b", config=CONFIG, provider=ScriptedProvider([use("h", {"task": "go"})]), tools=[helper.as_tool()]
    )
    async with AgentRuntime(boss, log=store, close_grace_s=0) as runtime:
        sending = asyncio.create_task((await runtime.session("s")).send("go"))
        await held.asked.wait()
        await crash(runtime, store)
    await asyncio.gather(sending, return_exceptions=True)

    helper = Agent(name="h", config=CONFIG, provider=ScriptedProvider([say("again")]))
    boss = Agent(name="b", config=CONFIG, provider=ScriptedProvider([say("done")]), tools=[helper.as_tool()])
    async with AgentRuntime(boss, log=memory) as runtime:
        session, child = await runtime.session("s"), await runtime.session("s/call_6_0")
        with runtime.hub.follow(session.id) as follower:
            await follower.ended((await session.state_at()).run.id)  # type: ignore[union-attr]
        assert [told.text for told in await results_of(session)] == ["again"]
        assert "RunResumed" in await types_of(child)


async def test_with_auto_resume_off_a_child_goes_on_with_its_parent(memory: InMemoryStore) -> None:
    store, held = FailingStore(memory), HeldAnswer("never")

    def boss(*script: Any, helper: list[Any]) -> Agent:
        tools = [Agent(name="h", config=CONFIG, provider=ScriptedProvider(helper)).as_tool()]
        return Agent(name="b", config=CONFIG, provider=ScriptedProvider(script), tools=tools)

    async with AgentRuntime(boss(use("h", {"task": "go"}), helper=[held]), log=store, close_grace_s=0) as runtime:
        sending = asyncio.create_task((await runtime.session("s")).send("go"))
        await held.asked.wait()
        await crash(runtime, store)
    await asyncio.gather(sending, return_exceptions=True)
    async with AgentRuntime(boss(say("done"), helper=[say("again")]), log=memory, auto_resume=False) as runtime:
        session = await runtime.session("s")
        run = (await session.state_at()).run
        assert run is not None
        with runtime.hub.follow(session.id) as follower:
            await session.resume()
            await follower.ended(run.id)
        assert [told.text for told in await results_of(session)] == ["again"]


@pytest.mark.parametrize("auto_resume", [True, False])
async def test_a_child_whose_parent_was_cancelled_just_before_the_crash_is_cancelled_at_the_next_start(
    memory: InMemoryStore, auto_resume: bool
) -> None:
    clock, store, held = ManualClock(), FailingStore(memory), HeldAnswer("never")
    again = HeldAnswer("must not be asked")
    helper = Agent(name="h", config=CONFIG, provider=ScriptedProvider([held, again]))
    boss = Agent(
        name="b", config=CONFIG, provider=ScriptedProvider([use("h", {"task": "go"})]), tools=[helper.as_tool()]
    )
    async with AgentRuntime(boss, log=store, clock=clock, close_grace_s=0) as runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("go"))
        await clock.settle()
        store.fail_appends(lambda: PersistenceError("no room"), of="session/s/")
        cancelling = asyncio.create_task(session.cancel())
        await clock.settle()
        await crash(runtime, store, clock)
    await asyncio.gather(sending, cancelling, return_exceptions=True)
    parent = SESSION_CODEC.decode_all(await memory.read_stream("session/s"))
    assert isinstance(parent[-1], RunCancelled)

    async with AgentRuntime(boss, log=memory, auto_resume=auto_resume) as runtime:
        child = await runtime.session("s/call_6_0")
        seen = Seen(runtime, child)
        await child.approvals()  # It is there now.
        if "RunCancelled" not in await types_of(child):
            await seen.first(RunCancelled)
        assert not again.asked.is_set()
        assert (await types_of(child))[-1] == "RunCancelled"


async def test_a_child_whose_parents_tool_is_gone_ends_with_its_call(memory: InMemoryStore) -> None:
    store, held, again = FailingStore(memory), HeldAnswer("never"), HeldAnswer("must not be asked")
    helper = Agent(name="h", config=CONFIG, provider=ScriptedProvider([held, again]))
    boss = Agent(
        name="b", config=CONFIG, provider=ScriptedProvider([use("h", {"task": "go"})]), tools=[helper.as_tool()]
    )
    async with AgentRuntime(boss, log=store, close_grace_s=0) as runtime:
        sending = asyncio.create_task((await runtime.session("s")).send("go", key="k"))
        await held.asked.wait()
        await crash(runtime, store)
    await asyncio.gather(sending, return_exceptions=True)

    tools = [helper.as_tool(name="another")]
    boss = Agent(name="b", config=CONFIG, provider=ScriptedProvider([say("done")]), tools=tools)
    async with AgentRuntime(boss, log=memory) as runtime:
        session = await runtime.session("s")
        assert (await session.send("go", key="k")).text == "done"
        assert [told.kind for told in await results_of(session)] == ["crashed"]
        child = await runtime.session("s/call_6_0")
        assert await child.approvals() == []  # It has been taken up now.
        assert (await types_of(child))[-1] == "RunCancelled"
        assert not again.asked.is_set()


async def test_kill_9_in_the_middle_of_children(tmp_path: Path) -> None:
    await kill_again_and_again(tmp_path, seed=1, kills=2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3, 4])
async def test_kill_9_again_and_again_in_the_middle_of_children(tmp_path: Path, seed: int) -> None:
    await kill_again_and_again(tmp_path, seed=seed, kills=8)


def killed_after(steps: int, log: Path, done: Path) -> None:
    """Let the program go on for some steps, or to its end, and kill it."""
    with subprocess.Popen([sys.executable, "-P", PROGRAM, log, done], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        for _ in range(steps):
            program.stdout.readline()
        program.send_signal(signal.SIGKILL)


def ended(log: Path, done: Path) -> None:
    """Let the program go on to its end."""
    subprocess.run([sys.executable, "-P", PROGRAM, log, done], check=True, timeout=60, stdout=subprocess.DEVNULL)


async def kill_again_and_again(folder: Path, *, seed: int, kills: int) -> None:
    """Kill the program again and again, and let it end at last; then look at what was done."""
    log, done, random = folder / "events.db", folder / "done.txt", Random(seed)
    done.touch()
    for _ in range(kills):
        killed_after(random.randint(0, 2), log, done)
    ended(log, done)

    lines = done.read_text().splitlines()
    assert lines.pop() == "ended: been north; been south"
    expected = {f"{errand} {step}" for errand in ERRANDS for step in range(STEPS)}
    counted = Counter(lines)
    assert counted.keys() == expected
    assert counted.total() - len(expected) <= 2 * kills, "only what was under way when it was killed was done again"
    async with await SQLiteStore.open(log, read_only=True) as store:
        await assert_sound(store)
        heads = {head.stream: head.pending for head in await store.list_streams(prefix="session/")}
        assert heads == {"session/trip": (), "session/trip/call_6_0": (), "session/trip/call_6_1": ()}


@pytest.mark.parametrize("crashes", [5])
async def test_a_parent_is_not_parked_for_crashes_while_its_child_gets_on(memory: InMemoryStore, crashes: int) -> None:
    """The child makes progress between two crashes, and its parent only waits."""
    held = [HeldAnswer(use("look", {"n": n})) for n in range(crashes)]

    @tool(tier="observe", effect="pure")
    async def look(n: int) -> int:
        """Look."""
        return n

    def boss(*script: Any) -> Agent:
        helper = Agent(name="h", config=CONFIG, provider=ScriptedProvider(script), tools=[look])
        script = (use("h", {"task": "go"}),) if script[0] is held[0] else (say("done"),)
        return Agent(name="b", config=CONFIG, provider=ScriptedProvider(script), tools=[helper.as_tool()])

    for life in range(crashes):
        store = FailingStore(memory)
        following = held[life + 1] if life + 1 < crashes else HeldAnswer("never")
        async with AgentRuntime(boss(held[life], following), log=store, close_grace_s=0) as runtime:
            sending = asyncio.create_task((await runtime.session("s")).send("go", key="k"))
            await held[life].asked.wait()
            held[life].gate.set()
            await following.asked.wait()
            await crash(runtime, store)
        await asyncio.gather(sending, return_exceptions=True)
        if life + 1 < crashes:
            held[life + 1] = HeldAnswer(use("look", {"n": life + 1}))
    async with AgentRuntime(boss(say("got there")), log=memory) as runtime:
        session = await runtime.session("s")
        assert (await session.send("go", key="k")).text == "done"
        assert [told.text for told in await results_of(session)] == ["got there"]
        assert "RunParked" not in await types_of(session)
