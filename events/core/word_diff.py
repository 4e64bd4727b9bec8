"""Where two texts differ, as changes of words with the words around them.

For a prompt, a description or a message of which a word is another one: `… Answer in [-two-] {+three+} sentences. …`
reads faster than both texts. The rule: of what differs nothing is left out without a sign, however long they are.
"""

import re
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher

import msgspec

CONTEXT_WORDS = 6
"""So many equal words are shown on each side of a change."""

PAIRS_MAX = 100_000
"""Most pairs of equal words that are looked at; beyond that, all between the first and the last difference is one
change. The work grows faster than their number."""

CHANGE_CHARACTERS = 200
"""After so many characters the text of a change cuts each side in its middle."""

CHANGES_SHOWN = 8
"""So many changes are told in words, and the others counted."""

_WORD: re.Pattern[str] = re.compile(r"\s*\S+|\s+$")
"""A word with the white space before it, so that the words of a text joined are the text."""


class WordChange(msgspec.Struct, frozen=True, kw_only=True):
    """Words that stand in place of others. Its text is `before [-left-] {+right+} after`."""

    before: str
    """The equal words before it, at most `context` of them; those after the change before it stand there."""
    left: str
    """Empty where words were added."""
    right: str
    """Empty where words were taken out."""
    after: str
    """The equal words after it, where no other change follows soon."""
    begins: bool
    """Whether `before` is all that is before it, or the change before it is near."""
    ends: bool
    """Whether `after` is all that is after it, or the next change is near."""

    def __str__(self) -> str:
        left, right = _on_one_line(self.left), _on_one_line(self.right)
        if left == right:  # Only white space differs, which one line does not show.
            left, right = (msgspec.json.encode(side).decode() for side in (self.left, self.right))
        parts = (
            "" if self.begins else "…",
            _on_one_line(self.before),
            f"[-{_cut_middle(left)}-]" if left else "",
            f"{{+{_cut_middle(right)}+}}" if right else "",
            _on_one_line(self.after),
            "" if self.ends else "…",
        )
        return " ".join(filter(None, parts))


def word_changes(left: str, right: str, *, context: int = CONTEXT_WORDS) -> list[WordChange]:
    """Return what differs between two texts, in order, with so many equal words on each side of a change."""
    mine, other = _WORD.findall(left), _WORD.findall(right)
    places = _places(mine, other)
    changes: list[WordChange] = []
    for index, (start, end, start_right, end_right) in enumerate(places):
        since = places[index - 1][1] if index else 0
        until = places[index + 1][0] if index + 1 < len(places) else len(mine)
        near = index + 1 < len(places) and until - end <= 2 * context
        joined = bool(index) and start - since <= 2 * context
        before = max(since, start - (2 * context if joined else context))
        after = end if near else min(until, end + context)
        changes.append(
            WordChange(
                before="".join(mine[before:start]),
                left="".join(mine[start:end]),
                right="".join(other[start_right:end_right]),
                after="".join(mine[end:after]),
                begins=joined or before == 0,
                ends=near or after == len(mine),
            )
        )
    return changes


def words_of_changes(left: str, right: str) -> str:
    """Return what differs between two texts on one line: `… Answer in [-two-] {+three+} sentences. …`."""
    changes = word_changes(left, right)
    said = " ".join(map(str, changes[:CHANGES_SHOWN])).replace("… …", "…")
    more = len(changes) - CHANGES_SHOWN
    return f"{said} (and {more:,} more changes)" if more > 0 else said


def _places(mine: Sequence[str], other: Sequence[str]) -> list[tuple[int, int, int, int]]:
    """Return where words differ: from and to on the left, and on the right."""
    shorter = min(len(mine), len(other))
    first = next((place for place in range(shorter) if mine[place] != other[place]), shorter)
    last = next((place for place in range(shorter - first) if mine[-1 - place] != other[-1 - place]), shorter - first)
    left, right = mine[first : len(mine) - last], other[first : len(other) - last]
    if not left and not right:
        return []
    counts = Counter(right)
    if sum(times * counts[word] for word, times in Counter(left).items()) > PAIRS_MAX:
        return [(first, first + len(left), first, first + len(right))]
    return [
        (first + start, first + end, first + start_right, first + end_right)
        for tag, start, end, start_right, end_right in SequenceMatcher(None, left, right, autojunk=False).get_opcodes()
        if tag != "equal"
    ]


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def _cut_middle(text: str) -> str:
    over = len(text) - CHANGE_CHARACTERS
    if over <= 0:
        return text
    half = CHANGE_CHARACTERS // 2
    return f"{text[:half]}… ({over:,} more characters) …{text[-half:]}"
