"""Processes of their own that use a runtime, end in order or out of it, and leave nothing on stderr that is ours.

Each runs with every warning an error and in Python's development mode, so that a task that was destroyed, a coroutine
that was never awaited or a file that was left open is reported.
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
import asyncio, logging, os, signal, sys, threading
from refold import AgentConfig, AgentRuntime, Cancelled, ScriptedProvider, ToolError, say, tool, use

if sys.flags.dev_mode:  # Development mode switches asyncio's debug mode on, and that times every step of the loop.
    logging.getLogger("asyncio").addFilter(lambda record: "took" not in record.getMessage())

@tool
async def work() -> str:
    """Work."""
    return "worked"

@tool
async def fail() -> str:
    """Fail."""
    raise ToolError("it did not work")

@tool
async def interrupt() -> str:
    """Be interrupted."""
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.Event().wait()
    return "unreachable"

@tool
async def raise_interrupt() -> str:
    """Let a KeyboardInterrupt out."""
    raise KeyboardInterrupt

async def never(request):
    print("asked", flush=True)
    await asyncio.Event().wait()

def raise_in_model(request):
    raise KeyboardInterrupt

def make(*script, **options):
    tools = [work, fail, interrupt, raise_interrupt]
    provider = ScriptedProvider(script)
    return AgentRuntime(AgentConfig(model="m"), provider=provider, tools=tools, log=sys.argv[1], **options)

async def main():
BODY

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted")
'''

BODIES = {
    "normal": """
    async with make(use("work"), say("done")) as runtime:
        print((await (await runtime.session("s")).send("go")).text)
""",
    "failed tool": """
    async with make(use("fail"), say("done")) as runtime:
        print((await (await runtime.session("s")).send("go")).text)
""",
    "cancelled": """
    asked = asyncio.Event()
    async def wait(request):
        asked.set()
        await asyncio.Event().wait()
    async with make(wait) as runtime:
        sending = asyncio.create_task((await runtime.session("s")).send("go"))
        await asked.wait()
        sending.cancel()
        try:
            await sending
        except asyncio.CancelledError:
            print("cancelled")
""",
    "timed out": """
    async with make(never) as runtime:
        try:
            async with asyncio.timeout(0.01):
                await (await runtime.session("s")).send("go")
        except TimeoutError:
            print("timed out")
""",
    "closed while running": """
    asked = asyncio.Event()
    async def wait(request):
        asked.set()
        await asyncio.Event().wait()
    async with make(wait, close_grace_s=0) as runtime:
        sending = asyncio.create_task((await runtime.session("s")).send("go"))
        await asked.wait()
    print(type((await asyncio.gather(sending, return_exceptions=True))[0]).__name__)
    print(sorted(task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}))
""",
    "Ctrl-C in a tool": """
    async with make(use("interrupt")) as runtime:
        await (await runtime.session("s")).send("go")
""",
    "Ctrl-C while several wait": """
    begun = []
    async def wait(request):
        begun.append(request)
        if len(begun) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
    async with make(wait, wait, wait) as runtime, asyncio.TaskGroup() as group:
        for name in "abs":
            group.create_task((await runtime.session(name)).send("go"))
""",
}

SAID = {
    "normal": "done",
    "failed tool": "done",
    "cancelled": "cancelled",
    "timed out": "timed out",
    "closed while running": "ActorStopped\n[]",
    "Ctrl-C in a tool": "interrupted",
    "Ctrl-C while several wait": "interrupted",
}

RAISED = {
    "tool": """
    async with make(use("raise_interrupt"), cancel_grace_s=0.1, close_grace_s=0.1) as runtime:
        await (await runtime.session("s")).send("go")
""",
    "provider": """
    async with make(raise_in_model, cancel_grace_s=0.1, close_grace_s=0.1) as runtime:
        await (await runtime.session("s")).send("go")
""",
}

NEVER_CLOSED = {
    "idle": """
    runtime = make(use("work"), say("done"))
    await runtime.__aenter__()
    print((await (await runtime.session("s")).send("go")).text)
""",
    "idle and kept": """
    global kept
    kept = make(use("work"), say("done"))
    await kept.__aenter__()
    print((await (await kept.session("s")).send("go")).text)
""",
    "with a send under way": """
    asked = asyncio.Event()
    async def wait(request):
        asked.set()
        await asyncio.Event().wait()
    runtime = make(use("work"), say("done"), wait)
    await runtime.__aenter__()
    session = await runtime.session("s")
    print((await session.send("go")).text)
    sending = asyncio.create_task(session.send("go on"))
    await asked.wait()
""",
    "with a tool that ignores everything": """
    begun = asyncio.Event()
    @tool
    def hold() -> str:
        \"\"\"Hold a thread for ever.\"\"\"
        asyncio.run_coroutine_threadsafe(set_begun(), loop)
        threading.Event().wait()
        return "unreachable"
    async def set_begun():
        begun.set()
    loop = asyncio.get_running_loop()
    runtime = AgentRuntime(
        AgentConfig(model="m"),
        provider=ScriptedProvider([use("work"), say("done"), use("hold")]),
        tools=[work, hold],
        log=sys.argv[1],
        cancel_grace_s=0.1,
    )
    await runtime.__aenter__()
    session = await runtime.session("s")
    print((await session.send("go")).text)
    sending = asyncio.create_task(session.send("go on"))
    await begun.wait()
""",
}


def command(body: str, log: Path) -> list[str]:
    program = PROGRAM.replace("BODY\n", body.lstrip("\n"))
    return [sys.executable, "-P", "-W", "error", "-X", "dev", "-c", program, str(log)]


def run(body: str, log: Path) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; one that hangs is ended with the test run, by its faulthandler."""
    return subprocess.run(command(body, log), capture_output=True, text=True, check=False, env=QUIET)


async def _ends_of(log: Path) -> list[str]:
    async with await SQLiteStore.open(log, wait_for_log_s=0) as store:
        assert (await check_log(store)).problems == ()
        (await replay(store, level="core")).raise_for_divergence()
        stored = await store.read_stream("session/s")
    kinds = [event.data.split(b'"', 4)[3].decode() for event in stored]
    return [kind for kind in kinds if kind.split(".")[1] in ("run_completed", "run_cancelled", "run_failed")]


def ends_of(log: Path) -> list[str]:
    """Check a log that a process left, that nobody holds any more, and return how its runs ended."""
    return asyncio.run(_ends_of(log))


@pytest.mark.slow
@pytest.mark.parametrize("case", BODIES)
def test_a_process_that_ends_says_nothing_on_stderr(case: str, tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    done = run(BODIES[case], log)
    assert (done.stdout.removeprefix("asked\n").strip(), done.stderr, done.returncode) == (SAID[case], "", 0)
    ends = [kind.split(".")[1] for kind in ends_of(log)]
    assert ends == {"done": ["run_completed"], "ActorStopped\n[]": []}.get(SAID[case], ["run_cancelled"])


@pytest.mark.slow
@pytest.mark.parametrize("where", RAISED)
def test_a_keyboard_interrupt_of_user_code_ends_the_process_and_its_run_does_not_go_wrong(
    where: str, tmp_path: Path
) -> None:
    """asyncio cancels every task of the process, ours before or after that of the caller."""
    log = tmp_path / "events.db"
    done = run(RAISED[where], log)
    assert (done.stdout.strip(), done.returncode) == ("interrupted", 0)
    assert_says_nothing_of_asyncio(done.stderr)
    assert ends_of(log) in ([], ["session.run_cancelled.v1"])


def assert_says_nothing_of_asyncio(stderr: str) -> None:
    for complaint in ("was destroyed", "never awaited", "never retrieved", "loop is closed", "unclosed"):
        assert complaint not in stderr


@pytest.mark.slow
@pytest.mark.parametrize("case", NEVER_CLOSED)
def test_a_loop_that_ends_under_an_open_runtime_warns_once_and_says_what_to_do(case: str, tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    done = run(NEVER_CLOSED[case], log)
    assert (done.stdout.strip(), done.returncode) == ("done", 0)
    assert_says_nothing_of_asyncio(done.stderr)
    assert done.stderr.splitlines()[-1] == (
        f"ResourceWarning: the log {log} was never closed; use `async with`, or call `close` of the runtime or store "
        "that opened it"
    )
    assert done.stderr.count("Warning:") == 1
    ends = ends_of(log)  # A run under way is cancelled, has failed with its model call, or goes on at the next start.
    assert ends[0] == "session.run_completed.v1"
    assert ends[1:] in ([], ["session.run_cancelled.v1"], ["session.run_failed.v1"])
    assert len(ends) == 1 or case not in ("idle", "idle and kept")


def test_a_loop_that_is_closed_by_hand_under_an_idle_runtime_leaves_no_task(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    program = command(NEVER_CLOSED["idle and kept"], log)
    program[-2] = program[-2].replace(
        "asyncio.run(main())", "loop = asyncio.new_event_loop(); loop.run_until_complete(main()); loop.close()"
    )
    done = subprocess.run(program, capture_output=True, text=True, check=False, env=QUIET)
    assert (done.stdout.strip(), done.returncode) == ("done", 0)
    assert_says_nothing_of_asyncio(done.stderr)
    assert ends_of(log) == ["session.run_completed.v1"]


def test_a_second_ctrl_c_ends_the_process_while_the_first_waits_and_the_log_is_sound(tmp_path: Path) -> None:
    """The first waits for a tool that holds its thread, for an hour at most."""
    log = tmp_path / "events.db"
    body = """
    @tool
    def hold() -> str:
        \"\"\"Hold a thread for ever.\"\"\"
        threading.Event().wait()
        return "unreachable"
    runtime = AgentRuntime(
        AgentConfig(model="m"),
        provider=ScriptedProvider([use("hold")]),
        tools=[hold],
        log=sys.argv[1],
        cancel_grace_s=3600,
        close_grace_s=0,
    )
    async with runtime:
        runtime.subscribe(lambda recorded: print(type(recorded.event).__name__, flush=True))
        await (await runtime.session("s")).send("go")
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
        assert_says_nothing_of_asyncio(child.stderr.read().decode())
    assert child.returncode == 0
    assert ends_of(log) == ["session.run_cancelled.v1"]
