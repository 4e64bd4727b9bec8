"""The demonstration's agent, and the process that it runs in: `python -m refold.demo.agent LOG TICKETS REPORT PAUSE_S`.

The tools really read and write; only their slowness is made. The model is a script that decides its next step from the
request alone, as a real model would, so it makes no difference which process asks. The rule: the process does not know
whether it is the first one on the log. It sends one question under one key; if the log holds that question already, the
runtime has resumed its run by itself, and the process waits for that run.

The two logs of a web shop, which ship with the package, are made up: release r119 breaks the checkout from its deploy
at 14:05 until it is rolled back at 14:31.
"""

import asyncio
import os
import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec

from refold.actors.calls.tool_context import ToolContext
from refold.agent_runtime import AgentRuntime
from refold.agents.agent import Agent
from refold.events.core.content import ToolResultBlock, ToolUseBlock
from refold.events.core.errors import RefoldError, ToolError
from refold.events.model.configuration import AgentConfig
from refold.events.model.messages import ModelRequest, ToolUse
from refold.providers.scripted import ScriptedProvider, use
from refold.publishing.notifications import RecordedSessionEvent
from refold.stores.guarding.trusted_files import shared_folders_allowed
from refold.tools.tool import tool

SESSION = "incident"
QUESTION = "Checkout failed for many customers this afternoon. What happened? Open a ticket and write a report."

LOGS = Path(__file__).with_name("logs")
REQUEST_LINE = re.compile(r"\S+ \S+ [A-Z]+ (?P<path>\S+) (?P<status>\d{3}) (?P<ms>\d+)ms (?P<release>\S+)")

PIECES = 12
"""In so many pieces `summarise` reads a file."""
CONFIRMATION_S = 20.0
"""How long the ticket desk takes to confirm a ticket that it has filed."""
OWNER_ONLY = 0o600
"""Mode of the files that the tools make, which is that of a log."""


class EventRecorded(msgspec.Struct, frozen=True, tag="event_recorded"):
    """What the process writes to its stdout when an event of the session is durable."""

    version: int
    event: str
    """Its versioned tag."""
    call: str | None
    """The tool call that it is about."""


class BodyRuns(msgspec.Struct, frozen=True, tag="body_runs"):
    """What the process writes to its stdout when the body of a tool has begun, and when it gets on."""

    tool: str
    call: str
    words: str = ""
    """What it has done so far; empty = it has begun."""


Announcement: TypeAlias = EventRecorded | BodyRuns


def announce(announcement: Announcement) -> None:
    """Write one line at once; tools do so from their threads, too."""
    os.write(sys.stdout.fileno(), msgspec.json.encode(announcement) + b"\n")


@dataclass(frozen=True)
class Desk:
    """Where the agent works: what its tools get as `ToolContext.deps`."""

    tickets: Path
    """One JSON object a line."""
    report: Path
    pause_s: float
    """How long `summarise` rests after each piece."""


class PathSummary(msgspec.Struct, frozen=True):
    """How the requests of one path went."""

    path: str
    requests: int
    server_errors: int
    """Answered with a status of 500 or more."""
    releases: list[str]
    """Those that answered so."""
    median_ms: int


class Ticket(msgspec.Struct, frozen=True):
    """A ticket as it was filed."""

    id: str
    title: str


@tool(tier="observe", effect="pure")
def search(context: ToolContext[Desk], file: str, pattern: str) -> list[str]:
    """Return the lines of a log file that match a regular expression, at most 50."""
    announce(BodyRuns("search", context.call))
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise ToolError(f"The pattern {pattern!r} is not a regular expression: {error}") from error
    return [line for line in _lines(file) if wanted.search(line)][:50]


@tool(tier="observe", effect="pure")
async def summarise(context: ToolContext[Desk], file: str) -> list[PathSummary]:
    """Summarise an access log path by path, most server errors first. This takes a while."""
    announce(BodyRuns("summarise", context.call))
    requests = [found for line in _lines(file) if (found := REQUEST_LINE.fullmatch(line))]
    size = -(-len(requests) // PIECES) or 1
    by_path: dict[str, list[re.Match[str]]] = defaultdict(list)
    for start in range(0, len(requests), size):
        for found in requests[start : start + size]:
            by_path[found["path"]].append(found)
        words = f"{min(start + size, len(requests)):,} of {len(requests):,} requests read"
        context.progress(words)
        announce(BodyRuns("summarise", context.call, words))
        await asyncio.sleep(context.deps.pause_s)
    summaries = [_summary(path, found) for path, found in by_path.items()]
    return sorted(summaries, key=lambda summary: (-summary.server_errors, summary.path))


@tool(tier="act", effect="once")
async def open_ticket(context: ToolContext[Desk], title: str) -> Ticket:
    """File a ticket with the on-call desk. Every call files another one."""
    announce(BodyRuns("open_ticket", context.call))
    tickets = context.deps.tickets
    ticket = Ticket(id=f"INC-{len(filed_tickets(tickets)) + 1}", title=title)
    tickets.touch(mode=OWNER_ONLY)
    with tickets.open("ab") as file:
        file.write(msgspec.json.encode(ticket) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    announce(BodyRuns("open_ticket", context.call, f"{ticket.id} is filed and not yet confirmed"))
    await asyncio.sleep(CONFIRMATION_S)
    return ticket


@tool(tier="observe", effect="pure")
def list_tickets(context: ToolContext[Desk]) -> list[Ticket]:
    """List the tickets that were filed, oldest first."""
    announce(BodyRuns("list_tickets", context.call))
    return filed_tickets(context.deps.tickets)


@tool(tier="act", effect="idempotent")
def write_report(context: ToolContext[Desk], text: str) -> str:
    """Write the report, in place of an earlier one."""
    announce(BodyRuns("write_report", context.call))
    report = context.deps.report
    unfinished = report.with_name(f"{report.name}.unfinished")
    unfinished.touch(mode=OWNER_ONLY)
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(report)
    return f"{len(text.encode()):,} bytes written"


def filed_tickets(tickets: Path) -> list[Ticket]:
    """Return the tickets in a file, oldest first; none where there is no file."""
    lines = tickets.read_bytes().splitlines() if tickets.exists() else []
    return [msgspec.json.decode(line, type=Ticket) for line in lines]


def _lines(file: str) -> list[str]:
    """Return the lines of a log of ours; a model reads no other file."""
    names = sorted(path.name for path in LOGS.glob("*.log"))
    if file not in names:
        raise ToolError(f"There is no file {file!r}; there are {', '.join(names)}.")
    return (LOGS / file).read_text(encoding="utf-8").splitlines()


def _summary(path: str, requests: Sequence[re.Match[str]]) -> PathSummary:
    failed = [found for found in requests if found["status"] >= "500"]
    times = sorted(int(found["ms"]) for found in requests)
    releases = sorted({found["release"] for found in failed})
    return PathSummary(path, len(requests), len(failed), releases, times[len(times) // 2])


def next_step(request: ModelRequest) -> Sequence[ToolUse] | str:
    """Return what a careful analyst would do next: calls of tools, or at last the answer."""
    blocks = [block for message in request.messages for block in message.content]
    names = {block.id: block.name for block in blocks if isinstance(block, ToolUseBlock)}
    results: dict[str, list[ToolResultBlock]] = defaultdict(list)
    for block in blocks:
        if isinstance(block, ToolResultBlock):
            results[names[block.tool_use_id]].append(block)
    if not results["summarise"]:
        return [
            use("search", {"file": "deploys.log", "pattern": "r[0-9]+"}),
            use("summarise", {"file": "access.log"}),
        ]
    deploys = msgspec.json.decode(results["search"][0].text, type=list[str])
    worst = msgspec.json.decode(results["summarise"][0].text, type=list[PathSummary])[0]
    release = worst.releases[-1]
    deployed = next(place for place, line in enumerate(deploys) if f"deployed {release}" in line)
    begun, ended = (line[11:16] for line in deploys[deployed : deployed + 2])
    title = f"{worst.path} failed {worst.server_errors} times under release {release}"
    cause = (
        f"{worst.server_errors} of {worst.requests} requests to {worst.path} failed under release {release}, which was "
        f"deployed at {begun} and rolled back at {ended}; half of all requests took {worst.median_ms:,} ms or less."
    )
    if not results["open_ticket"]:
        return [use("open_ticket", {"title": title})]
    if not results["list_tickets"]:  # A call's outcome may be unknown; the list of tickets is not.
        return [use("list_tickets")]
    filed = msgspec.json.decode(results["list_tickets"][-1].text, type=list[Ticket])
    ticket = next((ticket for ticket in filed if ticket.title == title), None)
    if ticket is None:
        return [use("open_ticket", {"title": title}), use("list_tickets")]
    if not results["write_report"]:
        rows = "".join(f"    {line}\n" for line in deploys)
        return [use("write_report", {"text": f"# {ticket.id}: {title}\n\n{cause}\n\nDeploys:\n\n{rows}"})]
    return f"{cause} {ticket.id} is open, and the report is written."


def incident_agent() -> Agent:
    """Return the agent; its model has more answers than the question needs, in however many processes."""
    return Agent(
        name="analyst",
        config=AgentConfig(model="scripted", system_prompt="You find out why a web shop failed."),
        provider=ScriptedProvider([next_step] * 12),
        tools=[search, summarise, open_ticket, list_tickets, write_report],
    )


async def work(log: Path, desk: Desk) -> None:
    """Have the question answered, and announce what happens on the way."""
    runtime = AgentRuntime(incident_agent(), log=log, deps=desk)
    runtime.subscribe(_announce_event, session=SESSION)
    async with runtime:
        session = await runtime.session(SESSION)
        await session.send(QUESTION, key="the-question")


def _announce_event(recorded: RecordedSessionEvent) -> None:
    tag = str(type(recorded.event).__struct_config__.tag)
    announce(EventRecorded(recorded.version, tag, getattr(recorded.event, "call", None)))


if __name__ == "__main__":
    log_argument, tickets_argument, report_argument, pause_argument, *shared = sys.argv[1:]
    shared_folders_allowed.set(bool(shared))
    desk_of_process = Desk(Path(tickets_argument), Path(report_argument), float(pause_argument))
    try:
        asyncio.run(work(Path(log_argument), desk_of_process))
    except RefoldError as error:
        sys.exit(f"refold: {error}")
