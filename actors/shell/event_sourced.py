"""The event-sourced shell: it keeps the state of one actor, which a pure core decides about.

Read `refold.events.core.pure_core` first, then this file from top to bottom, which is the order in which `receive`
handles a message. It has the core admit the message, and evolve and react until nothing more follows; appends the
batch and publishes it once it is durable (all three in `FoldedStream.perform`); reconciles the work that runs with the
work that `pending(state)` names; and replies. Beside it lie `folded_stream` (the state and its log), `effects` (the
work that runs), `timers` (what is done later), `joined` (messages that share a transaction), `effect_port` (what a kind
plugs in) and `messages`.

The rules: nothing outside sees a state that is not durable, since the actor handles one message at a time and folds its
state anew after a failed append; and new work begins only when the work that was cancelled has ended, or when the
grace period is over.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Generic, final

from pykka.messages import ProxyCall, ProxyGetAttr, ProxySetAttr

from refold.actors.kernel.actor import Actor
from refold.actors.shell.effect_port import C, E, EffectPort, S
from refold.actors.shell.effects import EffectsInFlight
from refold.actors.shell.folded_stream import BARE, FoldedStream
from refold.actors.shell.joined import TOGETHER_MAX, receive_together
from refold.actors.shell.journal import Journal
from refold.actors.shell.messages import EffectEnded, Envelope, Later, Performed, Query, QueryResult, Wake, answer_to
from refold.actors.shell.timers import Timers
from refold.events.core.codec import EventCodec
from refold.events.core.errors import ConfigError, CoreFailed, LogFormatError, PersistenceError
from refold.events.core.ids import StreamName
from refold.events.core.pure_core import PureCore, Wait, WaitUntil

log = logging.getLogger("refold.actors")


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
        except asyncio.CancelledError:  # By other code, say.
            self._timers.tell_again(message)
            raise

    async def _handle(self, message: Any) -> Any:
        match message:
            case EffectEnded():
                await self.effect_ended(message)
            case Later():
                await self._timers.handle(message)
            case Wake():  # `on_start` has begun its work again.
                pass
            case Query():
                return await self._answer(message)
            case Envelope(insist=True):
                await self._timers.insist(message)
            case _:
                envelope = message if isinstance(message, Envelope) else Envelope(message)
                if self._port.joins(envelope) and (others := self.take_along(self._joins, TOGETHER_MAX - 1)):
                    return await receive_together(self, envelope, others)
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

    async def _record_earlier(self) -> None:
        # What happened before this message came goes into the log before it: results that the log has refused so far,
        # and times that have come and that no timer has noticed, for instance because the machine was asleep.
        for ended in list(self._effects.unrecorded.values()):
            await self.effect_ended(ended)
        await self.require_durable_state()
        for wait in self._timers.overdue():
            await self._timers.time_has_come(wait)

    async def _perform(self, commands: Sequence[Any], envelope: Envelope) -> list[Performed]:
        try:
            performed = await self._log.perform(commands, envelope)  # Admit, evolve, react; append; publish.
        except PersistenceError:
            if self._log.stale:
                self._timers.recover_later(0)
            else:
                self.reconcile()  # The append may have taken effect before it failed, and what it wrote goes on.
            raise
        if isinstance(commands[-1], self._port.resumed_by):
            self._effects.blocked = frozenset()
        self.reconcile()
        return performed

    # The work outside

    def reconcile(self, backed_off: str = "") -> None:
        """Cancel work that is not wanted any more, and begin what is wanted; `backed_off` has had its pause."""
        # What the state wants is compared with what runs, by key. It does not follow from the batch that was recorded
        # last: an append that failed may have taken effect, and a fold takes many batches at once. So this may be
        # called after anything that happened, and a second call changes nothing.
        effects = self._effects
        try:
            wanted = {effect.key: effect for effect in self._log.wanted()}
        except CoreFailed:  # The log may ask for work that nobody begins: it is read again, message or not.
            self._log.stale = True
            self._timers.recover_later(0)
            raise
        stopping = effects.no_longer_wanted(wanted)
        # Work that was cancelled may still act on the world. A run is cancelled while its tool pays a bill; the next
        # run asks beside it whether the bill is paid, hears no, and pays it again. So nothing begins until all
        # cancelled work has told its end, or the grace period is over; and only then the port learns that the state has
        # settled, which the callers of the run wait for.
        if effects.cancelled:
            self._timers.begin_grace()  # First, so that the time runs also where `cancel` fails.
            for effect in stopping:
                self._port.cancel(effect)
            return
        effects.end_grace()
        for key, effect in wanted.items():
            if self._in_flight.draining or effects.has(key):
                continue
            if self._port.pauses is not None and key in effects.ends and key != backed_off:
                self._timers.back_off(key)  # It has ended and is wanted still: it might begin and end for ever.
                continue
            # It counts as running before it is begun, since it may tell its end at once.
            effects.running[key] = effect
            try:
                if isinstance(effect, WaitUntil):
                    self._timers.set_for(effect, self._log.time)
                elif not isinstance(effect, Wait) and not self._port.begin(effect):
                    del effects.running[key]
                    effects.blocked |= {key}
            except BaseException:  # Were it left as running, it would never end, and no later instance would begin it.
                effects.running.pop(key, None)
                raise
        self._port.settled()

    async def effect_ended(self, ended: EffectEnded) -> None:
        """Record what an effect brought, or keep it until the log takes it; then reconcile."""
        effects, key, recorded, version = self._effects, ended.key, False, 0
        if ended.attempt and effects.unrecorded.get(key) is not ended:
            return  # It was offered again meanwhile.
        try:
            await self.require_durable_state()  # Also where there is nothing to record: it is reconciled below.
            version = self._log.version
            if ended.command is not None or ended.evidence is not None:
                recorded = await self._log.record(ended, effects.running.get(key) or effects.cancelled.get(key))
        except PersistenceError as error:
            # The work is done and must not be done again: it counts as running until its result is in the log. Where
            # the state was folded again and has grown, it is, although the append failed.
            if not self._recovered or self._log.stale or self._log.version == version:
                log.warning("%s: the result of %s is not recorded yet: %s", self.address, key, error)
                self._timers.offer_again(ended)
                return
        effects.ended(key, recorded=recorded)
        for other in ended.along:
            other.release()
        self.reconcile()
        self._in_flight.ended()

    def abandon_cancelled(self) -> None:
        """Wait no longer for the end of work that was cancelled."""
        for effect in self._effects.cancelled.values():
            self._port.abandon(effect)
        self._effects.cancelled.clear()
        self.reconcile()
        self._in_flight.ended()

    # Other ways in

    def _joins(self, message: object) -> bool:
        return isinstance(message, Envelope) and self._port.joins(message)

    async def perform_all(self, envelopes: Sequence[Envelope]) -> list[Performed]:
        """Perform messages of one command each in one transaction; where one is refused, none of them."""
        await self._record_earlier()
        commands: list[C] = []
        ends: list[int] = []
        for envelope in envelopes:
            commands += self._port.prepared(envelope)
            ends.append(len(commands))
        performed = await self._perform(commands, BARE)
        return [performed[end - 1] for end in ends]

    async def reply(self, envelope: Envelope, performed: Performed) -> Any:
        """Return the reply to one of the messages that were performed together."""
        return await self._port.reply(envelope, performed)

    async def _answer(self, query: Query) -> QueryResult:
        await self.require_durable_state()
        answer, command = await answer_to(query, self._log.state, self._log.read_payloads)
        if command is not None:  # Before any other message: what was found is true still.
            await self.receive(Envelope(command))
        return answer

    # From one life to the next

    async def on_start(self) -> None:
        self._log.open(StreamName(self.address), self.system.clock, self._in_flight)
        self._effects = self._in_flight.of(self.address)
        self._timers = Timers(self, self._port, self._effects)
        self._port.actor, self._port.stream, self._port.effects = self, self._log.name, self._effects
        await self.try_to_recover(0)

    async def try_to_recover(self, attempt: int) -> None:
        """Go on from the log, or later where it fails."""
        try:
            if self._recovered and self._log.stale:
                await self._log.rebuild()
                self.reconcile()
            await self.require_durable_state()
        except (CoreFailed, LogFormatError) as error:  # It will be no better the next time; each message says so.
            log.error("%s cannot be read: %s", self.address, error)
        except PersistenceError as error:
            log.warning("%s waits, since its log fails: %s", self.address, error)
            self._timers.recover_later(attempt)

    async def require_durable_state(self) -> None:
        """Return when the state is what the log says; raises where the log cannot be read."""
        if not self._recovered:
            await self._recover()
        elif self._log.stale:
            await self._log.rebuild()

    async def _recover(self) -> None:
        # Fold, recover, reconcile: there is no other recovery. What an earlier instance of this process began is in
        # `_effects` and goes on: begun again, a tool's body would run twice. Where nothing runs and the state wants
        # work, the process that did it is gone, and how far it came is not known: the port decides. That was done where
        # an actor was let go while it waited (`effects.recovered`). Its next instance must not take that for a crash,
        # since a run that has crashed a few times is parked.
        await self._log.fold()
        effects, wanted = self._effects, self._log.wanted()
        if wanted and not effects.recovered and not effects.carried_out():
            recovery = self._port.recovery(wanted)
            effects.blocked |= recovery.blocked
            # They decide of each interrupted call whether it runs again. Where the log refuses them, `_recovered` stays
            # False, and the next message comes here again before anything is admitted, or begun by `reconcile`.
            if recovery.commands:
                await self._log.perform(recovery.commands)
        self._recovered = effects.recovered = True
        for ended in effects.unrecorded.values():
            self._timers.offer_later(ended)
        self.reconcile()

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
        self._timers.tell_again(Wake())

    def on_failure(self, *_error: object, **_error_by_name: object) -> None:  # The next instance sets its own timers.
        self.on_stop()
