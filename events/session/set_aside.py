"""What is set aside: later requests hold a note in its place, and the session goes on; the events keep what was said.

`refold.events.model.refused` says what a note stands for, and what is set aside without being asked for. A person may
name any message that the history holds, or a part of one. The rule: a message stays where it was, and what was set
aside can be taken back.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import cast

import msgspec

from refold.events.core.content import Block, Message, TextBlock, tool_uses
from refold.events.core.errors import CommandRejected
from refold.events.core.pure_core import content_digest
from refold.events.core.state_codec import SealedList
from refold.events.model.refused import INPUT_NOTE, REFUSED, Part, SetAside, is_more_than_text, noted
from refold.events.session.events import ContentTakenBack, HistoryRewound, InputSetAside
from refold.events.session.state import CALL_ID, SessionKey, SessionState

_decode_messages = msgspec.json.Decoder(Message).decode_lines


def asides(state: SessionState, parts: Sequence[Part], why: str = REFUSED) -> tuple[SetAside, ...]:
    """Return what comes to stand for the messages that have some of the parts, oldest first."""
    places = sorted({part.message for part in parts if part.message < len(state.messages)})
    found = (SetAside(place=place, stands=noted(state.messages[place], place, parts, why)) for place in places)
    return tuple(aside for aside in found if aside.stands != state.messages[aside.place])


def first_said(state: SessionState, place: int) -> Message:
    """Return a message of the history as it was before anything of it was set aside."""
    found = (aside.stands for kept in state.asides.values() for aside in kept if aside.place == place)
    return next(found, state.messages[place])


def require_undoable(state: SessionState, aside: int) -> None:
    """Raise CommandRejected unless what was set aside at a version can be taken back now."""
    kept = state.asides.get(aside)
    if kept is None:
        raise CommandRejected(
            f"version {aside} set nothing aside that could be taken back; it is back, or was summarised or cleared"
        )
    places = {one.place for one in kept}
    later = [version for version, more in state.asides.items() if version > aside and places & {m.place for m in more}]
    if later:
        raise CommandRejected(f"version {later[-1]} set more of the same message aside; take that back first")


def refused_content(state: SessionState) -> tuple[SetAside, ...]:
    """Return what was set aside for a refusal before the request was asked again without it: all new that is no text.

    Only for logs in which that was decided (`ModelFailed.keeps_content`).
    """
    new = [(place, state.messages[place]) for place in range(state.accepted, len(state.messages))]
    return tuple(
        SetAside(place=place, stands=_noted_once(place, message))
        for place, message in new
        if message.role == "user" and any(map(is_more_than_text, message.content))
    )


def _noted_once(place: int, message: Message) -> Message:
    parts = [Part(place, number) for number, block in enumerate(message.content) if is_more_than_text(block)]
    note, kept = TextBlock(text=INPUT_NOTE), list[Block]()
    for block in noted(message, place, parts).content:
        if block != note or note not in kept:
            kept.append(block)
    return Message(message.role, tuple(kept))


# What the events change


def set_aside(state: SessionState, event: InputSetAside) -> None:
    before = _replaced(state, event.messages)
    state.asides[state.version] = before
    if event.key is not None:
        state.keys[event.key] = SessionKey(state.version, event.digest, "aside")


def taken_back(state: SessionState, event: ContentTakenBack) -> None:
    back = state.asides.pop(event.aside)
    _replaced(state, back)
    state.accepted = min((state.accepted, *(one.place for one in back)))  # It may be refused again.
    if event.key is not None:
        state.keys[event.key] = SessionKey(state.version, content_digest(event.aside), "take back")


def _replaced(state: SessionState, messages: Sequence[SetAside]) -> tuple[SetAside, ...]:
    """Have others stand for messages of the history, and return what stood there."""
    history = list(state.messages)
    before = tuple(SetAside(place=aside.place, stands=history[aside.place]) for aside in messages)
    for aside in messages:
        history[aside.place] = aside.stands
    state.messages = history
    return before


def moved(kept: dict[int, tuple[SetAside, ...]], by: int, first: int) -> dict[int, tuple[SetAside, ...]]:
    """Return what was set aside of the messages from a place on, which all stand by so many places further."""
    moved = {
        version: tuple(SetAside(place=one.place + by, stands=one.stands) for one in asides if one.place >= first)
        for version, asides in kept.items()
    }
    return {version: asides for version, asides in moved.items() if asides}


def rewound(state: SessionState, event: HistoryRewound) -> None:
    remember_calls(state, state.messages[event.messages :])
    said = state.messages
    whole = said if isinstance(said, SealedList) else SealedList(_decode_messages, [], cast("list[Message]", said))
    state.messages = whole.beginning(event.messages)
    del state.marks[bisect_right(state.marks, event.to, key=lambda mark: mark.started) :]
    state.accepted = min(state.accepted, event.messages)
    state.asides = {
        version: kept
        for version, asides in state.asides.items()
        if (kept := tuple(one for one in asides if one.place < event.messages))
    }
    state.allowed_actions = {name: version for name, version in state.allowed_actions.items() if version <= event.to}
    if event.key is not None:
        state.keys[event.key] = SessionKey(state.version, content_digest(event.to), "rewind")


def remember_calls(state: SessionState, messages: Sequence[Message]) -> None:
    """Keep account of the calls in messages that are not shown any more."""
    for message in messages:
        for use in tool_uses(message.content):
            if (made := CALL_ID.fullmatch(use.id)) is not None:
                state.cleared_calls[made[1]] = max(state.cleared_calls.get(made[1], 0), int(made[2]) + 1)
