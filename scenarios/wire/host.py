"""A provider's host without a machine: it speaks the API's wire format, answers as the simulated model does, and fails.

Read `refold.scenarios.wire.network` for how its bytes travel, `messages` and `messages` for what they
mean. The host cuts its answers into pieces as chance has it: event by event, in the middle of a character, or all at
once; it keeps a connection or closes it; and it is told by the plan what goes wrong.
"""

import random
from collections.abc import Callable, Sequence

import msgspec

from refold.events.core.content import TextBlock
from refold.events.core.errors import ProviderError
from refold.events.model.messages import ModelRequest, ModelResponse, ToolUse
from refold.scenarios import faults
from refold.scenarios.faults import AnyFault
from refold.scenarios.monitors.monitor import marks_in
from refold.scenarios.plan.world import SIGNS, World
from refold.scenarios.wire.messages import BadRequest, Wire, event, refusal, request_in, streamed, whole
from refold.scenarios.wire.network import Sent
from refold.scenarios.world.model import SimulatedModel, arguments_for

KEY = "sk-simulated-0123456789abcdef"
"""What requests are signed with; it must be found nowhere in a log."""

LINE_CHARACTERS_MAX = 50_000
"""Longest line that the provider is told to take, so that a longer one costs little."""

BODY_BYTES_MAX = 400_000
"""Largest body that the provider is told to take."""

PATHS = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}

REFUSALS = {
    "auth": (401, "authentication_error"),
    "rate_limit": (429, "rate_limit_error"),
    "overloaded": (503, "overloaded_error"),
    "server": (500, "api_error"),
    "timeout": (504, "timeout_error"),
    "invalid_request": (400, "invalid_request_error"),
}
"""Status and word with which a host refuses for a reason; there is none for what is no refusal."""

OF_STATUS = {503: "overloaded", 504: "timeout", 529: "overloaded"}
"""Kinds of the failures of a host by their status; the others are `server`."""

SPOILING = (
    faults.ResponseIsNoText
    | faults.ResponseIsNoJson
    | faults.ResponseHasNoEnd
    | faults.ResponseIsHuge
    | faults.ResponseBreaks
    | faults.ArgumentsAreCut
)
"""What makes a response one that cannot be read."""


class SimulatedHost:
    """Answers the requests of one agent."""

    def __init__(
        self,
        world: World,
        model: SimulatedModel,
        wire: Wire,
        refused: Callable[[str], object],
        owed: Callable[[str, bool], object] = lambda kind, retryable: None,
        hurried: Callable[[str], object] = lambda reason: None,
    ) -> None:
        self._world = world
        self._model = model
        self._wire: Wire = wire
        self._refused = refused
        self._owed = owed
        """Told of each failure that it causes, as a process may know it: its kind, and whether it may be repeated."""
        self._hurried = hurried
        """Told of each request that comes again before its time."""
        self._not_before: dict[tuple[int, bytes], float] = {}
        """Of requests that it has refused for now, by the life of the process: when they may come again."""

    def respond(self, target: str, body: bytes) -> Sequence[Sent]:
        chance = self._world.chance("wire")
        try:
            if target != PATHS[self._wire]:
                raise BadRequest(f"there is no path {target}")
            request, stream = request_in(body, self._wire)
        except BadRequest as error:
            self._refused(str(error))
            return self._page(400, refusal("invalid_request_error", str(error), self._wire), 0.1)
        sessions = [mark for message in request.messages for mark in marks_in(message.content)]
        asked = (self._world.life, body)
        if self._world.now_s() < self._not_before.get(asked, 0.0) - 0.01:
            self._hurried(f"a request that was refused comes again at {self._world.now_s():,.1f} s, before its time")
        due = self._world.plan.count("request", sessions)
        for fault in due:
            if isinstance(fault, faults.HostIsFull):
                self._owed("rate_limit", True)
                self._not_before[asked] = self._world.now_s() + (fault.retry_after_s or 0)
                headers = {} if fault.retry_after_s is None else {"retry-after": str(fault.retry_after_s)}
                return self._page(429, refusal("rate_limit_error", "Too many requests.", self._wire), 0.1, headers)
            if isinstance(fault, faults.HostFails):
                return self._failure(fault)
        try:
            answer, delay_s, cut = self._model.begin(request)
        except ProviderError as error:
            if error.kind in REFUSALS:  # Of the others no header says anything.
                self._not_before[asked] = self._world.now_s() + (error.retry_after_s or 0.0)
            return self._refusal(error)
        changed = self._stopped(_changed(answer, request, due, chance))
        if changed is not answer:
            self._world.on_said(request, changed)
        answer = _with_signs(changed)
        if any(isinstance(fault, SPOILING) for fault in due):
            self._owed("malformed", True)
        sent = self._pieces(answer, due, chance, delay_s, stream=stream)
        return self._on_the_way(sent, [*due, faults.ResponseBreaks(nth=1)] if cut else due, sessions)

    def _stopped(self, answer: ModelResponse) -> ModelResponse:
        """Return an answer as it ends, cut at the most tokens that it may have where chance has it."""
        if self._world.chance("stop").random() < 0.1 and not any(isinstance(each, ToolUse) for each in answer.content):
            return msgspec.structs.replace(answer, stop_reason="max_tokens")
        return answer

    def _failure(self, fault: faults.HostFails) -> list[Sent]:
        kind = OF_STATUS.get(fault.status, "server")
        self._owed(kind, True)
        if fault.page:
            return self._page(fault.status, b"<html><h1>Bad gateway</h1></html>", 0.1, content_type="text/html")
        return self._page(fault.status, refusal(REFUSALS[kind][1], f"It failed on the key {KEY}.", self._wire), 0.1)

    def _refusal(self, error: ProviderError) -> list[Sent]:
        self._owed(error.kind, error.retryable)
        if error.kind == "malformed":
            return self._page(200, b"{", 0.1)
        if error.kind not in REFUSALS:
            return [(0.1, "reset")]
        status, word = REFUSALS[error.kind]
        said = f"Incorrect API key provided: {KEY}" if error.kind == "auth" else str(error)
        headers = {"x-should-retry": "true" if error.retryable else "false"}
        if error.retry_after_s is not None:
            headers["retry-after"] = f"{error.retry_after_s:g}"
        return self._page(status, refusal(word, said, self._wire), 0.1, headers)

    def _page(
        self,
        status: int,
        body: bytes,
        delay_s: float,
        headers: dict[str, str] | None = None,
        content_type: str = "application/json",
    ) -> list[Sent]:
        head = _head(status, {"content-type": content_type, "content-length": str(len(body)), **(headers or {})})
        return [(delay_s, head + body)]

    def _pieces(
        self, answer: ModelResponse, due: Sequence[AnyFault], chance: random.Random, delay_s: float, *, stream: bool
    ) -> list[Sent]:
        """Return an answer in the form that is sent, the connection kept or not, all of it in so many seconds."""
        same = any(isinstance(fault, faults.CallsShareId) for fault in due)
        calls = sum(isinstance(block, ToolUse) for block in answer.content)
        ids = ["call_same" if same else f"call_{chance.randrange(10**9)}" for _ in range(calls)]
        if stream:
            one_index = any(isinstance(fault, faults.CallsShareIndex) for fault in due)
            told = streamed(answer, ids, self._wire, one_index=one_index)
            parts = _spoilt_events(list(told.events), told.end, told.marker, due)
        else:
            parts = [_spoilt_body(whole(answer, ids, self._wire), due)]
        drips = any(isinstance(fault, faults.ResponseDrips) for fault in due)
        pieces = _cut(b"".join(parts), parts, 0.0 if drips else chance.uniform(0.2, 1.0), chance)
        closes = chance.random() < 0.2
        headers = {"content-type": "text/event-stream; charset=utf-8" if stream else "application/json"}
        headers.update({"connection": "close"} if closes else {"transfer-encoding": "chunked"})
        pause_s = delay_s / (len(pieces) + 1)
        sent: list[Sent] = [(pause_s, _head(200, headers))]
        sent.extend((pause_s, piece if closes else _chunk(piece)) for piece in pieces)
        if closes:
            sent.append((0.0, "end"))
        else:
            sent.append((0.0, b"0\r\n\r\n"))
            if chance.random() < 0.3:  # As far as the host knows, the connection is not needed.
                sent.append((chance.uniform(0.0, 90.0), "end"))
        return sent

    def _on_the_way(self, sent: list[Sent], due: Sequence[AnyFault], sessions: Sequence[str]) -> list[Sent]:
        for fault in due:
            match fault:
                case faults.ResponseStalls(seconds=seconds, begun=begun):
                    before, after = _halves(sent) if begun else ([], sent)
                    sent = [*before, (after[0][0] + seconds, after[0][1]), *after[1:]]
                case faults.ResponseBreaks(reset=reset, begun=begun):
                    sent = [*(_halves(sent)[0] if begun else []), (0.1, "reset" if reset else "end")]
                case _:
                    pass
        for place, (pause_s, data) in enumerate(sent):
            for fault in self._world.plan.count("chunk", sessions):
                if isinstance(fault, faults.ChunkIsLate):
                    sent[place] = (pause_s + fault.seconds, data)
                else:
                    return [*sent[:place], (pause_s, "reset")]
        return sent


def _head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Simulated", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _cut(data: bytes, parts: list[bytes], chosen: float, chance: random.Random) -> list[bytes]:
    """Return what is sent in pieces: single bytes, all, anything, or as it was written."""
    if chosen == 0.0:
        return [data[place : place + 1] for place in range(len(data))]
    if chosen < 0.3:
        return [data]
    if chosen > 0.6:
        return parts
    pieces: list[bytes] = []
    while data:
        size = chance.randint(1, 300)
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def _halves(sent: list[Sent]) -> tuple[list[Sent], list[Sent]]:
    left = sum(len(data) for _, data in sent if isinstance(data, bytes)) // 2
    for place, (pause_s, data) in enumerate(sent):
        if not isinstance(data, bytes):
            continue
        if len(data) > left:
            return [*sent[:place], (pause_s, data[:left])], [(0.0, data[left:]), *sent[place + 1 :]]
        left -= len(data)
    raise AssertionError("nothing is sent")


def _with_signs(answer: ModelResponse) -> ModelResponse:
    content = tuple(
        TextBlock(text=block.text + SIGNS) if isinstance(block, TextBlock) and not block.text.endswith("}") else block
        for block in answer.content
    )
    return msgspec.structs.replace(answer, content=content)


def _changed(
    answer: ModelResponse, request: ModelRequest, due: Sequence[AnyFault], chance: random.Random
) -> ModelResponse:
    for fault in due:
        if not request.tools or not isinstance(
            fault, faults.ArgumentsAreCut | faults.CallsShareId | faults.CallsShareIndex
        ):
            continue
        spec = request.tools[0]
        calls: list[ToolUse] = [block for block in answer.content if isinstance(block, ToolUse)]
        if not calls:
            calls = [ToolUse(name=spec.name, input=arguments_for(spec, chance))]
        if not isinstance(fault, faults.ArgumentsAreCut):
            calls.append(ToolUse(name=spec.name, input=arguments_for(spec, chance)))
        else:
            text = msgspec.json.encode(calls[-1].input).decode()
            calls[-1] = ToolUse(name=calls[-1].name, input=text[: len(text) // 2])
        answer = ModelResponse(content=tuple(calls), stop_reason="tool_use", usage=answer.usage)
    return answer


def _spoilt_events(events: list[bytes], end: int, marker: int, due: Sequence[AnyFault]) -> list[bytes]:
    for fault in due:
        match fault:
            case faults.ResponseHasNoEnd(marker_only=marker_only):
                events = events[: marker if marker_only else (end + 1) // 2]
            case faults.ResponseIsNoText():
                events.insert(len(events) // 2, b"data: \xff\xfe\n\n")
            case faults.ResponseIsNoJson():
                events.insert(len(events) // 2, event('{"half'))
            case faults.ResponseIsHuge():
                events.insert(len(events) // 2, event("x" * (LINE_CHARACTERS_MAX + 1)))
            case _:
                pass
    return events


def _spoilt_body(body: bytes, due: Sequence[AnyFault]) -> bytes:
    for fault in due:
        match fault:
            case faults.ResponseHasNoEnd():
                body = body[: len(body) // 2]
            case faults.ResponseIsNoText():
                body = body.replace(b"simulated", b"\xff\xfe", 1)
            case faults.ResponseIsNoJson():
                body = b"{" + body
            case faults.ResponseIsHuge():
                body += b" " * BODY_BYTES_MAX
            case _:
                pass
    return body
