"""`refold show LOG SESSION`: one session, as a conversation or as its events; or a stream of another kind."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold.commands.execution import EXIT_OK, CommandAnswer, JsonOption, LogArgument, argument, command, option
from refold.commands.output import cell, counted, one_line, table, write_paragraph, write_table
from refold.inspection.times import time_words

if TYPE_CHECKING:
    from rich.console import Console

    from refold.events.core.records import StreamHead
    from refold.stores.event_store import EventStore

SUMMARY_CHARACTERS = 100
"""After so many characters the summary of an event is cut."""

CONTENT_CHARACTERS = 500
"""After so many characters what a memory holds is cut; `--json` gives it whole."""

REQUEST_CHARACTERS = 2_000
"""After so many characters a part of a request is cut; `--json` gives it whole."""


MESSAGES_SHOWN = 20
"""So many messages at the end of a request are shown; `--full` shows all."""


@command
async def show(
    log: LogArgument,
    session: Annotated[str | None, argument("SESSION", "The session's name, or that of another stream.")] = None,
    events: Annotated[bool, typer.Option("--events", help="Show its events instead of the conversation.")] = False,
    at: Annotated[int | None, option("--at", "N", "As it was after version N.")] = None,
    request: Annotated[
        int | None, option("--request", "N", "Show the exact request of version N, answered or not.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Write long results whole, and all messages.")] = False,
    payload: Annotated[str | None, option("--payload", "HASH", "Write content that the log keeps by its hash.")] = None,
    html: Annotated[
        Path | None, option("--html", "FILE", "Write it as a page that opens from disk, at any version.")
    ] = None,
    as_json: JsonOption = False,
) -> int | CommandAnswer:
    """Show one session as a conversation, or what something else holds, such as memory/NAME.

    Who said what, tool calls with their results, how runs ended, and what is in flight. Of a memory, a graph or a
    deduplicator what it holds, with --at what it held then; of a breaker with --at how it stood; of a stream of another
    kind, of a breaker, and with --events, the events. Without --full a result is cut after 4,000 characters. Where it
    was cut for the model, it says under which hash the log keeps all of it; --payload writes that, byte for byte: a
    text, or an image's file. --html writes one file with the page of `refold inspect`; FILE must not be there yet. Of
    a request the last 20 messages are shown, with --full all.

    JSON: {session, parent, forked_from, agent, model, status, version, last_version, at, usage, cost, run, queue:
    [{run, content, due_at, every}], pending: [{key, causation, what}], transcript: [{type: said | noted | ended,
    version, ...}]}. With --events: {session, version, last_version, events: [{stream, version, position, time, event,
    batch, correlation, causation}]}; of another stream the same with stream in place of session, or {stream, version,
    last_version, content: [{name, words}]}. With --request: {session, version, request: {model, system_prompt,
    messages, tools, ...}, recalled, prepared, open, sent, as_sent}. Times are microseconds since the epoch.
    """
    if session is None:
        raise typer.BadParameter("name the SESSION; `refold sessions LOG` lists them")
    from refold.commands.run.conversation import write_conversation
    from refold.inspection.log_reading import opened, other_stream, session_head
    from refold.inspection.session_view import view_session

    if html is not None:
        return await _page(log, session, html)
    if request is not None:
        return await _request(log, session, request, full=full)
    if payload is not None:
        return await _payload(log, session, payload)
    async with opened(log) as store:
        head = await other_stream(store, session)
        if head is not None:
            listed = events or (at is None and head.stream.startswith("breaker/"))  # How a breaker came to stand so.
            content = None if listed else await _content(store, head, at)
            return content or await _events(store, head, {"stream": head.stream}, at)
        if events:
            return await _events(store, await session_head(store, session), {"session": session}, at)
        view = await view_session(store, session, at=at)
    return CommandAnswer(view, lambda to: write_conversation(to, view, full=full))


async def _page(log: Path, session: str, file: Path) -> int:
    from refold.inspection.export import export_to_new_file
    from refold.page.one_file import page_file

    await export_to_new_file(file, (await page_file(log, [session])).encode())
    return EXIT_OK


async def _events(store: "EventStore", head: "StreamHead", name: dict[str, str], at: int | None) -> CommandAnswer:
    from refold.inspection.session_view import checked_version
    from refold.inspection.tail import Following

    version = checked_version(head, at)
    following = Following(store)
    stored = await store.read_stream(head.stream, limit=version)
    shown = [await following.read(event) for event in stored if event.version <= version]
    rows = table("#VERSION", "TIME", "TYPE", "SUMMARY")
    for item in shown:
        words = cell(item.words, SUMMARY_CHARACTERS)
        rows.add_row(str(item.version), time_words(item.time), cell(item.type, SUMMARY_CHARACTERS), words)
    document = {**name, "version": version, "last_version": head.version, "events": shown}
    return CommandAnswer(document, lambda to: write_table(to, rows))


async def _content(store: "EventStore", head: "StreamHead", at: int | None) -> CommandAnswer | None:
    """Return what a stream holds; None = nothing that could be listed."""
    from refold.lineage.content import stream_content

    found = await stream_content(store, head, at)
    if found is None:
        return None
    rows = table("NAME", "CONTENT")
    for item in found.content:
        rows.add_row(cell(item.name, SUMMARY_CHARACTERS), cell(item.words, CONTENT_CHARACTERS))
    part = f" of {found.last_version:,}" if found.version != found.last_version else ""

    def write(to: "Console") -> None:
        write_paragraph(to, f"{one_line(found.stream)} after version {found.version:,}{part}", style="bold")
        write_table(to, rows)

    return CommandAnswer(found, write)


async def _payload(log: Path, session: str, name: str) -> int:
    from refold.inspection.log_reading import content_by_hash, opened, session_head

    async with opened(log) as store:
        head = await session_head(store, session)
        content = await content_by_hash(store, head.stream, name)
    typer.echo(content, nl=False)
    return EXIT_OK


async def _request(log: Path, session: str, version: int, *, full: bool) -> CommandAnswer:
    from refold.inspection.request_view import recorded_request
    from refold.inspection.summaries import content_words

    recorded = await recorded_request(log, session, version)
    asked = recorded.request
    limit = f", at most {asked.max_tokens:,} tokens" if asked.max_tokens is not None else ""
    rows = table("ROLE", "CONTENT")
    if recorded.open:
        rows.add_row("state", "not answered: in flight, or lost with its process")
    if recorded.as_sent is False:
        rows.add_row("state", "today's code makes another request of this than the one that left")
    rows.add_row("model", cell(f"{asked.model}{limit}"))
    rows.add_row("tools", cell(", ".join(spec.name for spec in asked.tools) or "(none)"))
    rows.add_row("system", cell(asked.system_prompt, REQUEST_CHARACTERS))
    before = 0 if full else max(len(asked.messages) - MESSAGES_SHOWN, 0)
    if before:
        rows.add_row("…", f"{counted(before, 'message')} before; --full shows them")
    for message in asked.messages[before:]:
        rows.add_row(message.role, cell(content_words(message.content), REQUEST_CHARACTERS))
    return CommandAnswer(recorded, lambda to: write_table(to, rows))
