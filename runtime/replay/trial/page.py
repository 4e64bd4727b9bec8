"""The report of a trial as one HTML file: no script, nothing from another host, all that a model said escaped.

Characters that cannot be seen, or turn the direction of writing, stand there as escapes.
"""

import os
import re
from collections.abc import Iterable
from html import escape
from typing import Final

from refold.events.core.cleaning import clean_text
from refold.events.model.spending import total_tokens
from refold.inspection.export import new_file
from refold.replay.trial.report import TrialReport, TriedSession

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

_STYLE: Final = """
:root { color-scheme: light dark; } .wide { overflow-x: auto; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #1b1f24; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .3rem .6rem; vertical-align: top;
border-bottom: 1px solid #d8dee4; } .number { text-align: right; font-variant-numeric: tabular-nums; }
del { background: #ffd7d5; text-decoration: none; } ins { background: #ccffd8; text-decoration: none; }
.bad { color: #b42318; font-weight: 600; } .quiet { color: #59636e; } p, li { overflow-wrap: anywhere; }
@media (prefers-color-scheme: dark) { body { background: #0d1117; color: #e6edf3; } th, td { border-color: #3d444d; }
del { background: #67201f; } ins { background: #12492a; } .bad { color: #ff7b72; } .quiet { color: #9198a1; } }
"""

_MARKS: Final = re.compile(r"\[-(.*?)-\]|\{\+(.*?)\+\}", re.DOTALL)


async def write_page(path: str | os.PathLike[str], report: TrialReport) -> None:
    """Write a report into a new file with mode 0600.

    Raises:
        ConfigError: the file is there already.
    """
    async with new_file(path) as file:
        file.write(page_of(report).encode())


def page_of(report: TrialReport) -> str:
    title = _text(f"Trial of {report.agent} on {report.log}")
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">',
        '<meta name="viewport" content="width=device-width"><meta name="referrer" content="no-referrer">',
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>",
        *_summary(report),
        *_table(report.tried),
        *(line for number, each in enumerate(report.tried) for line in _session(number, each)),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _summary(report: TrialReport) -> Iterable[str]:
    yield (
        f"<p>Sessions: {report.sessions:,}, kinds of path: {report.paths:,}, tried: {len(report.tried):,}, in which "
        f"nothing differs: {report.unchanged:,}. Model calls: {report.calls:,}, tokens: "
        f"{total_tokens(report.usage):,}, cost: {report.cost:.4g}; limit: {_text(report.limits)}.</p>"
    )
    if report.rules:
        yield "<h2>Rules</h2><ul>"
        for rule in report.rules:
            names = f": {_text(', '.join(rule.sessions))}" if rule.holds and rule.sessions else ""
            mark = ' class="bad"' if rule.holds else ""
            said = "fails" if rule.holds else "passes"
            yield f"<li{mark}>{said}: {_text(rule.rule)} ({_text(rule.words)}){names}</li>"
        yield "</ul>"
    if missing := report.missing():
        yield "<h2>Not tried</h2><ul>" + "".join(f"<li>{_text(line)}</li>" for line in missing) + "</ul>"


def _table(tried: Iterable[TriedSession]) -> Iterable[str]:
    yield (
        '<h2>Sessions</h2><div class="wide"><table><thead><tr><th>session<th class="number">like it<th>outcome<th>calls'
        '<th>arguments<th>answer<th class="number">tokens<th class="number">cost</thead><tbody>'
    )
    for number, each in enumerate(tried):
        then, now = each.then, each.now
        cells = [
            f'<td><a href="#s{number}">{_text(each.session)}</a>',
            f'<td class="number">{each.like:,}',
            _differs(each, each.outcome_differs),
            _differs(each, each.calls_differ),
            _differs(each, each.arguments_differ),
            _differs(each, each.answer_differs),
            f'<td class="number">{total_tokens(then.usage):,} → {total_tokens(now.usage):,}',
            f'<td class="number">{then.cost:.4g} → {now.cost:.4g}',
        ]
        yield f"<tr>{''.join(cells)}"
    yield "</tbody></table></div>"


def _differs(each: TriedSession, differs: bool) -> str:
    if differs:
        return '<td class="bad">differs'
    return "<td>same" if each.status == "ended" else f'<td class="quiet">{_text(each.status)}'


def _session(number: int, each: TriedSession) -> Iterable[str]:
    yield f'<h2 id="s{number}">{_text(each.session)}</h2>'
    yield f'<p class="quiet">path {each.path}, that of {each.like:,} sessions: {_text(each.words)}</p>'
    yield f"<p>First difference: {_marked(each.first)}</p>"
    if each.why:
        yield f'<p class="bad">{_text(each.status)}: {_text(each.why)}</p>'
    if each.guessed:
        yield f"<p>{each.guessed:,} calls got the result of one with other arguments.</p>"
    yield f"<p>Outcome: {_text(', '.join(each.then.outcomes))} → {_text(', '.join(each.now.outcomes) or 'none')}</p>"
    if each.parts:
        yield "<ul>"
        for part in each.parts:
            yield f"<li>{_text(part.what)}: {_marked(part.words)}</li>"
        if each.found > len(each.parts):
            yield f'<li class="quiet">and {each.found - len(each.parts):,} more</li>'
        yield "</ul>"


def _text(said: str) -> str:
    seen = (one if one.isprintable() or one == "\n" else f"\\u{ord(one):04x}" for one in clean_text(said))
    return escape("".join(seen))


def _marked(said: str) -> str:
    """Return words of changes, with what is gone and what is new marked as such."""

    def mark(found: re.Match[str]) -> str:
        return f"<del>{found[1]}</del>" if found[1] is not None else f"<ins>{found[2]}</ins>"

    return _MARKS.sub(mark, _text(said))
