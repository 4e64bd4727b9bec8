"""An answer that comes in pieces, without the secrets in it, also where one is split over several pieces.

The end of a text that may be the beginning of a secret waits for the text's next piece. What a pattern matches cannot
be told from its beginning: where there are patterns, the last `PATTERN_CHARACTERS_MAX` characters always wait, and a
longer match may be shown in part, though it is recorded in no part. Where there are field paths, JSON is shown when
all of it has come: the arguments of a call, and a text that begins like an object or an array. So is the rest of it
from a number on that holds a secret: only the whole tells whether quotes belong around what takes the number's place.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

from refold.events.model.messages import Delta, ToolInputDelta, UsageDelta, delta_text, delta_with_text
from refold.events.secrets.redaction import REDACTED, Redaction

_Place: TypeAlias = tuple[type[Delta], int]
"""A text of an answer: its kind, and which call's."""

PATTERN_CHARACTERS_MAX = 128
"""So long a match of a pattern is never shown in part."""

SHOWN_EARLY_CHARACTERS_MAX = 3
"""So much of the beginning of a secret is shown where an answer goes on elsewhere: every second text ends with `s`."""

CONTEXT_CHARACTERS: Final = 16
"""So much of what was shown is kept, since it may be the beginning of a secret, or the line of base64 before one."""


NUMBER_CHARACTERS: Final = 400
"""A longer number may be shown in part before a secret in it."""


class _Whole(msgspec.Struct):
    """All that has come of a text that begins like an object or an array."""

    pieces: list[str]
    seen: int = 0
    """So many characters of it have been shown, without secrets."""
    waits: bool = False
    """Whether the rest of it waits for its end."""


class _Waiting(msgspec.Struct, frozen=True):
    """The end of a text, which may be the beginning of a secret."""

    delta: Delta
    """What it came in, without its text."""
    text: str
    shown: int = 0
    """So many characters at its beginning have been shown."""


class RedactedStream:
    """Takes secrets out of the pieces of one answer.

    `rest` gives what is waiting when the answer is complete. Where something else follows, such as a call behind "I
    look at the files", an end does not wait on that is no beginning of a value, or a short one: it would be shown
    behind what follows it.
    """

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction
        self._waiting: dict[_Place, _Waiting] = {}
        self._whole: dict[_Place, _Whole] = {}

    def pieces(self, deltas: Sequence[Delta]) -> list[Delta]:
        """Return what may be shown after the next pieces have come."""
        if not self._redaction:
            return list(deltas)
        return [shown for delta in deltas for shown in self._shown(delta)]

    def rest(self) -> list[Delta]:
        """Return the ends that waited in vain for a secret to go on."""
        waiting, self._waiting = self._waiting, {}
        ends = [(end, self._end_of(place, end)) for place, end in waiting.items()]
        return [delta_with_text(end.delta, text) for end, text in ends if text]

    def _end_of(self, place: _Place, end: _Waiting) -> str:
        """Return what is to be seen of an end behind which nothing comes any more."""
        if self._waits_whole(end):
            return self._redaction.value(end.text)
        whole = self._whole.get(place)
        seen = self._up_to(end, len(end.text), whole)[0]
        if whole is None or not whole.waits:
            return seen
        return seen + self._redaction.text("".join(whole.pieces))[whole.seen + len(seen) :]

    def _shown(self, delta: Delta) -> list[Delta]:
        if isinstance(delta, UsageDelta):
            return [self._redaction.value(delta)]
        text = delta_text(delta)
        place = (type(delta), delta.index if isinstance(delta, ToolInputDelta) else 0)
        deltas = self._left_behind(place)
        before = self._waiting.pop(place, _Waiting(delta, ""))
        clean = self._redaction.value(delta_with_text(delta, ""))
        end = _Waiting(clean, before.text + text, before.shown)
        whole = self._whole_of(place, end, text)
        held = self._redaction.held_back(end.text)
        if self._redaction.has_patterns:
            held = max(held, PATTERN_CHARACTERS_MAX)
        if whole is not None:
            held = max(held, _number_before(end.text, len(end.text)))
        if self._waits_whole(end) or (whole is not None and whole.waits):
            held = len(end.text)
        seen, left = self._up_to(end, max(len(end.text) - held, 0), whole)
        if whole is not None:
            whole.seen += len(seen)
        if left.text:
            self._waiting[place] = left
        # A piece of a call is shown even if it is empty: it says that the call has begun.
        if seen or isinstance(delta, ToolInputDelta):
            deltas.append(delta_with_text(clean, seen))
        return deltas

    def _whole_of(self, place: _Place, end: _Waiting, text: str) -> _Whole | None:
        """Return all that has come of a text that may be JSON, with its next piece; None of another one."""
        whole = self._whole.get(place)
        if whole is not None:
            whole.pieces.append(text)
        elif not end.text[: end.shown].strip() and end.text.lstrip()[:1] in ("{", "["):
            whole = self._whole[place] = _Whole([end.text], end.shown)
        return whole

    def _waits_whole(self, end: _Waiting) -> bool:
        """Tell whether a text is JSON, or is to be, of which some field is not to be shown."""
        return (
            self._redaction.has_fields
            and not end.shown
            and (isinstance(end.delta, ToolInputDelta) or end.text.lstrip()[:1] in ("", "{", "["))
        )

    def _left_behind(self, place: tuple[type[Delta], int]) -> list[Delta]:
        """Return the ends of other texts than the one at `place` that need not wait, and remember what is shown."""
        deltas: list[Delta] = []
        for other, end in self._waiting.items():
            whole = self._whole.get(other)
            if other == place or self._waits_whole(end) or (whole is not None and whole.waits):
                continue
            held = self._redaction.held_back(end.text)
            early = held if held <= SHOWN_EARLY_CHARACTERS_MAX else 0
            seen, left = self._up_to(end, len(end.text) - held + early, whole)
            if whole is not None:
                whole.seen += len(seen)
            if seen:
                deltas.append(delta_with_text(end.delta, seen))
            self._waiting[other] = left
        return deltas

    def _up_to(self, end: _Waiting, until: int, whole: _Whole | None) -> tuple[str, _Waiting]:
        """Return what is to be seen of a text up to a place, and what is left, which begins no later than there."""
        pieces: list[str] = []
        done = end.shown
        for first, last in self._redaction.spans(end.text):
            if first >= until:
                break
            if last > until:  # It is shown when all of it has come.
                until = first
                break
            number = first + 1 - _number_before(end.text, first + 1)
            if whole is not None and done <= number <= first:
                until, whole.waits = number, True
                break
            if last > end.shown:
                pieces += (end.text[done:first], REDACTED) if first >= done else (REDACTED,)
                done = last
        pieces.append(end.text[done:until])
        kept = max(until - CONTEXT_CHARACTERS, 0)
        left = msgspec.structs.replace(end, text=end.text[kept:], shown=max(end.shown, until) - kept)
        return "".join(pieces), left


def _number_before(text: str, place: int) -> int:
    """Return how many characters before a place may be a number of JSON."""
    end = text[max(place - NUMBER_CHARACTERS, 0) : place]
    return len(end) - len(end.rstrip("0123456789+-.eE"))
