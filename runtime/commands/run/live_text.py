"""An answer on stdout while it is streamed, made safe although it comes in pieces."""

from typing import TYPE_CHECKING

import typer

from refold.commands.output import safe_text

if TYPE_CHECKING:
    from refold.sessions.notifications import Published

_BEGIN_SEQUENCES = "\x1b\x90\x98\x9b\x9d\x9e\x9f"


class LiveText:
    """Writes the answers of one run as their pieces come.

    A piece may end inside an escape sequence: from where one begins, an answer is held back until it is whole.
    """

    def __init__(self) -> None:
        self.run: str | None = None
        """The run whose answers are written; None = none yet."""
        self._answer: list[str] = []
        self._held = ""
        self._turn: int = 0
        self._whole = False
        self._inside_line = False
        self._failure: OSError | None = None

    def see(self, item: "Published") -> None:
        """Write what a piece adds; end the line where an answer ends or breaks off."""
        from refold.events.core.codec import RecordedEvent
        from refold.events.model.messages import TextDelta
        from refold.events.session.events import ModelFailed, ModelInterrupted, ModelResponded, RunCancelled, RunFailed
        from refold.sessions.notifications import Streamed

        if isinstance(item, Streamed):
            if item.run == self.run and isinstance(item.delta, TextDelta):
                self._add(item.turn, item.delta.text)
        elif isinstance(item, RecordedEvent):
            if isinstance(item.event, ModelResponded):
                self._end(whole=True)
            elif isinstance(item.event, ModelInterrupted | ModelFailed | RunCancelled | RunFailed):
                self._end(whole=False)

    def has_written(self, answer: str) -> bool:
        """Tell whether the last answer that was written is this one, all of it.

        Raises:
            OSError: it could not be written, as into a pipe that nobody reads any more.
        """
        if self._failure is not None:
            raise self._failure
        return self._whole and "".join(self._answer) == answer

    def _add(self, turn: int, text: str) -> None:
        if self._whole or turn != self._turn:
            self._answer.clear()
            self._turn, self._whole = turn, False
        self._answer.append(text)
        text = self._held + text
        begins = [place for mark in _BEGIN_SEQUENCES if (place := text.find(mark)) >= 0]
        cut = min(begins) if begins else len(text) - text.endswith("\r")
        self._held = text[cut:]
        self._write(safe_text(text[:cut]))

    def _end(self, *, whole: bool) -> None:
        held, self._held = self._held, ""
        self._write(safe_text(held))
        if self._inside_line:
            self._write("\n")
        self._whole = whole
        if not whole:
            self._answer = []

    def _write(self, text: str) -> None:
        if not text or self._failure is not None:
            return
        try:
            typer.echo(text, nl=False)
        except OSError as error:  # The run goes on all the same; what to say of it is decided at its end.
            self._failure = error
        self._inside_line = not text.endswith("\n")
