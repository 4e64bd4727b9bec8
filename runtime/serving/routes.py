"""The served page as an ASGI application: what is asked under which address.

A GET changes nothing. What people decide, answer or fork is a POST, and goes to the runtime that owns the log as from
any other process. Every answer is JSON or a file of the page; what is too large for one is refused.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.resources import files
from inspect import isawaitable
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from refold.actors.kernel.clock import Clock, SystemClock
from refold.actors.kernel.errors import AskTimeout
from refold.connections.connection import connect
from refold.connections.people import awaited_decisions
from refold.connections.session import ConnectedSession
from refold.events.core.content import JsonObject
from refold.events.core.errors import CommandRejected, ConfigError, LogInUse, RefoldError
from refold.events.core.ids import PayloadHash
from refold.inspection.log_reading import content_by_hash, session_head
from refold.inspection.request_view import recorded_request
from refold.lineage.causes import why
from refold.lineage.session_diff import diff
from refold.page.frames import shortened
from refold.page.overview import WantedPart
from refold.page.pages import Pages
from refold.serving.doors import Doors

BODY_MAX: Final = 1_048_576
"""Bytes of what a POST says."""

ANSWER_MAX: Final = 64 * 1_048_576
"""Bytes of one answer."""

SPANS_MAX: Final = 20_000
"""Spans in one answer."""

LONG_POLL_S: Final = 20.0
"""After so long without a change a page that waits for one is told so."""

LOOK_EVERY_S: Final = 0.25

DECISION_S: Final = 5.0
"""How long a runtime has to take what a person decides before the page is told that it waits."""

_TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

Answering = Callable[[Request], object]
"""Returns an answer, or awaits it."""


class SaidDecision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person says about a call."""

    session: str
    call: str
    allow: bool
    reason: str = ""
    always: bool = False
    arguments: JsonObject | None = None


class SaidAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person answers."""

    session: str
    question: str
    text: str
    is_text: bool = False
    """Whether it is no JSON, though it looks like it."""


class SaidFork(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fork that a person wants."""

    session: str
    at: int
    name: str


def page_application(
    pages: Pages,
    *,
    token: str,
    hosts: tuple[str, ...],
    clock: Clock | None = None,
    ending: Callable[[], bool] = lambda: False,
) -> ASGIApp:
    """Return the page of a log as an ASGI application.

    Args:
        pages: the log.
        token: what a request for data must bring.
        hosts: the names and addresses under which it is reached, without a port.
        clock: times the looks for changes; None = the machine's.
        ending: tells whether the server is to end, so that no page that waits for a change keeps it.
    """
    served = _Served(pages, clock or SystemClock(), ending)
    static = _static_files()

    async def page_file(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in static:
            return JSONResponse({"error": "there is no such file"}, 404)
        kind = _TYPES[name.rpartition(".")[2]]
        return Response(static[name], media_type=f"{kind}; charset=utf-8" if kind.startswith("text/") else kind)

    routes = [
        Route("/", page_file, methods=["GET"]),
        Route("/page/{name}", page_file, methods=["GET"]),
        *(Route(f"/api/{name}", _answering(pages, ask), methods=["GET"]) for name, ask in served.questions().items()),
        *(Route(f"/api/{name}", _answering(pages, do), methods=["POST"]) for name, do in served.commands().items()),
    ]
    return Doors(Starlette(routes=routes), token=token, hosts=hosts)


class _Served:
    """The answers to what a page asks."""

    def __init__(self, pages: Pages, clock: Clock, ending: Callable[[], bool]) -> None:
        self._pages = pages
        self._clock = clock
        self._ending = ending
        self._look: asyncio.Task[int] | None = None

    def questions(self) -> dict[str, Answering]:
        pages, store = self._pages, self._pages.store
        return {
            "sessions": self.sessions,
            "session": lambda asked: pages.session(_text(asked, "session")),
            "frames": lambda asked: pages.chunk(_text(asked, "session"), _number(asked, "chunk")),
            "spans": lambda asked: pages.spans(_text(asked, "session"), _number(asked, "after"), SPANS_MAX),
            "search": lambda asked: pages.found(_text(asked, "session"), _text(asked, "text")),
            "beside": lambda asked: pages.beside(_text(asked, "session")),
            "event": lambda asked: pages.event(_text(asked, "session"), _number(asked, "version")),
            "why": self.causes,
            "request": lambda asked: recorded_request(store, _text(asked, "session"), _number(asked, "version")),
            "diff": lambda asked: diff(store, _text(asked, "left"), _text(asked, "right")),
            "payload": self.payload,
            "waiting": self.waiting,
            "changes": self.changes,
        }

    def commands(self) -> dict[str, Answering]:
        return {"decide": self.decide, "answer": self.answer, "fork": self.fork}

    async def sessions(self, request: Request) -> object:
        wanted = msgspec.convert(dict(request.query_params), WantedPart, strict=False)
        complete = await self._pages.read_sessions()
        shown = self._pages.sessions.shown(wanted, complete=complete)
        return {"log": self._pages.store.name, "owned": self._pages.owned(), **msgspec.structs.asdict(shown)}

    async def causes(self, request: Request) -> object:
        causes = await why(self._pages.store, _text(request, "event"))
        return shortened(msgspec.json.decode(msgspec.json.encode(causes)))  # Some hold what was recorded, raw.

    async def payload(self, request: Request) -> object:
        store, session, name = self._pages.store, _text(request, "session"), PayloadHash(_text(request, "hash"))
        content = await content_by_hash(store, (await session_head(store, session)).stream, name)
        return {"text": content.decode(errors="replace"), "bytes": len(content)}

    async def waiting(self, request: Request) -> object:
        session = request.query_params.get("session")
        if self._pages.log is None:  # No runtime can own it.
            return []
        return await awaited_decisions(self._pages.log, session, below=session is not None)

    async def changes(self, request: Request) -> object:
        """Wait until the log has an event behind a position, or for a while."""
        after, until_s = _number(request, "after"), self._clock.monotonic_s() + LONG_POLL_S
        position = await self._pages.position()
        while position <= after and self._clock.monotonic_s() < until_s and not self._ending():
            if await request.is_disconnected():
                break
            if self._look is None or self._look.done():
                self._look = asyncio.ensure_future(self._looked())
            position = await asyncio.shield(self._look)
        await self._pages.read_sessions()
        return {"position": position, "owned": self._pages.owned(), "waiting": self._pages.sessions.waiting}

    async def _looked(self) -> int:
        """Look at the log in a moment, for all that wait."""
        await self._clock.sleep(LOOK_EVERY_S)
        self._pages.check_same()
        return await self._pages.position()

    async def decide(self, request: Request) -> object:
        said = msgspec.structs.asdict(await _said(request, SaidDecision))
        return {"done": await self._connected(said.pop("session")).decide(**said)}

    async def answer(self, request: Request) -> object:
        said = await _said(request, SaidAnswer)
        value: object = said.text
        if not said.is_text:
            with suppress(msgspec.DecodeError, RecursionError):
                value = msgspec.json.decode(said.text.encode())
        done = await self._connected(said.session).answer(said.question, value)
        return {"done": done}

    async def fork(self, request: Request) -> object:
        said = await _said(request, SaidFork)
        try:
            await self._connected(said.session).fork(said.at, name=said.name)
        except AskTimeout:  # It waits in the inbox.
            return {"done": False}
        return {"done": True}

    def _connected(self, session: str) -> ConnectedSession:
        if self._pages.log is None:
            raise ConfigError("a log of text is only read; import it first")
        return connect(self._pages.log, patience_s=DECISION_S, clock=self._clock).session(session)


def _answering(pages: Pages, ask: Answering) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            pages.check_same()
            found = ask(request)
            found = await found if isawaitable(found) else found
        except RefoldError as error:
            status = 409 if isinstance(error, LogInUse | CommandRejected) else 500
            return JSONResponse({"error": str(error)}, 404 if isinstance(error, ConfigError) else status)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            return JSONResponse({"error": f"the question is none: {error}"}, 400)
        body = found if isinstance(found, bytes) else await asyncio.to_thread(msgspec.json.encode, found)
        if len(body) > ANSWER_MAX:
            return JSONResponse({"error": f"that is {len(body):,} bytes; the page shows {ANSWER_MAX:,}"}, 413)
        return Response(body, media_type="application/json")

    return answer


def _text(request: Request, name: str) -> str:
    if (given := request.query_params.get(name)) is None:
        raise msgspec.ValidationError(f"{name} is missing")
    return given


def _number(request: Request, name: str) -> int:
    return msgspec.convert(_text(request, name), int, strict=False)


async def _said(request: Request, kind: type[msgspec.Struct]) -> Any:
    """Return what a POST says."""
    if request.headers.get("content-type") != "application/json":
        raise msgspec.ValidationError("its type is not application/json")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > BODY_MAX:
            raise msgspec.ValidationError(f"it has more than {BODY_MAX:,} bytes")
    try:
        return msgspec.json.decode(bytes(body), type=kind)
    except (UnicodeError, RecursionError) as error:
        raise msgspec.ValidationError(str(error)) from error


def _static_files() -> dict[str, bytes]:
    folder = files("refold.page") / "static"
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name.rpartition(".")[2] in _TYPES}
