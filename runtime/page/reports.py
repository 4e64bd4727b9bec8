"""What a replay found, as a page: both sides of each divergence, and the sessions that they are in.

A divergence is taken by what it has to say, so that the page needs nothing of replay.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from refold.events.core.content import Json
from refold.events.session.core import SESSION_KIND
from refold.inspection.log_reading import ReadableLog
from refold.page.one_file import PageReport, framed, page_file, report_file

REPORTS_MAX: Final = 20
"""Divergences that are shown."""

SESSIONS_MAX: Final = 5
"""Sessions that are in the file, the first that diverge."""


class Diverged(Protocol):
    """Where today's code does not do what a stream recorded; see `refold.replay.Divergence`."""

    @property
    def stream(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def differs(self) -> str: ...
    @property
    def recorded(self) -> Json: ...
    @property
    def now(self) -> Json: ...


def reports_of_replay(log: str, divergences: Sequence[Diverged], missing: Sequence[str]) -> tuple[PageReport, ...]:
    """Return what is to be shown of a replay; each line of `missing` says what was not compared."""
    if not divergences:
        verdict = "incomplete" if missing else "ok"
        words = tuple(missing) or ("Today's code does what was recorded.",)
        return (PageReport(title=f"Replay of {log}", verdict=verdict, words=words),)
    more = len(divergences) - REPORTS_MAX
    reports = [_report(divergence) for divergence in divergences[:REPORTS_MAX]]
    if more > 0:
        reports.append(
            PageReport(title=f"{more:,} more", verdict="diverged", words=("`refold replay --json` has all.",))
        )
    return tuple(reports)


async def replay_page(log: ReadableLog, divergences: Sequence[Diverged], missing: Sequence[str]) -> str:
    """Return a replay as one HTML file, with the sessions that diverge first; raises as `page_file`."""
    streams = dict.fromkeys(str(each.stream) for each in divergences)
    sessions = [each.partition("/")[2] for each in streams if each.startswith(f"{SESSION_KIND}/")][:SESSIONS_MAX]
    return await page_file(log, sessions, reports_of_replay(str(log), divergences, missing))


def framed_reports(reports: Sequence[PageReport]) -> str:
    """Return reports without their sessions, for a notebook."""
    return framed(report_file(reports), 480)


def _report(divergence: Diverged) -> PageReport:
    kind, _, name = divergence.stream.partition("/")
    return PageReport(
        title=f"{divergence.stream}@{divergence.version}",
        verdict="diverged",
        words=(str(divergence),),
        sides=({"name": "Recorded", "value": divergence.recorded}, {"name": "Now", "value": divergence.now}),
        place={"name": name, "version": divergence.version} if kind == SESSION_KIND else None,
    )
