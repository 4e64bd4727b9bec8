"""An application's code in a replay: whatever it tries, nothing acts, and what it tried is told."""

import asyncio
import ctypes
import logging
import mmap
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refold import Agent, AgentConfig, AgentRuntime, Middleware, ModelRequest, ScriptedProvider, say, tool
from refold.events.core.errors import DivergenceError, PersistenceError
from refold.replay import ReplayReport, replay
from refold.stores import InMemoryStore

CONFIG = AgentConfig(model="m")


class Acting(Middleware):
    """Does something before each request."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act

    def on_pre_llm(self, context: Any, request: ModelRequest) -> None:
        self.act()


@pytest.fixture(scope="module")
def log() -> InMemoryStore:
    """One session of two answers; nothing here changes it."""

    async def talk() -> None:
        agent = Agent(config=CONFIG, provider=ScriptedProvider([say("One."), say("Two.")]))
        async with AgentRuntime(agent, log=store) as runtime:
            session = await runtime.session("s")
            await session.send("Go")
            await session.send("on")

    store = InMemoryStore()
    asyncio.run(talk())
    return store


def acting(log: InMemoryStore, act: Callable[[], object], **options: Any) -> ReplayReport:
    agent = Agent(config=CONFIG, provider=ScriptedProvider([]), middleware=[Acting(act)])
    return asyncio.run(replay(log, agent=agent, **options))


def swallowing(act: Callable[[], object]) -> Callable[[], None]:
    def attempt() -> None:
        try:
            act()
        except Exception:  # noqa: BLE001 - What is swallowed was tried nevertheless.
            return

    return attempt


class Server:
    """Counts the bytes that reach it."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = self._listening.getsockname()
        self.opened_before = socket.create_connection(self.address)
        self._taken = self._listening.accept()[0]

    def received(self) -> bytes:
        """Return what came, of all connections."""
        self.opened_before.close()
        self._listening.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            self._listening.accept()
        return self._taken.recv(100)

    def close(self) -> None:
        self._taken.close()
        self._listening.close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@tool(effect="once")
def save(path: str) -> str:
    """Save."""
    Path(path).write_text("saved")
    return "saved"


libc = ctypes.CDLL(None)
libc_unlink, libc_open, libc_socket = libc.unlink, libc.open, libc.socket


def ways_of(folder: Path, server: Server, before: sqlite3.Connection) -> dict[str, tuple[Callable[[], object], str]]:
    """Return ways to act, each with what is told of it."""
    file, empty, database = folder / "file.txt", folder / "empty", folder / "kept.db"
    executor = ThreadPoolExecutor(1)
    executor.submit(int).result()

    def connect() -> None:
        socket.create_connection(server.address).sendall(b"hello")

    def in_thread() -> None:
        thread = threading.Thread(target=swallowing(connect))
        thread.start()
        thread.join()

    def insert(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO t VALUES (2)")
        connection.commit()

    return {
        "a file is written": (lambda: file.write_text("other"), "open for writing"),
        "a file is appended to": (lambda: os.open(file, os.O_WRONLY | os.O_APPEND), "open for writing"),
        "a file is made": (lambda: open(folder / "new", "xb"), "open for writing"),
        "a file is removed": (file.unlink, "os.remove"),
        "a file is moved": (lambda: file.rename(folder / "moved"), "os.rename"),
        "a file is cut": (lambda: os.truncate(file, 0), "os.truncate"),
        "a file is copied": (lambda: shutil.copy(file, folder / "copy"), "shutil.copyfile"),
        "a folder is made": (lambda: os.mkdir(folder / "made"), "os.mkdir"),
        "a folder is removed": (empty.rmdir, "os.rmdir"),
        "a temporary folder is made": (tempfile.mkdtemp, "tempfile.mkdtemp"),
        "a tree is removed": (lambda: shutil.rmtree(folder), "shutil.rmtree"),
        "a temporary file is made": (tempfile.NamedTemporaryFile, "open for writing"),
        "SQLite is written": (lambda: insert(sqlite3.connect(database)), "sqlite3"),
        "SQLite that was open is written": (lambda: insert(before), "OperationalError"),
        "a database is made": (lambda: sqlite3.connect(folder / "new.db"), "sqlite3.connect"),
        "a socket that was open": (lambda: server.opened_before.sendall(b"hello"), "socket.sendall"),
        "a socket that is opened": (connect, "socket.getaddrinfo"),
        "a datagram": (lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", server.address), "socket.__new__"),
        "a thread": (in_thread, "socket.getaddrinfo"),
        "an executor of the module": (lambda: executor.submit(connect).result(), "socket.getaddrinfo"),
        "a body that is called": (lambda: save.function(str(file)), "open for writing"),
        "a tool that is called": (lambda: save(str(file)), "the tool save"),
        "a program": (lambda: subprocess.run(["/bin/rm", str(file)], check=True), "subprocess.Popen"),
        "another process": (os.fork, "os.fork"),
        "in its place": (lambda: os.execv("/bin/rm", ["rm", str(file)]), "os.exec"),  # noqa: S606
        "a shell": (lambda: os.system(f"rm {file}"), "os.system"),  # noqa: S605
        "a signal": (lambda: os.kill(os.getppid(), signal.SIGTERM), "os.kill"),
        "the environment": (lambda: os.environ.update(REFOLD_TRIED="1"), "os.putenv"),
        "a library in C": (lambda: ctypes.CDLL(None).unlink(bytes(file)), "ctypes.dlopen"),
    }


def test_nothing_acts_whichever_way_it_is_tried(log: InMemoryStore, tmp_path: Path, server: Server) -> None:
    file = tmp_path / "file.txt"
    file.write_text("kept")
    (tmp_path / "empty").mkdir()
    with sqlite3.connect(tmp_path / "kept.db") as connection:
        connection.executescript("CREATE TABLE t (n); INSERT INTO t VALUES (1)")
    before = sorted(tmp_path.iterdir())
    for name, (act, told) in ways_of(tmp_path, server, connection).items():
        for trying in (act, swallowing(act)):
            report = acting(log, trying)
            if told == "OperationalError" and trying is not act:
                continue  # Only the kernel knows of it.
            assert report.tried, (name, report.compared, report.divergences)
            first = report.tried[0]
            assert (first.what.startswith(told), first.times, first.first, report.diverged) == (
                True,
                2,
                "session/s@6",
                0,
            ), (name, first)
            assert "test_shadow.py:" in first.place, (name, first)
    assert (sorted(tmp_path.iterdir()), file.read_text(), server.received()) == (before, "kept", b"")
    assert connection.execute("SELECT * FROM t").fetchall() == [(1,)]
    connection.close()
    assert "REFOLD_TRIED" not in os.environ


def test_what_a_kernel_refuses_is_refused_to_code_in_c(log: InMemoryStore, tmp_path: Path) -> None:
    file = tmp_path / "file.txt"
    file.write_text("kept")
    answers = mmap.mmap(-1, 3)

    def act() -> None:
        answers[0] = libc_unlink(bytes(file)) != 0
        answers[1] = libc_open(bytes(file), os.O_WRONLY) < 0
        answers[2] = libc_socket(socket.AF_INET, socket.SOCK_STREAM, 0) < 0

    acting(log, act).raise_for_divergence()  # Nothing of Python's asked, so nothing is told.
    assert (bytes(answers), file.read_text()) == (b"\1\1\1", "kept")


def test_code_that_only_reads_and_reports_is_not_in_the_way(
    log: InMemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Files and databases are read, byte code and log lines go nowhere, and executors of before work."""
    (tmp_path / "late.py").write_text("import os\nos.environ['REFOLD_LATE'] = '1'\nTEXT = 'late'\n")
    monkeypatch.syspath_prepend(tmp_path)
    with sqlite3.connect(tmp_path / "kept.db") as connection:
        connection.execute("CREATE TABLE t (n)")
    connection.close()
    logger = logging.getLogger("test_shadow")
    handler = logging.FileHandler(tmp_path / "lines.log")
    logger.addHandler(handler)
    executor = ThreadPoolExecutor(1)
    executor.submit(int).result()

    def act() -> None:
        sys.stdout.write("printed")
        logger.warning("logged")
        assert (tmp_path / "late.py").read_text()
        assert __import__("late").TEXT == "late"
        assert sqlite3.connect(tmp_path / "kept.db").execute("SELECT * FROM t").fetchall() == []
        memory = sqlite3.connect(":memory:")
        memory.executescript("CREATE TABLE t (n); INSERT INTO t VALUES (1)")
        assert executor.submit(len, "abc").result() == 3
        assert asyncio.get_running_loop().is_running()

    acting(log, act).raise_for_divergence()
    logger.removeHandler(handler)
    handler.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.db", "late.py", "lines.log"]
    assert ((tmp_path / "lines.log").read_text(), capfd.readouterr().out) == ("", "")


@pytest.mark.parametrize(
    ("act", "why"),
    [
        # Long enough for the other code on a busy machine; only this has to wait for it.
        (lambda: threading.Event().wait(), "it gave no answer within 0.5 seconds"),
        (lambda: os._exit(7), "it ended its process (exit code 7)"),
        (lambda: signal.raise_signal(signal.SIGSEGV), "it ended its process (signal 11)"),
    ],
    ids=["a function that hangs", "an exit", "a crash"],
)
@pytest.mark.parametrize("jobs", [1, 2])
def test_what_code_does_to_its_process_the_replay_survives(
    log: InMemoryStore, act: Callable[[], object], why: str, jobs: int
) -> None:
    report = acting(log, act, answer_s=0.5 if "answer" in why else 10.0, jobs=jobs)
    compared = {each.what: each for each in report.compared}
    assert [(each.why, each.times) for each in compared["request"].not_compared] == [(why, 2)]
    assert (compared["answer"].compared, report.divergence) == (2, None)
    with pytest.raises(DivergenceError, match="not everything was compared"):
        report.raise_for_divergence()


async def test_the_report_is_the_same_however_many_processes_make_it() -> None:
    store = InMemoryStore()
    agent = Agent(config=CONFIG, provider=ScriptedProvider([say("One.")] * 12))
    async with AgentRuntime(agent, log=store) as runtime:
        for number in range(12):
            await (await runtime.session(f"s{number}")).send("Go" if number % 3 else "No")

    class Changed(Middleware):
        def on_user_message(self, context: Any, content: Any) -> Any:
            return "Gone" if content[0].text == "No" else None

        def on_pre_llm(self, context: Any, request: ModelRequest) -> None:
            if context.session == "s5":
                Path("never").touch()

    for again in (None, Agent(config=CONFIG, provider=agent.provider, middleware=[Changed()])):
        reports = [await replay(store, agent=again, jobs=jobs) for jobs in (1, 2, 5)]
        assert reports[0] == reports[1] == reports[2]
        assert (reports[0].diverged, len(reports[0].tried)) == ((0, 0) if again is None else (4, 1))


async def test_a_replay_that_is_cancelled_leaves_no_process_behind(log: InMemoryStore) -> None:
    begun = mmap.mmap(-1, 8)

    def act() -> None:
        begun[:] = os.getpid().to_bytes(8, "little")
        threading.Event().wait()

    agent = Agent(config=CONFIG, provider=ScriptedProvider([]), middleware=[Acting(act)])
    both = [asyncio.ensure_future(replay(log, agent=agent)) for _ in range(2)]
    while begun[:] == bytes(8):  # noqa: ASYNC110 - Another process tells.
        await asyncio.sleep(0)
    for each in both:
        each.cancel()
    assert all(isinstance(each, asyncio.CancelledError) for each in await asyncio.gather(*both, return_exceptions=True))
    with pytest.raises(ProcessLookupError):
        os.kill(int.from_bytes(begun[:], "little"), 0)


def test_what_was_tried_is_told_in_valid_text(log: InMemoryStore) -> None:
    report = acting(log, lambda: os.remove(b"\xff" * 1_000))
    assert msgspec.json.decode(msgspec.json.encode(report.tried))[0]["on"] == "\ufffd" * 200


def test_an_error_of_the_log_is_raised_as_without_a_process(log: InMemoryStore) -> None:
    class Broken(InMemoryStore):
        async def read_stream(self, *_: Any, **__: Any) -> Any:
            raise PersistenceError("the disk is gone")

    agent = Agent(config=CONFIG, provider=ScriptedProvider([]))
    broken = Broken()
    vars(broken).update(vars(log))
    with pytest.raises(PersistenceError, match="the disk is gone"):
        asyncio.run(replay(broken, agent=agent))
