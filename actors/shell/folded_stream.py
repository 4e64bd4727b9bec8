"""The stream of one actor: the state that is folded from it, and the only way in which events get into it.

The rules: state is only ever rebuilt from the log; what must not be in the log is taken out of a command before it is
decided about, and out of each event before the state evolves through it, so that the state is what the log says; and
after anything failed that may have changed the one or the other, the state is stale, which nobody is shown, until it is
folded anew.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeAlias

import msgspec

from refold.actors.kernel.clock import Clock
from refold.actors.shell.cooperative import in_turns
from refold.actors.shell.effect_port import C, E, EffectPort, S
from refold.actors.shell.effects import EffectsInFlight
from refold.actors.shell.journal import Journal
from refold.actors.shell.messages import Cause, EffectEnded, Envelope, Performed
from refold.actors.shell.snapshots import Growth
from refold.events.core.codec import EventCodec, RecordedEvent
from refold.events.core.errors import (
    CommandRejected,
    CoreFailed,
    PersistenceError,
    RefoldError,
    WrongExpectedVersion,
)
from refold.events.core.ids import EventRef, PayloadHash, StreamName
from refold.events.core.pure_core import Effect, PureCore, Recorded, WaitUntil, noted, plan
from refold.events.core.records import Appended, EncodedBatch, StoredEvent, event_ref
from refold.events.model.payloads import recordable, without_secrets
from refold.events.secrets.redaction import NOTHING_SECRET
from refold.stores.folding import Causes, Fold, causes_after

log = logging.getLogger("refold.actors")

APPEND_ATTEMPTS_MAX = 3
"""How often commands are admitted anew because their stream had moved on."""

COMMANDS_PER_STEP = 100
"""Of many commands that are performed together, the loop is given back for a moment after so many."""


Decided: TypeAlias = tuple[EncodedBatch, tuple[E, ...]]
"""A batch that the state has evolved through and that is not appended yet, and its events."""

BARE = Envelope(None)
"""Nothing is said beside the commands."""


class FoldedStream(Generic[S, C, E]):
    """A stream and its state. Call `open` first; the port completes what is folded and sees what becomes durable."""

    def __init__(
        self, core: PureCore[S, C, E], codec: EventCodec[E], journal: Journal, port: EffectPort[S, C, E] | None = None
    ) -> None:
        self.state: S = core.initial()
        self.stale = True
        """Whether the state may differ from the log."""
        self._core, self._codec, self._journal = core, codec, journal
        self._port = port if port is not None else EffectPort[S, C, E]()
        self.time = 0
        """Of the last event, microseconds since the epoch."""
        self._published_to = 0
        self._causes: Causes = {}
        self._wanted: Iterable[str] = ()
        """Keys of the effects that the last decided batch left pending."""
        self._pending: Sequence[Effect] | None = None
        """Those effects; None = the state is as it was folded."""
        self._growth = Growth()

    def open(self, name: StreamName, clock: Clock, in_flight: EffectsInFlight | None = None) -> None:
        """Say which stream it is, what stamps its batches, and who must know that another runtime has the log."""
        self.name, self._clock, self._in_flight = name, clock, in_flight

    @property
    def version(self) -> int:
        return self._core.version(self.state)

    async def read_payloads(self, names: Iterable[PayloadHash]) -> dict[PayloadHash, bytes]:
        """Return those of some payloads that the log has; raises as `EventStore.read_payloads`."""
        return await self._journal.store.read_payloads(names)

    def wanted(self) -> list[Effect]:
        """Return the work that should be in flight, each with the events that it goes back to."""
        pending = self._pending if self._pending is not None else self._core.pending(self.state)
        return [self._with_cause(effect) for effect in pending]

    async def perform(
        self,
        commands: Sequence[C],
        envelope: Envelope = BARE,
        *,
        effect: Effect | None = None,
        in_doubt: bool = False,
    ) -> list[Performed]:
        """Admit commands in order, append what follows from all of them in one transaction, and publish it.

        They are the result of `effect`, where one is given. In doubt, they were offered to the log before, which may
        have taken them although the append failed.

        Raises:
            CommandRejected: one of them may not happen now; nothing was recorded of any.
            PersistenceError: nothing is known to be recorded; the state is as the log says, or stale.
        """
        for attempt in range(1, APPEND_ATTEMPTS_MAX + 1):
            if self.stale:
                await self.rebuild()
            payloads = envelope.payloads
            if payloads and self._journal.redaction is not NOTHING_SECRET:
                commands, payloads = await in_turns(without_secrets(self._journal.redaction, commands, payloads))
            if in_doubt and effect is not None and await self._has_result(effect):
                return [Performed(0, False)] * len(commands)
            decided: list[Decided[E]] = []
            performed: list[Performed] = []
            version = self.version
            try:
                for place, command in enumerate(commands):
                    if place and not place % COMMANDS_PER_STEP:
                        await asyncio.sleep(0)
                    decision = self.decide(command, effect, envelope.cause)
                    if isinstance(decision, Recorded):
                        performed.append(Performed(decision.version, False))
                    else:
                        decided.append(decision)
                        performed.append(Performed(decision[0].expected_version + 1, True))
                appended = await self._append([batch for batch, _ in decided], envelope, payloads) if decided else []
            except BaseException as error:
                if isinstance(error, CommandRejected) and envelope.called:
                    error.name_item(f"{envelope.called}[{len(performed)}]")
                if isinstance(error, CoreFailed) and effect is None:
                    self._port.report(error)
                # A refusal of the first command has changed nothing. After anything else the state may be ahead of the
                # log, and the log ahead of what was told of it: only the log knows.
                if not isinstance(error, CommandRejected) or self.version != version:
                    await self._rebuild_after(error)
                if isinstance(error, WrongExpectedVersion) and attempt < APPEND_ATTEMPTS_MAX:
                    continue  # The stream has moved on: each command is admitted anew.
                raise
            await self._publish(decided, appended)
            return performed
        raise AssertionError("unreachable")

    async def record(self, ended: EffectEnded, effect: Effect | None) -> bool:
        """Record what an effect brought, or something instead if it is refused; return whether it was the former."""
        command: Any = ended.command
        commands: list[Any] = [each for each in (ended.evidence, command) if each is not None]
        envelope = Envelope(command, ended.payloads, along=ended.along)
        # An append whose outcome is unknown may take effect late. That a wait is over may be told twice.
        in_doubt = ended.attempt > 0 and not isinstance(effect, WaitUntil)
        try:
            await self.perform(commands, envelope, effect=effect, in_doubt=in_doubt)
        except PersistenceError:
            raise
        except Exception as error:  # noqa: BLE001 - a refusal, or a result that the core does not understand
            if command is not None and ended.evidence is not None:  # It goes first: the effect's end matters more.
                return await self.record(msgspec.structs.replace(ended, evidence=None), effect)
            instead = self._port.failed(effect, command, error) if command is not None else None
            level = logging.INFO if instead is None else logging.WARNING
            log.log(level, "%s: what %s brought is refused: %s", self.name, ended.key, error)
            try:
                if instead is not None:
                    await self.perform([instead], Envelope(None, along=ended.along), effect=effect)
            except PersistenceError:
                raise
            except RefoldError as second_error:  # The effect has ended, though the log will not say how.
                self._port.report(second_error)
            return False
        return True

    async def _append(
        self, batches: Sequence[EncodedBatch], envelope: Envelope, payloads: Mapping[PayloadHash, bytes]
    ) -> list[Appended]:
        last = batches[-1]
        cause = event_ref(self.name, last.expected_version + 1)
        every = list(batches)
        for other in envelope.along:
            every += other.take((cause, last.correlation or cause))
        written = False
        try:
            appended = await self._journal.append(every, payloads)
            written = True
        finally:
            for other in envelope.along:
                other.settle(written=written)
        return appended[: len(batches)]

    def decide(self, command: C, effect: Effect | None = None, cause: Cause | None = None) -> Decided[E] | Recorded:
        """Admit, evolve, react: return the batch that `command` causes, which the state has evolved through."""
        # Time never goes back within a stream, also where the wall clock does.
        self.time = max(self._clock.now_us(), self.time)
        redaction, encoded = self._journal.redaction, list[bytes]()
        redacts = redaction is not NOTHING_SECRET
        if redacts:
            if not self.version:
                redaction.require_none(self.name, f"the name {redaction.text(self.name)!r}")
            command = redaction.command(command)

        def recorded(event: E) -> E:
            event, data = recordable(redaction, self._codec, event)
            encoded.append(data)
            return event

        planned = plan(self._core, self.state, command, self.time, recorded if redacts else None)
        if isinstance(planned, Recorded):
            return planned
        self._port.state = self.state = planned.state
        if effect is not None:
            cause = (event_ref(self.name, effect.causation), event_ref(self.name, effect.correlation))
        # What is pending is noted in the log, so that the next process finds the streams that have work without folding
        # all of them. It is that of the state now: the next command of the transaction changes it.
        self._pending = None
        self._pending = self._core.pending(self.state)
        pending = self._wanted = noted(self._pending, self._wanted)
        batch = EncodedBatch(
            stream=self.name,
            expected_version=self.version - len(planned.events),
            at=self.time,
            events=tuple(encoded or [self._codec.encode(event) for event in planned.events]),
            pending=pending,
            causation=cause[0] if cause is not None else None,
            correlation=cause[1] if cause is not None else None,
        )
        return batch, planned.events

    async def _publish(self, decided: Sequence[Decided[E]], appended: Sequence[Appended]) -> None:
        for first in range(0, len(decided), COMMANDS_PER_STEP):
            part = slice(first, first + COMMANDS_PER_STEP)
            if first:
                try:
                    await asyncio.sleep(0)
                except BaseException:  # What was not told of is told of when the log is read again.
                    self.stale = True
                    raise
            recorded: list[RecordedEvent[E]] = []
            for (batch, events), place in zip(decided[part], appended[part], strict=True):
                first_version = batch.expected_version + 1
                self._causes = causes_after(self._causes, batch.pending, first_version, batch.correlation)
                self._growth.add(len(events), sum(map(len, batch.events)))
                recorded += _recorded(batch, events, place)
            self._published_to = recorded[-1].version
            self._port.published(recorded)
        self._keep_snapshot()

    def became_durable(self, batches: Sequence[EncodedBatch]) -> None:
        """Take note of what was decided here and written by another actor's append."""
        for batch in batches:
            self._growth.add(len(batch.events), sum(map(len, batch.events)))
        self._keep_snapshot()

    # Fold

    async def fold(self) -> None:
        """Fold the state from the log, all of whose events count as published but those an earlier instance left."""
        effects = self._in_flight.of(self.name) if self._in_flight is not None else None
        await self._fold_and_publish(effects.published_to if effects is not None else None)

    async def rebuild(self) -> None:
        """Fold the state again, and publish what is in the log and was not known to be; raises as `fold`."""
        await self._fold_and_publish(self._published_to)

    async def _fold_and_publish(self, known: int | None) -> None:
        unknown = await self._fold(known)
        self._published_to = self.version
        if self._in_flight is not None:
            self._in_flight.of(self.name).published_to = None
        if unknown:
            self._port.published(self._codec.recorded(unknown))

    def rest(self) -> None:
        """Have a snapshot kept, if that is worth it, before nobody has the state in memory any more."""
        self._keep_snapshot(resting=True)

    def _keep_snapshot(self, *, resting: bool = False) -> None:
        snapshots = self._journal.snapshots
        if snapshots is not None and not self.stale:
            snapshots.consider(self.name, self._core, self._codec, self._growth, resting=resting)

    async def _rebuild_after(self, error: BaseException) -> None:
        self.stale = True
        if self._in_flight is not None:
            self._in_flight.append_failed(error)
            self._in_flight.of(self.name).published_to = self._published_to
        try:
            await self.rebuild()
        except PersistenceError as unreadable:  # The next message tries again; this one has an error of its own.
            log.warning("%s cannot be read again after %s: %s", self.name, type(error).__name__, unreadable)

    async def _has_result(self, effect: Effect) -> bool:
        caused = event_ref(self.name, effect.causation)
        stored = await self._journal.store.read_stream(self.name, after_version=effect.causation)
        caused_by_it = [item for item in stored if item.version == item.batch and item.causation == caused]
        if all(isinstance(self._codec.decode(item), self._port.reports) for item in caused_by_it):
            return False
        if stored[-1].version > self.version:
            await self.rebuild()
        return True

    async def _fold(self, known: int | None) -> list[StoredEvent]:
        # Stale until all of it is done: a read that fails half-way must not leave a state that looks like the log's.
        self.stale = True
        fold = Fold(self.name, self._core, self._codec)
        snapshots = self._journal.snapshots
        used_from = snapshots.used_from if snapshots is not None else None
        unknown = await fold.read(self._journal.store, snapshots_from=used_from, after=known)
        if snapshots is not None and fold.ignored:
            snapshots.ignored += 1
        self._port.state = self.state = fold.state
        self.time, self._causes, self._wanted, self._pending = fold.at, fold.causes, fold.causes, None
        self._growth = Growth(fold.fresh, fold.fresh_bytes, fold.snapshot_bytes)
        await self._port.folded(fold.first)
        self.stale = False
        return unknown

    def _with_cause(self, effect: Effect) -> Effect:
        if effect.causation and effect.correlation:
            return effect
        causation, correlation = self._causes.get(effect.key, (0, 0))
        return msgspec.structs.replace(
            effect,
            causation=effect.causation or causation,
            correlation=effect.correlation or effect.causation or correlation,
        )


def _recorded(batch: EncodedBatch, events: Sequence[E], place: Appended) -> list[RecordedEvent[E]]:
    first = batch.expected_version + 1
    stimulus: EventRef = event_ref(batch.stream, first)
    return [
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
        for offset, event in enumerate(events)
    ]
