"""How a command runs: its coroutine, its exit code, and its errors as one line each.

The rule: a command that cannot do its work says so in one line on stderr, with nothing half-written on stdout that a
program could take for an answer, and never with a traceback. A traceback is a fault of Refold.

What the program logs meanwhile goes to stderr, each record as one line that no terminal obeys, since a tool, a provider
or a stranger may have written the message of an error. Of an exception the line has its type, its text and the frame of
the user's code. The whole traceback is there where the logger `refold`, or else the root, is set to DEBUG.
"""

import asyncio
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn, ParamSpec, TextIO

import typer
from typer.models import ArgumentInfo, OptionInfo

from refold.commands.output import console, one_line, safe_text, tell_error, write_json, write_paragraph

if TYPE_CHECKING:
    from rich.console import Console

    from refold.agents.agent import AnyAgent
    from refold.sessions.outcome import RunResult

EXIT_OK: Final = 0
EXIT_FOUND: Final = 1
"""A divergence or problems were found."""
EXIT_BAD_INPUT: Final = 2
"""What was asked for cannot be done: no such file, not a log, no such session, a wrong option."""
EXIT_LOG_IN_USE: Final = 3
EXIT_NOT_COMPARED: Final = 4
"""A replay found no divergence, and could not compare everything."""
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141
"""The reader of the output went away, as `head` does."""
EXIT_TERMINATED: Final = 143
"""SIGTERM ended it, in order."""


def argument(metavar: str, words: str) -> ArgumentInfo:
    """Return an argument whose help shows no default."""
    made: ArgumentInfo = typer.Argument(metavar=metavar, help=words, show_default=False)
    return made


def option(name: str, metavar: str, words: str, *, short: str | None = None, min: int | None = None) -> OptionInfo:
    """Return an option with a value, whose help shows no default."""
    names = [name] if short is None else [name, short]
    made: OptionInfo = typer.Option(*names, metavar=metavar, help=words, show_default=False, min=min)
    return made


class HistoryForm(StrEnum):
    """A form in which other systems have conversations."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


class ThoughtMarks(StrEnum):
    """How thoughts are marked within a text, as the providers' setting `thoughts_in_text` has it."""

    TAGS = "tags"
    END_TAG = "end_tag"


ERROR_CHARACTERS: Final = 1_000
"""After so many characters the message of an error is cut; it may quote what a hostile log says."""

EXIT_CODES_HELP: Final = """\
Exit codes: 0 ok; 1 a run failed, or a divergence or problems were found; 2 usage or bad input (no such file, not a
log, no such session); 3 the log is in use by another runtime; 4 not everything was compared (replay only); 130
interrupted; 141 the reader of the output went away; 143 ended by SIGTERM.
"""


def path_parser(advice: str) -> Callable[[str], Path]:
    """Return what makes a path of an argument, and refuses an empty one, which would be the working directory.

    Args:
        advice: what to do about an empty one, as an unset variable of a shell gives it.
    """

    def parsed(text: str) -> Path:
        if not text:
            raise typer.BadParameter(f"it is empty; {advice}")
        return Path(text)

    return parsed


LogArgument = Annotated[
    Path,
    typer.Argument(
        metavar="LOG", help="The log's file.", show_default=False, parser=path_parser("name the log's file")
    ),
]
KindOption = Annotated[
    list[str] | None,
    option(
        "--kind",
        "KIND=MODULE:CORE",
        "The core of a kind of actors of your own, such as book=app.books:OrderBook. May be given again.",
    ),
]
AgentOption = Annotated[str | None, option("--agent", "AGENT", "module:attribute of the agent that decides.")]
DepsOption = Annotated[
    str | None, option("--deps", "DEPS", "module:attribute of what --agent depends on here, as Agent(deps=…).")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write one JSON document instead of text.")]


def loaded_agent(agent: str | None, deps: str | None) -> "tuple[AnyAgent | None, object]":
    """Return what `--agent` and `--deps` name."""
    if agent is None and deps is None:
        return None, None
    from refold.agents.loading import load_agent, load_deps

    return load_agent(agent) if agent is not None else None, load_deps(deps) if deps is not None else None


def compiled_patterns(given: Iterable[str]) -> list[re.Pattern[str]]:
    """Return the regular expressions of options.

    Raises:
        ConfigError: one is none.
    """
    from refold.events.core.errors import ConfigError

    try:
        return [re.compile(each) for each in given]
    except re.error as error:
        raise ConfigError(f"a pattern is no regular expression: {error}") from error


_AGE: Final = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def age(text: str) -> timedelta:
    """Return an age such as `90d`, or raise BadParameter."""
    found = _AGE.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is no age; write a number and s, m, h, d or w, such as 90d")
    try:
        return timedelta(**{_UNITS[found[2]]: float(found[1])})
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is too long ago") from None


def time_of(text: str, *, ahead: bool = False) -> datetime:
    """Return a time such as `2026-07-01`, which is one of UTC, or one so long ago, or `ahead`, as `7d`.

    Raises:
        BadParameter: it is neither.
    """
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        distance = age(text) if ahead else -age(text)
        try:
            return datetime.now(UTC) + distance
        except OverflowError:
            raise typer.BadParameter(f"{text!r} is too far away; a date has a year from 1 to 9999") from None
    return given if given.tzinfo is not None else given.replace(tzinfo=UTC)


P = ParamSpec("P")


@dataclass(frozen=True)
class CommandAnswer:
    """What a command answers."""

    document: object
    """Is written with `--json`."""
    write: "Callable[[Console], object]"
    """Writes it for people."""
    code: int = EXIT_OK


def command(work: Callable[P, Coroutine[None, None, int | CommandAnswer]]) -> Callable[P, None]:
    """Return the command that runs a coroutine function to its end, and leaves with the exit code that it returns.

    What it answers besides is written.
    """

    @wraps(work)
    def run(*arguments: P.args, **options: P.kwargs) -> None:
        async def answered() -> int:
            answer = await work(*arguments, **options)
            if not isinstance(answer, CommandAnswer):
                return answer
            if options.get("as_json"):
                write_json(answer.document)
            else:
                answer.write(console())
            return answer.code

        run_command(answered())

    return run


def run_command(work: Coroutine[None, None, int]) -> NoReturn:
    """Run a command's coroutine to its end and leave with the exit code that it returns.

    Raises:
        typer.Exit: always.
    """
    run_blocking_command(lambda: asyncio.run(work))


def run_blocking_command(work: Callable[[], int]) -> NoReturn:
    """Do a command's work, which may wait for a person in this thread, and leave with the exit code that it returns.

    Raises:
        typer.Exit: always.
    """
    raise typer.Exit(_exit_code_of(work))


class _WrongOptions(typer.BadParameter):
    """Options that do not go together: no value of one is invalid, so the message stands alone."""

    def format_message(self) -> str:
        return self.message


def _exit_code_of(work: Callable[[], int]) -> int:
    from refold.events.core.errors import LogInUse, RefoldError
    from refold.providers.http.secrets import KEY_VARIABLES, redaction_of_environment

    # While it is there, its secrets are in no line of ours on stderr.
    known = redaction_of_environment() if any(map(os.environ.get, KEY_VARIABLES)) else None
    try:
        with safe_logging():
            code = work()
        _flush_output()
    except typer.BadParameter as error:
        raise _WrongOptions(error.message) if error.param is None and error.param_hint is None else error from None
    except LogInUse as error:
        return _failed(error, EXIT_LOG_IN_USE)
    except RefoldError as error:
        return _failed(error, EXIT_BAD_INPUT)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return EXIT_BROKEN_PIPE
    except OSError as error:  # Refold's own are RefoldErrors by now: the output cannot be written.
        _discard_output()
        return _failed(error, EXIT_BAD_INPUT)
    finally:
        del known
    return code


def _flush_output() -> None:
    output: TextIO | None = sys.stdout  # Closed before the process began, it is None.
    if output is not None:
        output.flush()


def _failed(error: Exception, code: int) -> int:
    from refold.stores.clean_log import without_known_secrets

    words = one_line(without_known_secrets(str(error)), ERROR_CHARACTERS)
    if "is damaged" in words and "restore" not in words:
        words += "; `refold check` names all that is, `refold repair` saves what is whole, or restore a `refold backup`"
    typer.echo(f"refold: {words}", err=True)
    return code


def _discard_output() -> None:
    """Let what is still buffered go nowhere, so that Python's own flush at exit does not fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


_logger = logging.getLogger("refold.commands")
"""Takes its level from `refold`, or else from the root."""

RECORD_CHARACTERS_MAX = 2_000
"""After so many characters a line is cut."""

_OURS = str(Path(__file__).resolve().parents[2])


class SafeFormatter(logging.Formatter):
    """Makes one safe line of a record, and a traceback below it at level DEBUG."""

    def format(self, record: logging.LogRecord) -> str:
        try:
            words = record.getMessage()
        except Exception as mismatch:  # noqa: BLE001 - arguments of a record may be anything
            words = f"{record.msg!s} ({type(mismatch).__name__} in its arguments)"
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            words = f"{words}: {_described(error)}"
        line = one_line(f"{record.levelname.lower()}: {words}", RECORD_CHARACTERS_MAX)
        if error is None or not _logger.isEnabledFor(logging.DEBUG):
            return line
        return f"{line}\n{safe_text(''.join(traceback.format_exception(error)))}".rstrip()


def _described(error: BaseException) -> str:
    """Return an error's type and text, and where the user's code raised it, or called what did."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((_OURS, sys.prefix, sys.base_prefix, "<"))]
    shown = (own or frames)[-1:]
    place = "".join(f" ({frame.filename}:{frame.lineno} in {frame.name})" for frame in shown)
    try:
        return f"{type(error).__name__}: {error}{place}"
    except Exception:  # noqa: BLE001 - the text of a user's error is computed by the user's code
        return f"{type(error).__name__}{place}"


@contextmanager
def safe_logging() -> Generator[None, None, None]:
    """Log to stderr through `SafeFormatter`, unless the program has set up its own logging."""
    root = logging.root
    if root.handlers:
        yield
        return
    handler = logging.StreamHandler()
    handler.setFormatter(SafeFormatter())
    root.addHandler(handler)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.removeHandler(handler)


def write_result(log: Path, session: str, result: "RunResult") -> None:
    """Write a result as one JSON document."""
    write_json({"log": log, "session": session, **result_members(result)})


def result_members(result: "RunResult") -> dict[str, object]:
    from refold.sessions.outcome import Failed

    return {
        "run": result.run,
        "outcome": type(result.outcome).__name__.lower(),
        "error": result.outcome.error if isinstance(result.outcome, Failed) else None,
        "text": result.text,
        "usage": result.usage,
        "turns": result.turns,
        "stop_reason": result.stop_reason,
    }


def tell_result(result: "RunResult", as_json: bool) -> int:
    """Write the answer, or why there is none, and return the exit code."""
    from refold.sessions.outcome import Cancelled, Failed

    match result.outcome:
        case Failed(error=error):
            tell_error(f"{result.run} failed ({error.kind}): {error.message}")
            return EXIT_FOUND
        case Cancelled():
            tell_error(f"{result.run} was cancelled")
            return EXIT_INTERRUPTED
        case _:
            if not as_json:
                write_paragraph(console(), result.text)
            return EXIT_OK
