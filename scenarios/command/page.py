"""What a rehearsal found, as a page that opens from disk: the promise that was broken, the scenario, and its sessions.

The scenario stands there as code, what it was shrunk to beside what was played first.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from refold.events.core.ids import stream_name
from refold.events.session.core import SESSION_KIND
from refold.inspection.export import export_to_new_file
from refold.inspection.log_reading import opened
from refold.inspection.session_view import list_sessions
from refold.page.one_file import PageReport, page_file, report_file
from refold.scenarios.as_code import scenario_as_code
from refold.scenarios.failure_artifact import FailureArtifact
from refold.scenarios.monitors.monitor import PROMISES, Broken, RuleVerdict

SESSIONS_MAX: Final = 5
"""Sessions that are in the file, first the one in which the promise was broken."""


def write_page(file: Path, report: PageReport, log: str | Path | None = None, stream: str = "") -> None:
    """Write what was found into a new file with mode 0600, and the sessions of `log`, if there is one.

    `stream` names those in which a promise was broken, with `, ` between them.
    """
    asyncio.run(_write(file, report, log, stream.partition(", ")[0].partition("/")[2]))


async def _write(file: Path, report: PageReport, log: str | Path | None, session: str) -> None:
    if log is None:
        page = report_file([report])
    else:
        async with opened(log) as store:
            names = [str(listed.session) for listed in await list_sessions(store, limit=SESSIONS_MAX)]
            head = await store.head(stream_name(SESSION_KIND, session)) if session else None
        if head is not None:
            names = [session, *(name for name in names if name != session)]
            report = msgspec.structs.replace(report, place={"name": session, "version": head.version})
        page = await page_file(log, names[:SESSIONS_MAX], [report])
    await export_to_new_file(file, page.encode())


def report_of(
    title: str,
    verdicts: Mapping[str, RuleVerdict],
    broken: Sequence[Broken],
    *,
    violation: FailureArtifact | None = None,
    commands: Sequence[str] = (),
) -> PageReport:
    """Return what is to be shown of a rehearsal."""
    if violation is not None:
        broken = (violation.broken,)
    shown = {each.rule for each in broken}
    others = [rule for rule, verdict in verdicts.items() if verdict == "violated" and rule not in shown]
    return PageReport(
        title=title,
        verdict="violated" if broken else "hold",
        words=(
            *(f"{each} \u2013 the promise: {PROMISES.get(each.rule, each.rule)}." for each in broken),
            *([f"Violated as well, in what was played first: {', '.join(others)}."] if others else ()),
            *_counted(verdicts),
        ),
        sides=_sides(violation) if violation is not None else None,
        commands=tuple(commands),
    )


def _counted(verdicts: Mapping[str, RuleVerdict]) -> list[str]:
    words: list[str] = []
    for wanted, said in (("hold", "Held"), ("not exercised", "Not exercised")):
        rules = [rule for rule, verdict in verdicts.items() if verdict == wanted]
        words += [f"{said}: {', '.join(rules)}."] if rules else []
    return words


def _sides(violation: FailureArtifact) -> tuple[dict[str, str], dict[str, str]]:
    played, enough = violation.original, violation.scenario
    return (
        {"name": f"Played: {_size(len(played.acts), len(played.faults))}", "value": scenario_as_code(played)},
        {"name": f"Enough: {_size(len(enough.acts), len(enough.faults))}", "value": violation.code},
    )


def _size(acts: int, faults: int) -> str:
    return f"{acts:,} {'act' if acts == 1 else 'acts'}, {faults:,} {'fault' if faults == 1 else 'faults'}"
