"""Many threads and one runtime, as behind a web server: at the same and at different sessions, and at its end.

Every log is checked and replayed when the test is over.
"""

import asyncio
import ctypes
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.stores import InMemoryStore, SQLiteStore
from tests.conformance.sessions import assert_sound, requests_of
from tests.conformance.threads import Held, InThread

THREADS = 50


def echo(request: refold.ModelRequest) -> str:
    return f"to {request.messages[-1].text}"


def runtime_of(log: Any, *script: Any, tools: Any = (), **options: Any) -> refold.AgentRuntime:
    provider = refold.ScriptedProvider([*script, *[echo] * 2000])
    return refold.AgentRuntime(refold.AgentConfig(model="m"), provider=provider, tools=tools, log=log, **options)


@pytest.fixture
def memory() -> Iterator[InMemoryStore]:
    store = InMemoryStore()
    yield store
    asyncio.run(assert_sound(store))


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    log = tmp_path / "events.db"
    yield log

    async def check() -> None:
        async with await SQLiteStore.open(log, wait_for_log_s=0) as store:
            await assert_sound(store)

    asyncio.run(check())


def at_once(calls: list[Callable[[], refold.RunResult]]) -> list[refold.RunResult]:
    """Make calls in as many threads, which begin together; return what they return."""
    barrier = threading.Barrier(len(calls))

    def begin(call: Callable[[], refold.RunResult]) -> refold.RunResult:
        barrier.wait()
        return call()

    threads = [InThread(partial(begin, call)) for call in calls]
    return [thread.result() for thread in threads]


def ends_of(runtime: refold.SyncRuntime, session: str) -> list[str]:
    kinds = [type(recorded.event).__name__ for recorded in runtime.session(session).events()]
    return [kind for kind in kinds if kind in ("RunCompleted", "RunCancelled", "RunFailed")]


def raise_in(thread: threading.Thread, error: type[BaseException]) -> None:
    """Have an error raised in a thread, wherever it is, as a signal handler does in the main thread."""
    assert thread.ident is not None
    set_error = ctypes.pythonapi.PyThreadState_SetAsyncExc
    assert set_error(ctypes.c_ulong(thread.ident), ctypes.py_object(error)) == 1


def test_many_threads_at_sessions_of_their_own_get_their_own_answers(path: Path) -> None:
    with runtime_of(path) as runtime:
        results = at_once([partial(runtime.session(f"s{n}").send, f"{n}") for n in range(THREADS)])
        assert [result.text for result in results] == [f"to {n}" for n in range(THREADS)]
        assert len(runtime.sessions()) == THREADS


def test_many_threads_at_one_session_take_turns_and_get_their_own_answers(path: Path) -> None:
    with runtime_of(path) as runtime:
        session = runtime.session("s")
        results = at_once([partial(session.send, f"{n}") for n in range(THREADS)])
        assert [result.text for result in results] == [f"to {n}" for n in range(THREADS)]
        texts = [message.text for message in session.history()]
        assert texts[1::2] == [f"to {text}" for text in texts[::2]]
        assert len(texts) == 2 * THREADS


def test_many_threads_with_one_key_share_one_run(memory: InMemoryStore) -> None:
    with runtime_of(memory) as runtime:
        results = at_once([lambda: runtime.session("s").send("go", key="k")] * THREADS)
        assert {result.run for result in results} == {results[0].run}
        assert len(requests_of(runtime)) == 1


def test_threads_that_only_look_disturb_nobody_and_see_whole_sessions(memory: InMemoryStore) -> None:
    with runtime_of(memory) as runtime:
        done = threading.Event()

        def look(number: int) -> None:
            session = runtime.session(f"s{number % 3}")
            while not done.is_set():
                texts = [message.text for message in session.history()]
                assert texts[1::2] == [f"to {text}" for text in texts[::2]][: len(texts) // 2]
                versions = [recorded.version for recorded in session.events()]
                assert versions == list(range(1, len(versions) + 1))
                assert session.state_at().version >= len(versions)

        looking = [InThread(partial(look, number)) for number in range(6)]
        results = at_once([partial(runtime.session(f"s{n % 3}").send, f"{n}") for n in range(30)])
        done.set()
        assert [result.text for result in results] == [f"to {n}" for n in range(30)]
        for thread in looking:
            thread.result()


@pytest.mark.slow
def test_threads_that_follow_see_all_events_while_many_send(memory: InMemoryStore) -> None:
    """Their capacity is far below what happens at once, so that they read what they have missed from the log."""
    with runtime_of(memory) as runtime:

        def follow(items: refold.SyncSubscription) -> list[int]:
            positions, ends = list[int](), 0
            with items:
                for item in items:
                    if isinstance(item, refold.RecordedEvent):
                        positions.append(item.position)
                        ends += type(item.event).__name__ == "RunCompleted"
                        if ends == THREADS:
                            return positions
            raise AssertionError(f"it ended after {ends} runs")

        following = [InThread(partial(follow, runtime.follow(capacity=5))) for _ in range(5)]
        at_once([partial(runtime.session(f"s{n % 7}").send, f"{n}") for n in range(THREADS)])
        happened = [item.position for name in runtime.sessions() for item in runtime.session(name).events()]
        for thread in following:
            assert sorted(thread.result()) == sorted(happened)


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_a_thread_that_is_interrupted_in_a_call_cancels_its_own_run_only(
    memory: InMemoryStore, error: type[BaseException]
) -> None:
    mine, others = Held(), Held("others")
    with runtime_of(memory, mine) as runtime:
        dying = InThread(lambda: runtime.session("mine").send("go"))
        mine.asked.wait()
        other = InThread(lambda: runtime.session("other").send("go"))
        raise_in(dying.thread, error)
        dying.wait()
        assert isinstance(dying.error, error)
        assert ends_of(runtime, "mine") == ["RunCancelled"]
        assert other.result().outcome == refold.Completed()
        assert runtime.session("mine").send("more").text == "to more"
    others.gate.cancel()


def test_of_two_threads_with_one_key_one_may_be_interrupted_and_the_run_goes_on(memory: InMemoryStore) -> None:
    held = Held()
    with runtime_of(memory, held) as runtime:
        session = runtime.session("s")
        staying = InThread(lambda: session.send("go", key="k"))
        held.asked.wait()
        leaving = InThread(lambda: session.send("go", key="k"))
        session.history()
        raise_in(leaving.thread, KeyboardInterrupt)
        leaving.wait()
        assert isinstance(leaving.error, KeyboardInterrupt)
        held.gate.cancel()
        assert staying.result().text == "let go"


def test_threads_that_wait_when_another_closes_the_runtime_are_told_and_their_runs_go_on_later(path: Path) -> None:
    held = [Held() for _ in range(8)]
    with runtime_of(path, *held, close_grace_s=0) as runtime:
        sending = [InThread(partial(runtime.session(f"s{n}").send, "go", key="k")) for n in range(8)]
        for answer in held:
            answer.asked.wait()
        InThread(runtime.close).result()
        for thread in sending:
            with pytest.raises(refold.ActorStopped):
                thread.result()
    with runtime_of(path) as runtime:
        results = at_once([partial(runtime.session(f"s{n}").send, "go", key="k") for n in range(8)])
        assert [result.text for result in results] == ["to go"] * 8


@pytest.mark.parametrize("cancel", [False, True])
def test_threads_that_never_stop_sending_are_told_of_the_end_and_none_hangs(
    memory: InMemoryStore, cancel: bool
) -> None:
    going = threading.Barrier(11)

    def send_until_the_end(number: int) -> list[refold.RunResult]:
        results = list[refold.RunResult]()
        for turn in count():
            if turn == 2:
                going.wait()
            try:
                results.append(runtime.session(f"s{number % 4}").send(f"{number}.{turn}"))
            except refold.ActorStopped:
                return results
        raise AssertionError

    with runtime_of(memory, close_grace_s=0) as runtime:
        sending = [InThread(partial(send_until_the_end, n)) for n in range(10)]
        going.wait()
        runtime.close(cancel=cancel)
        for thread in sending:
            assert {type(result.outcome) for result in thread.result()} <= {refold.Completed, refold.Cancelled}


def test_many_threads_may_close_at_once_and_all_return_when_it_is_over(path: Path) -> None:
    held = Held()
    runtime = runtime_of(path, held, close_grace_s=0).__enter__()
    sending = InThread(lambda: runtime.session("s").send("go"))
    held.asked.wait()
    barrier = threading.Barrier(10)

    def close() -> list[str]:
        barrier.wait()
        runtime.close()
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("refold-loop")]

    assert [thread.result() for thread in [InThread(close) for _ in range(10)]] == [[]] * 10
    with pytest.raises(refold.ActorStopped):
        sending.result()
    with runtime_of(path) as again:
        assert again.session("s", restore=True).id == "s"


@pytest.mark.parametrize("tool_threads", [1, 32])
def test_tools_in_threads_may_send_to_other_sessions_however_few_threads_there_are(
    memory: InMemoryStore, tool_threads: int
) -> None:
    @refold.tool
    def delegate(depth: int) -> str:
        if depth == 0:
            return "bottom"
        return runtime.session(f"level {depth}").send(f"{depth - 1}").text

    def answer(request: refold.ModelRequest) -> Any:
        last = request.messages[-1]
        if last.text:
            return refold.use("delegate", {"depth": int(last.text)})
        return "up"

    provider = refold.ScriptedProvider([answer] * 100)
    config = refold.AgentConfig(model="m")
    options: dict[str, Any] = {"log": memory, "tool_threads": tool_threads, "close_grace_s": 0}
    with refold.AgentRuntime(config, provider=provider, tools=[delegate], **options) as runtime:
        assert runtime.session("top").send("3").text == "up"
        assert len(runtime.sessions()) == 4


def test_a_tool_may_close_the_runtime_that_runs_it(memory: InMemoryStore) -> None:
    closed = threading.Event()

    @refold.tool
    def shut_down() -> str:
        runtime.close()
        closed.set()
        return "closed"

    runtime = runtime_of(memory, refold.use("shut_down"), tools=[shut_down], close_grace_s=0).__enter__()
    with pytest.raises(refold.ActorStopped):
        runtime.session("s").send("go")
    assert closed.wait()
