"""Cases N and M of the reported faults: what is the same when it is done again, and what a killed process leaves.

The kills are real, with SIGKILL, at a moment that the child itself chooses.
"""

import asyncio
import itertools
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from refold import ActorStopped, Completed, LogInUse, ModelRequest, Session, say, tool, use
from refold.events.core.content import CRASHED_TEXT
from refold.events.session.events import InputQueued, RunParked, RunStarted, ToolCallCompleted
from refold.events.session.invariants import check_history
from refold.replay import replay
from refold.stores import EventStore
from tests.conformance.crashes import assert_sound_file, runtime_on
from tests.conformance.processes import BEGINNING, command_line, run
from tests.conformance.sessions import Seen, events_of, results_of, runtime_of, types_of


async def texts_of_results(session: Session) -> list[str]:
    return [block.text for block in await results_of(session)]


async def assert_replayed_alike(log: EventStore | Path) -> None:
    assert await replay(log, level="core") == await replay(log, level="core")


def repeatable(effect: Any, ran: list[str]) -> Any:
    """Return the tool that a child had, for the runtime after it."""

    @tool(tier="act", effect=effect)
    async def work() -> str:
        ran.append("x")
        return "worked"

    return work


# N01, N03: the order in the log is the order


@pytest.mark.parametrize("order", ["".join(order) for order in itertools.permutations("abc")])
@pytest.mark.parametrize("tick", ["apart", "in one tick"])
async def test_case_n01_parallel_results_are_recorded_as_they_end_and_decided_on_alike_in_every_replay(
    log: EventStore, order: str, tick: str
) -> None:
    gates = {name: asyncio.Event() for name in "abc"}
    ended: list[str] = []
    begun = asyncio.Event()

    @tool(tier="observe")
    async def look(name: str) -> str:
        if name == "c":
            begun.set()
        await gates[name].wait()
        ended.append(name)
        return name

    async with runtime_of(log, [use("look", {"name": name}) for name in "abc"], say("ok"), tools=[look]) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        sending = asyncio.create_task(session.send("go"))
        await begun.wait()
        for name in order:
            gates[name].set()
            if tick == "apart":
                await seen.first(ToolCallCompleted, len(ended) + 1)
        assert (await sending).outcome == Completed()
        texts = [event.content[0].text for event in await events_of(session, ToolCallCompleted)]
        assert texts == ended, "the log has them in the order in which they ended"
        assert await texts_of_results(session) == ["a", "b", "c"], "the model has them in the order of its calls"
    if tick == "apart":
        assert "".join(ended) == order
    await assert_replayed_alike(log)


async def inputs_in_order(session: Session) -> list[str]:
    """Return the inputs in the order accepted, in which their runs began."""
    accepted = [recorded async for recorded in session.events() if isinstance(recorded.event, InputQueued)]
    assert [event.input for event in await events_of(session, RunStarted)] == [each.version for each in accepted]
    return ["".join(getattr(block, "text", "") for block in each.event.content) for each in accepted]  # type: ignore[union-attr]


async def test_case_n03_inputs_that_arrive_close_together_run_in_the_order_of_the_log(log: EventStore) -> None:
    def echo(request: ModelRequest) -> str:
        return f"heard {request.messages[-1].text}"

    async with runtime_of(log, *[echo] * 30) as runtime:
        session = await runtime.session("s")
        results = await asyncio.gather(*(session.send(f"input {number}") for number in range(30)))
        assert [result.text for result in results] == [f"heard input {number}" for number in range(30)]
        assert await inputs_in_order(session) == [f"input {number}" for number in range(30)]
    await assert_replayed_alike(log)


@pytest.mark.slow
@pytest.mark.parametrize("second", ["send", "cancel", "both"])
@pytest.mark.parametrize("at", range(1, 12))
async def test_case_n03_what_arrives_at_any_event_of_a_run_has_one_place_in_the_log(
    log: EventStore, at: int, second: str
) -> None:
    @tool
    async def work() -> str:
        return "worked"

    def answer(request: ModelRequest) -> Any:
        return use("work") if request.messages[-1].text == "first" else "fine"

    others: list[asyncio.Task[Any]] = []
    async with runtime_of(log, *[answer] * 6, tools=[work]) as runtime:
        session = await runtime.session("s")

        def arrive(recorded: Any) -> None:
            if recorded.version == at:
                if second in ("send", "both"):
                    others.append(asyncio.create_task(session.send("second")))
                if second in ("cancel", "both"):
                    others.append(asyncio.create_task(session.cancel()))

        runtime.subscribe(arrive)
        await session.send("first")
        await asyncio.gather(*others)
        inputs = ["first"] if second == "cancel" else ["first", "second"]
        assert await inputs_in_order(session) == inputs
        assert check_history(await session.history()) == []
        types = await types_of(session)
        assert sum(types.count(kind) for kind in ("RunCompleted", "RunCancelled")) == len(inputs)
    await assert_replayed_alike(log)


# N09: a result and what follows from it are one transaction

CHILD = (
    BEGINNING
    + """
effect, point, wanted, ran = sys.argv[2:]
armed, warm = False, True

def kill(reached):
    if armed and reached == point:
        os.kill(os.getpid(), signal.SIGKILL)

@tool(tier="act", effect=effect)
async def work() -> str:
    global armed
    if warm:
        return "warm"
    with open(ran, "a") as file:
        file.write("x")
    if wanted == "result":
        armed = True
    return "worked"

def answer(text):
    def say_it(request):
        global armed
        armed = armed or (wanted == text and not warm)
        return use("work") if text == "call" else "done"
    return say_it

async def main():
    global armed, warm
    async with await SQLiteStore.open(log, fault=kill) as store:
        provider = ScriptedProvider([answer("call"), answer("final")] * 2)
        async with AgentRuntime(AgentConfig(model="m"), provider=provider, tools=[work], log=store) as runtime:
            session = await runtime.session("s")
            await (await runtime.session("another")).send("go")  # Defines the tool, which is an append of its own.
            warm = False
            armed = wanted == "input"
            await session.send("go", key="k")

asyncio.run(main())
"""
)


def run_child(source: str, *arguments: object) -> int:
    """Run a process to its end, which may be of its own hand, and return how it ended."""
    return run(command_line("-c", source, *arguments)).returncode


@pytest.mark.slow
@pytest.mark.parametrize("point", ["append.begun", "append.inserted", "append.committed"])
@pytest.mark.parametrize("wanted", ["input", "call", "result", "final"])
@pytest.mark.parametrize("effect", ["once", pytest.param("idempotent", marks=pytest.mark.slow)])
async def test_case_n09_a_process_killed_in_any_append_has_recorded_a_whole_step_or_nothing_of_it(
    tmp_path: Path, effect: Any, wanted: str, point: str
) -> None:
    path, ran = tmp_path / "events.db", tmp_path / "ran"
    assert run_child(CHILD, path, effect, point, wanted, ran) == -signal.SIGKILL
    before = len(ran.read_text()) if ran.exists() else 0
    assert before == (wanted in ("result", "final"))
    again: list[str] = []

    def answer(request: ModelRequest) -> Any:
        return "done" if len(request.messages) > 1 else use("work")

    async with runtime_on(path, answer, answer, tools=[repeatable(effect, again)]) as runtime:
        session = await runtime.session("s")
        assert (await session.send("go", key="k")).text == "done"
        types = await types_of(session)
        counts = [types.count(kind) for kind in ("InputQueued", "RunCompleted")]
        assert counts == [1, 1]
        assert types.count("ToolCallCompleted") + types.count("ToolCallFailed") == 1
        assert not {"ToolResultLate", "ModelInterrupted"}.intersection(types)
        (result,) = await texts_of_results(session)
    lost = wanted == "result" and point != "append.committed"
    started = wanted == "call" and point == "append.committed"
    unknown = effect == "once" and (lost or started)
    assert result == (CRASHED_TEXT if unknown else "worked")
    assert len(again) == (0 if unknown or (before and not lost) else 1)
    await assert_sound_file(path)
    await assert_replayed_alike(path)


# M03: one runtime owns a log


OTHER = (
    BEGINNING
    + """
async def main():
    provider = ScriptedProvider([say("x")])
    try:
        async with AgentRuntime(AgentConfig(model="m"), provider=provider, log=log, wait_for_log_s=0) as runtime:
            await (await runtime.session("s")).send("from another process")
    except LogInUse as error:
        sys.exit(7 if str(error.pid) == sys.argv[2] else 8)

asyncio.run(main())
"""
)


@pytest.mark.parametrize("second", ["in this process", "in another process"])
async def test_case_m03_a_second_runtime_is_refused_while_the_first_is_in_a_tool_and_nothing_is_lost(
    tmp_path: Path, second: str
) -> None:
    path, begun, gate = tmp_path / "events.db", asyncio.Event(), asyncio.Event()

    @tool
    async def work() -> str:
        begun.set()
        await gate.wait()
        return "worked"

    async with runtime_on(path, use("work"), say("done"), say("more"), tools=[work]) as first:
        session = await first.session("s")
        sending = asyncio.create_task(session.send("go"))
        await begun.wait()
        if second == "in this process":
            with pytest.raises(LogInUse, match=str(os.getpid())):
                await runtime_on(path, say("x"), wait_for_log_s=0).__aenter__()
        else:
            loop = asyncio.get_running_loop()
            assert await loop.run_in_executor(None, run_child, OTHER, path, os.getpid()) == 7
        gate.set()
        assert (await sending).text == "done"
        assert (await session.send("again")).text == "more"
    async with runtime_on(path, say("third"), wait_for_log_s=0) as third:
        session = await third.session("s", restore=True)
        assert (await session.send("and again")).text == "third"
        texts = [message.text for message in await session.history() if message.text]
        assert texts == ["go", "done", "again", "more", "and again", "third"]
    await assert_sound_file(path)


async def test_case_m03_a_second_runtime_that_may_wait_takes_the_log_over_and_goes_on(tmp_path: Path) -> None:
    path, begun, gate = tmp_path / "events.db", asyncio.Event(), asyncio.Event()

    @tool(effect="pure")
    async def work() -> str:
        begun.set()
        await gate.wait()
        return "worked"

    first = runtime_on(path, use("work"), tools=[work], close_grace_s=0)
    async with first:
        sending = asyncio.create_task((await first.session("s")).send("go", key="k"))
        await begun.wait()
        second = runtime_on(path, say("done"), tools=[work], wait_for_log_s=60)
        opening = asyncio.create_task(second.open())
        await asyncio.sleep(0)
        assert not opening.done()
        await first.close()
        gate.set()
        await opening
    with pytest.raises(ActorStopped):
        await sending
    assert (await (await second.session("s")).send("go", key="k")).text == "done"
    await second.close()
    await assert_sound_file(path)


# M09: a tool that kills its process is parked

BOMB = (
    BEGINNING
    + """
life, effect = int(sys.argv[2]), sys.argv[3]

@tool(effect=effect)
async def bomb() -> str:
    os.kill(os.getpid(), signal.SIGKILL)

def answer(request):
    return use("bomb") if request.messages[0].text == "die" else say("well")

async def main():
    parked = asyncio.Event()

    def see(recorded):
        if type(recorded.event).__name__ == "RunParked":
            parked.set()

    provider = ScriptedProvider([answer] * 9)
    async with AgentRuntime(AgentConfig(model="m"), provider=provider, tools=[bomb], log=log) as runtime:
        runtime.subscribe(see, session="s")
        session = await runtime.session("s")
        if life == 0:
            await session.send("die", key="k")
        print((await (await runtime.session("another")).send("hello")).text, flush=True)
        if (run := (await session.state_at()).run) is not None and not run.parked:
            await parked.wait()

asyncio.run(main())
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("effect", ["idempotent", "pure"])
async def test_b21_case_m09_a_tool_that_kills_every_process_is_parked_after_three_resumes_until_somebody_decides(
    tmp_path: Path, effect: Any
) -> None:
    path, ran = tmp_path / "events.db", list[str]()
    lives = [run(command_line("-c", BOMB, path, life, effect)) for life in range(5)]
    assert [life.returncode for life in lives] == [-signal.SIGKILL] * 4 + [0]
    assert lives[-1].stdout == "well\n", "other sessions go on"

    @tool(effect=effect)
    async def bomb() -> str:
        ran.append("x")
        return "defused"

    async with runtime_on(path, say("innocent"), say("done"), tools=[bomb]) as runtime:
        session = await runtime.session("s")
        types = await types_of(session)
        assert (types.count("RunResumed"), types.count("RunParked")) == (4, 1), "the fourth resume only parks it"
        assert types[-1] == RunParked.__name__
        assert (await (await runtime.session("another")).send("go")).text == "innocent"
        assert ran == [], "nothing is tried again before a person decides"
        await session.resume()
        assert (await session.send("die", key="k")).text == "done"
        assert await texts_of_results(session) == ["defused"]
    assert ran == ["x"]
    await assert_sound_file(path)
