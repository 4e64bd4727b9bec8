"""Taking commands to the log: the half of the event-sourced shell that knows no effects.

Read `refold.events.core.contract` first. The rules: a state that is not durable is seen by nobody, since one message is
handled at a time and a failed append has the state folded anew; and state is only ever rebuilt from the log.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from pykka.messages import ProxyCall, ProxyGetAttr, ProxySetAttr

from refold.actors.journal import Journal
from refold.actors.kernel.actor import Actor
from refold.events.core.codec import EventCodec, RecordedEvent
from refold.events.core.contract import Core, Effect, Plan, Recorded, Versioned, evolve_all, plan
from refold.events.core.errors import (
    CommandRejected,
    ConfigError,
    LogFormatError,
    PersistenceError,
    WrongExpectedVersion,
)
from refold.events.core.event import Event
from refold.events.core.ids import EventRef, PayloadHash, StreamName, event_ref
from refold.events.core.records import Appended, EncodedBatch, StoredEvent

S = TypeVar("S", bound=Versioned)
C = TypeVar("C")
E = TypeVar("E", bound=Event)

log = logging.getLogger("refold.actors")

APPEND_ATTEMPTS_MAX = 3
"""How often a message is admitted anew because its stream had moved on."""

COMMANDS_PER_STEP = 100
"""Of many commands that are performed together, the loop is given back for a moment after so many."""


class Performed(msgspec.Struct, frozen=True):
    """The reply to a command."""

    version: int
    """Of the stimulus that the command became; 0 where nothing was to be done."""
    new: bool
    """False where the same command had been recorded before, or nothing was to be done."""


class FoldedActor(Actor, Generic[S, C, E]):
    """An actor whose state is folded from the stream of its address.

    Args:
        core: the four functions.
        codec: of the core's events.
        journal: where batches go.
    """

    def __init__(self, core: Core[S, C, E], codec: EventCodec[E], journal: Journal) -> None:
        self.core = core
        self.codec = codec
        self.journal = journal
        self.state: S = core.initial()
        self.time = 0
        """Of the last event, microseconds since the epoch."""
        self._stale = False
        self._published = 0

    def _handle_receive(self, message: Any) -> Any:
        if isinstance(message, ProxyCall | ProxyGetAttr | ProxySetAttr):
            raise ConfigError(
                f"{self.address} is event-sourced and has no proxy: calls and attributes would go around its log; "
                "send it a command with ask() or tell()"
            )
        return super()._handle_receive(message)

    def published(self, events: Sequence[RecordedEvent[E]]) -> None:
        """See events that have just become durable."""

    def current_state(self) -> S | None:
        """Return the state, whose last events may be on their way to the log; None while it has to be folded anew.

        It is the actor's own: look, and hold nothing of it.
        """
        return None if self._stale else self.state

    @property
    def stream(self) -> StreamName:
        """The stream that the state is folded from: the actor's address."""
        return StreamName(self.address)

    async def rebuild(self) -> None:
        """Fold the state again from the log, and publish what is in it and was not known to be.

        Raises:
            PersistenceError: the log cannot be read.
        """
        stored = await self._fold()
        unknown = [item for item in stored if item.version > self._published]
        if unknown:
            self._published = unknown[-1].version
            self.published(self.codec.recorded(unknown))

    async def _fold(self) -> list[StoredEvent]:
        self._stale = True
        stored = await self.journal.store.read_stream(self.stream)
        events = self.codec.decode_all(stored)
        try:
            self.state = evolve_all(self.core, events)
        except LogFormatError as error:
            raise LogFormatError(f"stream {self.stream}: {error}") from error.__cause__
        self.time = stored[-1].at if stored else 0
        self._stale = False
        return stored

    async def require_durable_state(self) -> None:
        """See to it that `state` is as the log says, whatever failed before.

        Raises:
            PersistenceError: the log cannot be read.
        """
        if self._stale:
            await self.rebuild()

    async def perform(
        self,
        commands: Sequence[C],
        *,
        payloads: Mapping[PayloadHash, bytes] | None = None,
        effect: Effect | None = None,
        in_doubt: bool = False,
    ) -> Performed:
        """Do as `perform_each`, and return the reply to the last command."""
        return (await self.perform_each(commands, payloads=payloads, effect=effect, in_doubt=in_doubt))[-1]

    async def perform_each(
        self,
        commands: Sequence[C],
        *,
        payloads: Mapping[PayloadHash, bytes] | None = None,
        effect: Effect | None = None,
        in_doubt: bool = False,
        called: str = "",
    ) -> list[Performed]:
        """Admit commands in order, append what follows from all of them in one transaction, and publish it.

        Args:
            commands: at least one.
            payloads: content that they refer to.
            effect: the effect that they are the result of.
            in_doubt: they were offered to the log before, which may have taken them after all.
            called: what a refusal calls them all, to name the one that it is about; empty = it names none.

        Returns: the reply to each.

        Raises:
            CommandRejected: one of them may not happen now; nothing was recorded of any.
            PersistenceError: nothing is known to be recorded, and the state is as the log says.
        """
        for attempt in range(1, APPEND_ATTEMPTS_MAX + 1):
            try:
                if in_doubt and effect is not None and await self._has_result(effect):
                    return [Performed(0, False)] * len(commands)
                return await self._perform_once(commands, payloads, effect, called)
            except WrongExpectedVersion:
                if attempt == APPEND_ATTEMPTS_MAX:
                    raise
        raise AssertionError("unreachable")

    async def _has_result(self, effect: Effect) -> bool:
        """Tell whether the log has what an effect brought: a batch that was caused by it."""
        await self.require_durable_state()
        caused = event_ref(self.stream, effect.causation)
        stored = await self.journal.store.read_stream(self.stream, after_version=effect.causation)
        if not any(item.causation == caused for item in stored if item.version == item.batch):
            return False
        if stored[-1].version > self.core.version(self.state):
            await self.rebuild()
        return True

    async def _perform_once(
        self,
        commands: Sequence[C],
        payloads: Mapping[PayloadHash, bytes] | None,
        effect: Effect | None,
        called: str,
    ) -> list[Performed]:
        await self.require_durable_state()
        batches: list[EncodedBatch] = []
        plans: list[Plan[S, E]] = []
        performed: list[Performed] = []
        version = self.core.version(self.state)
        try:
            for place, command in enumerate(commands):
                if place and not place % COMMANDS_PER_STEP:
                    await asyncio.sleep(0)
                planned = plan(self.core, self.state, command, self._now())
                if isinstance(planned, Recorded):
                    performed.append(Performed(planned.version, False))
                    continue
                self.state = planned.state
                batches.append(self._encoded(planned, effect))
                plans.append(planned)
                performed.append(Performed(batches[-1].expected_version + 1, True))
            if not batches:
                return performed
            appended = await self.journal.append(batches, payloads)
        except BaseException as error:
            if isinstance(error, CommandRejected) and called:
                error.name_item(f"{called}[{len(performed)}]")
            if not isinstance(error, CommandRejected) or self.core.version(self.state) != version:
                await self._rebuild_after(error)
            raise
        await self._publish(batches, plans, appended)
        return performed

    async def _publish(
        self, batches: Sequence[EncodedBatch], plans: Sequence[Plan[S, E]], appended: Sequence[Appended]
    ) -> None:
        for first in range(0, len(batches), COMMANDS_PER_STEP):
            part = slice(first, first + COMMANDS_PER_STEP)
            if first:
                try:
                    await asyncio.sleep(0)
                except BaseException:  # What was not told of is told of when the log is read again.
                    self._stale = True
                    raise
            recorded = self._recorded(batches[part], plans[part], appended[part])
            self._published = recorded[-1].version
            self.published(recorded)

    async def _rebuild_after(self, error: BaseException) -> None:
        self._stale = True
        try:
            await self.rebuild()
        except PersistenceError as unreadable:  # The next message tries again; this one has an error of its own.
            log.warning("%s cannot be read again after %s: %s", self.stream, type(error).__name__, unreadable)

    def _now(self) -> int:
        self.time = max(self.system.clock.now_us(), self.time)
        return self.time

    def _encoded(self, planned: Plan[S, E], effect: Effect | None) -> EncodedBatch:
        encode = self.codec.encode
        return EncodedBatch(
            stream=self.stream,
            expected_version=self.core.version(planned.state) - len(planned.events),
            at=planned.events[0].at,
            events=tuple([encode(event) for event in planned.events]),
            pending=tuple([wanted.key for wanted in self.core.pending(planned.state)]),
            correlation=event_ref(self.stream, effect.correlation) if effect is not None else None,
            causation=event_ref(self.stream, effect.causation) if effect is not None else None,
        )

    def _recorded(
        self, batches: Sequence[EncodedBatch], plans: Sequence[Plan[S, E]], appended: Sequence[Appended]
    ) -> list[RecordedEvent[E]]:
        recorded: list[RecordedEvent[E]] = []
        for batch, planned, place in zip(batches, plans, appended, strict=True):
            first = batch.expected_version + 1
            stimulus: EventRef = event_ref(batch.stream, first)
            recorded.extend(
                RecordedEvent(
                    stream=batch.stream,
                    version=first + offset,
                    position=place.position + offset,
                    time=batch.at,
                    event=event,
                    batch=first,
                    correlation=batch.correlation or stimulus,
                    causation=stimulus if offset else batch.causation,
                )
                for offset, event in enumerate(planned.events)
            )
        return recorded
