"""`refold tail LOG`: the events of a log as they come, from another process than the one that writes them."""

from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold.commands.execution import EXIT_OK, LogArgument, run_command
from refold.commands.output import write_json
from refold.commands.safe_text import one_line

if TYPE_CHECKING:
    from refold.followed import Followed
    from refold.stores.event_store import EventStore

EVENTS_SHOWN = 10
"""So many of the last events are shown unless told."""

SUMMARY_CHARACTERS = 100
"""After so many characters the summary of an event is cut."""


def tail(
    log: LogArgument,
    session: Annotated[
        str | None, typer.Argument(metavar="SESSION", help="Only this session.", show_default=False)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", "-f", help="Wait for events to come.")] = True,
    number: Annotated[int, typer.Option("-n", metavar="N", min=0, help="Begin with the last N events.")] = EVENTS_SHOWN,
    after: Annotated[
        int | None,
        typer.Option("--after", metavar="POSITION", min=0, help="Begin after this position.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object per line instead of text.")] = False,
) -> None:
    """Show the last events of a log, and those to come.

    The log may be one that another process writes: it is only read, and its writer never waits. Events come in order of
    position, each once, over restarts of the writer. Ctrl-C ends it with exit code 130; a log that is removed
    or replaced meanwhile, with 2.

    JSON: {stream, version, position, time, event, batch, correlation, causation}, one object per line. The time is
    microseconds since the epoch. An event that this version does not know is written as it was recorded.
    """
    run_command(_tail(log, session, follow, number, after, as_json))


async def _tail(log: Path, session: str | None, follow: bool, number: int, after: int | None, as_json: bool) -> int:
    from refold.followed import Following
    from refold.log_following import follow_log
    from refold.log_reading import opened

    async with opened(log) as store:
        stream, position = await _begin(store, session, number, after)
        following = Following(store)
        async with aclosing(follow_log(store, after=position, stream=stream, follow=follow)) as events:
            async for stored in events:
                item = await following.read(stored)
                if as_json:
                    write_json(item)
                else:
                    _write(item)
    return EXIT_OK


async def _begin(store: "EventStore", session: str | None, number: int, after: int | None) -> tuple[str | None, int]:
    """Return the stream to follow, or None for all, and the position after which to begin."""
    from refold.log_reading import session_head
    from refold.stores.log_positions import position_before_last

    if session is None:
        return None, after if after is not None else await position_before_last(store, number)
    head = await session_head(store, session)
    if after is not None:
        return head.stream, after
    before = head.version - number
    if before <= 0:
        return head.stream, 0
    [last_left_out] = await store.read_stream(head.stream, after_version=before - 1, limit=1)
    return head.stream, last_left_out.position


def _write(item: "Followed") -> None:
    from refold.time_words import time_words

    words = one_line(item.words, SUMMARY_CHARACTERS)
    place = f"{one_line(item.stream)}@{item.version}"
    line = f"{item.position:>6}  {time_words(item.time)}  {place}  {one_line(item.type)}  {words}"
    typer.echo(line.rstrip())
