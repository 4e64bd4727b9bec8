"""Processes that end under a runtime, in order or out of it: no hang, a sound log, and nothing or one advice on stderr.

Each uses one of the two faces, and runs with every warning an error and in Python's development mode.
"""

import signal
from pathlib import Path
from textwrap import indent
from typing import Literal, NamedTuple

import pytest

from tests.conformance.processes import BEGINNING, STRICT, Done, Left, command_line, left_in, run, started

Face = Literal["async", "sync"]

PROGRAM = (
    BEGINNING
    + '''
begun = threading.Event()

async def hang(request):
    begun.set()
    await asyncio.Event().wait()

@tool
async def work() -> str:
    """Work."""
    return "worked"

@tool
async def interrupt() -> str:
    """Be interrupted, as by Ctrl-C at the terminal."""
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.Event().wait()
    return "unreachable"

@tool
async def raise_interrupt() -> str:
    """Let a KeyboardInterrupt out, on the loop's thread."""
    raise KeyboardInterrupt

def raise_in_model(request):
    raise KeyboardInterrupt

@tool
def hold() -> str:
    """Hold a thread for ever."""
    begun.set()
    threading.Event().wait()
    return "unreachable"

@tool
async def leave() -> str:
    """Leave by SystemExit."""
    sys.exit(7)

@tool
def leave_thread() -> str:
    """Leave a thread by SystemExit."""
    sys.exit(7)

@tool
async def end() -> str:
    """End the process."""
    os._exit(7)

def make(*script, **options):
    tools = [work, interrupt, raise_interrupt, hold, leave, leave_thread, end]
    return AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider(script), tools=tools, log=log, **options)

async def send_with(runtime, text="go"):
    return (await (await runtime.session("s")).send(text)).text

DEF main():
BODY

try:
    RUN
except KeyboardInterrupt:
    print("interrupted", flush=True)
'''
)

RUN = {"async": "asyncio.run(main())", "sync": "main()"}


class Ending(NamedTuple):
    """A program, and how it ends."""

    face: Face
    body: str
    said: str = "done"
    code: int = 0
    ends: tuple[str, ...] = ("RunCompleted",)


CANCELLED = ("RunCancelled",)

IN_ORDER = {
    "async: normal": Ending("async", """
async with make(use("work"), say("done")) as runtime:
    print(await send_with(runtime))
"""),
    "async: sys.exit inside": Ending("async", """
async with make(say("done")) as runtime:
    print(await send_with(runtime))
    sys.exit(5)
""", code=5),
    "async: the caller is cancelled": Ending("async", """
async with make(hang) as runtime:
    sending = asyncio.create_task(send_with(runtime))
    await asyncio.to_thread(begun.wait)
    sending.cancel()
    try:
        await sending
    except asyncio.CancelledError:
        print("cancelled")
""", "cancelled", ends=CANCELLED),
    "async: closed while a run is under way": Ending("async", """
async with make(hang, close_grace_s=0) as runtime:
    sending = asyncio.create_task(send_with(runtime))
    await asyncio.to_thread(begun.wait)
print(type((await asyncio.gather(sending, return_exceptions=True))[0]).__name__)
print(sorted(task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}))
""", "ActorStopped\n[]", ends=()),
    "async: Ctrl-C in a tool": Ending("async", """
async with make(use("interrupt")) as runtime:
    await send_with(runtime)
""", "interrupted", ends=CANCELLED),
    "async: Ctrl-C while several wait": Ending("async", """
asked = []
async def wait(request):
    asked.append(request)
    if len(asked) == 3:
        os.kill(os.getpid(), signal.SIGINT)
    await asyncio.Event().wait()
async with make(wait, wait, wait) as runtime, asyncio.TaskGroup() as group:
    for name in "abs":
        group.create_task((await runtime.session(name)).send("go"))
""", "interrupted", ends=CANCELLED),
    "async, and then sync": Ending("sync", """
async def first():
    async with make(say("done")) as runtime:
        print(await send_with(runtime))
asyncio.run(first())
with make() as runtime:
    pass
"""),
    "sync: normal": Ending("sync", """
with make(say("done")) as runtime:
    print(runtime.session("s").send("go").text)
"""),
    "sync: sys.exit inside": Ending("sync", """
with make(say("done")) as runtime:
    print(runtime.session("s").send("go").text)
    sys.exit(4)
""", code=4),
    "sync: never closed and let go of": Ending("sync", """
runtime = make(say("done")).__enter__()
print(runtime.session("s").send("go").text)
"""),
    "sync: never closed and kept": Ending("sync", """
global session
session = make(say("done")).__enter__().session("s")
print(session.send("go").text)
"""),
    "sync: closed by the application's own atexit": Ending("sync", """
runtime = make(say("done")).__enter__()
atexit.register(runtime.close)
print(runtime.session("s").send("go").text)
"""),
    "sync: never closed, and a connection neither": Ending("sync", """
global connection
runtime = make(say("done")).__enter__()
connection = SyncConnection(connect(log))
print(connection.session("s").send("go").text)
"""),
    "sync: never closed while a thread that is no daemon goes on": Ending("sync", """
runtime = make(say("first"), say("done")).__enter__()
def work():
    threading.main_thread().join()
    print(runtime.session("s").send("go").text, runtime.session("s").send("go").text)
threading.Thread(target=work).start()
""", "first done", ends=("RunCompleted", "RunCompleted")),
    "sync: never closed while a daemon waits": Ending("sync", """
stopped = threading.Event()
atexit.register(stopped.wait)  # Called last, after the runtime has been closed.
runtime = make(hang, close_grace_s=0).__enter__()
def work():
    try:
        runtime.session("s").send("go")
    except ActorStopped:
        print("stopped", flush=True)
    stopped.set()
threading.Thread(target=work, daemon=True).start()
begun.wait()
""", "stopped", ends=()),
    "sync: never closed while a tool holds its thread": Ending("sync", """
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
""", "over", ends=()),
    "sync: Ctrl-C in a tool": Ending("sync", """
with make(use("interrupt")) as runtime:
    runtime.session("s").send("go")
""", "interrupted", ends=CANCELLED),
    "sync: Ctrl-C while a stream is read": Ending("sync", """
with make(use("interrupt")) as runtime:
    with runtime.session("s").stream("go") as stream:
        for item in stream:
            pass
""", "interrupted", ends=CANCELLED),
    "sync: Ctrl-C while others wait, too": Ending("sync", """
with make(hang, use("interrupt"), say("done"), close_grace_s=0) as runtime:
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
""", "interrupted, and goes on: done\nstopped", ends=("RunCancelled", "RunCompleted")),
    "sync: a signal handler's SystemExit": Ending("sync", """
def stop(number, frame):
    raise SystemExit(5)
signal.signal(signal.SIGTERM, stop)
def terminate(request):
    os.kill(os.getpid(), signal.SIGTERM)
    return hang(request)
with make(terminate) as runtime:
    runtime.session("s").send("go")
""", "", 5, CANCELLED),
    "sync: Ctrl-C while it opens": Ending("sync", """
class Slow(InMemoryStore):
    async def head(self, stream):
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
try:
    AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([]), log=Slow()).__enter__()
except KeyboardInterrupt:
    with make(say("done")) as runtime:
        print("interrupted,", runtime.session("s").send("go").text)
""", "interrupted, done"),
}  # fmt: skip

SENDING = {
    "async": """
async with make(SCRIPT, cancel_grace_s=0.1, close_grace_s=0.1) as runtime:
    print(await send_with(runtime))
""",
    "sync": """
with make(SCRIPT, cancel_grace_s=0.1, close_grace_s=60) as runtime:
    try:
        print(runtime.session("s").send("go").text)
    except KeyboardInterrupt:
        try:
            runtime.session("s").history()
        except ActorStopped as error:
            print("ended by", type(error.__cause__).__name__)
        raise
""",
}

NEVER_CLOSED = {
    "idle": """
runtime = await make(use("work"), say("done")).open()
print(await send_with(runtime))
""",
    "idle and kept": """
global kept
kept = await make(use("work"), say("done")).open()
print(await send_with(kept))
""",
    "with a send under way": """
runtime = await make(use("work"), say("done"), hang).open()
print(await send_with(runtime))
sending = asyncio.create_task(send_with(runtime, "go on"))
await asyncio.to_thread(begun.wait)
""",
    "with a tool that ignores everything": """
runtime = await make(use("work"), say("done"), use("hold"), cancel_grace_s=0.1).open()
print(await send_with(runtime))
sending = asyncio.create_task(send_with(runtime, "go on"))
await asyncio.to_thread(begun.wait)
""",
}

HOLDING = {
    "async": """
async with make(use("hold"), cancel_grace_s=3600, close_grace_s=0) as runtime:
    runtime.subscribe(lambda recorded: print(type(recorded.event).__name__, flush=True))
    await send_with(runtime)
""",
    "sync": """
with make(use("hold"), cancel_grace_s=3600, close_grace_s=0) as runtime:
    runtime.subscribe(lambda recorded: print(type(recorded.event).__name__, flush=True))
    runtime.session("s").send("go")
""",
}

by_face = pytest.mark.parametrize("face", ["async", "sync"])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "events.db"


def line_of(face: Face, body: str, log: Path, by: str = "") -> list[str]:
    program = PROGRAM.replace("BODY", indent(body.strip("\n"), "    ")).replace("RUN", by or RUN[face])
    return command_line(*STRICT, "-c", program.replace("DEF", "async def" if face == "async" else "def"), log)


def ended(face: Face, body: str, log: Path, by: str = "") -> tuple[Done, Left]:
    done = run(line_of(face, body, log, by))
    return done, left_in(log)


def assert_says_nothing_of_asyncio(stderr: str) -> None:
    for complaint in ("was destroyed", "never awaited", "never retrieved", "loop is closed", "unclosed"):
        assert complaint not in stderr


@pytest.mark.slow
@pytest.mark.parametrize("case", IN_ORDER.values(), ids=IN_ORDER)
def test_a_process_that_ends_says_nothing_on_stderr_and_its_runtime_has_closed(case: Ending, log: Path) -> None:
    done, left = ended(case.face, case.body, log)
    assert (done.stdout.strip(), done.stderr, done.returncode) == (case.said, "", case.code)
    assert (left.ends, left.closed) == ([*case.ends], True)


@pytest.mark.parametrize("script", ['use("raise_interrupt")', "raise_in_model"])
@pytest.mark.parametrize("face", [pytest.param("async", marks=pytest.mark.slow), "sync"])
def test_a_keyboard_interrupt_of_user_code_reaches_the_main_thread_and_its_run_does_not_go_wrong(
    face: Face, script: str, log: Path
) -> None:
    """asyncio cancels every task of the process, ours before or after that of the caller."""
    done, left = ended(face, SENDING[face].replace("SCRIPT", script), log)
    said = ["ended by KeyboardInterrupt", "interrupted"] if face == "sync" else ["interrupted"]
    assert (done.stdout.splitlines(), done.returncode) == (said, 0)
    assert_says_nothing_of_asyncio(done.stderr)
    assert left.ends in ([], ["RunCancelled"])
    assert left.closed or face == "async"


@by_face
def test_a_tool_that_ends_the_process_leaves_its_run_open(face: Face, log: Path) -> None:
    done, left = ended(face, SENDING[face].replace("SCRIPT", 'use("end"), say("done")'), log)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 7)
    assert (left.ends, left.closed) == ([], False)


@pytest.mark.slow
@by_face
@pytest.mark.parametrize("name", ["leave", "leave_thread"])
def test_a_tool_that_raises_system_exit_has_failed_and_ends_nothing(face: Face, name: str, log: Path) -> None:
    done, left = ended(face, SENDING[face].replace("SCRIPT", f'use("{name}"), say("done")'), log)
    assert (done.stdout, done.returncode) == ("done\n", 0)
    assert done.stderr.count(f"tool/{name}: call call_6_0 of session/s raised\n") == 1  # The library's log.
    assert "Warning" not in done.stderr
    assert (left.ends, left.closed) == (["RunCompleted"], True)


@pytest.mark.slow
@pytest.mark.parametrize("case", NEVER_CLOSED)
def test_a_loop_that_ends_under_an_open_runtime_warns_once_and_says_what_to_do(case: str, log: Path) -> None:
    done, left = ended("async", NEVER_CLOSED[case], log)
    assert (done.stdout.strip(), done.returncode) == ("done", 0)
    assert_says_nothing_of_asyncio(done.stderr)
    assert done.stderr.splitlines()[-1] == (
        f"ResourceWarning: the log {log} was never closed; use `async with`, or call `close` of the runtime or store "
        "that opened it"
    )
    assert done.stderr.count("Warning:") == 1
    # A run under way is cancelled, has failed with its model call, or goes on at the next start.
    under_way = [[]] if case.startswith("idle") else [[], ["RunCancelled"], ["RunFailed"]]
    assert left.ends in [["RunCompleted", *more] for more in under_way]


def test_a_loop_that_is_closed_by_hand_under_an_idle_runtime_leaves_no_task(log: Path) -> None:
    by_hand = "loop = asyncio.new_event_loop(); loop.run_until_complete(main()); loop.close()"
    done, left = ended("async", NEVER_CLOSED["idle and kept"], log, by_hand)
    assert (done.stdout.strip(), done.returncode) == ("done", 0)
    assert_says_nothing_of_asyncio(done.stderr)
    assert left.ends == ["RunCompleted"]


@by_face
def test_a_second_ctrl_c_ends_the_process_while_the_first_waits_and_the_log_is_sound(face: Face, log: Path) -> None:
    """The first waits for a tool that holds its thread, for an hour at most."""
    with started(line_of(face, HOLDING[face], log)) as child:
        assert child.stdout is not None
        for said in child.stdout:
            if said == "ToolCallStarted\n":
                child.send_signal(signal.SIGINT)
            if said == "RunCancelled\n":
                break
        child.send_signal(signal.SIGINT)
        said, complaints = child.communicate()
        assert said.endswith("interrupted\n")
    assert_says_nothing_of_asyncio(complaints)
    assert "Traceback" not in complaints or face == "async"
    left = left_in(log)
    assert (child.returncode, left.ends) == (0, ["RunCancelled"])
    assert left.closed or face == "async"
