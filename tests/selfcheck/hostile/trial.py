"""What is done with a hostile log: all that the `refold` command does with one, and a runtime that takes it over.

The commands are run as a person runs them, up to their exit codes. The rule: each of them ends with an answer, or with
an error of Refold's own in one line; anything else that comes out, also in the log of an actor or of asyncio, is a
fault of Refold.
"""

import asyncio
import contextlib
import io
import logging
import random
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import msgspec

from refold import AgentRuntime
from refold.actors.calls.protocols import Provider
from refold.actors.kernel.clock import ManualClock
from refold.actors.kernel.supervision import ActorFailure
from refold.agents.agent import Agent
from refold.commands.look import check, export, import_log, replay, sessions, show, tail
from refold.commands.measure import metrics, stats, trace
from refold.events.core.content import TextBlock
from refold.events.core.errors import RefoldError
from refold.events.model.messages import ModelRequest, ModelResponse
from refold.sessions.session import Session
from refold.stores.sqlite.file import is_text_log
from tests.selfcheck.hostile.samples import sample_agent
from tests.selfcheck.hostile.table_mutations import has_executed

if TYPE_CHECKING:
    from typing_extensions import Buffer

COMMANDS: Mapping[str, Callable[..., object]] = {
    "check": check.check,
    "export": export.export,
    "import": import_log.import_log,
    "metrics": metrics.metrics,
    "replay": replay.replay,
    "sessions": sessions.sessions,
    "show": show.show,
    "stats": stats.stats,
    "tail": tail.tail,
    "trace": trace.trace,
}
"""The commands of `refold` that only look at a log, or make another of it."""

Verdict = Literal["refused", "reported", "sound", "fault"]
"""`refused`: not opened. `reported`: `refold check` names problems. `sound`: it finds none. `fault`: Refold failed."""

LIMIT_OF_ERROR = 2_000
"""Longest message of an error; what a log says must not fill a terminal."""

BAD_INPUT = 2
"""Exit code of a command that cannot do what it was asked for."""

NOT_COMPARED = 4
"""Exit code of a replay that found no divergence and could not compare everything."""

TAKEN_OVER = 0.3
"""Share of the logs that a runtime takes over."""

KEPT_BYTES = 4 * 1024 * 1024
"""So much is kept of what a command writes, to be looked at."""

ROUNDS = 20
"""So often time is moved on while a session of a runtime answers."""

PATIENCE_ROUNDS = 6_000
"""Likewise, at most, while it does anything at all: half a minute, which a file may take on a busy disk."""

ROUND_S = 5.0
"""By how much; less than anybody's patience with the log, which takes its own time."""


class Fault(msgspec.Struct, frozen=True):
    """A place where Refold failed on a log."""

    use: str
    """Such as `check`."""
    what: str
    """What came out, and where from."""

    def __str__(self) -> str:
        return f"{self.use}: {self.what}"


class TrialReport(msgspec.Struct, frozen=True):
    """What came of one log."""

    verdict: Verdict
    faults: tuple[Fault, ...]
    uses: int
    """How many things were done with it."""
    refusals: int
    """How many of them ended with an error of Refold's own."""


def try_log(log: Path, chance: random.Random) -> TrialReport:
    """Use a log in many ways: those that tell its verdict, and some others by chance."""
    trial = _Trial(log)
    trial.command("check", log)
    sessions = trial.sessions()
    trial.command("replay", log, level=chance.choice(("core", "fold")))
    for name, values in chance.sample(_ways(log, sessions, chance), 2):
        trial.command(name, log, **values)
    if chance.random() < TAKEN_OVER and not is_text_log(log):
        trial.take_over(sessions)
    if has_executed(log):
        trial.faults.append(Fault("anything", "something in the log was executed"))
    return trial.report()


def _ways(log: Path, sessions: Sequence[str], chance: random.Random) -> list[tuple[str, dict[str, object]]]:
    """Return commands besides those that are always run, with their options."""
    session = chance.choice(sessions) if sessions else "alice"
    version = chance.randrange(1, 60)
    ways: list[tuple[str, dict[str, object]]] = [
        ("stats", {}),
        ("stats", {"session": session, "as_json": True}),
        ("stats", {"session": session}),
        ("metrics", {}),
        ("metrics", {"as_json": True}),
        ("tail", {"follow": False, "number": 500}),
        ("tail", {"follow": False, "number": 500, "as_json": True}),
        ("trace", {}),
        ("trace", {"session": session, "content": True, "as_json": True}),
        ("export", {}),
        ("export", {"session": [session]}),
        ("show", {"session": session}),
        ("show", {"session": session}),
        ("show", {"session": session, "as_json": True}),
        ("show", {"session": session, "events": True}),
        ("show", {"session": session, "events": True, "as_json": True}),
        ("show", {"session": session, "at": version}),
        ("show", {"session": session, "request": version}),
        ("show", {"session": session, "request": version, "as_json": True}),
        ("show", {"session": session, "html": log.with_name("page.html")}),
        ("show", {"session": chance.choice(("breaker/weather", "memory/main", "graph/main", "tool/pay"))}),
        ("check", {"as_json": True}),
        ("replay", {"session": session}),
        ("replay", {"as_json": True}),
        ("sessions", {}),
    ]
    if is_text_log(log):
        importing: dict[str, object] = {"to": (log.with_name("imported.db"),)}
        ways += [("import", importing)] * 3
    return ways


def _run(name: str, log: Path, options: dict[str, Any]) -> NoReturn:
    """Run a command; it raises its exit code."""
    if "level" in options:
        options = {**options, "level": replay.LevelName(options["level"])}
    COMMANDS[name](str(log) if name == "import" else log, *options.pop("to", ()), **options)
    raise AssertionError(f"the command {name} has no exit code")


class _Trial:
    def __init__(self, log: Path) -> None:
        self.faults: list[Fault] = []
        self._log = log
        self._verdict: Verdict = "refused"
        self._uses = 0
        self._refusals = 0

    def report(self) -> TrialReport:
        verdict: Verdict = "fault" if self.faults else self._verdict
        return TrialReport(verdict, tuple(self.faults), self._uses, self._refusals)

    def command(self, name: str, log: Path, **options: object) -> str:
        """Run a command, and return what it writes."""
        said, answer = io.StringIO(), _Written()
        exit_codes: list[object] = []

        def run() -> None:
            with contextlib.redirect_stdout(answer), contextlib.redirect_stderr(said):
                try:
                    _run(name, log, options)
                except RuntimeError as error:  # The command's end, which is typer's, and not imported here.
                    exit_code = getattr(error, "exit_code", None)
                    if exit_code is None:
                        raise
                    exit_codes.append(exit_code)

        use = " ".join((name, *(option for option, value in options.items() if value)))
        if not self._watched(use, run):
            return ""
        [exit_code] = exit_codes
        if exit_code == BAD_INPUT:
            self._refusals += 1
            # What is told before is safe lines, too.
            line = re.sub(r"^(?:warning|left out): .*\n", "", said.getvalue(), flags=re.MULTILINE)
            if not line.startswith("refold: ") or line.count("\n") != 1 or len(line) > LIMIT_OF_ERROR:
                self.faults.append(Fault(use, f"the error is not one short line: {line[:300]!r}"))
        elif exit_code not in (0, 1) and not (name == "replay" and exit_code == NOT_COMPARED):
            self.faults.append(Fault(use, f"exit code {exit_code}"))
        elif name == "check":
            self._verdict = "sound" if exit_code == 0 else "reported"
        return answer.text()

    def sessions(self) -> list[str]:
        """Return the names of the log's sessions, as `refold sessions` gives them."""
        try:
            listed = msgspec.json.decode(self.command("sessions", self._log, as_json=True) or "{}")
        except msgspec.DecodeError as error:
            self.faults.append(Fault("sessions --json", f"it writes what is no JSON: {error}"))
            return []
        return [item["session"] for item in listed.get("sessions", ())]

    def take_over(self, sessions: Sequence[str]) -> None:
        """Open the log as a runtime does, let its runs go on, and say something in some of its sessions."""
        self._watched("runtime", lambda: asyncio.run(self._live(sessions[:2]), debug=False))

    async def _live(self, sessions: Sequence[str]) -> None:
        clock = ManualClock()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self._note_unheard(context))
        agent = msgspec.structs.replace(sample_agent(), provider=_Answering())
        runtime = AgentRuntime(
            agent,
            log=self._log,
            durability="normal",
            clock=clock,
            wait_for_log_s=0,
            inbox_poll_s=0,
            close_grace_s=1,
            on_failure=self._note_failure,
        )
        await self._in_time(runtime.open(), "open", clock)
        try:
            await self._in_time(self._ask(agent), "find a fact", clock)
            for name in (*sessions, "new"):
                await self._in_time(self._speak(runtime, clock, name), "answer", clock)
        finally:
            await self._in_time(runtime.close(), "close", clock)

    async def _in_time(self, work: Coroutine[Any, Any, object], what: str, clock: ManualClock) -> None:
        """Await what may wait for time to go on; what does not end then is a fault."""
        doing = asyncio.ensure_future(work)
        await _until(doing, clock, rounds=PATIENCE_ROUNDS)
        if not doing.done():
            self.faults.append(Fault("runtime", f"it does not {what}"))
            doing.cancel()
            return
        doing.result()

    async def _ask(self, agent: Agent) -> None:
        """Ask for facts, whose embeddings lie in a block."""
        assert agent.semantic is not None
        for dimension in (3, 96):  # Of the first sample, and of the one with blocks.
            try:
                await agent.semantic.similar([1.0] * dimension)
                await agent.semantic.by_tags()
            except RefoldError:
                self._refusals += 1

    async def _speak(self, runtime: AgentRuntime, clock: ManualClock, name: str) -> None:
        """Say something, and cancel it where it does not end by itself; what Refold refuses is as good."""
        try:
            session = await runtime.session(name)
            sending = asyncio.ensure_future(session.send("go on"))
            await _until(sending, clock, rounds=ROUNDS)
            if not sending.done():
                await self._give_up(session, sending, clock)
            if sending.done():
                sending.result()
            await session.history()
        except (RefoldError, asyncio.CancelledError):
            self._refusals += 1

    async def _give_up(self, session: Session, sending: asyncio.Future[Any], clock: ManualClock) -> None:
        """Cancel what does not end by itself; where a history contradicts itself, its session may still wait."""
        cancelling = asyncio.ensure_future(session.cancel())
        await _until(cancelling, clock, rounds=ROUNDS)
        await _until(sending, clock, rounds=ROUNDS)
        for waiting in (cancelling, sending):
            if not waiting.done():
                waiting.cancel()
        await asyncio.wait([cancelling, sending])
        cancelling.result()

    def _watched(self, use: str, run: Callable[[], object]) -> bool:
        """Do something with the log; tell whether that went as it should."""
        self._uses += 1
        heard = _Heard()
        logging.getLogger("refold").addHandler(heard)
        logging.getLogger("asyncio").addHandler(heard)
        faults = len(self.faults)
        try:
            run()
        except RefoldError:
            self._refusals += 1
        except (Exception, SystemExit) as error:  # noqa: BLE001 - any error is what is looked for here
            self._note_error(use, error)
        finally:
            logging.getLogger("refold").removeHandler(heard)
            logging.getLogger("asyncio").removeHandler(heard)
        for heard_error in heard.errors:
            self._note_error(f"{use}, in the log", heard_error)
        return len(self.faults) == faults

    def _note_error(self, use: str, error: BaseException) -> None:
        if not isinstance(error, RefoldError):
            self.faults.append(Fault(use, place_of(error)))

    def _note_failure(self, failure: ActorFailure) -> None:
        if not failure.error_type.startswith("refold."):
            self.faults.append(Fault(failure.address, f"{failure.error_type}: {failure.message:.300}"))

    def _note_unheard(self, context: dict[str, object]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException):
            self._note_error("an unheard task", error)
        else:
            self.faults.append(Fault("an unheard task", str(context.get("message"))))


async def _until(future: asyncio.Future[Any], clock: ManualClock, *, rounds: int) -> None:
    """Wait for a future while time goes on by some seconds each few milliseconds."""
    for _ in range(rounds):
        done, _ = await asyncio.wait([future], timeout=0.005)
        if done:
            return
        await clock.advance(ROUND_S)


def place_of(error: BaseException) -> str:
    """Return an error's type and text, and the innermost line of Refold's that it came through."""
    lines = [
        f"{frame.f_globals.get('__name__')}:{line}"
        for frame, line in walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).startswith("refold.")
    ]
    return f"{type(error).__name__} at {lines[-1] if lines else '?'}: {error!s:.300}"


class _Answering(Provider):
    """A model that has the last word at once."""

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return it."""
        return ModelResponse(content=(TextBlock(text="Yes."),))


class _Heard(logging.Handler):
    """Keeps the errors that are logged with a traceback."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.errors: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.errors.append(record.exc_info[1])


class _Beginning(io.BytesIO):
    """Keeps the first of what is written into it: an export is as large as its log, and is no cost of the command."""

    def write(self, data: "Buffer", /) -> int:
        if self.tell() < KEPT_BYTES:
            super().write(data)
        return memoryview(data).nbytes


class _Written(io.TextIOWrapper):
    """A standard output whose beginning is kept."""

    def __init__(self) -> None:
        self._bytes = _Beginning()
        super().__init__(self._bytes, encoding="utf-8", errors="replace")

    def text(self) -> str:
        """Return what was written."""
        self.flush()
        return self._bytes.getvalue().decode(errors="replace")
