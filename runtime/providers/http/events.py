"""Server-Sent Events out of bytes that come in pieces, with limits.

Fields are read by httpx-sse. Lines are put together here, since httpx-sse takes any bytes for text, lets a line grow
without end, and withholds an event that ends in CR until the next byte comes.
"""

import codecs
from collections.abc import Iterator

import httpx
import httpx_sse

from refold.events.core.errors import ProviderError
from refold.providers.http.wire import WireEvent


class EventStreamReader:
    """Gives the events of one stream.

    Lines may end in LF, CR or CRLF, and a piece may end anywhere, in the middle of a character too. Comments are left
    out, and so are events without data, as the standard says. An event that only lacks the blank line behind it is
    given at the end of the stream, since some servers forget that line.
    """

    def __init__(self, *, event_characters_max: int, events_max: int) -> None:
        self._event_characters_max = event_characters_max
        self._events_max = events_max
        self._characters = codecs.getincrementaldecoder("utf-8-sig")()
        self._after_cr = False
        self._unfinished: list[str] = []
        """Pieces of the line that has no end yet."""
        self._lines: list[str] = []
        """Lines of the event that has no end yet."""
        self._size = 0
        """Characters in both."""
        self._complete: list[str] = []
        """Lines of events that are complete, an empty one behind each."""
        self._block = _Block()
        self._count = 0

    def feed(self, data: bytes) -> list[WireEvent]:
        """Return the events that are complete with the next bytes.

        Raises:
            ProviderError: of kind `malformed`: the bytes are no UTF-8, or a limit is passed.
        """
        text = self._text(data, final=False)
        if self._after_cr and text[:1] == "\n":  # The CR has ended the line already.
            text = text[1:]
            self._after_cr = False
        if not text:
            return []
        self._after_cr = text[-1] == "\r"
        *ended, unfinished = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        for line in ended:
            self._take(line)
            self._end_line()
        self._take(unfinished)
        return self._decoded()

    def end(self) -> list[WireEvent]:
        """Return the event that the end of the stream completes, if any.

        Raises:
            ProviderError: of kind `malformed`: the stream ends inside a character.
        """
        self._text(b"", final=True)
        self._end_line()
        self._end_line()
        return self._decoded()

    def _text(self, data: bytes, *, final: bool) -> str:
        try:
            return self._characters.decode(data, final)
        except UnicodeDecodeError as error:
            reason = error.reason  # The error itself holds the bytes.
        raise ProviderError(f"the stream is not UTF-8: {reason}", kind="malformed", retryable=True)

    def _take(self, piece: str) -> None:
        if not piece:
            return
        self._unfinished.append(piece)
        self._size += len(piece)
        if self._size > self._event_characters_max:
            raise ProviderError(
                f"an event of the stream has more than {self._event_characters_max:,} characters", kind="malformed"
            )

    def _end_line(self) -> None:
        line = "".join(self._unfinished)
        self._unfinished.clear()
        if line.startswith(":"):
            self._size -= len(line)
        elif line:
            self._lines.append(line)
        elif self._lines:
            self._complete.extend(self._lines)
            self._complete.append("")
            self._lines.clear()
            self._size = 0

    def _decoded(self) -> list[WireEvent]:
        if not self._complete:
            return []
        self._block.text_to_read = "\n".join(self._complete) + "\n"
        self._complete.clear()
        found = httpx_sse.EventSource(self._block).iter_sse()
        events = [WireEvent(event=event.event, data=event.data) for event in found if event.data]
        self._count += len(events)
        if self._count > self._events_max:
            raise ProviderError(f"the stream has more than {self._events_max:,} events", kind="malformed")
        return events


class _Block(httpx.Response):
    """What httpx-sse reads from: whole events, put here by hand."""

    text_to_read = ""

    def __init__(self) -> None:
        super().__init__(200, headers={"content-type": "text/event-stream"})

    def iter_text(self, chunk_size: int | None = None) -> Iterator[str]:
        yield self.text_to_read
