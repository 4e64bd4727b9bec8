"""The tools of the demonstration's agent. They really read, count and write; only their slowness is made.

Read `refold.tools.tool` first. What running a tool again would mean is said by its effect class: looking is `pure`,
writing the report is `idempotent` (the same file again), opening a ticket happens `once`.
"""

import asyncio
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from refold.actors.calls.tool_context import ToolContext
from refold.demo.announcements import Announcement, BodyBegan, BodyUnderWay
from refold.events.core.errors import ToolError
from refold.tools.tool import tool

CHUNKS = 12
"""In so many pieces `summarise` reads a file."""

CONFIRMATION_S = 20.0
"""How long the ticket desk takes to confirm a ticket that it has filed."""

OWNER_ONLY = 0o600
"""Mode of the files that the tools make, which is that of a log."""

REQUEST_LINE = re.compile(
    r"(?P<time>\S+) (?P<client>\S+) (?P<method>[A-Z]+) (?P<path>\S+) (?P<status>\d{3}) (?P<ms>\d+)ms (?P<release>\S+)"
)

Field = Literal["client", "path", "status", "release"]
"""What requests can be counted by."""


@dataclass(frozen=True)
class Desk:
    """Where the agent works: what its tools get as `ToolContext.deps`.

    Attributes:
        logs: folder of the logs.
        tickets: file of the tickets, one JSON object a line.
        report: file of the report.
        pause_s: how long `summarise` rests after each piece.
        announce: tells the process that watches.
    """

    logs: Path
    tickets: Path
    report: Path
    pause_s: float
    announce: Callable[[Announcement], None]


class LogFile(msgspec.Struct, frozen=True):
    """A file that there is."""

    name: str
    lines: int
    bytes: int


class Found(msgspec.Struct, frozen=True):
    """What a search found."""

    matching: int
    lines: list[str]
    """The first of them."""


class Counted(msgspec.Struct, frozen=True):
    """How many matching requests have which value."""

    requests: int
    different: int
    counts: dict[str, int]
    """The most frequent values, most frequent first."""


class PathSummary(msgspec.Struct, frozen=True):
    """How the requests of one path went."""

    path: str
    requests: int
    server_errors: int
    """Answered with a status of 500 or more."""
    median_ms: int
    p95_ms: int


class Ticket(msgspec.Struct, frozen=True):
    """A ticket as it was filed."""

    id: str
    title: str


@tool(tier="observe", effect="pure")
def list_files(context: ToolContext[Desk]) -> list[LogFile]:
    """List the log files that there are."""
    desk = _begin("list_files", context)
    return [
        LogFile(path.name, lines=sum(1 for _ in _lines(path)), bytes=path.stat().st_size)
        for path in sorted(desk.logs.glob("*.log"))
    ]


@tool(tier="observe", effect="pure")
def search(context: ToolContext[Desk], file: str, pattern: str, limit: int = 5) -> Found:
    """Find the lines of a file that match a regular expression.

    Args:
        file: name of the file.
        pattern: what a line must contain.
        limit: how many lines to show; 1 to 50.
    """
    desk = _begin("search", context)
    matching = [line for line in _lines(_file(desk, file)) if _compiled(pattern).search(line)]
    return Found(len(matching), matching[: max(1, min(limit, 50))])


@tool(tier="observe", effect="pure")
def count(context: ToolContext[Desk], file: str, field: Field, pattern: str = "") -> Counted:
    """Count the requests of an access log by one of their fields.

    Args:
        file: name of the file.
        field: what to count by.
        pattern: only lines that contain this regular expression.
    """
    desk = _begin("count", context)
    wanted = _compiled(pattern)
    values = Counter(found[field] for line, found in _requests(_file(desk, file)) if wanted.search(line))
    return Counted(values.total(), len(values), dict(values.most_common(10)))


@tool(tier="observe", effect="pure")
async def summarise(context: ToolContext[Desk], file: str) -> list[PathSummary]:
    """Summarise status and latency of an access log path by path, worst first. This takes a while.

    Args:
        file: name of the file.
    """
    desk = _begin("summarise", context)
    requests = [found for _, found in _requests(_file(desk, file))]
    size = -(-len(requests) // CHUNKS)
    by_path: dict[str, list[tuple[int, bool]]] = {}
    for start in range(0, len(requests), size):
        for found in requests[start : start + size]:
            by_path.setdefault(found["path"], []).append((int(found["ms"]), found["status"] >= "500"))
        words = f"{min(start + size, len(requests)):,} of {len(requests):,} requests read"
        context.progress(words)
        desk.announce(BodyUnderWay("summarise", context.call, words))
        await asyncio.sleep(desk.pause_s)
    summaries = [_summary(path, outcomes) for path, outcomes in by_path.items()]
    return sorted(summaries, key=lambda summary: (-summary.server_errors, summary.path))


@tool(tier="act", effect="once")
async def open_ticket(context: ToolContext[Desk], title: str) -> Ticket:
    """File a ticket with the on-call desk. Every call files another one.

    Args:
        title: what is wrong, in one line.
    """
    desk = _begin("open_ticket", context)
    ticket = Ticket(id=f"INC-{len(filed_tickets(desk.tickets)) + 1}", title=title)
    desk.tickets.touch(mode=OWNER_ONLY)
    with desk.tickets.open("ab") as file:
        file.write(msgspec.json.encode(ticket) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    words = f"{ticket.id} is filed, the desk's confirmation is awaited"
    desk.announce(BodyUnderWay("open_ticket", context.call, words))
    await asyncio.sleep(CONFIRMATION_S)
    return ticket


@tool(tier="observe", effect="pure")
def list_tickets(context: ToolContext[Desk]) -> list[Ticket]:
    """List the tickets that were filed, oldest first."""
    return filed_tickets(_begin("list_tickets", context).tickets)


@tool(tier="act", effect="idempotent")
def write_report(context: ToolContext[Desk], text: str) -> str:
    """Write the report, in place of an earlier one.

    Args:
        text: the whole report, in Markdown.
    """
    report = _begin("write_report", context).report
    unfinished = report.with_name(f"{report.name}.unfinished")
    unfinished.touch(mode=OWNER_ONLY)
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(report)
    return f"{len(text.encode()):,} bytes written"


INCIDENT_TOOLS = (list_files, search, count, summarise, open_ticket, list_tickets, write_report)


def filed_tickets(tickets: Path) -> list[Ticket]:
    """Return the tickets in a file, oldest first; none where there is no file."""
    if not tickets.exists():
        return []
    return [msgspec.json.decode(line, type=Ticket) for line in tickets.read_bytes().splitlines()]


def _begin(name: str, context: ToolContext[Desk]) -> Desk:
    """Announce that a body has begun, and return where it works."""
    context.deps.announce(BodyBegan(name, context.call))
    return context.deps


def _file(desk: Desk, name: str) -> Path:
    """Return the path of a log that `list_files` lists; a model gets at no other file.

    Raises:
        ToolError: there is no such log.
    """
    names = [path.name for path in desk.logs.glob("*.log")]
    if name not in names:
        raise ToolError(f"There is no file {name!r}; there are {', '.join(sorted(names))}.")
    return desk.logs / name


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ToolError(f"The pattern {pattern!r} is not a regular expression: {error}") from error


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield line.rstrip("\n")


def _requests(path: Path) -> Iterator[tuple[str, re.Match[str]]]:
    """Yield each line with its fields.

    Raises:
        ToolError: the file is no access log.
    """
    for number, line in enumerate(_lines(path), start=1):
        found = REQUEST_LINE.fullmatch(line)
        if found is None:
            raise ToolError(f"Line {number} of {path.name} is no request; is it an access log?")
        yield line, found


def _summary(path: str, outcomes: list[tuple[int, bool]]) -> PathSummary:
    times = sorted(milliseconds for milliseconds, _ in outcomes)
    return PathSummary(
        path=path,
        requests=len(times),
        server_errors=sum(failed for _, failed in outcomes),
        median_ms=times[len(times) // 2],
        p95_ms=times[len(times) * 95 // 100],
    )
