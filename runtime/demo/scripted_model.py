"""The model of the demonstration: it decides its next step from the request alone, as a real model would.

Nothing is remembered between requests and no number is written down here, so it makes no difference which process
asks: after a crash the history in the request says what was found, and which call has an unknown outcome.
"""

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from refold.demo.incident_tools import Counted, Found, LogFile, PathSummary, Ticket
from refold.events.core.content import Message, ToolResultBlock, ToolUseBlock
from refold.events.model.messages import ModelRequest, ToolUse
from refold.providers.scripted import ScriptedProvider, use

T = TypeVar("T")

QUESTION = "Checkout failed for many customers this afternoon. What happened? Open a ticket and write a report."

TURNS_MAX = 12
"""More than the agent needs, in however many processes."""


def incident_model() -> ScriptedProvider:
    """Return a provider that answers every request with `next_step`."""
    return ScriptedProvider([next_step] * TURNS_MAX)


def next_step(request: ModelRequest) -> Sequence[ToolUse] | str:
    """Return what a careful analyst would do next: calls of tools, or at last the answer."""
    seen = ResultsSeen(request.messages)
    if not seen.of("list_files"):
        return [use("list_files")]
    if not seen.of("summarise"):
        return _first_look(seen)
    findings = Findings(seen)
    tickets = seen.of("open_ticket")
    if not tickets:
        return [use("open_ticket", {"title": findings.title})]
    if tickets[-1].is_error and not seen.of("list_tickets"):
        return [use("list_tickets")]
    ticket = findings.ticket()
    if ticket is None:
        return [use("open_ticket", {"title": findings.title})]
    if not seen.of("write_report"):
        return [use("write_report", {"text": findings.report(ticket)})]
    return f"{findings.cause} {findings.bystander} {ticket.id} is open, and the report is written."


def _first_look(seen: "ResultsSeen") -> list[ToolUse]:
    files = seen.values("list_files", list[LogFile])[0]
    requests = max(files, key=lambda file: file.lines).name
    deploys = min(files, key=lambda file: file.lines).name
    return [
        use("search", {"file": deploys, "pattern": "r[0-9]+", "limit": 10}),
        use("count", {"file": requests, "field": "release", "pattern": "/api/checkout 50[0-9]"}),
        use("count", {"file": requests, "field": "client", "pattern": " 429 "}),
        use("summarise", {"file": requests}),
    ]


class ResultsSeen:
    """The results that a history holds, by tool."""

    def __init__(self, messages: Sequence[Message]) -> None:
        names = {
            block.id: block.name for message in messages for block in message.content if isinstance(block, ToolUseBlock)
        }
        self._results: dict[str, list[ToolResultBlock]] = {}
        for message in messages:
            for block in message.content:
                if isinstance(block, ToolResultBlock):
                    self._results.setdefault(names[block.tool_use_id], []).append(block)

    def of(self, tool: str) -> list[ToolResultBlock]:
        """Return the results of a tool's calls, errors too, oldest first."""
        return self._results.get(tool, [])

    def values(self, tool: str, type: type[T]) -> list[T]:
        """Return what a tool's calls returned, read as `type`, oldest first."""
        return [msgspec.json.decode(result.text, type=type) for result in self.of(tool) if not result.is_error]


class Findings:
    """What follows from the results."""

    def __init__(self, seen: ResultsSeen) -> None:
        self._seen = seen
        self._deploys = seen.values("search", Found)[0].lines
        failing_releases, turned_away = seen.values("count", Counted)
        self._paths = seen.values("summarise", list[PathSummary])[0]
        worst = self._paths[0]
        release, failed = next(iter(failing_releases.counts.items()))
        client, refused = next(iter(turned_away.counts.items()))
        begun, ended = self._times_of(release)
        self.title = f"{worst.path} failed {worst.server_errors} times under release {release}"
        self.cause = (
            f"{worst.server_errors} of {worst.requests} requests to {worst.path} failed, {failed} of them under "
            f"release {release}, which was deployed at {begun} and rolled back at {ended}; the slowest 5% took "
            f"{worst.p95_ms:,} ms or more, half of all no more than {worst.median_ms:,} ms."
        )
        self.bystander = (
            f"Client {client}, turned away {refused} times for asking too often, has nothing to do with it."
        )

    def ticket(self) -> Ticket | None:
        """Return the ticket: the one that was confirmed, or the one that the list of tickets shows."""
        confirmed = self._seen.values("open_ticket", Ticket)
        listed = [ticket for tickets in self._seen.values("list_tickets", list[Ticket]) for ticket in tickets]
        return next((ticket for ticket in [*confirmed, *listed] if ticket.title == self.title), None)

    def report(self, ticket: Ticket) -> str:
        """Return the report, in Markdown."""
        rows = "".join(
            f"| {path.path} | {path.requests:,} | {path.server_errors} | {path.median_ms:,} | {path.p95_ms:,} |\n"
            for path in self._paths
        )
        deploys = "".join(f"    {line}\n" for line in self._deploys)
        return (
            f"# {ticket.id}: {ticket.title}\n\n{self.cause}\n\n{self.bystander}\n\n"
            f"| path | requests | server errors | median ms | 95% ms |\n|---|---:|---:|---:|---:|\n{rows}\n"
            f"Deploys:\n\n{deploys}"
        )

    def _times_of(self, release: str) -> tuple[str, str]:
        """Return the time of day when a release came, and when the next one replaced it."""
        place = next(index for index, line in enumerate(self._deploys) if f"deployed {release}" in line)
        return self._deploys[place][11:16], self._deploys[place + 1][11:16]
