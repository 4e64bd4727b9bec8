"""`refold tail LOG`: the events of a log as they come, from another process than the one that writes them."""

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import typer

from refold.commands.execution import EXIT_OK, LogArgument, argument, command, option
from refold.commands.output import one_line, write_json

if TYPE_CHECKING:
    from refold.events.core.records import StreamHead
    from refold.inspection.tail import Followed
    from refold.stores.event_store import EventStore

EVENTS_SHOWN = 10
"""So many of the last events are shown unless told."""

SUMMARY_CHARACTERS = 100
"""After so many characters the summary of an event is cut."""


@command
async def tail(
    log: LogArgument,
    session: Annotated[str | None, argument("SESSION", "Only this session.")] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", "-f", help="Wait for events to come.")] = True,
    stream: Annotated[
        str | None, option("--stream", "STREAM", "Only this stream, of any kind, such as book/ACME.")
    ] = None,
    number: Annotated[int | None, option("-n", "N", "Begin with the last N events; default: 10.", min=0)] = None,
    after: Annotated[int | None, option("--after", "POSITION", "Begin after this position.", min=0)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object per line instead of text.")] = False,
) -> int:
    """Show the last events of a log, and those to come.

    The log may be one that another process writes: it is only read, and its writer never waits. Events come in order of
    position, each once, over restarts of the writer. Ctrl-C ends it with exit code 130; a log that is removed
    or replaced meanwhile, with 2.

    JSON: {stream, version, position, time, event, batch, correlation, causation}, one object per line. The time is
    microseconds since the epoch. An event that this version does not know is written as it was recorded.
    """
    if number is not None and after is not None:
        raise typer.BadParameter("both -n and --after say where to begin; give one of them")
    if session is not None and stream is not None:
        raise typer.BadParameter("a SESSION is a stream too; give it or --stream, and not both")
    from refold.inspection.log_reading import opened
    from refold.inspection.tail import Following, follow_log
    from refold.stores.sqlite.file import is_text_log

    async with opened(log) as store:
        head = await _head(store, session, stream)
        position = after if after is not None else await _before_last(store, head, number)
        following = Following(store)
        async with aclosing(
            follow_log(
                store,
                after=position,
                stream=head.stream if head is not None else None,
                follow=follow and not is_text_log(log),
            )
        ) as events:
            async for stored in events:
                item = await following.read(stored)
                if as_json:
                    write_json(item)
                else:
                    _write(item)
    return EXIT_OK


async def _head(store: "EventStore", session: str | None, stream: str | None) -> "StreamHead | None":
    """Return the end of the stream to follow, or None for all."""
    from refold.inspection.log_reading import session_head, stream_head

    if stream is not None:
        return await stream_head(store, stream)
    return await session_head(store, session) if session is not None else None


async def _before_last(store: "EventStore", head: "StreamHead | None", number: int | None) -> int:
    """Return the position after which the last `number` events of a stream, or of all, begin."""
    from refold.stores.past_state import position_before_last

    shown = EVENTS_SHOWN if number is None else number
    if head is None:
        return await position_before_last(store, shown)
    before = head.version - shown
    if before <= 0:
        return 0
    [last_left_out] = await store.read_stream(head.stream, after_version=before - 1, limit=1)
    return last_left_out.position


def _write(item: "Followed") -> None:
    from refold.inspection.times import time_words

    words = one_line(item.words, SUMMARY_CHARACTERS)
    place = f"{one_line(item.stream)}@{item.version}"
    line = f"{item.position:>6}  {time_words(item.time)}  {place}  {one_line(item.type, SUMMARY_CHARACTERS)}  {words}"
    typer.echo(line.rstrip())
