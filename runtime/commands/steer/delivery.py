"""How the commands that change a session are given, and how their outcome is told."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from refold.commands.execution import EXIT_FOUND, EXIT_LOG_IN_USE, EXIT_OK, argument, option
from refold.commands.output import console, shell_word, tell_error, write_json, write_paragraph

if TYPE_CHECKING:
    from refold.remote.client import Given
    from refold.remote.rows import InboxCommand

SessionArgument = Annotated[str, argument("SESSION", "The session's name.")]
UserOption = Annotated[str | None, option("--user", "ID", "Whose session it is; one of another user is refused.")]
MetadataOption = Annotated[
    list[str] | None, option("--metadata", "KEY=VALUE", "What is said of the session. May be given again.")
]
MaxTurnsOption = Annotated[int | None, option("--max-turns", "N", "Most model calls of this run.", min=1)]
TemperatureOption = Annotated[float | None, typer.Option("--temperature", metavar="N", help="Of this run: 0 to 2.")]
KeyOption = Annotated[str | None, option("--key", "KEY", "The same key in a session is the same command.")]
TimeoutOption = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", min=0, help="How long to wait for the runtime that owns the log."),
]


def metadata_of(pairs: Sequence[str] | None) -> dict[str, str]:
    """Return metadata given as `KEY=VALUE`; without a `=` the value is empty."""
    return {key: value for key, _, value in (pair.partition("=") for pair in pairs or ())}


async def given(
    log: Path, session: str, command: "InboxCommand", key: str | None, timeout_s: float, *, may_begin: bool = False
) -> "Given":
    """Give a command to the runtime that owns the log, or to the log itself; it may begin its session."""
    from refold.remote.client import give

    return await give(log, session, command, key=key, timeout_s=timeout_s, may_begin=may_begin)


async def tell_given(log: Path, what: "Given", words: str, as_json: bool, *, goes_on: bool = True) -> int:
    """Write the outcome of a command, and return the exit code.

    Args:
        words: what has happened if it is done.
        goes_on: whether the run may go on after it. What it waits for is told, and the command that does that is
            written to stderr.
    """
    from refold.remote.protocol import Done, Refused

    outcome = what.outcome
    if isinstance(outcome, Refused):
        tell_error(outcome.message)
        return EXIT_FOUND
    if outcome is None and what.owner is not None:
        by, again = what.owner.by, f"the same command with --key {shell_word(what.key)} tells what came of it"
        tell_error(f"{log} is in use by {by}, which did not take the command in time; it stays in the inbox; {again}")
        return EXIT_LOG_IN_USE
    if as_json:
        write_json(
            {
                "log": log,
                "session": what.session,
                "key": what.key,
                "outcome": "done" if outcome is not None else "queued",
                "version": outcome.version if isinstance(outcome, Done) else None,
                "new": outcome.new if isinstance(outcome, Done) else True,
                "run": outcome.run if isinstance(outcome, Done) else None,
            }
        )
    elif outcome is None:
        write_paragraph(console(), f"{words} as soon as a runtime owns the log: it waits in the inbox")
        typer.echo(resume_line(log, what.session), err=True)
    else:
        waits_for, line = (await _next(log, what) if goes_on else None) or (None, None)
        write_paragraph(console(), f"{words}; {waits_for}" if waits_for is not None else words)
        if line is not None:
            typer.echo(line, err=True)
    return EXIT_OK


async def _next(log: Path, what: "Given") -> tuple[str, str] | None:
    """Return what the run of a session waits for, and the command that does it; None = for none, or for its owner."""
    from refold.events.session.state import awaits_step
    from refold.remote.kept_log import kept_open
    from refold.remote.mirror import stuck_run

    async with kept_open(log) as kept:
        state = await kept.state(what.session)
    stuck = stuck_run(state)
    if state.run is None or not (what.directly or state.run.parked):
        return None
    if stuck is None:
        return "no runtime owns the log, so the run goes on when one does", resume_line(log, what.session)
    if state.run.parked or awaits_step(state.run):
        return stuck.why, resume_line(log, what.session)
    return stuck.why, _line("approve", str(log), what.session)


def json_value(text: str, option: str) -> object:
    """Return the JSON value in an option of the command line; or raise BadParameter."""
    import msgspec

    try:
        return msgspec.json.decode(text.encode())
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise typer.BadParameter(f"{option} takes JSON: {error}") from None


def approve_line(log: Path, session: str, call: str) -> str:
    """Return the command that lets a call run, ready for a shell."""
    return _line("approve", str(log), session, call)


def answer_line(log: Path, session: str, question: str, schema: Mapping[str, object]) -> str:
    """Return the command that answers a question, ready for a shell but for the answer.

    Args:
        schema: what the answer must fit; where a text does not, it is given as JSON.
    """
    choices = schema.get("enum")
    are_texts = isinstance(choices, list) and all(isinstance(choice, str) for choice in cast("list[object]", choices))
    value = "VALUE" if not schema or schema.get("type") == "string" or are_texts else "--value JSON"
    return f"{_line('answer', str(log), session, question)} {value}"


def _line(command: str, *words: str) -> str:
    options = ["--"] if any(word.startswith("-") for word in words) else []
    return " ".join(["refold", command, *options, *map(shell_word, words)])


def resume_line(log: Path, session: str, agent: Sequence[str] = ()) -> str:
    """Return the command that lets the open run of a session go on, ready for a shell.

    Args:
        agent: the words that say which agent; none = not known.
    """
    words = [f"--log={log}", f"--session={session}"]
    line = " ".join(["refold", "resume", *map(shell_word, agent or ["AGENT"]), *map(shell_word, words)])
    return line if agent else f"{line}  # AGENT: its module:attribute"
