"""Processes that are forked from one with an open runtime: they leave it and its log alone, however they end.

Each runs with every warning an error and in Python's development mode; all that is written to stderr is a fault.
"""

import sys
from pathlib import Path

import pytest

from tests.conformance import processes
from tests.conformance.processes import STRICT, Done, command_line, left_in

BEGINNING = (
    processes.BEGINNING
    + """
def reply(request):
    return f"{request.messages[-1].text}!"

def make(**options):
    return AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([reply] * 99), log=log, **options)

def refused(work):
    try:
        work()
    except ConfigError as error:
        print("ConfigError:", str(error).partition(";")[0].replace(str(os.getpid()), "PID"), flush=True)
"""
)

ASYNC_PARENT = """
async def main():
    async with make() as runtime:
        session = await runtime.session("s")
        await session.send("before")
        for end in sys.argv[2:] or ["uses it"]:
            pid = os.fork()
            if pid == 0:
                CHILD
            print(end, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
            print((await session.send("after")).text, os.path.exists(log + "-wal"), flush=True)

asyncio.run(main())
"""

SYNC_PARENT = ASYNC_PARENT.replace("asyncio.run(main())", "main()").replace("async ", "")
SYNC_PARENT = SYNC_PARENT.replace("(await session.send", "(session.send").replace("await ", "")

ENDS = {"at once": 0, "by the end of the block": 0, "by an exit": 3, "collected": 0, "closed": 0}

ENDING_CHILD = """
                match end:
                    case "at once":
                        os._exit(0)
                    case "by an exit":
                        sys.exit(3)
                    case "collected":
                        runtime = session = None
                        gc.collect()
                    case "closed":
                        CLOSE
                return
"""


def run(program: str, log: Path, *arguments: str) -> Done:
    return processes.run(command_line(*STRICT, "-c", BEGINNING + program, log, *arguments))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "events.db"


@pytest.mark.parametrize("face", ["async", "sync"])
def test_a_child_leaves_the_parents_runtime_and_log_alone_however_it_ends(log: Path, face: str) -> None:
    parent, close = (ASYNC_PARENT, "await runtime.close()") if face == "async" else (SYNC_PARENT, "runtime.close()")
    ends = ENDS
    if face == "async" and sys.version_info >= (3, 14):
        ends = {"at once": 0}  # asyncio's own loop is of no use in the child there: `sys.exit` never ends it.
    done = run(parent.replace("CHILD", ENDING_CHILD.strip().replace("CLOSE", close)), log, *ends)
    said = "".join(f"{end} {code}\nafter! True\n" for end, code in ends.items())
    assert (done.stdout, done.stderr, done.returncode) == (said, "", 0)
    assert left_in(log).inputs == ["before", *["after"] * len(ends)]


def test_a_child_that_uses_the_runtime_is_told_that_it_was_forked(log: Path) -> None:
    child = """
                uses = (session.send("x"), session.cancel(), session.history(), runtime.session("t"), session.resume())
                for work in uses:
                    try:
                        await work
                    except ConfigError as error:
                        print(error, flush=True)
                os._exit(0)"""
    done = run(ASYNC_PARENT.replace("CHILD", child.strip()), log)
    said = "this process was forked from the runtime's; open another log here\n"
    assert (done.stdout, done.stderr) == (5 * said + "uses it 0\nafter! True\n", "")
    assert left_in(log).inputs == ["before", "after"]


def test_a_child_that_uses_the_sync_runtime_is_refused_at_every_door_and_harms_nothing(log: Path) -> None:
    child = """
                for use_it in (
                    lambda: session.send("x"),
                    lambda: runtime.session("t"),
                    lambda: runtime.sessions(),
                    lambda: list(session.events()),
                    lambda: runtime.follow(),
                    lambda: runtime.subscribe(print),
                    lambda: next(stream),
                    lambda: next(subscription),
                ):
                    refused(use_it)
                runtime.close()
                del stream, subscription
                sys.exit(7)"""
    parent = SYNC_PARENT.replace(
        "for end in", "stream, subscription = session.stream('x'), session.follow()\n        for end in"
    )
    done = run(parent.replace("CHILD", child.strip()), log)
    said = ["ConfigError: this process was forked from the one that opened the runtime, which does not run here"] * 8
    assert done.stdout.splitlines() == [*said, "uses it 7", "after! True"]
    assert (done.stderr, done.returncode) == ("", 0)
    left = left_in(log)
    assert (left.inputs, left.closed) == (["before", "after"], True)


def test_a_child_cannot_open_the_log_that_its_parent_had_open(log: Path) -> None:
    """SQLite in the child would go by what it knew in the parent, and could overwrite what others commit."""
    child = """
                refused(lambda: make().__enter__())
                refused(lambda: asyncio.run(connect(log).sessions()))
                refused(lambda: asyncio.run(connect(log).session("s").send("x")))
                os._exit(0)"""
    done = run(SYNC_PARENT.replace("CHILD", child.strip()), log)
    said = f"ConfigError: {log} was open in the process from which this process PID was forked, so that SQLite cannot "
    assert done.stdout == 3 * f"{said}open it here\n" + "uses it 0\nafter! True\n"
    assert done.stderr == ""


@pytest.mark.slow
def test_what_another_process_committed_is_safe_from_a_child_that_outlives_its_parents_runtime(log: Path) -> None:
    """The parent closes the log, another process owns it and is killed: its commits are in the WAL alone."""
    program = """
async def other():
    async with make() as runtime:
        print((await (await runtime.session("s")).send("other")).text, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

if len(sys.argv) > 2:
    asyncio.run(other())

with make() as runtime:
    runtime.session("s").send("before")
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        os.read(reading, 1)  # Until the parent has closed the log, and the other process is dead.
        refused(lambda: make().__enter__())
        runtime = None
        gc.collect()
        sys.exit(0)
subprocess.run([*sys.orig_argv, "other"])
os.close(writing)
print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
    done = run(program, log)
    assert (done.stdout.splitlines()[0], done.stdout.splitlines()[-1], done.stderr) == ("other!", "child 0", "")
    assert done.stdout.count("ConfigError") == 1
    assert left_in(log).inputs == ["before", "other"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_workers_of_multiprocessing_connect_to_the_log_of_their_parent(log: Path, tmp_path: Path, method: str) -> None:
    """By "fork" only where the fork was before the log was opened."""
    script = tmp_path / "program.py"
    script.write_text(
        BEGINNING
        + f"""
def work(begin, name):
    begin.wait()
    result = asyncio.run(connect(log).session("s").send(name))
    assert result.text == name + "!", result

if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    begin = context.Event()
    workers = [context.Process(target=work, args=(begin, f"worker {{number}}")) for number in range(2)]
    for worker in workers:
        worker.start()
    with make() as runtime:
        begin.set()
        for worker in workers:
            worker.join()
        print([worker.exitcode for worker in workers], flush=True)
"""
    )
    done = processes.run(command_line(*STRICT, script, log))
    assert (done.stdout, done.stderr, done.returncode) == ("[0, 0]\n", "", 0)
    assert sorted(left_in(log).inputs) == ["worker 0", "worker 1"]


def test_a_connection_for_threads_that_was_used_before_the_fork_is_used_in_the_child_too(log: Path) -> None:
    program = """
with make():
    pass
with connect(log) as connection:
    assert connection.sessions() == []
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        os.read(reading, 1)  # Until the parent has opened its runtime.
        print(connection.session("s").send("child").text, flush=True)
        sys.exit(0)
    with make():
        os.close(writing)
        print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        print(connection.session("s").send("parent").text)
"""
    done = run(program, log)
    assert (done.stdout, done.stderr) == ("child!\nchild 0\nparent!\n", "")
    assert left_in(log).inputs == ["child", "parent"]


def test_a_child_that_is_forked_while_another_thread_begins_to_connect_or_tells_a_result_waits_for_no_lock(
    log: Path,
) -> None:
    program = """
from refold.actors import cancellation
from refold.actors.kernel import reply

class SlowToBegin(Connection):
    @property
    def patience_s(self):
        if os.getpid() == parent and threading.current_thread() is not threading.main_thread():
            begins.set()
            forked.wait()
        return 5.0

    @patience_s.setter
    def patience_s(self, seconds):
        pass

parent, begins, forked = os.getpid(), threading.Event(), threading.Event()
with make():
    pass
connection = SyncConnection(SlowToBegin(log))
beginning = threading.Thread(target=connection.sessions)
beginning.start()
begins.wait()
with cancellation._changing, reply._settling:  # As another thread has them for a moment.
    pid = os.fork()
if pid == 0:
    signal.alarm(20)
    CancellationToken().cancel()
    print(connection.sessions(), flush=True)
    connection.close()
    os._exit(0)
print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
forked.set()
beginning.join()
connection.close()
"""
    done = run(program, log)
    assert (done.stdout, done.stderr) == ("[]\nchild 0\n", "")


@pytest.mark.slow
def test_looking_at_the_log_in_the_owners_process_does_not_give_up_its_lock(log: Path) -> None:
    """POSIX takes a process's locks on a file away when the process closes any descriptor of it."""
    program = """
from refold.inspection.check import check_log
from refold.replay import replay
from refold.stores import SQLiteStore, log_owner

async def try_to_own():
    try:
        async with await SQLiteStore.open(log, wait_for_log_s=0):
            print("owned by two")
    except LogInUse as error:
        print("in use by", error.pid == int(sys.argv[2]))

if len(sys.argv) > 2:
    asyncio.run(try_to_own())
    sys.exit()

async def look():
    assert (await check_log(log)).sound
    assert not (await replay(log)).diverged
    connection = connect(log)
    assert connection.owner().pid == log_owner(log).pid == os.getpid()
    await connection.session("s").send("through the inbox")
    assert len(await connection.session("s").history()) == 4
    assert await connection.approvals() == []
    try:
        await make(wait_for_log_s=0).__aenter__()
    except LogInUse:
        pass
    async with await SQLiteStore.open(log, read_only=True) as store:
        await store.read_all()

with make() as runtime:
    runtime.session("s").send("before")
    asyncio.run(look())
    subprocess.run([*sys.orig_argv, str(os.getpid())])
    print(runtime.session("s").send("after").text)
"""
    done = run(program, log)
    assert (done.stdout, done.stderr) == ("in use by True\nafter!\n", "")
    assert left_in(log).inputs == ["before", "through the inbox", "after"]
