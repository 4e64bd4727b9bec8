"""Every way in which a call of the letters' API fails, with the key in all that the server says."""

from typing import Any, NamedTuple

from refold.events.core.errors import ProviderErrorKind
from refold.providers import HttpLimits, HttpTimeouts
from tests.providers.letter_format import KEY, piece
from tests.providers.loopback import End, Step, answer, event_stream, json_answer

SOON = 60.0
"""A time limit that is met only because the server lets the time go by."""

ECHO = KEY.encode()


class Failure(NamedTuple):
    steps: list[Step]
    kind: ProviderErrorKind
    retryable: bool
    says: str = ""
    status: int | None = None
    streamed: tuple[bool, ...] = (False, True)
    """How the call is made that fails so."""
    settings: dict[str, Any] = {}
    """Of the provider."""


def refused(status: int, kind: ProviderErrorKind, retryable: bool) -> Failure:
    headers = {"Retry-After": "7.5", "x-echo": KEY}
    steps = json_answer({"why": f"because of {KEY}"}, status=status, headers=headers)
    return Failure(steps, kind, retryable, "because", status)


def cut(*steps: Step) -> Failure:
    return Failure(list(steps), "connection", True)


def malformed(steps: list[Step], retryable: bool = True, says: str = "", **more: Any) -> Failure:
    return Failure(steps, "malformed", retryable, says, **more)


def silent(*steps: Step, says: str, **timeouts: float) -> Failure:
    return Failure(list(steps), "timeout", True, says, settings={"timeouts": HttpTimeouts(**timeouts)})


def too_long(steps: list[Step]) -> Failure:
    settings = {"limits": HttpLimits(body_bytes_max=6000)}
    return malformed(steps, False, "6,000 bytes", status=200, settings=settings)


def endless(steps: list[Step], **limits: int) -> Failure:
    return malformed(steps, False, settings={"limits": HttpLimits(**limits)}, **STREAM)


STREAM: Any = {"streamed": (True,)}
WHOLE: Any = {"streamed": (False,)}
BEGUN = answer(b'{"text": "' + ECHO, End.LEAP, length=900)
BUSY = f"too busy for {KEY}"
BUSY_EVENT = f'event: error\ndata: {{"error": "{BUSY}"}}\n\n'.encode()
ONE, TWO = piece(text=KEY[:15]), piece(text=KEY[15:])

FAILURES: dict[str, Failure] = {
    "the key is refused": refused(401, "auth", False),
    "too many calls": refused(429, "rate_limit", True),
    "overloaded": refused(529, "overloaded", True),
    "refused at length": Failure(answer(b"x" * 20 + ECHO, status=500), "server", True, "status 500", 500),
    "cut where it says why": Failure(
        answer(b"bus", End.CLOSE, status=529, length=10), "overloaded", True, ": bus", 529
    ),
    "refused without end": Failure(
        answer(ECHO * 3000, End.STALL, status=500, length=10**9), "server", True, status=500
    ),
    "redirected": Failure(answer(status=307, headers={"location": f"/{KEY}"}), "invalid_request", False, status=307),
    "closed": cut(End.CLOSE),
    "reset": cut(End.RESET),
    "cut in the head": cut(b"HTTP/1.1 200 OK\r\ncontent-le", End.CLOSE),
    "a head that is none": cut(b"HTTP/1.1 " + ECHO + b"\r\n\r\n", End.CLOSE),
    "a header that is none": cut(b"HTTP/1.1 200 OK\r\n" + ECHO + b"\r\n\r\n", End.CLOSE),
    "no HTTP": cut(b"nonsense\r\n\r\n", End.CLOSE),
    "cut in the body": cut(*answer(ECHO, End.CLOSE, length=900)),
    "reset in the body": cut(*answer(ECHO, End.RESET, length=900, headers={"content-type": "application/json"})),
    "cut between two chunks": cut(*answer(b'{"te', End.CLOSE, b'xt": "a"}', chunked=True)),
    "cut inside a chunk": cut(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"6\r\n{", End.CLOSE),
    "a chunk without a size": cut(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", End.CLOSE),
    "the key in two events, then a cut": cut(*event_stream(ONE, TWO, End.CLOSE))._replace(**STREAM),
    "a page": malformed(answer(ECHO, headers={"content-type": f"text/html-{KEY}"}), says="text/html", status=200),
    "a page of letters": malformed(
        answer(ECHO, headers={"content-type": "text/html; charset=utf-8"}), says="text/html", status=200
    ),
    "compressed": malformed(answer(ECHO, headers={"content-encoding": f"gzip-{KEY}"}), says="gzip", status=200),
    "a compressed stream": malformed(
        event_stream(ECHO, headers={"content-encoding": "gzip"}), says="gzip", status=200, **STREAM
    ),
    "a stream where a whole answer was asked for": malformed(event_stream(ONE, TWO), status=200, **WHOLE),
    "no body": malformed(answer(b""), **WHOLE),
    "no JSON": malformed(answer(b"[" + ECHO), **WHOLE),
    "a body that is no UTF-8": malformed(answer(b'{"text": "\xff' + ECHO + b'"}'), **WHOLE),
    "events that are no UTF-8": malformed(event_stream(b'data: {"text": "\xff' + ECHO + b'"}\n\n'), **STREAM),
    "a stream that ends in order without an answer": malformed(event_stream(ONE, TWO), **STREAM),
    "the key in two events, then what is no letter": malformed(event_stream(ONE, TWO, b"data: [\n\n"), **STREAM),
    "an error in a whole answer": Failure(json_answer({"error": BUSY}), "overloaded", True, "too busy", **WHOLE),
    "an error in a stream": Failure(
        event_stream(piece(text="a"), BUSY_EVENT), "overloaded", True, "too busy", **STREAM
    ),
    "a body without end": too_long(answer(*[b": nothing\n\n" * 500] * 3, End.STALL, chunked=True)),
    "a body that is too long": too_long(answer(b'{"text": "' + ECHO * 300 + b'"}')),
    "a line without end": endless(event_stream(b"data: ", *[ECHO * 12] * 3, End.STALL), event_characters_max=1000),
    "events without end": endless(event_stream(ONE * 4, End.STALL), events_max=3),
    "no response in time": silent(End.LEAP, says="no response began within 60.0 s", first_byte_s=SOON),
    "no response in all the time": silent(End.LEAP, says="not complete within 60.0 s", total_s=SOON),
    "no more of a response": silent(*BEGUN, says="nothing more of the response came", silence_s=SOON),
    "no end of a response": silent(*BEGUN, says="not complete within 60.0 s", total_s=SOON),
}
"""By what happens."""

CALLS = [(name, failure, streamed) for name, failure in FAILURES.items() for streamed in failure.streamed]
CALL_IDS = [f"{name}, {'streamed' if streamed else 'whole'}" for name, _, streamed in CALLS]
