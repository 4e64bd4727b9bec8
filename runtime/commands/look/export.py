"""`refold export LOG`: a log as JSON Lines."""

import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import msgspec
import typer

from refold.commands.execution import EXIT_OK, HistoryForm, LogArgument, command, option
from refold.commands.output import Progress, safe_json, tell

if TYPE_CHECKING:
    from refold.keeping.belongings import Belongings


@command
async def export(
    log: LogArgument,
    output: Annotated[
        Path | None,
        option("--output", "FILE", "Write this new file, not stdout; NAME.jsonl.gz is compressed.", short="-o"),
    ] = None,
    session: Annotated[
        list[str] | None,
        option("--session", "SESSION", "Only this session, and what it needs to be done again. May be given again."),
    ] = None,
    alone: Annotated[
        bool, typer.Option("--alone", help="Leave out what --session needs: only its own stream.")
    ] = False,
    stream: Annotated[
        list[str] | None,
        option(
            "--stream",
            "STREAM",
            "Only this stream, of any kind, such as book/ACME; may be repeated, and given beside --session.",
        ),
    ] = None,
    form: Annotated[
        HistoryForm | None,
        option("--format", "FORM", "The conversation of one --session, in this form: openai or anthropic."),
    ] = None,
    thoughts_in_text: Annotated[
        bool, typer.Option("--thoughts-in-text", help="Write thoughts into texts, as <think>…</think>.")
    ] = False,
) -> int:
    """Write a log as JSON Lines, of which `refold import` makes the same log again.

    Nothing is lost: events, positions, versions, times, chains, payloads. The same log gives the same bytes. A runtime
    may go on writing it: what it appends meanwhile is left out. With --session or --stream only those are written,
    at the positions that they have and with the payloads that they refer to, and the header says so. With a session go
    the sessions that its calls began, and what its memories held up to its last event: those of its user, its own and
    those that all share; parts that a function of yours named are left out and told. FILE appears when it is complete;
    one that is there already is refused.

    With --format the conversation of SESSION is written as the messages of a request, of which `refold import --format`
    makes a session again; what the form has no place for is named on stderr.

    JSON: {line: refold.log, format, export, ...}, then {line: payload, hash, text | base64}, then {line: batch,
    position, stream, version, at, correlation, causation, pending, events, chain}, then {line: end, batches, events,
    payloads, sha256}; one object per line. Times are microseconds since the epoch. With --format {system, messages}.
    """
    from refold.inspection.export import export_log, export_to_file, export_to_new_file

    if thoughts_in_text and form is not HistoryForm.OPENAI:
        raise typer.BadParameter("--thoughts-in-text is for --format openai; the other form has thoughts in blocks")
    if form is not None:
        if session is None or len(session) != 1 or stream:
            raise typer.BadParameter("--format takes the conversation of one --session")
        conversation = await _conversation(log, session[0], form, thoughts_in_text)
        if output is not None:
            await export_to_new_file(output, conversation)
        else:
            _write(conversation)
        return EXIT_OK
    streams, until = list(stream or []), None
    if session and not alone:
        needed = await _belongings(log, session)
        # What is asked for by name is written whole.
        streams, until = [*streams, *needed.streams], None if stream else needed.until_position
    sessions = session if session and alone else None
    # Lines that a terminal shows, itself or what reads the pipe, tell how far it is.
    with Progress(quiet=output is None and not _is_file(sys.stdout)) as progress:
        if output is None:
            await export_log(
                log, _write, sessions=sessions, streams=streams or None, until_position=until, progress=progress
            )
        else:
            await export_to_file(
                log, output, sessions=sessions, streams=streams or None, until_position=until, progress=progress
            )
    return EXIT_OK


def _is_file(output: TextIO) -> bool:
    try:
        return stat.S_ISREG(os.fstat(output.fileno()).st_mode)
    except OSError:  # It has no file descriptor.
        return False


def _write(lines: bytes) -> None:
    """Write lines of JSON; on a terminal what it could obey stands there as escapes, which say the same."""
    typer.echo(safe_json(lines.decode()) if sys.stdout.isatty() else lines, nl=False)


async def _belongings(log: Path, sessions: list[str]) -> "Belongings":
    from refold.inspection.log_reading import opened
    from refold.keeping.belongings import belongings_of

    async with opened(log) as store:
        needed = await belongings_of(store, sessions)
    for stream in needed.left_out:
        tell(f"left out: {stream}, which the log does not say that the session has seen; --stream takes it along")
    return needed


async def _conversation(log: Path, session: str, form: HistoryForm, thoughts_in_text: bool) -> bytes:
    from refold.inspection.export import conversation_of
    from refold.providers import history_to_anthropic, history_to_openai

    prompt, messages = await conversation_of(log, session)
    left_out: list[str] = []
    if form is HistoryForm.OPENAI:
        body = history_to_openai(messages, system_prompt=prompt, thoughts_in_text=thoughts_in_text, left_out=left_out)
    else:
        body = history_to_anthropic(messages, system_prompt=prompt, left_out=left_out)
    for note in left_out:
        tell(f"left out: {note}")
    return msgspec.json.format(msgspec.json.encode(body), indent=2) + b"\n"
