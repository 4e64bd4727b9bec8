"""An answer while it is streamed: what has come of it, for readers who come later or come back.

Pieces are not logged, so the answer that a session's model is giving is kept here until the log has it. The rule: a
reader that says what it knows gets the rest, without gap or repetition.
"""

from collections.abc import Iterator

from refold.events.core.ids import RunId, SessionId
from refold.events.model.messages import Delta, ToolInputDelta, UsageDelta, delta_text, delta_with_text
from refold.publishing.notifications import Streamed


class _Part:
    """Pieces that go on with each other, as one."""

    __slots__ = ("delta", "offset", "texts")

    def __init__(self, delta: Delta, offset: int) -> None:
        self.delta = delta
        self.offset = offset
        self.texts = [delta_text(delta)]


class AnswerSoFar:
    """The pieces of one answer.

    Args:
        session: whose it is.
        run: whose it is.
        turn: which of the run's model calls it answers.
        asked: version of the event that wants it.
        since: version of the last event that says that what was streamed before it is void.
        number: of the answer, in this life of the runtime.
    """

    def __init__(self, session: SessionId, run: RunId, turn: int, *, asked: int, since: int, number: int = 0) -> None:
        self.asked = asked
        self.since = since
        self.number = number
        self._session = session
        self._run = run
        self._turn = turn
        self._end = 0
        self._parts: list[_Part] = []

    @property
    def end(self) -> int:
        """How many characters of it have come."""
        return self._end

    def add(self, delta: Delta) -> Streamed:
        """Take the next piece, and return it as readers get it."""
        piece, text = self._piece(delta, self._end), delta_text(delta)
        last = self._parts[-1] if self._parts else None
        if last is not None and _place(last.delta) == _place(delta):
            if isinstance(delta, UsageDelta):  # The last one counts.
                last.delta = delta
            last.texts.append(text)
        else:
            self._parts.append(_Part(delta, self._end))
        self._end += len(text)
        return piece

    def after(self, offset: int) -> Iterator[Streamed]:
        """Yield what has come behind so many characters, in as few pieces as there can be."""
        for part in self._parts:
            text = "".join(part.texts)
            known = max(0, offset - part.offset)
            if known == 0 or known < len(text):
                yield self._piece(delta_with_text(part.delta, text[known:]), part.offset + known)

    def count_after(self, offset: int) -> int:
        """Return how many pieces, as they came, are not wholly among so many characters."""
        count = 0
        for part in self._parts:
            begins = part.offset
            for text in part.texts:
                count += max(begins, begins + len(text) - 1) >= offset
                begins += len(text)
        return count

    def _piece(self, delta: Delta, offset: int) -> Streamed:
        return Streamed(
            session=self._session, run=self._run, turn=self._turn, asked=self.asked, offset=offset, delta=delta
        )


def _place(delta: Delta) -> tuple[type[Delta], int]:
    return type(delta), delta.index if isinstance(delta, ToolInputDelta) else 0
