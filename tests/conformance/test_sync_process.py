"""Processes of their own that use the synchronous face, and end in order or out of it, as their users see them end.

Each runs with every warning an error and in Python's development mode, as in `test_asyncio_process`.
"""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from refold.inspection.check import check_log
from refold.replay import replay
from refold.stores import SQLiteStore

# Without asyncio's debug mode, which writes a line to stderr whenever a step of the loop takes long.
QUIET = {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"} | {"PYTHONASYNCIODEBUG": ""}

PROGRAM = '''
import atexit, asyncio, logging, os, signal, sys, threading
from refold import ActorStopped, AgentConfig, AgentRuntime, ConfigError, ScriptedProvider, say, tool, use
from refold.stores import InMemoryStore

if sys.flags.dev_mode:  # Development mode switches asyncio's debug mode on, and that times every step of the loop.
    logging.getLogger("asyncio").addFilter(lambda record: "took" not in record.getMessage())

def interrupt_here():
    os.kill(os.getpid(), signal.SIGINT)

@tool
async def interrupt() -> str:
    """Be interrupted, as by Ctrl-C at the terminal."""
    interrupt_here()
    await asyncio.Event().wait()
    return "unreachable"

@tool
async def raise_interrupt() -> str:
    """Let a KeyboardInterrupt out, on the loop's thread."""
    raise KeyboardInterrupt

def raise_in_model(request):
    raise KeyboardInterrupt

begun = threading.Event()

@tool
def hold() -> str:
    """Hold a thread for ever."""
    begun.set()
    threading.Event().wait()
    return "unreachable"

async def never(request):
    begun.set()
    await asyncio.Event().wait()

def make(*script, **options):
    provider = ScriptedProvider(script)
    tools = [interrupt, raise_interrupt, hold]
    return AgentRuntime(AgentConfig(model="m"), provider=provider, tools=tools, log=sys.argv[1], **options)

def main():
BODY

try:
    main()
except KeyboardInterrupt:
    print("interrupted", flush=True)
'''

ENDING = {
    "normal": (
        """
    with make(say("done")) as runtime:
        print(runtime.session("s").send("go").text)
""",
        "done",
        0,
        ["run_completed"],
    ),
    "sys.exit inside": (
        """
    with make(say("done")) as runtime:
        print(runtime.session("s").send("go").text)
        sys.exit(4)
""",
        "done",
        4,
        ["run_completed"],
    ),
    "never closed": (
        """
    runtime = make(say("done")).__enter__()
    print(runtime.session("s").send("go").text)
""",
        "done",
        0,
        ["run_completed"],
    ),
    "never closed and kept": (
        """
    global session
    session = make(say("done")).__enter__().session("s")
    print(session.send("go").text)
""",
        "done",
        0,
        ["run_completed"],
    ),
    "closed by the application's own atexit": (
        """
    runtime = make(say("done")).__enter__()
    atexit.register(runtime.close)
    print(runtime.session("s").send("go").text)
""",
        "done",
        0,
        ["run_completed"],
    ),
    "never closed while a thread that is no daemon goes on": (
        """
    runtime = make(say("first"), say("done")).__enter__()
    def work():
        threading.main_thread().join()
        print(runtime.session("s").send("go").text, runtime.session("s").send("go").text)
    threading.Thread(target=work).start()
""",
        "first done",
        0,
        ["run_completed", "run_completed"],
    ),
    "never closed while a daemon waits": (
        """
    stopped = threading.Event()
    atexit.register(stopped.wait)  # Called last, after the runtime has been closed.
    runtime = make(never, close_grace_s=0).__enter__()
    def work():
        try:
            runtime.session("s").send("go")
        except ActorStopped:
            print("stopped", flush=True)
        stopped.set()
    threading.Thread(target=work, daemon=True).start()
    begun.wait()
""",
        "stopped",
        0,
        [],
    ),
    "never closed while a tool holds its thread": (
        """
    runtime = make(use("hold"), close_grace_s=0, cancel_grace_s=0.1).__enter__()
    def work():
        try:
            runtime.session("s").send("go")
        except ActorStopped:
            pass
    logging.disable()
    threading.Thread(target=work, daemon=True).start()
    begun.wait()
    print("over")
""",
        "over",
        0,
        [],
    ),
    "Ctrl-C in a tool": (
        """
    with make(use("interrupt")) as runtime:
        runtime.session("s").send("go")
""",
        "interrupted",
        0,
        ["run_cancelled"],
    ),
    "Ctrl-C while a stream is read": (
        """
    with make(use("interrupt")) as runtime:
        with runtime.session("s").stream("go") as stream:
            for item in stream:
                pass
""",
        "interrupted",
        0,
        ["run_cancelled"],
    ),
    "Ctrl-C while others wait, too": (
        """
    with make(never, use("interrupt"), say("done"), close_grace_s=0) as runtime:
        def work():
            try:
                runtime.session("other").send("go")
            except ActorStopped:
                print("stopped", flush=True)
        other = threading.Thread(target=work)
        other.start()
        begun.wait()
        try:
            runtime.session("s").send("go")
        except KeyboardInterrupt:
            print("interrupted, and goes on:", runtime.session("s").send("go").text)
    other.join()
""",
        "interrupted, and goes on: done\nstopped",
        0,
        ["run_cancelled", "run_completed"],
    ),
    "a signal handler's SystemExit": (
        """
    def stop(number, frame):
        raise SystemExit(5)
    signal.signal(signal.SIGTERM, stop)
    def terminate(request):
        os.kill(os.getpid(), signal.SIGTERM)
        return never(request)
    with make(terminate) as runtime:
        runtime.session("s").send("go")
""",
        "",
        5,
        ["run_cancelled"],
    ),
    "Ctrl-C while it opens": (
        """
    class Slow(InMemoryStore):
        async def head(self, stream):
            interrupt_here()
            await asyncio.Event().wait()
    try:
        AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([]), log=Slow()).__enter__()
    except KeyboardInterrupt:
        with make(say("done")) as runtime:
            print("interrupted,", runtime.session("s").send("go").text)
""",
        "interrupted, done",
        0,
        ["run_completed"],
    ),
}


def command(body: str, log: Path) -> list[str]:
    program = PROGRAM.replace("BODY\n", body.lstrip("\n"))
    return [sys.executable, "-P", "-W", "error", "-X", "dev", "-c", program, str(log)]


def run(body: str, log: Path) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; one that hangs is ended with the test run, by its faulthandler."""
    return subprocess.run(command(body, log), capture_output=True, text=True, check=False, env=QUIET)


async def _ends_of(log: Path) -> tuple[list[str], bool]:
    async with await SQLiteStore.open(log, wait_for_log_s=0) as store:
        assert (await check_log(store)).problems == ()
        (await replay(store, level="core")).raise_for_divergence()
        session, runtime = await store.read_stream("session/s"), await store.read_stream("runtime/log")
    kinds = [event.data.split(b'"', 4)[3].decode().split(".")[1] for event in session]
    ends = [kind for kind in kinds if kind in ("run_completed", "run_cancelled", "run_failed")]
    return ends, b"runtime.closed" in runtime[-1].data


def ends_of(log: Path) -> tuple[list[str], bool]:
    """Check a log that a process left, and return how its runs ended, and whether its runtime closed in order."""
    return asyncio.run(_ends_of(log))


@pytest.mark.slow
@pytest.mark.parametrize("case", ENDING)
def test_a_process_ends_promptly_and_says_nothing_on_stderr(case: str, tmp_path: Path) -> None:
    body, said, code, ends = ENDING[case]
    log = tmp_path / "events.db"
    done = run(body, log)
    assert (done.stdout.strip(), done.stderr, done.returncode) == (said, "", code)
    assert ends_of(log) == (ends, True)


@pytest.mark.parametrize("script", ['use("raise_interrupt")', "raise_in_model"])
def test_a_keyboard_interrupt_that_is_raised_on_the_loop_reaches_the_main_thread_that_waits(
    script: str, tmp_path: Path
) -> None:
    log = tmp_path / "events.db"
    done = run(
        f"""
    runtime = make({script}, cancel_grace_s=0.1, close_grace_s=0.1).__enter__()
    try:
        runtime.session("s").send("go")
    finally:
        try:
            runtime.session("s").history()
        except ActorStopped as error:
            print("ended by", type(error.__cause__).__name__)
""",
        log,
    )
    assert (done.stdout, done.returncode) == ("ended by KeyboardInterrupt\ninterrupted\n", 0)
    for complaint in ("was destroyed", "never awaited", "never retrieved", "loop is closed", "unclosed"):
        assert complaint not in done.stderr
    assert ends_of(log) in (([], True), (["run_cancelled"], True))


def test_a_second_ctrl_c_ends_the_process_while_the_first_waits_and_the_log_is_sound(tmp_path: Path) -> None:
    """The first waits for a tool that holds its thread, for an hour at most."""
    log = tmp_path / "events.db"
    body = """
    with make(use("hold"), cancel_grace_s=3600, close_grace_s=0) as runtime:
        runtime.subscribe(lambda recorded: print(type(recorded.event).__name__, flush=True))
        runtime.session("s").send("go")
"""
    with subprocess.Popen(command(body, log), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=QUIET) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        for line in child.stdout:
            if line == b"ToolCallStarted\n":
                child.send_signal(signal.SIGINT)
            if line == b"RunCancelled\n":
                break
        child.send_signal(signal.SIGINT)
        assert child.stdout.read().endswith(b"interrupted\n")
        assert b"Traceback" not in child.stderr.read()
    assert child.returncode == 0
    assert ends_of(log) == (["run_cancelled"], True)


def test_a_forked_child_is_refused_at_every_door_and_harms_nothing(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    done = run(
        """
    import warnings
    warnings.simplefilter("ignore", DeprecationWarning)  # That a process with threads forks: this is what is tried.
    with make(say("first"), say("second")) as runtime:
        session = runtime.session("s")
        print(session.send("go").text, flush=True)
        stream, subscription = session.stream("go"), session.follow()
        child = os.fork()
        if child == 0:
            for use_it in (
                lambda: session.send("go"),
                lambda: runtime.session("t"),
                lambda: runtime.sessions(),
                lambda: list(session.events()),
                lambda: runtime.follow(),
                lambda: runtime.subscribe(print),
                lambda: next(stream),
                lambda: next(subscription),
            ):
                try:
                    use_it()
                except ConfigError as error:
                    assert "forked" in str(error)
                else:
                    print("used in the child", flush=True)
            runtime.close()
            del stream, subscription
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        print(session.send("go").text)
""",
        log,
    )
    assert (done.stdout.split(), done.stderr, done.returncode) == (["first", "7", "second"], "", 0)
    assert ends_of(log) == (["run_completed", "run_completed"], True)
