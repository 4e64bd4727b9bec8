"""Server-Sent Events out of bytes that come in pieces, with limits (html.spec.whatwg.org, "Server-sent events").

Bytes that are no text, and lines and events without end, are refused; an event is given once it is complete.
"""

import codecs

from refold.events.core.errors import ProviderError
from refold.providers.http.wire import WireEvent


class EventStreamReader:
    """Gives the events of one stream.

    Lines may end in LF, CR or CRLF, and a piece may end anywhere, in the middle of a character too. Comments are left
    out, as the standard says, and so are events whose data is empty. An event that only lacks the blank line behind it
    is given at the end of the stream, since some servers forget that line.
    """

    def __init__(self, *, event_characters_max: int, events_max: int) -> None:
        self._event_characters_max = event_characters_max
        self._events_max = events_max
        self._characters = codecs.getincrementaldecoder("utf-8-sig")()
        self._after_cr = False
        self._unfinished: list[str] = []
        """Pieces of the line that has no end yet."""
        self._event = ""
        self._data: list[str] = []
        """Both of the event that has no end yet."""
        self._size = 0
        """Characters in all of this."""
        self._complete: list[WireEvent] = []
        self._count = 0

    def feed(self, data: bytes) -> list[WireEvent]:
        """Return the events that are complete with the next bytes."""
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
        return self._taken()

    def end(self) -> list[WireEvent]:
        """Return the event that the end of the stream completes, if any."""
        self._text(b"", final=True)
        self._end_line()
        self._end_line()
        return self._taken()

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
        field, _, value = line.partition(":")
        if not field and line:  # A comment.
            self._size -= len(line)
        elif field == "event":
            self._event = value.removeprefix(" ")
        elif field == "data":
            self._data.append(value.removeprefix(" "))
        elif not line:
            if data := "\n".join(self._data):
                self._complete.append(WireEvent(event=self._event or "message", data=data))
            self._event, self._size = "", 0
            self._data.clear()

    def _taken(self) -> list[WireEvent]:
        events, self._complete = self._complete, []
        self._count += len(events)
        if self._count > self._events_max:
            raise ProviderError(f"the stream has more than {self._events_max:,} events", kind="malformed")
        return events
