"""Who may come in to a served page: the holder of its token, from this machine, on a page of ours.

A page in a browser can send requests to every port of its own machine, and a foreign name can be made to mean this
machine. So a request needs a Host that is one of ours, no Origin but ours, and for all that is of the log a token in a
header, which no foreign page can set. The files of the page hold nothing of a log and need no token.
"""

import re
import secrets
from collections.abc import Iterable
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN_HEADER: Final = "x-refold-token"  # noqa: S105

DATA: Final = "/api/"
"""Where addresses begin that give what is in the log."""

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


_PORT: Final = re.compile(r":[0-9]{1,5}$")


class Doors:
    """Lets requests through to an application, or refuses them."""

    def __init__(self, app: ASGIApp, *, token: str, hosts: Iterable[str]) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refused = self._refusal(scope)
        await (refused or self._app)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        if len(headers.getlist("host")) != 1 or _PORT.sub("", host) not in self._hosts:
            return _refused(421, "this name is not one of the page's; open the address that refold inspect wrote")
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        is_data = str(scope["path"]).startswith(DATA)
        opens = scope["method"] == "GET" and not is_data and headers.get("sec-fetch-mode") == "navigate"
        ours = (None, f"http://{host}", f"https://{host}")  # A proxy before it may encrypt.
        if origin not in ours or not (opens or site in ("same-origin", "none")):
            return _refused(403, "another page asks; only the page itself may")
        given = headers.get(TOKEN_HEADER, "").encode()
        if is_data and not secrets.compare_digest(given, self._token):
            return _refused(401, "the token is missing or is of another start; open the address that was written last")
        return None


def _refused(status: int, words: str) -> JSONResponse:
    return JSONResponse({"error": words}, status)
