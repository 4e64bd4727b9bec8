"""The page with its data inside: one HTML file that opens from disk, in a mail, or within a notebook.

It is the same page, whose modules stand behind each other in one script. The file's own policy lets no other script run
and nothing be loaded. Data stands in blocks that are no script, in which no character can end a block.
"""

import asyncio
import base64
import hashlib
import html
import re
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import msgspec

from refold.events.core.errors import ConfigError, LogFormatError
from refold.events.core.ids import SessionId, stream_name
from refold.events.session.core import SESSION_KIND
from refold.inspection.log_reading import ReadableLog
from refold.inspection.request_view import recorded_request
from refold.inspection.tail import Following
from refold.lineage.causes import why
from refold.page.frames import CHUNK, WORDS_MAX, encoded
from refold.page.pages import Pages, opened_pages
from refold.stores.event_store import EventStore

REQUESTS_MAX: Final = 40
"""The requests of so many model calls are in a file, the last ones."""

REQUESTS_UNTIL: Final = 2_000
"""Of a session with more events no request is in the file: each would be built from the beginning."""

REQUEST_BYTES: Final = 4_000_000
"""So many bytes of requests, at most."""

RECORDED_BYTES: Final = 4_000_000
"""So many bytes of a session's events as they were recorded, at most, the last ones; what each did is there of all."""

CAUSES_MAX: Final = 1_000
"""Events of other streams that are told as causes."""

_IMPORT: Final = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.js";\n', re.M)
_EXPORT: Final = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.M)


class PageReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a replay or a scenario found, with both sides of what differs."""

    title: str
    verdict: str
    """One word, such as `diverged`."""
    words: tuple[str, ...] = ()
    """One paragraph each."""
    sides: tuple[dict[str, Any], dict[str, Any]] | None = None
    """Each has a `name` and a `value`."""
    commands: tuple[str, ...] = ()
    """Lines for a shell that look further into it."""
    place: dict[str, Any] | None = None
    """The session's `name` and `version`."""


async def page_file(log: ReadableLog, sessions: Sequence[str], reports: Sequence[PageReport] = ()) -> str:
    """Return sessions of a log, and reports about them, as one HTML file."""
    told: list[dict[str, Any]] = []
    blocks: list[tuple[str, bytes]] = []
    causes: dict[str, dict[str, Any]] = {}
    async with opened_pages(log, patience_s=None) as pages:
        for place, session in enumerate(sessions):
            head = await pages.session(session, alone=True)
            name = f"s{place}"
            recorded = await _recorded(pages, head.session, head.version)
            told.append(
                {
                    "name": name,
                    "head": msgspec.structs.replace(head, owned=False),
                    "spans": pages.spans(session),
                    "beside": await pages.beside(session),
                    "requests": await _requests(pages, head.session, head.version),
                    "recorded_from": min(recorded, default=head.version + 1),
                }
            )
            await _add_causes(pages, session, {stream_name(SESSION_KIND, each) for each in sessions}, causes)
            for number in range((head.version + CHUNK - 1) // CHUNK):
                blocks.append((f"{name}-{number}", await pages.chunk(session, number)))
                events = {v: event for v, event in recorded.items() if (v - 1) // CHUNK == number}
                if events:
                    blocks.append((f"{name}-{number}-recorded", msgspec.json.encode(events)))
    blocks.append(_data(told, reports, causes))
    return _file(", ".join(sessions) or "report", blocks)


def report_file(reports: Sequence[PageReport]) -> str:
    return _file("report", [_data([], reports)])


def _data(
    sessions: Sequence[dict[str, Any]], reports: Sequence[PageReport], causes: Mapping[str, object] | None = None
) -> tuple[str, bytes]:
    told = {"chunk": CHUNK, "sessions": sessions, "reports": reports, "causes": causes or {}}
    return "refold-data", msgspec.json.encode(told)


def framed(page: str, height: int = 640) -> str:
    """Return a page for a notebook: in a frame that shares nothing with the notebook."""
    style = f"width:100%;height:{height}px;border:1px solid #8884;border-radius:8px"
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{html.escape(page)}"></iframe>'


def framed_session(store: EventStore, session: str) -> str | None:
    """Return a session for a notebook; None = it is not in the log yet.

    The thread waits for it, since a notebook asks on the loop's own thread: another one reads.
    """
    log = store.name if Path(store.name).is_file() else store
    with ThreadPoolExecutor(1) as reader:
        try:
            return framed(reader.submit(lambda: asyncio.run(page_file(log, [session]))).result())
        except ConfigError:
            return None


async def _requests(pages: Pages, session: SessionId, version: int) -> dict[int, object]:
    found: dict[int, object] = {}
    if version > REQUESTS_UNTIL:
        return found
    calls = [span for span in pages.spans(session) if span.lane == "model"]
    size = 0
    for span in reversed(calls[-REQUESTS_MAX:]):
        try:
            request = await recorded_request(pages.store, session, span.ended)
        except (ConfigError, LogFormatError) as error:  # The page says so where it is looked for.
            found[span.ended] = {"missing": str(error)}
            continue
        size += len(msgspec.json.encode(request))
        if size > REQUEST_BYTES:
            break
        found[span.ended] = request
    return found


async def _recorded(pages: Pages, session: SessionId, version: int) -> dict[int, msgspec.Raw]:
    """Return the last events of a session whole, by their versions."""
    found: dict[int, msgspec.Raw] = {}
    size, following = 0, Following(pages.store)
    for begin in range((version - 1) // CHUNK * CHUNK, -1, -CHUNK):
        page = await pages.store.read_stream(stream_name(SESSION_KIND, session), after_version=begin, limit=CHUNK)
        events = [encoded(await following.read(stored)) for stored in page if stored.version <= version]
        for place, event in reversed(list(enumerate(events, begin + 1))):
            size += len(event)
            if size > RECORDED_BYTES:
                return found
            found[place] = msgspec.Raw(event)
    return found


async def _add_causes(pages: Pages, session: str, shown: Set[str], causes: dict[str, dict[str, Any]]) -> None:
    """Add the chains of causes that lead out of a session, as far as no session that is shown has them."""
    for reference in pages.causes_elsewhere(session):
        if reference in causes or reference.rpartition("@")[0] in shown:
            continue
        try:
            chain = await why(pages.store, reference)
        except (ConfigError, LogFormatError) as error:
            causes[reference] = {"reference": reference, "type": "", "words": str(error)}
            continue
        for cause, behind in zip_longest(chain, chain[1:]):
            if len(causes) == CAUSES_MAX or cause.reference.rpartition("@")[0] in shown:
                break
            causes[cause.reference if causes.get(reference) else reference] = {
                "reference": cause.reference,
                "type": cause.type,
                "words": cause.words[:WORDS_MAX],
                "cause": behind.reference if behind is not None else None,
            }


def _file(title: str, blocks: Sequence[tuple[str, bytes]]) -> str:
    style, script = _static("app.css"), _bundled()
    shown = "".join(one if one.isprintable() else f"\\u{ord(one):04x}" for one in title)
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    data = "\n".join(
        f'<script type="application/json" id="{name}">{_without_marks(body)}</script>' for name, body in blocks
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{html.escape(shown)} - Refold</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<div id="app"></div>
<noscript><p class="empty">This page needs JavaScript.</p></noscript>
{data}
<script type="module">{script}</script>
</body>
</html>
"""


def _without_marks(body: bytes) -> str:
    """Return JSON in which no character means anything to HTML."""
    text = body.decode()
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _static(name: str) -> str:
    return (files("refold.page") / "static" / name).read_text(encoding="utf-8")


def _bundled() -> str:
    """Return the modules of the page as one, each behind those that it imports."""
    written: dict[str, str] = {}

    def add(name: str) -> None:
        source = _static(f"{name}.js")
        for _, needed in _IMPORT.findall(source):
            if needed not in written:
                add(needed)
        names = ", ".join(_EXPORT.findall(source))
        body = _EXPORT.sub("", _IMPORT.sub(lambda found: f"const {{{found[1]}}} = ${found[2]};\n", source))
        written[name] = f"const ${name} = (() => {{\n{body}\nreturn {{ {names} }};\n}})();\n"

    add("app")
    return "".join(written.values())
