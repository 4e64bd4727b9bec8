"""The fan-out of session events to subscribers, and to callers that wait for a run's end.

The bus outlives session actors, so a caller keeps waiting over a restart of the actor that it talks to. The rules: a
subscriber that raises is logged and counted and disturbs no other; a caller is told of a run's end only when that is
durable and nothing of the run is in flight any more.
"""

import asyncio
import copy
import inspect
import logging
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from typing import Protocol, TypeAlias

import msgspec

from refold.actors.kernel.errors import ActorStopped
from refold.events.core.errors import ConfigError, quoted
from refold.events.core.ids import RunId, SessionId, ToolCallId
from refold.events.model.messages import Delta, Usage, delta_text, delta_with_text
from refold.events.secrets.redaction import NOTHING_SECRET
from refold.events.session.events import (
    CancelRequested,
    HistoryImported,
    InputQueued,
    ModelFailed,
    ModelInterrupted,
    ModelResponded,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunResumed,
    RunStarted,
    ToolApprovalRequested,
)
from refold.events.session.state import FinishedRun, SessionState, awaits_person, awaits_step, run_of_input
from refold.publishing.answers import AnswerSoFar
from refold.publishing.notifications import Progressed, RecordedSessionEvent, Streamed
from refold.publishing.readers import Publication, Readers
from refold.publishing.subscription import Subscription

log = logging.getLogger("refold.session")

Subscriber: TypeAlias = Callable[[RecordedSessionEvent], object]
"""Called on the loop with each durable event; it must return quickly."""


class EndedRun:
    """A run that has ended: its terminal event's version, and how, where that is at hand."""

    __slots__ = ("finished", "version")

    def __init__(self, version: int, finished: FinishedRun | None) -> None:
        self.version = version
        self.finished = finished


class PausedRun(msgspec.Struct, frozen=True):
    """A run that waits until its next turn is allowed."""

    turn: int
    """The turn that it has taken."""
    version: int
    """Of the last event before the wait."""


class Follower:
    """Waits for ends of runs of one session, from the moment it was made."""

    def __init__(self) -> None:
        self.awaited: RunId | None = None
        """The run whose end a caller waits for; set by `EventBus.await_only`."""
        self._latest: dict[RunId, EndedRun | PausedRun] = {}
        self._failure: Exception | None = None
        self._wake: asyncio.Future[None] | None = None

    async def ended(self, run: RunId) -> EndedRun:
        """Return how `run` ended, once it has.

        Raises:
            ActorStopped: the session's actor is gone for good, or the runtime closed; the log has the run.
        """
        ended = await self.ended_or_paused(run, after_version=None)
        assert isinstance(ended, EndedRun)
        return ended

    async def ended_or_paused(self, run: RunId, *, after_version: int | None) -> EndedRun | PausedRun:
        """Return as `ended`, or that the run waits for its next turn after what happened at a version; None = never."""
        while True:
            match self._latest.get(run):
                case EndedRun() as ended:
                    return ended
                case PausedRun(version=version) as paused if after_version is not None and version > after_version:
                    return paused
                case _:  # It goes on, or waits for the turn that was asked for.
                    pass
            if self._failure is not None:
                raise self._failure
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake

    def tell(self, run: RunId, latest: EndedRun | PausedRun) -> None:
        """Take note that a run has ended, or waits for its next turn."""
        self._latest[run] = latest
        self._stir()

    def fail(self, error: Exception) -> None:
        """Take note that no further end will come."""
        self._failure = error
        self._stir()

    def _stir(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class Relay(Protocol):
    """Passes on to other processes what the bus has told its own."""

    def recorded(self, position: int) -> None: ...

    def streamed(self, streamed: Streamed, answer: AnswerSoFar) -> None: ...

    def progressed(self, item: Progressed) -> None: ...


class EventBus:
    """Implements `SessionObserver` for a runtime."""

    def __init__(self) -> None:
        self.relay: Relay | None = None
        self.redaction = NOTHING_SECRET
        """Taken out of what tools report."""
        self.failures = 0
        """How often a subscriber raised."""
        self._followers: dict[SessionId, dict[RunId | None, dict[Follower, None]]] = {}
        """By the run that each waits for, so that of many callers in a queue only those of a run are told of its end;
        None = of any run."""
        self._subscribers: dict[SessionId | None, list[Subscriber]] = {}
        self._ending: dict[SessionId, dict[RunId, int]] = {}
        self._open: dict[SessionId, int] = {}
        """Of each open run that began or went on in this process, the version at which it did."""
        self._answers: dict[SessionId, AnswerSoFar] = {}
        """The answers that are streamed now."""
        self._streamed = 0
        """How many answers have begun."""
        self._until: int | None = None
        """The last position that actors of this process tell of; None = they tell of all, or there are none."""
        self._readers: dict[SessionId | None, Readers] = {}
        """None = of all sessions."""
        self._model_watchers: dict[SessionId, list[Callable[[bool], None]]] = {}
        self._person_watchers: dict[SessionId, list[Callable[[bool], None]]] = {}

    def watch_model(self, session: SessionId, watcher: Callable[[bool], None]) -> AbstractContextManager[None]:
        """Tell `watcher` whether `session` waits for its model: when that may have changed, and with each delta."""
        return _watched(self._model_watchers, session, watcher)

    def watch_person(self, session: SessionId, watcher: Callable[[bool], None]) -> AbstractContextManager[None]:
        """Tell `watcher` whether `session` does nothing but wait for a person, when that may have changed."""
        return _watched(self._person_watchers, session, watcher)

    @contextmanager
    def follow(self, session: SessionId) -> Generator[Follower, None, None]:
        """Give a follower that sees every end of a run of `session` from now on."""
        follower = Follower()
        self._add_follower(session, None, follower)
        try:
            yield follower
        finally:
            for run in (None, follower.awaited):
                self._drop_follower(session, run, follower)

    def await_only(self, session: SessionId, run: RunId, follower: Follower) -> None:
        """Tell a follower of one run only from now on."""
        self._drop_follower(session, None, follower)
        follower.awaited = run
        self._add_follower(session, run, follower)

    def _add_follower(self, session: SessionId, run: RunId | None, follower: Follower) -> None:
        self._followers.setdefault(session, {}).setdefault(run, {})[follower] = None

    def _drop_follower(self, session: SessionId, run: RunId | None, follower: Follower) -> None:
        by_run = self._followers.get(session, {})
        followers = by_run.get(run, {})
        if followers.pop(follower, follower) is None and not followers:
            del by_run[run]
            if not by_run:
                del self._followers[session]

    def _tell(self, session: SessionId, run: RunId, latest: EndedRun | PausedRun) -> None:
        by_run = self._followers.get(session, {})
        for follower in [*by_run.get(None, ()), *by_run.get(run, ())]:
            follower.tell(run, latest)

    def is_awaited(self, session: SessionId, run: RunId, *, besides: Follower) -> bool:
        return any(other is not besides for other in self._followers.get(session, {}).get(run, ()))

    def is_ending(self, session: SessionId, run: RunId) -> bool:
        """Tell whether a run has ended in the log, and what it had in flight has not."""
        return run in self._ending.get(session, ())

    def open_sessions(self) -> list[SessionId]:
        """Return the sessions that have an open run which began or went on in this process, oldest first."""
        return list(self._open)

    def subscribe(self, subscriber: Subscriber, session: SessionId | None = None) -> Callable[[], None]:
        subscribers = self._subscribers.setdefault(session, [])
        subscribers.append(subscriber)

        def unsubscribe() -> None:
            if subscriber in subscribers:
                subscribers.remove(subscriber)
            if not subscribers and self._subscribers.get(session) is subscribers:
                del self._subscribers[session]

        return unsubscribe

    def recorded(self, session: SessionId, events: Sequence[RecordedSessionEvent]) -> None:
        if self._until is not None:
            events = [event for event in events if event.position <= self._until]
            if not events:
                return
        subscribers = [*self._subscribers.get(session, ()), *self._subscribers.get(None, ())]
        cancelled: dict[RunId, int] = {}
        if subscribers or session in self._readers or None in self._readers:
            shown = [*map(_own_copy, events)]
            self._pass_on(session, shown)
            for event in shown if subscribers else ():
                for subscriber in subscribers:
                    self._call(subscriber, event)
        for event in events:
            if isinstance(event.event, CancelRequested | InputQueued):
                if (run := _cancelled_run(event)) is not None:
                    cancelled[run] = event.version
            elif isinstance(event.event, RunStarted | RunResumed):
                self._open[session] = event.version
            elif isinstance(event.event, ModelResponded | ModelInterrupted | ModelFailed):
                self._answers.pop(session, None)
            elif isinstance(event.event, RunCompleted | RunFailed | RunCancelled):
                self._open.pop(session, None)
                self._answers.pop(session, None)
                cancelled.pop(event.event.run, None)
                self._ending.setdefault(session, {})[event.event.run] = event.version

        if self.relay is not None:
            self.relay.recorded(events[-1].position)
        for run, version in cancelled.items():  # Its turn is still to come, and nobody has to wait for that.
            self._tell(session, run, EndedRun(version, cancelled_in_queue(run, version)))

    def _call(self, subscriber: Subscriber, event: RecordedSessionEvent) -> None:
        try:
            answer = subscriber(event)
            if inspect.iscoroutine(answer):
                answer.close()
                raise ConfigError(
                    f"{quoted(subscriber)} is async; a subscriber is a plain function that returns quickly"
                )
        except KeyboardInterrupt:
            raise
        except BaseException:
            self.failures += 1
            log.exception("a subscriber failed on version %d of %s", event.version, event.stream)

    def settled(self, session: SessionId, state: SessionState) -> None:
        ending = self._ending.pop(session, {})
        last = state.last_run
        for run, version in ending.items():
            self._tell(session, run, EndedRun(version, last if last and last.version == version else None))
        run_now = state.run
        for watcher in self._model_watchers.get(session, ()):
            watcher(run_now is not None and run_now.phase == "model")
        for watcher in self._person_watchers.get(session, ()):
            watcher(run_now is not None and awaits_person(run_now, state.turn))
        if run_now is not None and awaits_step(run_now):
            self._tell(session, run_now.id, PausedRun(run_now.turns, state.version))

    def streamed(
        self, session: SessionId, run: RunId, turn: int, delta: Delta, *, asked: int, begins: bool = False
    ) -> None:
        if self._until is not None:
            return
        for watcher in self._model_watchers.get(session, ()):
            watcher(True)
        answer = self._answers.get(session)
        if answer is None or begins or answer.asked != asked:
            since = max(asked, self._open.get(session, 0))
            self._streamed += 1
            answer = AnswerSoFar(session, run, turn, asked=asked, since=since, number=self._streamed)
            self._answers[session] = answer
        piece = answer.add(delta)
        if self.relay is not None:
            self.relay.streamed(piece, answer)
        self._pass_on(session, piece, answer)

    def mirrored(self, piece: Streamed, *, since: int, number: int, so_far: bool) -> None:
        """Take a piece of an answer that is streamed in the owner's process.

        Args:
            piece: as its readers get it there.
            since: of its answer, as `number`.
            number: see `AnswerSoFar`.
            so_far: it was streamed before, and may be known here in part.
        """
        session = piece.session
        answer, text = self._answers.get(session), delta_text(piece.delta)
        known = 0
        if answer is not None and answer.number == number:
            known = answer.end - piece.offset
        elif piece.offset == 0:
            answer = AnswerSoFar(session, piece.run, piece.turn, asked=piece.asked, since=since, number=number)
            self._answers[session] = answer
        if answer is None or answer.number != number or known < 0:
            return  # Its beginning was not told here.
        if so_far and known > 0 and known >= len(text):
            return
        new = answer.add(delta_with_text(piece.delta, text[known:]) if known else piece.delta)
        self._pass_on(session, new, answer)

    def answers(self) -> list[AnswerSoFar]:
        """Return the answers that are streamed now."""
        return list(self._answers.values())

    def forget_answers(self, numbers: Collection[int] = ()) -> None:
        """Drop all answers that are streamed, save those of some numbers: their owner is gone, or has ended them."""
        self._answers = {name: answer for name, answer in self._answers.items() if answer.number in numbers}

    def answer_over(self, session: SessionId) -> None:
        """Drop the answer that is streamed in a session that nothing here waits for, and what was known of its run."""
        self._answers.pop(session, None)
        self._open.pop(session, None)

    def end_life(self, position: int) -> None:
        """Be told by the actors of this process of nothing behind a position: another process has the log.

        Answers that are streamed here are cut, and those that the other process streams are told later.
        """
        self._until, self.relay = position, None

    def begin_life(self) -> None:
        """Begin to be told by other actors: those of this process, or those of the process that owns the log."""
        self._until = None
        self._answers.clear()
        self._open.clear()

    def ending_sessions(self) -> list[SessionId]:
        """Return the sessions of which a run has ended in the log, and those who wait for it were not told yet."""
        return list(self._ending)

    def followed_sessions(self) -> list[SessionId]:
        """Return the sessions whose runs or events are waited for here, each by itself."""
        every = (self._followers, self._subscribers, self._readers)
        return [*dict.fromkeys(name for each in every for name in each if name is not None)]

    def is_followed(self, session: SessionId) -> bool:
        """Tell whether anything here waits for what happens in a session."""
        every = (self._subscribers, self._readers)
        return session in self._followers or any(session in each or None in each for each in every)

    def answer_so_far(self, session: SessionId) -> AnswerSoFar | None:
        """Return the answer that is streamed in a session now, if there is one."""
        return self._answers.get(session)

    def progressed(self, session: SessionId, call: str, report: object) -> None:
        """Log what a tool reports, and pass it on to subscriptions."""
        report = self.redaction.value(report)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("session %s: %s reports %s", session, call, quoted(report, 2_000))
        item = Progressed(session=session, call=ToolCallId(call), report=report)
        if self.relay is not None:
            self.relay.progressed(item)
        self.reported(item)

    def reported(self, item: Progressed) -> None:
        """Pass on to subscriptions what a tool reports."""
        self._pass_on(item.session, item)

    def add(self, subscription: Subscription) -> None:
        self._readers.setdefault(subscription.session, Readers()).add(subscription)

    def tell(self, subscription: Subscription) -> None:
        readers = self._readers.get(subscription.session)
        if readers is not None:
            readers.tell(subscription)

    def drop(self, subscription: Subscription) -> None:
        readers = self._readers.get(subscription.session)
        if readers is not None:
            readers.drop(subscription)
            if not readers:
                del self._readers[subscription.session]

    def _pass_on(self, session: SessionId, news: Publication, answer: AnswerSoFar | None = None) -> None:
        if self._readers:
            for followed in (session, None):
                readers = self._readers.get(followed)
                if readers is not None:
                    readers.publish(session, news, answer)

    def session_failed(self, session: SessionId, reason: str) -> None:
        self._ending.pop(session, None)
        self._answers.pop(session, None)
        for follower in [*chain.from_iterable(self._followers.get(session, {}).values())]:
            follower.fail(ActorStopped(f"session/{session}", reason))

    def session_deleted(self, session: SessionId) -> None:
        """Tell those who wait for its runs, and end what follows it."""
        self.session_failed(session, "it was deleted")
        for reader in self._readers.get(session, ()):
            reader.end()

    def end(self) -> None:
        for reader in [*chain.from_iterable(self._readers.values())]:
            reader.end()

    def close(self, why: str = "the runtime closed; the run is in the log and goes on at the next start") -> None:
        for session in list(self._followers):
            self.session_failed(session, why)


def _own_copy(recorded: RecordedSessionEvent) -> RecordedSessionEvent:
    """Return an event whose tool arguments readers may change without changing a session's state."""
    if not isinstance(recorded.event, ModelResponded | ToolApprovalRequested | HistoryImported | ModelInterrupted):
        return recorded
    return msgspec.structs.replace(recorded, event=copy.deepcopy(recorded.event))


def cancelled_in_queue(run: RunId, version: int) -> FinishedRun:
    """Return how a run has ended that was cancelled, at `version`, before its turn came."""
    return FinishedRun(
        run=run, outcome="cancelled", final=(), stop_reason="end_turn", usage=Usage(), turns=0, version=version
    )


def _cancelled_run(event: RecordedSessionEvent) -> RunId | None:
    if isinstance(event.event, CancelRequested):
        return event.event.run
    if isinstance(event.event, InputQueued) and event.event.cancelled:
        return run_of_input(event.version)
    return None


@contextmanager
def _watched(
    every: dict[SessionId, list[Callable[[bool], None]]], session: SessionId, watcher: Callable[[bool], None]
) -> Generator[None, None, None]:
    watchers = every.setdefault(session, [])
    watchers.append(watcher)
    try:
        yield
    finally:
        watchers.remove(watcher)
        if not watchers and every.get(session) is watchers:
            del every[session]
