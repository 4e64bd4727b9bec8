"""When a task of the runtime ends early, its work is begun again: no cancellation by other code makes it deaf."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from refold import (
    Agent,
    AgentConfig,
    AgentRuntime,
    EpisodicStore,
    RefoldError,
    ScriptedProvider,
    Session,
    ToolError,
    say,
    tool,
    use,
)
from refold.actors.kernel import supervision
from refold.actors.kernel.clock import SystemClock
from refold.actors.kernel.supervision import Background, RestartPolicy
from refold.events.session.events import RunCompleted
from refold.options import RuntimeOptions
from refold.remote.client import give
from refold.remote.protocol import Done
from refold.remote.rows import InboxDecide, InboxSend
from refold.resilience import CircuitBreaker
from refold.scenarios.world.loop import SimulatedLoop
from refold.stores.sqlite.store import SQLiteStore
from refold.stores.values.memory import MemoryBackend

CALLERS = {"?", "send to session/s", "close the runtime", "closing actors", "closing actors, grace period"}
"""Tasks of a caller, which learns of their cancellation."""

OPENING = {"journal", "memory/main", "runtime/log", "breaker/till"}
"""Tasks that the opening of a runtime waits for; it fails where one is cancelled. They are cancelled afterwards."""

NEEDED = OPENING | {
    *(
        "approval/agent",
        "approval/agent approval:N",
        "bell",
        "count the log",
        "inbox",
        "inbox of s",
        "keep events.db open",
        "late tools",
        "look at the shared log",
        "model/agent",
        "model/agent model:N",
    ),
    *(
        "what agents depend on",
        "resume open runs",
        "session/s",
        "snapshots",
        "tool/look",
        "tool/look s/call_N_N",
        "tool/pay",
    ),
    *("tool/pay s/call_N_N", "watch of events.db.inbox", "work on events.db.inbox", "write step snapshots"),
}
"""Tasks without which a caller would wait in vain."""

BEGUN_ELSEWHERE = {
    "actors": {
        "agent/breaker.py": "writes findings; what is not written is found stale, and recovered",
        "agent/guardrails.py": "judges an input beside its model call, which fails where it is cut",
        "kernel/cell.py": "an actor, whose next message makes another instance",
        "kernel/clock.py": "moves the clock of a test",
        "kernel/supervision.py": "background work, and the work of an actor, which learns of its end",
        "kernel/system.py": "the end of a system, for its caller",
        "loop_thread.py": "a call of a thread, which learns of its end",
        "system.py": "the end of a system, for its caller",
    },
    "runtime": {
        "commands/standard_input.py": "what a command does with its input, for the command",
        "commands/run/chat_session.py": "a turn of the terminal's user",
        "commands/run/session_run.py": "a run of the terminal's user",
        "commands/run/shown.py": "what the terminal shows",
        "guarded_store.py": "one call of a store, for its caller",
        "life/lifecycle.py": "the end of a runtime, for its caller",
        "memory/embedding.py": "an embedding, for its caller",
        "page/pages.py": "reads a log for a page, whose next request reads on",
        "serving/routes.py": "a look at the log for pages that wait, each of which asks again",
        "replay/trial/going_on.py": "a trial, for its caller",
        "replay/shadow/process.py": "a job of a child process, for its caller",
        "providers/http/client.py": "closes connections; the next one that rests sets the time again",
        "bell/owner_end.py": "a command of another process, which puts it into the inbox where no outcome comes",
        "remote/guest.py": "a command to the owner, for its caller",
        "remote/changing.py": "tells a memory of the owner what a guest's caller does not wait for",
        "remote/kept_log.py": "closes a log that is not in use, where its last reader does not",
        "bell/listener.py": "a command to the owner, which goes into the inbox where no outcome comes",
        "resilience/breaker.py": "a question to a breaker, for its caller",
        "resilience/deduplicator.py": "work for its caller",
        "sessions/sent_input.py": "an input, for its caller",
        "sigterm.py": "the end of a runtime; a second signal ends the process",
    },
    "stores": {
        "conformance.py": "a test",
        "sqlite/inbox.py": "writes for callers, which learn of its end",
        "sqlite/store.py": "a copy or an end, for its caller",
        "values/conformance.py": "a test",
    },
}
"""Every place of the product that begins tasks, and why no work is lost where one is cancelled."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "PAUSES", RestartPolicy(backoff_s=0, backoff_max_s=0))


class Watched:
    """Sees all tasks that the loop is given, and cancels the first of one name, after some steps of the loop."""

    def __init__(self, wanted: str = "", steps: int = 0) -> None:
        self.names: set[str] = set()
        self.cancelled = False
        self.armed = wanted not in OPENING
        self._wanted, self._steps = wanted, steps
        loop = asyncio.get_running_loop()
        self._create = type(loop).create_task.__get__(loop)
        loop.create_task = self  # type: ignore[method-assign, assignment]

    def __call__(self, work: Any, *, name: str | None = None, **options: Any) -> "asyncio.Task[Any]":
        task: asyncio.Task[Any] = self._create(work, name=name, **options)
        name = re.sub(r"\d+", "N", name or "?")
        self.names.add(name)
        if name == self._wanted and self.armed:
            self.armed = False
            self._cancel(task, self._steps)
        return task

    def _cancel(self, task: "asyncio.Task[Any]", steps: int) -> None:
        if steps:
            asyncio.get_running_loop().call_soon(self._cancel, task, steps - 1)
        else:
            self.cancelled = task.cancel()


@tool(tier="confirm", effect="pure")
def pay(amount: int) -> str:
    return f"paid {amount}"


def till() -> Any:
    """Return a tool that fails once, behind a breaker, which notes that."""
    failures = [ToolError("the till is shut")]

    @tool(tier="observe", effect="pure", breaker=CircuitBreaker("till"))
    async def look() -> str:
        if failures:
            raise failures.pop()
        return "seen"

    return look


@asynccontextmanager
async def open_deps() -> AsyncGenerator[str, None]:
    yield "the till"


async def again(attempt: Callable[[], Any]) -> Any:
    """Return what an attempt gives; it may fail twice: with an error of ours, or where its own task is cancelled."""
    for _ in range(2):
        try:
            return await attempt()
        except (RefoldError, asyncio.CancelledError):
            continue
    return await attempt()


async def play(log: Path, watched: Watched) -> None:
    """Use all that has tasks: inbox, approvals, sends, timers, a memory, a breaker, late tools, snapshots, metrics."""
    memory = EpisodicStore(scope="agent")
    script: list[Any] = [use("pay", {"amount": 1}), say("paid"), use("look"), use("look"), *[say("hello")] * 9]
    config, provider = AgentConfig(model="m"), ScriptedProvider(script)
    agent = Agent(
        name="agent",
        config=config,
        provider=provider,
        tools=[pay],
        deps=open_deps,
        memory=memory,
        approval=lambda session, request: None,
    )
    options = RuntimeOptions(
        log=log, inbox_poll_s=0.005, snapshot_every=2, step_snapshots=MemoryBackend(), ask_timeout_s=5, close_grace_s=1
    )
    async with AgentRuntime(agent, **options) as runtime:
        watched.armed = watched.armed or not watched.cancelled
        session = await runtime.session("s")
        given = await again(lambda: give(log, "s", InboxSend(text="pay"), key="a", may_begin=True))
        assert isinstance(given.outcome, Done)
        while not (approvals := await again(session.approvals)):
            await runtime.system.clock.sleep(0.001)
        decision = InboxDecide(call=approvals[0].call, allowed=True)
        assert isinstance((await again(lambda: give(log, "s", decision, key="b"))).outcome, Done)
        runtime.tools.register(till())
        assert (await again(lambda: session.send("look", key="c"))).text == "hello"
        run = await again(lambda: session.remind("later", at=datetime.now(UTC), key="d"))
        while not await ended(session, run):
            await runtime.system.clock.sleep(0.001)
        await again(lambda: memory.add_episode("agent", "tea"))
        assert (await again(runtime.metrics.snapshot)).runs_completed >= 3
        assert (await again(lambda: session.send("hello", key="e"))).text == "hello"


async def ended(session: Session, run: str) -> bool:
    return any(
        [
            getattr(each.event, "run", "") == run
            async for each in session.events()
            if isinstance(each.event, RunCompleted)
        ]
    )


@pytest.fixture
def busy_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the journal write by a task of its own, as it does where the log has other work at that moment."""
    monkeypatch.setattr(SQLiteStore, "begin_append", lambda *_: False)


async def test_all_tasks_of_a_runtime_are_known(tmp_path: Path, busy_log: None) -> None:
    watched = Watched()
    await play(tmp_path / "events.db", watched)
    assert watched.names - CALLERS == NEEDED


@pytest.mark.parametrize("steps", [0, *[pytest.param(steps, marks=pytest.mark.slow) for steps in (1, 2, 4, 8)]])
@pytest.mark.parametrize("name", sorted(NEEDED))
async def test_a_runtime_goes_on_where_other_code_cancels_a_task_of_it(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, steps: int
) -> None:
    if name == "journal":
        request.getfixturevalue("busy_log")
    if name == "model/agent model:N" and steps:
        pytest.skip("a model call that is cut is a failed call, as where its provider cancels it")
    watched = Watched(name, steps)
    await asyncio.wait_for(play(tmp_path / "events.db", watched), 30)
    assert watched.cancelled or steps


def test_every_place_that_begins_tasks_is_known() -> None:
    root = Path(__file__).parents[2]
    for layer, known in BEGUN_ELSEWHERE.items():
        found = {
            str(path.relative_to(root / layer))
            for path in (root / layer).rglob("*.py")
            if re.search(r"\b(create_task|ensure_future)\(", path.read_text())
        }
        assert found == set(known)


async def test_background_work_begins_again_until_it_is_over_or_ended(caplog: pytest.LogCaptureFixture) -> None:
    begun: list[int] = []
    reported: list[tuple[str, str, int]] = []
    goes_on, over = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.append(len(begun))
        if len(begun) == 1:
            raise ValueError("once")
        await goes_on.wait()

    background = Background(
        "the work", work, over.set, lambda name, error, count: reported.append((name, type(error).__name__, count))
    )
    [task] = [task for task in asyncio.all_tasks() if task.get_name() == "the work"]
    task.cancel()
    while background.restarts < 2:
        await SystemClock().sleep(0.001)
    goes_on.set()
    await over.wait()
    assert background.is_over
    assert reported == [("the work", "CancelledError", 1), ("the work", "ValueError", 2)]
    assert "the work was cancelled by other code; it begins again" in caplog.text
    goes_on.clear()
    ended = Background("the work", work)
    await ended.stop()
    assert (ended.is_over, ended.restarts) == (True, 0)


@pytest.mark.parametrize("phase", ["tasks", "generators"])
def test_no_background_work_begins_again_on_a_loop_that_takes_long_to_end(phase: str) -> None:
    background: Any = None
    begun: list[Background] = []
    kept: list[Any] = []

    async def work() -> None:
        begun.append(background)
        await asyncio.Event().wait()

    async def ends_late() -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await asyncio.sleep(60)

    async def waits_in_vain() -> None:
        async with aclosing(ends_late()) as late:
            async for _ in late:
                await asyncio.Event().wait()

    async def main() -> None:
        nonlocal background
        background = Background("the work", work)
        kept.append(asyncio.create_task(waits_in_vain()) if phase == "tasks" else ends_late())
        if phase == "generators":
            await anext(kept[0])
        await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(main())
    assert begun == [background]
    assert background.is_over
