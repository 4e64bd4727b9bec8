"""Where two sessions part: what was said, called, returned and paid in one, beside the other.

    found = await diff("events.db", "alice", "alice~57")
    found.parts[0].words        # model answer: … costs [-two-] {+three+} euros …

Read `refold.inspection.transcript` first: both sessions are aligned entry by entry, as `difflib` aligns lines, after
what they share by reference or have alike at their beginning. Ids, versions and times are not compared.
"""

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any, Final, Literal

import msgspec

from refold.events.core.difference import differences
from refold.events.core.errors import ConfigError
from refold.events.core.ids import SessionId
from refold.events.core.records import StreamHead
from refold.events.core.word_diff import words_of_changes
from refold.events.model.messages import Usage
from refold.events.session.core import fold
from refold.inspection.log_reading import ReadableLog, opened, session_head
from refold.inspection.session_view import checked_version, events_until, status_of
from refold.inspection.summaries import call_words, content_words, usage_words
from refold.inspection.transcript import CallEntry, Entry, MessageEntry, NoteEntry, RunEndEntry, Transcript
from refold.stores.event_store import EventStore
from refold.stores.forked import fork_of

PartKind = Literal["input", "answer", "call", "arguments", "result", "outcome", "note"]
"""What differs: what a user said, what the model answered, which tool was called, with what, what came of it, how a run
ended, or something else that explains it."""

PARTS_MAX: Final = 1_000
"""Most differences that are told; the others are counted."""

ALIGNED_MAX: Final = 2_000
"""Entries of each session that are aligned with each other; those behind are compared one by one, in order."""


class DiffSide(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two sessions."""

    log: str
    session: SessionId
    version: int
    """Up to which it was compared."""
    status: str
    turns: int
    """Model answers."""
    calls: int
    """That the model asked for."""
    usage: Usage
    cost: float


class DiffPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One place where both differ."""

    what: PartKind
    left: int | None = None
    """Version of the event on the left; None = the left has nothing there."""
    right: int | None = None
    """The same on the right."""
    path: str = ""
    """Where in the arguments."""
    words: str
    """Both sides, as one line: of long texts the words that differ."""


class SessionDiff(msgspec.Struct, frozen=True, kw_only=True):
    """Two sessions, and where they part."""

    left: DiffSide
    right: DiffSide
    shared: int
    """Up to this version both are the same events, since one is a fork of the other, or both are of a third; 0 = none.
    """
    parts: tuple[DiffPart, ...]
    """In order; the first one says where they part. At most `PARTS_MAX`."""
    found: int
    """How many there are."""

    @property
    def same(self) -> bool:
        """Whether nothing differs that is compared."""
        return not self.found and self.left.status == self.right.status


async def diff(
    log: ReadableLog,
    left: str,
    right: str,
    *,
    right_log: ReadableLog | None = None,
    left_at: int | None = None,
    right_at: int | None = None,
) -> SessionDiff:
    """Return where two sessions part, of one log or of two; nothing is written.

    Args:
        log: path of the file, or an open store. It may be in use.
        left: a session.
        right: another one, or the same of `right_log`.
        right_log: the log of the other one; None = the same.
        left_at: compare the first up to this version; None = its last.
        right_at: the same of the other one.

    Raises:
        ConfigError: there is no such session or version.
        LogFormatError: a file is no log, or an event cannot be decoded.
        PersistenceError: a log cannot be read.
    """
    async with opened(log) as store:
        mine = await _Side.read(store, left, left_at)
        if right_log is None:
            other = await _Side.read(store, right, right_at)
            shared = min(mine.head.version, other.head.version, await _shared(store, mine.head, other.head))
        else:
            async with opened(right_log) as second:
                other, shared = await _Side.read(second, right, right_at), 0
    if mine.told == other.told and right_log is None and left == right:
        raise ConfigError(f"session {left!r} is compared with itself; name another one, or other versions")
    parts = list(_parts(mine.entries, other.entries))
    return SessionDiff(
        left=mine.told, right=other.told, shared=shared, parts=tuple(parts[:PARTS_MAX]), found=len(parts)
    )


class _Side(msgspec.Struct):
    told: DiffSide
    head: StreamHead
    entries: list[Entry]

    @staticmethod
    async def read(store: EventStore, session: str, at: int | None) -> "_Side":
        head = await session_head(store, session)
        version = checked_version(head, at)
        events = await events_until(store, head.stream, version)
        transcript, state = Transcript(), fold(events)
        transcript.add_all(events)
        answers = [entry for entry in transcript.entries if isinstance(entry, MessageEntry)]
        answers = [entry for entry in answers if entry.role == "assistant" and not entry.imported]
        told = DiffSide(
            log=store.name,
            session=SessionId(session),
            version=version,
            status=status_of(state),
            turns=len(answers),
            calls=sum(len(entry.calls) for entry in answers),
            usage=state.usage,
            cost=state.cost,
        )
        fork = await fork_of(store, head)
        entries = [entry for entry in transcript.entries if fork is None or entry.version != fork.origin.version + 1]
        return _Side(told, head, entries)


async def _shared(store: EventStore, left: StreamHead, right: StreamHead) -> int:
    """Return the last version at which two streams have the very same event."""
    low, high = 0, min(left.version, right.version)
    while low < high:  # What they share is their beginning.
        middle = (low + high + 1) // 2
        found = [await store.read_stream(head.stream, after_version=middle - 1, limit=1) for head in (left, right)]
        same = found[0] and found[1] and found[0][0].position == found[1][0].position
        low, high = (middle, high) if same else (low, middle - 1)
    return low


def _parts(left: Sequence[Entry], right: Sequence[Entry]) -> Iterator[DiffPart]:
    mine, other = [_key(entry) for entry in left], [_key(entry) for entry in right]
    first = next((n for n, pair in enumerate(zip(mine, other, strict=False)) if pair[0] != pair[1]), None)
    first = min(len(mine), len(other)) if first is None else first
    until = first + ALIGNED_MAX
    matcher = SequenceMatcher(None, mine[first:until], other[first:until], autojunk=False)
    for tag, start, end, start_right, end_right in matcher.get_opcodes():
        if tag != "equal":
            yield from _paired(left[first + start : first + end], right[first + start_right : first + end_right])
    yield from _paired(left[until:], right[until:])


def _paired(left: Sequence[Entry], right: Sequence[Entry]) -> Iterator[DiffPart]:
    """Tell of entries that stand in each other's place, those of one sort beside one another."""
    waiting: dict[tuple[str, str], list[Entry]] = {}
    for entry in right:
        waiting.setdefault(_sort(entry), []).append(entry)
    for entry in left:
        if partners := waiting.get(_sort(entry)):
            yield from _between(entry, partners.pop(0))
        else:
            yield _alone(entry, "left")
    for entry in sorted((each for rest in waiting.values() for each in rest), key=lambda each: each.version):
        yield _alone(entry, "right")


def _sort(entry: Entry) -> tuple[str, str]:
    return type(entry).__name__, entry.role if isinstance(entry, MessageEntry) else ""


def _key(entry: Entry) -> bytes:
    """Return what of an entry is compared."""
    match entry:
        case MessageEntry():
            said: Any = (entry.role, entry.content, [_call_key(call) for call in entry.calls], entry.stop_reason)
        case RunEndEntry():
            said = (entry.outcome, entry.kind, entry.message, entry.turns)
        case NoteEntry():
            said = entry.what
    return msgspec.json.encode((type(entry).__name__, said))


def _call_key(call: CallEntry) -> tuple[object, ...]:
    return call.tool, call.input, call.malformed_input, call.result, call.kind, call.approval, call.attempts


def _between(left: Entry, right: Entry) -> Iterator[DiffPart]:
    places: dict[str, Any] = {"left": left.version, "right": right.version}
    match left, right:
        case MessageEntry(), MessageEntry():
            before, after = content_words(left.content), content_words(right.content)
            what: PartKind = "input" if left.role == "user" else "answer"
            if before != after:
                yield DiffPart(what=what, words=words_of_changes(before, after), **places)
            elif left.stop_reason != right.stop_reason:
                yield DiffPart(what=what, words=f"stopped: {left.stop_reason} -> {right.stop_reason}", **places)
            yield from _calls(left.calls, right.calls, places)
        case RunEndEntry(), RunEndEntry():
            yield DiffPart(what="outcome", words=f"{_ended(left)} -> {_ended(right)}", **places)
        case NoteEntry(), NoteEntry():
            yield DiffPart(what="note", words=words_of_changes(left.what, right.what), **places)
        case _:
            return


def _calls(left: Sequence[CallEntry], right: Sequence[CallEntry], places: dict[str, Any]) -> Iterator[DiffPart]:
    matcher = SequenceMatcher(None, [c.tool for c in left], [c.tool for c in right], autojunk=False)
    for tag, start, end, start_right, end_right in matcher.get_opcodes():
        if tag == "equal":
            for mine, other in zip(left[start:end], right[start_right:end_right], strict=True):
                yield from _in_call(mine, other, places)
            continue
        for mine in left[start:end]:
            yield DiffPart(what="call", words=f"[-{_shown(mine)}-]", **places)
        for other in right[start_right:end_right]:
            yield DiffPart(what="call", words=f"{{+{_shown(other)}+}}", **places)


def _in_call(left: CallEntry, right: CallEntry, places: dict[str, Any]) -> Iterator[DiffPart]:
    for found in differences(left.malformed_input or left.input, right.malformed_input or right.input, left.tool):
        yield DiffPart(what="arguments", path=found.path, words=str(found), **places)
    before, after = _result(left), _result(right)
    if before != after:
        yield DiffPart(what="result", words=f"{left.tool}: {words_of_changes(before, after)}", **places)
    elif left.approval != right.approval:
        words = f"{left.tool}: approval {left.approval or 'not asked for'} -> {right.approval or 'not asked for'}"
        yield DiffPart(what="call", words=words, **places)


def _result(call: CallEntry) -> str:
    if not call.ended_at:
        return "(no result)"
    return f"{f'({call.kind}) ' if call.kind else ''}{content_words(call.result)}"


def _alone(entry: Entry, side: Literal["left", "right"]) -> DiffPart:
    what: PartKind = "note"
    match entry:
        case MessageEntry():
            what = "input" if entry.role == "user" else "answer"
            words = " ".join(filter(None, (content_words(entry.content), *map(_shown, entry.calls)))) or "(nothing)"
        case RunEndEntry():
            what, words = "outcome", _ended(entry)
        case NoteEntry():
            words = entry.what
    if side == "left":
        return DiffPart(what=what, left=entry.version, words=f"[-{words}-]")
    return DiffPart(what=what, right=entry.version, words=f"{{+{words}+}}")


def _shown(call: CallEntry) -> str:
    return f"{call.tool}({call.malformed_input})" if call.malformed_input else call_words(call.tool, call.input)


def _ended(entry: RunEndEntry) -> str:
    words = f"{entry.outcome}{f' ({entry.kind}: {entry.message})' if entry.kind else ''}"
    return f"{words} after {entry.turns} turns, {usage_words(entry.usage)}"
