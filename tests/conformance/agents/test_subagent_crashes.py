"""What a crash leaves of a parent and its children goes on by itself, and nothing of it is done twice: A20."""

import asyncio
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

import refold
from refold.actors import ManualClock
from refold.events import SESSION_CODEC
from refold.events.core.content import CRASHED_TEXT
from refold.events.core.pure_core import keys_of
from refold.events.session.events import ModelRequested, RunCancelled, RunCompleted
from refold.stores import EventStore, InMemoryStore, SQLiteStore
from tests.conformance.agents.delegating import CHILD, agent_of, asking, boss_of, crashed_at, sent_to, told
from tests.conformance.crashes import OPENING, CutStore, assert_sound_file, sent_until_cut
from tests.conformance.failing_store import FailingStore, When
from tests.conformance.killed_process.delegation import ERRANDS, STEPS
from tests.conformance.processes import command_line, kill, run, started
from tests.conformance.sessions import HeldAnswer, Seen, crash, results_of, types_of

APPENDS = 22
"""More than the runs take."""

PROGRAM = Path(__file__).parents[1] / "killed_process" / "delegation.py"


class Delegation:
    """An agent that has another one do two things beside each other, and what of it was done."""

    def __init__(self) -> None:
        self.noted: list[str] = []

        @refold.tool(effect="once")
        async def note(what: str) -> str:
            self.noted.append(what)
            return f"noted {what}"

        self.note = note

    def runtime(self, log: EventStore, **options: Any) -> refold.AgentRuntime:
        def helper_says(request: Any) -> Any:
            last = request.messages[-1].content[0]
            return (
                refold.use("note", {"what": last.text})
                if len(request.messages) == 1
                else refold.say(f"said: {last.text}")
            )

        def boss_says(request: Any) -> Any:
            if len(request.messages) == 1:
                return [refold.use("helper", {"task": "a"}), refold.use("helper", {"task": "b"})]
            return refold.say("; ".join(block.text for block in request.messages[-1].content))

        helper = agent_of("helper", *[helper_says] * 50, tools=[self.note])
        boss = agent_of("boss", *[boss_says] * 50, tools=[helper.as_tool(tier="observe")])
        return refold.AgentRuntime(boss, log=log, close_grace_s=0, **options)


async def assert_once_each(runtime: refold.AgentRuntime, noted: list[str]) -> None:
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
    memory: InMemoryStore, at: int, when: When
) -> None:
    delegation, store = Delegation(), CutStore(memory, at=at, when=when)
    await sent_until_cut(delegation.runtime(store), store)
    async with delegation.runtime(memory) as runtime:
        session = await runtime.session("s")
        result = await session.send("go", key="k")
        assert result.outcome == refold.Completed()
        for task, said in zip("ab", result.text.split("; "), strict=True):
            assert said in (f"said: noted {task}", f"said: {CRASHED_TEXT}")
        await assert_once_each(runtime, delegation.noted)


@pytest.mark.parametrize("seed", [pytest.param(n, marks=() if n < 4 else pytest.mark.slow) for n in range(40)])
async def test_however_a_cancelled_parent_crashes_no_child_goes_on_without_it(memory: InMemoryStore, seed: int) -> None:
    random, delegation = Random(seed), Delegation()
    at = random.randint(4, 30)
    store = CutStore(memory, at=random.randint(6, 16), when=random.choice(["before", "after"]))
    seen, cancelling = list[Any](), list[asyncio.Task[None]]()

    def begun(runtime: refold.AgentRuntime, session: refold.Session) -> None:
        def see(recorded: Any) -> None:
            seen.append(recorded)
            if len(seen) >= at and not cancelling:
                cancelling.append(asyncio.get_running_loop().create_task(session.cancel()))

        runtime.subscribe(see)

    await sent_until_cut(delegation.runtime(store), store, begun)
    await asyncio.gather(*cancelling, return_exceptions=True)
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
    assert (outcome == refold.Cancelled()) == was_cancelled
    assert [head.pending for head in await memory.list_streams(prefix="session/", with_pending=True)] == []
    assert not (was_cancelled and requested), "nobody asked for that any more"


def helped_by(*helper: Any, calls: Any = None) -> refold.Agent:
    """Return an agent whose helper says so, and which asks it where calls are given."""
    return boss_of(agent_of("h", *helper), calls=calls)


@pytest.mark.parametrize("auto_resume", [True, False], ids=["by itself, before that asks", "when that is resumed"])
async def test_a_child_resumes_with_its_parent(memory: InMemoryStore, auto_resume: bool) -> None:
    held = HeldAnswer("never")
    await crashed_at(held.asked, helped_by(held, calls=asking("h")), memory)
    async with refold.AgentRuntime(helped_by(refold.say("again")), log=memory, auto_resume=auto_resume) as runtime:
        session, child = await runtime.session("alice"), await runtime.session(CHILD)
        seen = Seen(runtime, session)
        if not auto_resume:
            await session.resume()
        if (await session.state_at()).run is not None:
            await seen.first(RunCompleted)
        assert await told(session) == ["again"]
        assert "RunResumed" in await types_of(child)


@pytest.mark.parametrize("auto_resume", [True, False])
async def test_a_child_whose_parent_was_cancelled_just_before_the_crash_is_cancelled_at_the_next_start(
    memory: InMemoryStore, auto_resume: bool
) -> None:
    clock, store = ManualClock(), FailingStore(memory)
    held, again = HeldAnswer("never"), HeldAnswer("must not be asked")
    boss = helped_by(held, again, calls=asking("h"))
    async with sent_to(boss, store, clock=clock, close_grace_s=0) as (runtime, session, sending):
        await clock.settle()
        store.fail_appends(lambda: refold.PersistenceError("no room"), of=f"session/{CHILD}")
        cancelling = asyncio.create_task(session.cancel())
        await clock.settle()
        await crash(runtime, store, clock)
    await asyncio.gather(sending, cancelling, return_exceptions=True)
    parent = SESSION_CODEC.decode_all(await memory.read_stream("session/alice"))
    assert isinstance(parent[-1], RunCancelled)

    async with refold.AgentRuntime(boss, log=memory, auto_resume=auto_resume) as runtime:
        child = await runtime.session(CHILD)
        seen = Seen(runtime, child)
        await child.approvals()  # It is there now.
        if "RunCancelled" not in await types_of(child):
            await seen.first(RunCancelled)
        assert not again.asked.is_set()
        assert (await types_of(child))[-1] == "RunCancelled"


async def test_a_child_whose_parents_tool_is_gone_ends_with_its_call(memory: InMemoryStore) -> None:
    held, again = HeldAnswer("never"), HeldAnswer("must not be asked")
    helper = agent_of("h", held, again)
    await crashed_at(held.asked, boss_of(helper, calls=asking("h")), memory)
    async with sent_to(boss_of(helper.as_tool(name="another")), memory) as (runtime, session, sending):
        assert (await sending).text == "done"
        assert [result.kind for result in await results_of(session)] == ["crashed"]
        child = await runtime.session(CHILD)
        assert await child.approvals() == []  # It has been taken up now.
        assert (await types_of(child))[-1] == "RunCancelled"
        assert not again.asked.is_set()


@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 2), *(pytest.param(seed, 8, marks=pytest.mark.slow) for seed in (2, 3, 4))]
)
async def test_kill_9_again_and_again_in_the_middle_of_children(tmp_path: Path, seed: int, kills: int) -> None:
    log, done, random = tmp_path / "events.db", tmp_path / "done.txt", Random(seed)
    line = command_line(PROGRAM, log, done)
    done.touch()
    for _ in range(kills):
        with started(line) as program:
            assert program.stdin is not None
            assert program.stdout is not None
            for begun in range(random.randint(0, 2)):
                if begun:
                    program.stdin.write("\n")
                    program.stdin.flush()
                program.stdout.readline()
            kill(program)
    run(line, check=True, input="")

    lines = done.read_text().splitlines()
    assert lines.pop() == "ended: been north; been south"
    expected = {f"{errand} {step}" for errand in ERRANDS for step in range(STEPS)}
    counted = Counter(lines)
    assert counted.keys() == expected
    assert counted.total() - len(expected) <= 2 * kills, "only what was under way when it was killed was done again"
    await assert_sound_file(log)
    async with await SQLiteStore.open(log, read_only=True) as store:
        heads = {head.stream: keys_of(head.pending) for head in await store.list_streams(prefix="session/")}
    assert heads == {"session/trip": (), "session/trip/call_6_0": (), "session/trip/call_6_1": ()}


async def test_a_parent_is_not_parked_for_crashes_while_its_child_gets_on(memory: InMemoryStore) -> None:
    """The child makes progress between two crashes, and its parent only waits."""

    @refold.tool(tier="observe", effect="pure")
    async def look(n: int) -> int:
        return n

    def boss(*script: Any, calls: Any = None) -> refold.Agent:
        return boss_of(agent_of("h", *script, tools=[look]), calls=calls)

    for life in range(5):
        answer, following = refold.use("look", {"n": life}), HeldAnswer("never")
        await crashed_at(following.asked, boss(answer, following, calls=asking("h") if life == 0 else None), memory)
    async with sent_to(boss(refold.say("got there")), memory) as (_, session, sending):
        assert (await sending).text == "done"
        assert await told(session) == ["got there"]
        assert "RunParked" not in await types_of(session)
