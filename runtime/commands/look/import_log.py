"""`refold import FILE LOG`: a new log of JSON Lines; or a conversation of another system, into a session."""

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from refold.commands.execution import (
    CommandAnswer,
    HistoryForm,
    JsonOption,
    LogArgument,
    ThoughtMarks,
    argument,
    command,
    option,
)
from refold.commands.output import Progress, all_counted, counted, one_line, write_paragraph
from refold.commands.standard_input import with_standard_input

if TYPE_CHECKING:
    from rich.console import Console


@command
async def import_log(
    source: Annotated[
        str,
        argument("FILE", "What `refold export` or `retain` wrote, .gz too, or an older text log; - is stdin."),
    ],
    log: LogArgument,
    form: Annotated[
        HistoryForm | None,
        option("--format", "FORM", "FILE is a conversation in this form, openai or anthropic, for --session."),
    ] = None,
    session: Annotated[
        str | None, option("--session", "SESSION", "The session that the conversation becomes, or goes on.")
    ] = None,
    agent: Annotated[
        str, option("--agent-name", "NAME", "The agent whose session a new one is; `agent` if not given.")
    ] = "agent",
    thoughts: Annotated[
        ThoughtMarks | None,
        option("--thoughts-in-text", "MARKS", "Read thoughts within texts: tags (<think>…</think>) or end_tag."),
    ] = None,
    as_json: JsonOption = False,
) -> CommandAnswer:
    """Make a new log of JSON Lines, or put a conversation of another system into a session.

    All that an export holds is checked, line by line, and kept as it was; LOG appears when all of it was found whole,
    and not at all otherwise. A LOG that is there already is refused.

    With --format, FILE is the list of `messages` of a request to Chat Completions (openai) or to the Messages API
    (anthropic), or the body of such a request, as JSON. They are put at the end of the history of SESSION, which may be
    new, in LOG, which may be new, too; no runtime may own it. The system prompt is shown and not imported, since an
    agent has its own; what else there is no place for is named.

    JSON: {log, streams, batches, events, payloads, partial}; with --format {log, session, imported, messages, system,
    left_out}.
    """
    from refold.events.core.errors import PersistenceError
    from refold.stores.jsonl.check import open_lines

    if (form is None) != (session is None):
        raise typer.BadParameter("--format and --session belong together")
    if thoughts is not None and form is not HistoryForm.OPENAI:
        raise typer.BadParameter("--thoughts-in-text is for --format openai; the other form has thoughts in blocks")
    if source == "-":
        return await with_standard_input(
            lambda file: _imported(file, "stdin", log, form, session, agent, thoughts, quiet=as_json)
        )
    try:
        file = open_lines(Path(source))
    except (OSError, ValueError) as error:
        raise PersistenceError(f"{source} cannot be read: {getattr(error, 'strerror', error)}") from error
    with file:
        return await _imported(file, source, log, form, session, agent, thoughts, quiet=as_json)


async def _imported(
    file: BinaryIO,
    name: str,
    log: Path,
    form: HistoryForm | None,
    session: str | None,
    agent: str,
    thoughts: ThoughtMarks | None,
    *,
    quiet: bool,
) -> CommandAnswer:
    from refold.stores.jsonl.importing import import_log as make_log

    if form is not None and session is not None:
        return await _import_conversation(file, name, log, form, session, agent, thoughts)
    with Progress(quiet=quiet) as progress:
        report = await make_log(file, name, log, progress=progress)
    counts = all_counted(report, "stream", "batch", "event", "payload")
    part = "; the export left other streams out" if report.partial else ""
    words = f"made {one_line(report.log)}: {counts}{part}"
    return CommandAnswer(report, lambda to: write_paragraph(to, words, style="bold"))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no value of JSON")


async def _import_conversation(
    file: BinaryIO,
    name: str,
    log: Path,
    form: HistoryForm,
    session: str,
    agent: str,
    thoughts: ThoughtMarks | None,
) -> CommandAnswer:
    from refold.events.core.errors import ConfigError
    from refold.providers import history_from_anthropic, history_from_openai
    from refold.remote.importing import import_conversation

    try:
        # Reads a byte order mark, UTF-16 and halves of characters, too.
        given = json.loads(await asyncio.to_thread(file.read), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is not JSON: {error}") from None
    if form is HistoryForm.OPENAI:
        history = history_from_openai(given, thoughts_in_text=thoughts.value if thoughts is not None else None)
    else:
        history = history_from_anthropic(given)
    messages = await import_conversation(log, session, history.messages, agent=agent)
    told = {"log": log, "session": session, "imported": len(history.messages), "messages": messages}

    def write(to: "Console") -> None:
        said = f"session {one_line(session)} has {counted(messages, 'message')} in its history"
        write_paragraph(to, said, style="bold")
        for note in history.left_out:
            write_paragraph(to, f"left out: {one_line(note)}")
        if history.system_prompt:
            write_paragraph(to, "the system prompt was not imported, since an agent has its own; it was:")
            write_paragraph(to, history.system_prompt, indent=2)

    return CommandAnswer({**told, "system": history.system_prompt, "left_out": history.left_out}, write)
