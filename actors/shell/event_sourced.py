"""The event-sourced shell: it keeps the state of one actor, which a pure core decides about.

Read `refold.events.core.pure_core` first, then this file from top to bottom, which is the order in which `receive`
handles a message. It has the core admit the message, and evolve and react until nothing more follows; appends the
batch and publishes it once it is durable (all three in `FoldedStream.perform`); replies; and reconciles the work that
runs with the work that `pending(state)` names. Beside it lie `folded_stream` (the state and its log), `effects` (the
work that runs), `effect_port` (what a kind plugs in) and `messages`.

The rules: nothing outside sees a state that is not durable, since the actor handles one message at a time and folds its
state anew after a failed append; and new work begins only when the work that was cancelled has ended, or when the
grace period is over.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final, Generic, final

import msgspec
from pykka.messages import ProxyCall, ProxyGetAttr, ProxySetAttr

from refold.actors.kernel.actor import Actor
from refold.actors.kernel.clock import Timer
from refold.actors.shell.effect_port import C, E, EffectPort, S
from refold.actors.shell.effects import LOOK_AT_CLOCK_S, RECORD_RETRY_S, EffectsInFlight, retry_pause_s
from refold.actors.shell.folded_stream import FoldedStream
from refold.actors.shell.journal import Journal
from refold.actors.shell.messages import (
    EffectEnded,
    Envelope,
    Later,
    Performed,
    Query,
    QueryResult,
    Wake,
    answer_to,
    teller,
)
from refold.events.core.codec import EventCodec
from refold.events.core.errors import CommandRejected, ConfigError, CoreFailed, LogFormatError, PersistenceError
from refold.events.core.ids import StreamName
from refold.events.core.pure_core import PureCore, Wait, WaitUntil

log = logging.getLogger("refold.actors")

TOGETHER_MAX: Final = 64
"""Most messages that are recorded in one transaction."""


@final
class EventSourcedActor(Actor, Generic[S, C, E]):
    """An actor whose state is folded from the stream of its address; send it commands, the reply is `Performed`.

    Args:
        port: does the work that the core asks for; None = it asks for none.
        in_flight: the work that runs in this process; None = this actor has none.
    """

    def __init__(
        self,
        core: PureCore[S, C, E],
        codec: EventCodec[E],
        journal: Journal,
        port: EffectPort[S, C, E] | None = None,
        in_flight: EffectsInFlight | None = None,
    ) -> None:
        self._port = port if port is not None else EffectPort[S, C, E]()
        self._log = FoldedStream(core, codec, journal, self._port)
        self._in_flight = in_flight if in_flight is not None else EffectsInFlight()
        self._recovered = False  # Whether the log has been read, and the work that it asks for was begun again.
        self._will_recover = False

    def current_state(self) -> S | None:
        """Return the state, whose last events may not be durable yet, to look at only; None while it is stale."""
        return None if self._log.stale else self._log.state

    def _handle_receive(self, message: Any) -> Any:
        if isinstance(message, ProxyCall | ProxyGetAttr | ProxySetAttr):
            raise ConfigError(
                f"{self.address} is event-sourced and has no proxy: calls and attributes would go around its log; "
                "send it a command with ask() or tell()"
            )
        return super()._handle_receive(message)

    async def on_receive(self, message: Any) -> Any:
        try:
            return await self._handle(message)
        except asyncio.CancelledError:  # By other code, say: what no asker waits for is told to the next instance.
            match message:
                case EffectEnded():
                    self._offer_later(msgspec.structs.replace(message, attempt=message.attempt + 1))
                case Later() | Wake() | Envelope(insist=True):
                    self.system.clock.call_later(RECORD_RETRY_S, teller(self.actor_ref, message))
                case _:
                    pass
            raise

    async def _handle(self, message: Any) -> Any:
        match message:
            case EffectEnded():
                await self._effect_ended(message)
            case Later():
                try:
                    await getattr(self, message.do)(*message.given)
                except PersistenceError:
                    self._later(RECORD_RETRY_S, message.do, *message.given)
            case Wake():  # `on_start` has begun its work again.
                pass
            case Query():
                return await self._answer(message)
            case Envelope(insist=True):
                await self._insist(message)
            case _:
                envelope = message if isinstance(message, Envelope) else Envelope(message)
                if self._port.joins(envelope):
                    return await self._receive_together(envelope)
                return await self.receive(envelope)
        return None

    async def receive(self, envelope: Envelope) -> Any:
        """Handle one message: record what came before it, perform it, reconcile, and return the reply."""
        await self._record_earlier()
        commands = self._port.prepared(envelope)
        if not commands:
            return Performed(0, False)
        performed = await self._perform(commands, envelope)
        return performed if isinstance(envelope.command, tuple) else await self._port.reply(envelope, performed[-1])

    async def _receive_together(self, first: Envelope) -> Any:
        """Handle a message and those like it that wait behind it, in one transaction; return the reply to the first."""
        others = self.take_along(
            lambda message: isinstance(message, Envelope) and self._port.joins(message), TOGETHER_MAX - 1
        )
        if not others:
            return await self.receive(first)
        await self._record_earlier()
        commands: list[Any] = []
        ends: list[int] = []
        try:
            for envelope in (first, *(message for message, _ in others)):
                commands += self._port.prepared(envelope)
                ends.append(len(commands))
            performed = await self._perform(commands, Envelope(None))
        except CommandRejected:  # It does not say whose command it refuses, and the others have nothing to do with it.
            reply, failure = await self._attempt(first)
            for message, asked in others:
                asked.settle(*await self._attempt(message))
            if failure is not None:
                raise failure from None
            return reply
        for (message, asked), end in zip(others, ends[1:], strict=True):
            asked.settle(await self._port.reply(message, performed[end - 1]))
        return await self._port.reply(first, performed[ends[0] - 1])

    async def _attempt(self, envelope: Envelope) -> tuple[Any, CommandRejected | None]:
        try:
            return await self.receive(envelope), None
        except CommandRejected as error:
            return None, error

    async def _record_earlier(self) -> None:
        # What happened before this message came goes into the log before it: results that the log has refused so far,
        # and times that have come and that no timer has noticed, for instance because the machine was asleep.
        for ended in list(self._effects.unrecorded.values()):
            await self._effect_ended(ended)
        await self._require_durable_state()
        for wait in self._effects.overdue(self.system.clock):
            await self._time_has_come(wait)

    async def _perform(self, commands: Sequence[Any], envelope: Envelope) -> list[Performed]:
        try:
            performed = await self._log.perform(commands, envelope)  # Admit, evolve, react; append; publish.
        except PersistenceError:
            if self._log.stale:
                self._recover_later(0)
            else:
                self._reconcile()  # The append may have taken effect before it failed, and what it wrote goes on.
            raise
        if isinstance(commands[-1], self._port.resumed_by):
            self._effects.blocked = frozenset()
        self._reconcile()
        return performed

    async def _insist(self, envelope: Envelope, attempt: int = 0) -> None:
        try:
            await self.receive(envelope)
        except PersistenceError as error:
            log.warning("%s: a %s is not recorded yet: %s", self.address, type(envelope.command).__name__, error)
            self._later(retry_pause_s(attempt), self._insist.__name__, envelope, attempt + 1)

    async def _answer(self, query: Query) -> QueryResult:
        await self._require_durable_state()
        answer, command = await answer_to(query, self._log.state, self._log.read_payloads)
        if command is not None:  # Before any other message: what was found is true still.
            await self.receive(Envelope(command))
        return answer

    # The work outside

    def _reconcile(self, backed_off: str = "") -> None:
        """Cancel work that is not wanted any more, and begin what is wanted; `backed_off` has had its pause."""
        effects = self._effects
        try:
            wanted = {effect.key: effect for effect in self._log.wanted()}
        except CoreFailed:  # The log may ask for work that nobody begins: it is read again, message or not.
            self._log.stale = True
            self._recover_later(0)
            raise
        for effect in effects.no_longer_wanted(wanted):
            self._port.cancel(effect)
        # Work that was cancelled may still act on the world. Until all of it has told its end, or the grace period is
        # over, nothing begins beside it, and the port does not learn that the state has settled.
        if effects.cancelled and effects.grace is None:
            effects.grace = self._later(self._port.cancel_grace_s, self._end_grace.__name__, effects.grace_number)
        if effects.cancelled:
            return
        effects.end_grace()
        for key, effect in wanted.items():
            if self._in_flight.draining or effects.has(key):
                continue
            if self._port.pauses is not None and key in effects.ends and key != backed_off:
                # It has ended and is wanted still: without a pause it might begin and end again for ever.
                pause_s = self._port.pauses.pause_s(effects.ends[key] + 1)
                effects.backing_off |= {key}
                effects.timers[key] = self._later(pause_s, self._end_pause.__name__, key)
                continue
            # It counts as running before it is begun, since it may tell its end at once.
            effects.running[key] = effect
            if isinstance(effect, WaitUntil):
                self._set_timer(effect)
            elif not isinstance(effect, Wait) and not self._port.begin(effect):
                del effects.running[key]
                effects.blocked |= {key}
        self._port.settled()

    async def _effect_ended(self, ended: EffectEnded) -> None:
        effects, key, recorded, version = self._effects, ended.key, False, 0
        if ended.attempt and effects.unrecorded.get(key) is not ended:
            return  # It was offered again meanwhile.
        try:
            if ended.command is not None or ended.evidence is not None:
                await self._require_durable_state()
                version = self._log.version
                recorded = await self._log.record(ended, effects.running.get(key) or effects.cancelled.get(key))
        except PersistenceError as error:
            # The work is done and must not be done again: it counts as running until its result is in the log. Where
            # the state was folded again and has grown, it is, although the append failed.
            if self._log.stale or self._log.version == version:
                log.warning("%s: the result of %s is not recorded yet: %s", self.address, key, error)
                self._offer_later(msgspec.structs.replace(ended, attempt=ended.attempt + 1))
                return
        effects.ended(key, recorded=recorded)
        for other in ended.along:
            other.release()
        self._reconcile()
        self._in_flight.ended()

    # From one life to the next

    async def on_start(self) -> None:
        self._log.open(StreamName(self.address), self.system.clock, self._in_flight)
        self._effects = self._in_flight.of(self.address)
        self._port.actor, self._port.stream = self, self._log.name
        self._port.effects, self._port.receive = self._effects, self.receive
        await self._try_to_recover(0)

    async def _try_to_recover(self, attempt: int) -> None:
        self._will_recover = False
        try:
            if self._recovered and self._log.stale:
                await self._log.rebuild()
                self._reconcile()
            await self._require_durable_state()
        except (CoreFailed, LogFormatError) as error:  # It will be no better the next time; each message says so.
            log.error("%s cannot be read: %s", self.address, error)
        except PersistenceError as error:
            log.warning("%s waits, since its log fails: %s", self.address, error)
            self._recover_later(attempt)

    async def _require_durable_state(self) -> None:
        if not self._recovered:
            await self._recover()
        elif self._log.stale:
            await self._log.rebuild()

    async def _recover(self) -> None:
        # Fold, recover, reconcile: there is no other recovery. What an earlier instance of this process began is in
        # `_effects` and goes on. Where there is none, and the state wants work, a process has ended: the port decides.
        await self._log.fold()
        effects, wanted = self._effects, self._log.wanted()
        if wanted and not effects.recovered and not effects.carried_out():
            recovery = self._port.recovery(wanted)
            effects.blocked |= recovery.blocked
            if recovery.commands:  # Nothing else is admitted before they are recorded.
                await self._log.perform(recovery.commands)
        self._recovered = effects.recovered = True
        for ended in effects.unrecorded.values():
            self._offer_later(ended)
        self._reconcile()

    def may_passivate(self) -> bool:
        return self._recovered and not self._port.lasting and not self._log.stale and self._effects.at_rest()

    def expects_more(self) -> bool:
        return self._effects.carried_out()

    def on_passivate(self) -> None:  # What it waits for stays: a time that comes, or a message, makes a new instance.
        self._log.rest()
        self._in_flight.forget(self.address)

    def on_stop(self) -> None:
        self._effects.let_go()
        self.on_passivate()

    def on_cancelled(self) -> None:  # What it waits for goes on with the next instance, and so does what it wants.
        self.system.clock.call_later(RECORD_RETRY_S, teller(self.actor_ref, Wake()))

    def on_failure(self, *_error: object, **_error_by_name: object) -> None:  # The next instance sets its own timers.
        self.on_stop()

    # What it tells itself, by messages of its own: whichever instance there is then gets them

    def _later(self, delay_s: float, do: str, *given: Any) -> Timer:
        return self.system.clock.call_later(delay_s, teller(self.actor_ref, Later(do, given)))

    def _recover_later(self, attempt: int) -> None:
        if not self._will_recover:
            self._will_recover = True
            self._later(retry_pause_s(attempt), self._try_to_recover.__name__, attempt + 1)

    def _offer_later(self, ended: EffectEnded) -> None:
        key, effects = ended.key, self._effects
        effects.unrecorded[key] = ended
        effects.forget_timer(key)
        effects.timers[key] = self._later(retry_pause_s(ended.attempt - 1), self._effect_ended.__name__, ended)

    def _set_timer(self, wait: WaitUntil) -> None:
        due = teller(self.actor_ref, Later(self._look_at_clock.__name__, (wait.key,)))
        self._effects.set_timer(wait, self.system.clock, self._log.time, due)

    async def _look_at_clock(self, key: str) -> None:
        wait = self._effects.running.get(key)
        if isinstance(wait, WaitUntil) and key not in self._effects.unrecorded:
            if self._effects.has_come(wait, self.system.clock):
                await self._time_has_come(wait)
            else:
                self._set_timer(wait)

    async def _time_has_come(self, wait: WaitUntil) -> None:
        command = self._port.due(wait)
        if command is None and self._port.pauses is None:  # It cannot be told now what is due: it is asked again.
            self._effects.forget_timer(wait.key)
            self._effects.timers[wait.key] = self._later(LOOK_AT_CLOCK_S, self._look_at_clock.__name__, wait.key)
            return
        await self._effect_ended(EffectEnded(key=wait.key, command=command))

    async def _end_pause(self, key: str) -> None:
        await self._require_durable_state()
        if key in self._effects.backing_off:
            self._effects.backing_off -= {key}
            self._effects.forget_timer(key)
            self._reconcile(backed_off=key)

    async def _end_grace(self, number: int) -> None:
        if number != self._effects.grace_number:  # The work it was for has ended, and a later period may run.
            return
        await self._require_durable_state()
        for effect in self._effects.cancelled.values():
            self._port.abandon(effect)
        self._effects.cancelled.clear()
        self._reconcile()
        self._in_flight.ended()
