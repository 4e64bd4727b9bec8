"""Circuit breakers: a service that failed too often is not called for a while.

    weather = CircuitBreaker("weather", threshold=5, recovery_s=30)
    answer = await weather.call(fetch, "Lisbon")            # Raises CircuitOpen while the circuit is open.

    async with weather.guard():                             # The same, around several lines;
        answer = await fetch("Lisbon")
    with weather.guard():                                   # and in synchronous code, in any thread.
        answer = fetch_now("Lisbon")

Read `refold.events.kinds.breaker` for the rules. A breaker is used by itself, in memory; or a runtime has it, as one of
its `objects`, of its tools or of its provider. Then its actor decides, see `refold.actors.agent.breaker`: the log has
all that changes the circuit, and the next start goes on from there. All breakers of one name in a runtime are one
circuit. Give it a backend such as `RedisBreakerState`, and several processes have one.
"""

import asyncio
import copy
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, ParamSpec, Protocol, Self, TypeVar, cast, overload, runtime_checkable

import msgspec

from refold.actors.agent.breaker import BreakerActor, OfCircuit, tell_opened
from refold.actors.hosting import Host
from refold.actors.kernel.clock import Clock
from refold.actors.kernel.errors import ActorStopped, AskTimeout
from refold.actors.kernel.reply import ActorFuture
from refold.actors.kernel.system import ActorSystem
from refold.actors.shell.effects import CallUnderWay, call_under_way
from refold.actors.shell.messages import Performed
from refold.events.core.cleaning import is_finite, text_of_error
from refold.events.core.errors import (
    CircuitOpen,
    ConfigError,
    PersistenceError,
    ProviderError,
    RefoldError,
    ToolError,
    quoted,
)
from refold.events.core.event import SECOND_US
from refold.events.core.records import event_ref
from refold.events.kinds.breaker import (
    BREAKER_CORE,
    BREAKER_KIND,
    SHARED_FIELDS,
    BreakerCommand,
    BreakerEvent,
    BreakerPhase,
    BreakerState,
    CallEnd,
    ConfigureBreaker,
    EndCall,
    NoteSharedState,
    Permit,
    SharedStateSeen,
    TakeUp,
    asked,
    permit_of,
)
from refold.memory.stream_object import StreamObject, in_thread, outcome_of

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("refold.resilience")

SECONDS_MAX = 86_400.0
"""Longest time of a setting."""

ERROR_CHARACTERS_MAX = 500
"""The text of the error that opened a circuit is cut after so many characters."""

REQUESTS_FAULT = ("invalid_request", "context_too_long")
"""Kinds of a ProviderError that say nothing about the provider."""


def counts_by_default(error: Exception) -> bool:
    """Tell whether an error says that a service is not well: all do but those that answer what was asked wrongly.

    Those are a `ProviderError` that is the request's own fault, and a `ToolError` that is permanent.
    """
    if isinstance(error, ProviderError):
        return error.kind not in REQUESTS_FAULT
    return not (isinstance(error, ToolError) and error.kind == "permanent")


class BreakerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When a breaker opens and closes."""

    threshold: int
    """Failures in a row that open it, >= 1."""
    recovery_us: int
    """How long it stays open before a probe is let through, microseconds."""
    probe_us: int
    """How long a probe keeps its slot, microseconds."""

    def begin(self) -> BreakerState:
        return BreakerState(threshold=self.threshold, recovery_us=self.recovery_us, probe_us=self.probe_us)


class BreakerBackend(Protocol):
    """Keeps the states of breakers, by name. Any thread may use it."""

    blocking: bool
    """Whether it waits for another process, so that it must not be used on an event loop's own thread."""

    def begin(self, name: str, settings: BreakerSettings, now_us: int) -> Permit | None:
        """Let a call through; None = it is let through, and nothing is to be told of its end.

        Raises:
            CircuitOpen: it may not be made.
        """
        ...

    def settle(
        self, name: str, settings: BreakerSettings, permit: Permit, end: CallEnd, error: str, now_us: int
    ) -> None:
        """Take note of how a call ended."""
        ...

    def known(self, name: str, settings: BreakerSettings) -> BreakerState:
        """Return what is known.

        Raises:
            PersistenceError: it cannot be had.
        """
        ...


@runtime_checkable
class SharedBreakerBackend(BreakerBackend, Protocol):
    """A backend whose states others change too, and which tells what it sees of them."""

    def listen(self, name: str, seen: Callable[[BreakerState, int], object]) -> None:
        """Have `seen` called, from any thread, with the state of a breaker and when it was so, whenever it is used.

        Args:
            seen: must return at once; the time is by the clock of the backend, microseconds since the epoch, UTC.
        """
        ...


class BreakerReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a breaker stands."""

    name: str
    phase: BreakerPhase
    """`half_open` from the moment on that an open circuit would let a probe through."""
    failures: int
    """Calls that failed in a row: since it closed, or those that opened it."""
    error: str
    """What the last one that failed said; empty = none did."""
    opened_at: int
    """When it opened last, microseconds since the epoch, UTC; 0 = never."""
    closed_at: int
    """When it closed last, microseconds since the epoch, UTC; 0 = it has been closed from the beginning."""
    retry_after_s: float
    """In so many seconds a call may be let through; 0 = now."""
    generation: int
    """How often it has opened or closed."""


class CircuitBreaker(StreamObject[BreakerState, BreakerCommand, BreakerEvent]):
    """Keeps calls from a service that failed too often.

    Args:
        name: of the service; on a log, its stream is `breaker/<name>`. Those of one name in a runtime are one circuit,
            and need the same settings.
        threshold: failures in a row that open the circuit, >= 1.
        recovery_s: how long it stays open before a call is let through as a probe, seconds > 0.
        probe_s: a probe that has not ended in so many seconds > 0 gives up its slot to the next call.
        counts: which errors are failures, as a class, a tuple of them or a function; None = `counts_by_default`. Any
            other error is taken for an answer of the service, so for a success. What is no `Exception`, such as a
            cancellation, is neither.
        backend: where its state is kept if not here, such as a `RedisBreakerState`.
        clock: tells the time before a runtime has the breaker; None = the machine's.

    Raises:
        ConfigError: a value is outside its bounds.
    """

    kind = BREAKER_KIND
    core = BREAKER_CORE

    def __init__(
        self,
        name: str,
        *,
        threshold: int = 5,
        recovery_s: float = 30.0,
        probe_s: float = 60.0,
        counts: type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool] | None = None,
        backend: BreakerBackend | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(name, clock)
        if type(threshold) is not int or threshold < 1:
            raise ConfigError(f"the threshold of {self!r} must be an integer of at least 1, not {quoted(threshold)}")
        self.settings = BreakerSettings(
            threshold=threshold,
            recovery_us=self._microseconds("recovery_s", recovery_s),
            probe_us=self._microseconds("probe_s", probe_s),
        )
        self._counts = _counting(counts)
        self.backend = backend
        self._listens = False
        """Whether it hears what this process sees of a shared state."""
        self._actor: BreakerActor | None = None
        """The last one that decided, whose state is known after its end too."""

    def _microseconds(self, setting: str, seconds: float) -> int:
        good = is_finite(seconds)
        if not (good and 0 < seconds <= SECONDS_MAX):
            raise ConfigError(
                f"the {setting} of {self!r} must be a number of seconds above 0, up to {SECONDS_MAX:g}, "
                f"not {quoted(seconds)}"
            )
        return max(1, round(seconds * SECOND_US))

    @overload
    async def call(self, function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def call(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> object:
        """Return what `function` returns, awaited where it can be.

        Raises:
            CircuitOpen: it is not called.
            Exception: what it raises.
        """
        async with self.guard():
            result = function(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

    def guard(self) -> "Guard":
        """Return a context for one call, `with` or `async with`: see `Guard`."""
        return Guard(self)

    def report(self) -> ActorFuture[BreakerReport]:
        """Return how it stands; in a runtime, what was found last may still be on its way to the log.

        The outcome is PersistenceError where the backend cannot say.
        """
        backend = self.backend
        if backend is None:
            state = self._of_circuit(lambda actor: copy.copy(actor.state), lambda: copy.copy(self._state_before()))
            return state.map(self._reported)
        known = functools.partial(backend.known, self.name, self.settings)
        if backend.blocking:
            return in_thread(known, f"report of {self.stream}").map(self._reported)
        return outcome_of(known, PersistenceError).map(self._reported)

    def _reported(self, state: BreakerState) -> BreakerReport:
        retry_after_s = 0.0
        phase: BreakerPhase = state.phase
        try:
            if asked(state, self.name, self.now_us()) is not None:
                phase = "half_open"
        except CircuitOpen as refusal:
            retry_after_s = refusal.retry_after_s or 0.0
        return BreakerReport(
            name=self.name,
            phase=phase,
            failures=state.failures,
            error=state.error,
            opened_at=state.opened_at,
            closed_at=state.closed_at,
            retry_after_s=retry_after_s,
            generation=state.generation,
        )

    # The log

    def opening(self, state: BreakerState) -> Sequence[BreakerCommand]:
        own = self.settings
        if (own.threshold, own.recovery_us, own.probe_us) == (state.threshold, state.recovery_us, state.probe_us):
            return ()
        return (ConfigureBreaker(threshold=own.threshold, recovery_us=own.recovery_us, probe_us=own.probe_us),)

    def may_share(self, other: "StreamObject[Any, Any, Any]") -> bool:
        """Return whether it and another one are one circuit: those of one name, with the same settings, are."""
        if not isinstance(other, CircuitBreaker) or self.settings != other.settings:
            return False
        return (self.backend is None) == (other.backend is None)

    async def attach(self, host: Host) -> None:
        """Go on from what the log says, and decide from it from here on.

        What happened before goes on there, where the log does not know worse: failures in a row, or that the circuit
        opened. A probe that was under way in an earlier process gives up its slot. With a shared backend the log has
        what this process sees of it, and decides nothing; with another backend the breaker has no log. One that several
        runtimes of a process share at a time is on the log of the first.
        """
        elsewhere = self._attaching or (self._ref is not None and self._ref.is_alive())
        backend = self.backend
        if elsewhere or not (backend is None or isinstance(backend, SharedBreakerBackend)):
            return
        await super().attach(host)
        before = self._last_known() or self.settings.begin()
        if isinstance(backend, SharedBreakerBackend):
            if not self._listens:
                self._listens = True
                backend.listen(self.name, self._seen)
        else:
            opened_at = before.opened_at if before.phase != "closed" else 0
            command = TakeUp(failures=before.failures, error=before.error, opened_at=opened_at)
            recording = await self._of_circuit(lambda actor: actor.take_up(command), lambda: None)
            if recording is not None:
                await recording

    async def _home(self, host: Host) -> ActorSystem:
        return await host.lasting(self.kind, self.core, BreakerActor)

    def _forget_derived(self) -> None:
        self._before = self._actor = None

    def _last_known(self) -> BreakerState | None:
        """Return what is known without a runtime: from before there was one, or from its end."""
        if self._before is None and self._actor is not None:
            self._before = copy.copy(self._actor.state)
        return self._before

    def _state_before(self) -> BreakerState:
        self._last_known()
        return super()._state_before()

    def _of_circuit(
        self, ask: Callable[[BreakerActor], R], alone: Callable[[], R], *, in_turn: bool = False
    ) -> ActorFuture[R]:
        """Return the outcome of what is asked of the circuit, which is there at once but in another thread than its.

        Args:
            ask: asks the actor.
            alone: does the same while no runtime has the breaker.
            in_turn: behind what was told to the actor before.
        """
        here = self._ref
        if here is not None and not in_turn and asyncio._get_running_loop() is here.system.loop and here.is_alive():
            actor = here.system.instance(self.stream)
            if isinstance(actor, BreakerActor):
                self._before, self._actor = None, actor
                return outcome_of(lambda: ask(actor), RefoldError)
        with self._before_runtime() as ref:
            if ref is None or not ref.is_alive():
                return outcome_of(alone, RefoldError)
        return ref.ask(OfCircuit(ask), block=False)

    def _seen(self, shared: BreakerState, at: int) -> None:
        fields = {field: getattr(shared, field) for field in SHARED_FIELDS}
        command = NoteSharedState(seen=SharedStateSeen(**fields, seen_at=at))
        call, ref = call_under_way.get(), self._ref
        if ref is not None and ref.is_alive():
            with suppress(ActorStopped):  # Its runtime ends just now.
                ref.tell(OfCircuit(lambda actor: actor.note(command, call)))

    # For the guard

    @property
    def blocks(self) -> bool:
        """Whether a call of it waits for another process, so that it must not be made on an event loop's thread."""
        return self.backend is not None and self.backend.blocking

    def begin(self, call: CallUnderWay | None = None) -> ActorFuture[Permit | None]:
        """Let a call through, whose end is to be told to `end`; `guard` does both. With a backend, it may block.

        The outcome is CircuitOpen where it may not be made. It is there at once, but in another thread than that of the
        loop on which the breaker lives.

        Args:
            call: of a session, in which it is made; None = it is made in none.
        """
        backend = self.backend
        if backend is None:
            return self._of_circuit(lambda actor: actor.begin(call), self._begin_alone)
        try:
            permit = backend.begin(self.name, self.settings, self.now_us())
        except CircuitOpen as refusal:
            error = refusal  # Told behind what was seen with it.

            def refuse(actor: BreakerActor) -> Permit | None:
                opened = event_ref(self.stream, actor.state.opened) if actor.state.opened else None
                raise CircuitOpen(self.name, retry_after_s=error.retry_after_s, opened=opened)

            def refuse_alone() -> Permit | None:
                raise error

            return self._of_circuit(refuse, refuse_alone, in_turn=True)
        return outcome_of(lambda: permit, RefoldError)

    def end(
        self, permit: Permit, error: BaseException | None, call: CallUnderWay | None = None
    ) -> ActorFuture[ActorFuture[Performed] | None]:
        """Take note of how a call ended: with `error`, or well. With a backend, it may block.

        The outcome is what to wait for until that is durable; None = there is nothing to wait for.
        """
        end, text = self._end_of(error)
        backend = self.backend
        if backend is not None:
            backend.settle(self.name, self.settings, permit, end, text, self.now_us())
            return outcome_of(lambda: None, RefoldError)
        command = EndCall(permit=permit, end=end, error=text, ended_at=self.now_us())
        return self._of_circuit(lambda actor: actor.end(command, call), lambda: self._end_alone(command))

    def _begin_alone(self) -> Permit:
        self._require_present()
        state = self._state_before()
        probe = asked(state, self.name, self.now_us())
        permit = permit_of(state, probe)
        if probe is not None:
            self._plan_before(probe)
        return permit

    def _end_alone(self, command: EndCall) -> None:
        self._require_present()
        opened = self._state_before().opened
        self._plan_before(command)
        tell_opened(self.stream, self._state_before(), opened)

    def _end_of(self, error: BaseException | None) -> tuple[CallEnd, str]:
        if error is None:
            return "succeeded", ""
        if not isinstance(error, Exception):
            return "neither", ""
        try:
            counted = bool(self._counts(error))
        except Exception:
            log.exception("%s: `counts` failed on a %s, which counts", self.stream, type(error).__name__)
            counted = True
        if not counted:
            return "succeeded", ""
        return "failed", f"{type(error).__name__}: {text_of_error(error)}"[:ERROR_CHARACTERS_MAX]


class Guard:
    """The context of one call under a breaker; entering it raises `CircuitOpen` where the call may not be made.

    What the block raises passes on, and counts as the breaker's `counts` says. Leaving it waits until what the call
    brought is durable, where that is anything. In a call of a session it does not: that is recorded with its end. Nor
    does `with` where an event loop runs.
    """

    def __init__(self, breaker: CircuitBreaker) -> None:
        self._breaker = breaker
        self._permit: Permit | None = None
        self._call: CallUnderWay | None = None

    def __enter__(self) -> Self:
        self._call = call_under_way.get()
        try:
            self._permit = self._breaker.begin(self._call).get()
        except (ActorStopped, AskTimeout) as error:
            self._not_asked(error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        permit, self._permit = self._permit, None
        if permit is None:
            return
        try:
            recording = self._breaker.end(permit, error, self._call).get()
            if recording is not None and asyncio._get_running_loop() is None:
                recording.get()
        except (ActorStopped, AskTimeout, PersistenceError) as failure:
            self._not_told(failure)

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.end(error)

    async def begin(self) -> None:
        """Do what entering does, on a loop.

        Raises:
            CircuitOpen: the call may not be made.
        """
        self._call = call_under_way.get()
        asking = None if self._breaker.blocks else self._breaker.begin(self._call)
        if asking is not None and asking.ready():
            self._permit = asking.get()
            return
        answering = asyncio.ensure_future(self._answer(asking))
        try:
            self._permit = await asyncio.shield(answering)
        except asyncio.CancelledError:
            answering.add_done_callback(self._give_back)
            raise
        except (ActorStopped, AskTimeout) as error:
            self._not_asked(error)

    async def _answer(self, asking: ActorFuture[Permit | None] | None) -> Permit | None:
        if asking is None:
            asking = await asyncio.to_thread(self._breaker.begin, self._call)
        return await asking

    async def end(self, error: BaseException | None) -> None:
        """Do what leaving does, on a loop."""
        permit, self._permit = self._permit, None
        breaker = self._breaker
        if permit is None:
            return
        try:
            if breaker.blocks:
                await asyncio.to_thread(breaker.end, permit, error, self._call)
                return
            recording = await breaker.end(permit, error, self._call)
            if recording is not None:
                await recording
        except (ActorStopped, AskTimeout, PersistenceError) as failure:
            self._not_told(failure)

    def lose(self, error: BaseException) -> None:
        """Say how the call ended, before its end and without waiting; what is said of its end later changes nothing."""
        permit, self._permit = self._permit, None
        breaker, call = self._breaker, self._call
        if permit is None:
            return
        if breaker.blocks:
            in_thread(lambda: breaker.end(permit, error, call), breaker.stream)
        else:
            breaker.end(permit, error, call)

    def _give_back(self, answering: "asyncio.Future[Permit | None]") -> None:
        """Release what was let through for a caller who is gone."""
        if not answering.cancelled() and answering.exception() is None:
            self._permit = answering.result()
            self.lose(asyncio.CancelledError())

    def _not_asked(self, error: Exception) -> None:
        log.warning("%s is not asked, and its call is let through: %s", self._breaker.stream, text_of_error(error))

    def _not_told(self, error: Exception) -> None:
        log.warning("%s: how a call ended is not recorded yet: %s", self._breaker.stream, text_of_error(error))


def _counting(
    counts: type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool] | None,
) -> Callable[[Exception], bool]:
    if counts is None:
        return counts_by_default
    classes: tuple[object, ...] = cast("tuple[object, ...]", counts) if isinstance(counts, tuple) else (counts,)
    if all(isinstance(cls, type) and issubclass(cls, Exception) for cls in classes):
        errors = cast("tuple[type[Exception], ...]", classes)
        return lambda error: isinstance(error, errors)
    if isinstance(counts, tuple | type) or not callable(counts):
        raise ConfigError(
            f"`counts` is a class of Exceptions, a tuple of them or a function, not {quoted(cast('object', counts))}"
        )
    return counts
