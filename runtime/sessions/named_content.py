"""What a person names to be set aside, or back: what an event brought, and where in the history that stands now.

Two messages may say the same, and places change where a summary comes to stand for what was before. So the session's
log is folded from its first event, and what the named event brought is found there by identity: the rule is that the
history holds the very blocks that an event carries.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from refold.events.core.cleaning import recorded_reason
from refold.events.core.content import Block, Message, ToolResultBlock
from refold.events.core.errors import ConfigError, quoted
from refold.events.core.ids import SessionId, ToolCallId, stream_name
from refold.events.core.pure_core import evolve_all
from refold.events.model.refused import Part, calls_with_arguments, parts_said
from refold.events.session import events as ev
from refold.events.session.commands import ClearHistory, RewindHistory, SetContentAside, TakeContentBack
from refold.events.session.core import SESSION_CODEC, SESSION_CORE, SESSION_KIND
from refold.events.session.set_aside import first_said
from refold.events.session.state import SessionState
from refold.sessions.access import SessionAccess, checked_version
from refold.sessions.inputs import checked_key, import_command
from refold.stores.event_store import EventStore
from refold.stores.folding import EVENTS_PER_STEP


class NamedContent(msgspec.Struct, frozen=True):
    """What an event of a session brought."""

    event: ev.SessionEvent | None
    """None = there is none of that version."""
    contents: Sequence[tuple[Block, ...]]
    """Of the messages that it brought, as far as the history holds them."""
    state: SessionState
    """Of the session, as the log has it."""


async def content_at(store: EventStore, session: SessionId, version: int) -> NamedContent:
    """Return what the event of a session at a version brought."""
    stream, state, named = stream_name(SESSION_KIND, session), SESSION_CORE.initial(), None
    contents: list[tuple[Block, ...]] = []
    while page := await store.read_stream(stream, after_version=state.version, limit=EVENTS_PER_STEP):
        for event in SESSION_CODEC.decode_all(page):
            latest = _latest_input(state) if isinstance(event, ev.ContextPrepared) else None
            state = evolve_all(SESSION_CORE, (event,), state)
            if state.version == version:
                named, contents = event, [message.content for message in _messages_of(event)]
            elif isinstance(event, ev.InputQueued) and event.scheduled == version:
                contents = [event.content]
            elif latest is not None:  # Where a summary stands for it, a copy of it stands behind the summary.
                contents = [_latest_input(state) or () if content is latest else content for content in contents]
        await asyncio.sleep(0)
    return NamedContent(named, contents, state)


def _latest_input(state: SessionState) -> tuple[Block, ...] | None:
    return state.messages[state.run.latest_input].content if state.run is not None else None


def aside_command(
    named: NamedContent, version: int, message: int | None, part: int | None, reason: str, key: str | None
) -> SetContentAside:
    """Return the command that leaves what an event brought out of later requests; or raise ConfigError."""
    if isinstance(named.event, ev.ToolCallCompleted | ev.ToolCallFailed):
        _require_place("part", part, len(named.event.content), version)
        _require_place("message", message, 0, version)
        parts = _parts_of_result(named.state, named.event.call, part)
    else:
        parts = _parts_of_messages(named, version, message, part)
    return SetContentAside(
        named=(version, message, part),
        parts=tuple(parts),
        at=named.state.version,
        reason=recorded_reason(reason),
        key=checked_key(key),
    )


def take_back_command(version: int, reason: str, key: str | None) -> TakeContentBack:
    """Return the command that shows again what was set aside, or raise ConfigError."""
    return TakeContentBack(aside=checked_version(version), reason=recorded_reason(reason), key=checked_key(key))


def _parts_of_result(state: SessionState, call: ToolCallId, part: int | None) -> list[Part]:
    return [
        Part(place, number, part)
        for place, message in enumerate(state.messages)
        for number, block in enumerate(message.content)
        if isinstance(block, ToolResultBlock) and block.tool_use_id == call
    ]


def _parts_of_messages(named: NamedContent, version: int, message: int | None, part: int | None) -> list[Part]:
    said = _messages_of(named.event)
    if not said:
        raise ConfigError(f"version {version} brought nothing that a model is shown; `refold show --events` lists all")
    _require_place("message", message, len(said), version)
    numbers = [*range(len(said))] if message is None else [message]
    if part is not None:
        if len(numbers) > 1:
            raise ConfigError(f"version {version} brought {len(said)} messages; say of which the part is")
        _require_place("part", part, len(said[numbers[0]].content), version)
    elif message is None and isinstance(named.event, ev.HistoryImported):
        numbers = [number for number in numbers if said[number].role == "user"]
    contents, history = [named.contents[number] for number in numbers], named.state.messages
    parts: list[Part] = []
    for place, shown in enumerate(history):
        first = first_said(named.state, place).content
        if any(first is content for content in contents):
            whole = (*parts_said(place, shown), *calls_with_arguments(place, shown))
            parts.extend(whole if part is None else [Part(place, part)])
    return parts


def _messages_of(event: ev.SessionEvent | None) -> tuple[Message, ...]:
    match event:
        case ev.InputQueued(content=content) | ev.TimerSet(content=content):
            return (Message("user", content),)
        case ev.HistoryImported(messages=messages) | ev.ContextPrepared(summary=messages):
            return messages
        case ev.ModelResponded(content=content):
            return (Message("assistant", content),)
        case _:
            return ()


def _require_place(name: str, place: int | None, length: int, version: int) -> None:
    if place is not None and (type(place) is not int or not 0 <= place < length):
        raise ConfigError(f"version {version} has {length} {name}s to name, counted from 0; {quoted(place)} is none")


class EditedHistory:
    """What a person changes in a session's history by hand; a `Session` is one."""

    _access: SessionAccess

    async def import_history(self, messages: Sequence[Message], *, key: str | None = None) -> None:
        """Put messages of another system at the end of the history.

        What is certain is put right: neighbours of one role become one message, results go to the calls of the answer
        before them, calls without one get a crash result, and a history that begins with an assistant's message gets
        a user's before it.

        Raises:
            CommandRejected: a run is under way, there is nothing to import, or something in it cannot be recorded.
        """
        await self._access.ask(*import_command(messages, key))

    async def clear(self, *, key: str | None = None) -> None:
        """Begin the conversation anew: the next request to the model holds nothing of what was said before.

        The events stay in the log. What was allowed always stays allowed.

        Raises:
            CommandRejected: a run is under way.
            PersistenceError: it could not be recorded.
        """
        await self._access.ask(ClearHistory(key=checked_key(key)))

    async def set_aside(
        self,
        version: int,
        *,
        message: int | None = None,
        part: int | None = None,
        reason: str = "",
        key: str | None = None,
    ) -> None:
        """Leave what an event brought out of later requests, whole or in part.

        For what a provider refuses for good, where that was not noticed by itself, and for what no model should see
        again. The event stays in the log, and a note takes its place in the history; of a call the arguments go, and
        the call stays. `take_back` undoes it.

        Args:
            version: of the InputQueued, TimerSet, ModelResponded, ToolCallCompleted, ToolCallFailed, ContextPrepared
                or HistoryImported. Of an imported history it is what users said and tools returned, unless `message`
                says which.
            message: only this one of several messages, from 0.
            part: only this block of the message or the result, from 0.
            reason: is recorded.
            key: idempotency key.

        Raises:
            CommandRejected: a run is under way, or what that event brought is not in what the model is shown.
            ConfigError: there is no such version, message or part, or it brought nothing that a model is shown.
        """
        version = checked_version(version)
        async with self._access.own():
            named = await content_at(self._access.context.store, self._access.session, version)
        await self._access.ask(aside_command(named, version, message, part, reason, key))

    async def take_back(self, version: int, *, reason: str = "", key: str | None = None) -> None:
        """Show a model again what was set aside, by hand or by itself.

        Args:
            version: of the InputSetAside.
            reason: is recorded.
            key: idempotency key.

        Raises:
            CommandRejected: a run is under way; or it set nothing aside, is back already, was summarised or cleared,
                or more of the same message was set aside later, which goes first.
            ConfigError: that can be no version.
        """
        await self._access.ask(take_back_command(version, reason, key))

    async def rewind(self, at: int | None = None, *, key: str | None = None) -> int:
        """Take the conversation back: the next request holds what it held after an earlier version, and no more.

        What was said since stays in the log, and what it cost and what tools did is not undone. What was allowed always
        since is asked for again; reminders stay. To go on from a place inside a run, or before a summary, fork there.

        Args:
            at: that version; None = the one before the last input.
            key: idempotency key.

        Returns:
            The version of the event that says so; 0 = there was nothing to take back.

        Raises:
            CommandRejected: a run is under way, now or after that version, or the history was summarised or cleared
                since.
            ConfigError: that can be no version.
            PersistenceError: it could not be recorded.
        """
        to = at if at is None else checked_version(at, "at")
        return (await self._access.ask(RewindHistory(to=to, key=checked_key(key)))).version
