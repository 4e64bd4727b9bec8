"""Circuit breakers: a service that failed too often is not called for a while.

    weather = CircuitBreaker("weather", threshold=5, recovery_s=30)
    answer = await weather.call(fetch, "Lisbon")            # Raises CircuitOpen while the circuit is open.

    async with weather.guard():                             # The same, around several lines;
        answer = await fetch("Lisbon")
    with weather.guard():                                   # and in synchronous code, in any thread.
        answer = fetch_now("Lisbon")

Read `refold.events.kinds.breaker` for the rules. A breaker is used by itself, in memory; or a runtime has it, as one of
its `objects`, of its tools or of its provider: then the log has its transitions, and they are taken up at the next
start. Give it a backend such as `RedisBreakerState`, and several processes have one circuit.

What is lost with the process: how many calls had failed in a row of a circuit that was still closed, and a transition
that did not reach the disk. No call waits for a log.
"""

import asyncio
import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import ParamSpec, Self, TypeVar, cast, overload

import msgspec

from refold.actors.calls.results import text_of_error
from refold.actors.hosting import Host
from refold.actors.kernel.clock import Clock
from refold.actors.kernel.errors import ActorStopped
from refold.actors.kernel.future import ActorFuture
from refold.events.core.errors import (
    BackpressureShed,
    CircuitOpen,
    ConfigError,
    PersistenceError,
    ProviderError,
    ToolError,
)
from refold.events.core.event import SECOND_US
from refold.events.kinds.breaker import (
    BREAKER_CORE,
    BREAKER_KIND,
    BreakerCommand,
    BreakerEvent,
    BreakerPhase,
    BreakerState,
    ConfigureBreaker,
    OpenCircuit,
    Permit,
    asked,
)
from refold.memory.stream_object import StreamObject, outcome_of
from refold.memory.worker import in_thread
from refold.resilience.breaker_state import (
    BreakerBackend,
    BreakerMemory,
    BreakerSettings,
    CallEnd,
    KnownState,
    ObservedTransitions,
    SharedBreakerBackend,
)

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


class BreakerReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a breaker stands."""

    name: str
    phase: BreakerPhase
    """`half_open` from the moment on that an open circuit would let a probe through."""
    failures: int
    """Calls that failed in a row: since it closed, or those that opened it."""
    error: str
    """What the last one said of those that opened it last; empty = it never opened."""
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
        name: of the service; on a log, its stream is `breaker/<name>`.
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
            raise ConfigError(f"the threshold of {self!r} must be an integer of at least 1, not {threshold!r:.80}")
        self.settings = BreakerSettings(
            threshold=threshold,
            recovery_us=self._microseconds("recovery_s", recovery_s),
            probe_us=self._microseconds("probe_s", probe_s),
        )
        self._counts = _counting(counts)
        self._memory = BreakerMemory(self.settings, self._record)
        self.backend: BreakerBackend = self._memory if backend is None else backend
        self._observed: ObservedTransitions | None = None
        """What this process has seen of a shared state; None = no runtime has had the breaker."""

    def _microseconds(self, setting: str, seconds: float) -> int:
        good = isinstance(seconds, int | float) and not isinstance(seconds, bool) and math.isfinite(seconds)
        if not (good and 0 < seconds <= SECONDS_MAX):
            raise ConfigError(
                f"the {setting} of {self!r} must be a number of seconds above 0, up to {SECONDS_MAX:g}, "
                f"not {seconds!r:.80}"
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
        """Return how it stands.

        The outcome is PersistenceError where the backend cannot say.
        """

        def report() -> BreakerReport:
            return self._reported(self.backend.known(self.name, self.settings))

        if self.backend.blocking:
            return in_thread(report, f"report of {self.stream}")
        return outcome_of(report, PersistenceError)

    def _reported(self, known: KnownState) -> BreakerReport:
        state, retry_after_s = known.state, 0.0
        phase: BreakerPhase = state.phase
        try:
            if asked(state, self.name, self.now_us()) is not None:
                phase = "half_open"
        except CircuitOpen as refusal:
            retry_after_s = refusal.retry_after_s or 0.0
        return BreakerReport(
            name=self.name,
            phase=phase,
            failures=known.failures if phase == "closed" else state.failures,
            error=state.error,
            opened_at=state.opened_at,
            closed_at=state.closed_at,
            retry_after_s=retry_after_s,
            generation=state.generation,
        )

    # The log

    def opening(self, state: BreakerState) -> Sequence[BreakerCommand]:
        """Return the settings, where they differ from those in the log."""
        own = self.settings
        if (own.threshold, own.recovery_us, own.probe_us) == (state.threshold, state.recovery_us, state.probe_us):
            return ()
        return (ConfigureBreaker(threshold=own.threshold, recovery_us=own.recovery_us, probe_us=own.probe_us),)

    async def attach(self, host: Host) -> None:
        """Go on from what the log says, and have transitions recorded there.

        A circuit that opened before opens there too, where the log has it closed. With a shared backend the log has
        what this process sees of its transitions, and decides nothing; with another backend the breaker has no
        log. One that several runtimes of a process share at a time is on the log of the first.
        """
        elsewhere = self._attaching or (self._ref is not None and self._ref.is_alive())
        backend = self.backend
        if elsewhere or not (backend is self._memory or isinstance(backend, SharedBreakerBackend)):
            return
        await super().attach(host)
        logged = await self.read(lambda state: state)
        if isinstance(backend, SharedBreakerBackend):
            if self._observed is None:
                backend.listen(self.name, self._seen)
            self._observed = ObservedTransitions(logged, self._record)
        else:
            self._memory.take_up(logged, self.now_us())

    def _seen(self, shared: BreakerState, at: int) -> None:
        if self._observed is not None:
            self._observed.seen(shared, at)

    def begin_anew(self) -> None:
        """Do as `StreamObject.begin_anew`; the circuit is closed."""
        super().begin_anew()
        if self.backend is self._memory:
            self.backend = self._memory = BreakerMemory(self.settings, self._record)

    def _state_before(self) -> BreakerState:
        return self._memory.state

    def _record(self, command: BreakerCommand) -> None:
        if isinstance(command, OpenCircuit):
            log.warning("%s opens after %d failures in a row: %s", self.stream, command.failures, command.error)
        else:
            log.info("%s: %s", self.stream, type(command).__name__)
        if self._ref is not None:
            try:
                self._ref.tell(command)
            except (ActorStopped, BackpressureShed) as error:
                log.warning("%s: %s is not recorded: %s", self.stream, type(command).__name__, error)

    # For the guard

    def begin(self) -> Permit | None:
        """Let a call through, whose end is to be told to `settle`; `guard` does both. It may block, see the backend.

        Raises:
            CircuitOpen: it may not be made.
        """
        return self.backend.begin(self.name, self.settings, self.now_us())

    def settle(self, permit: Permit | None, error: BaseException | None) -> None:
        """Take note of how a call ended: with `error`, or well."""
        if permit is not None:
            end, text = self._end_of(error)
            self.backend.settle(self.name, self.settings, permit, end, text, self.now_us())

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

    What the block raises passes on, and counts as the breaker's `counts` says. `settle` settles a call before its end.
    """

    def __init__(self, breaker: CircuitBreaker) -> None:
        self._breaker = breaker
        self._permit: Permit | None = None

    def __enter__(self) -> Self:
        self._permit = self._breaker.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.settle(error)

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
        if not self._breaker.backend.blocking:
            self._permit = self._breaker.begin()
            return
        beginning = asyncio.ensure_future(asyncio.to_thread(self._breaker.begin))
        try:
            self._permit = await asyncio.shield(beginning)
        except asyncio.CancelledError:
            beginning.add_done_callback(self._give_back)
            raise

    async def end(self, error: BaseException | None) -> None:
        """Do what leaving does, on a loop."""
        if self._breaker.backend.blocking:
            await asyncio.to_thread(self.settle, error)
        else:
            self.settle(error)

    def settle(self, error: BaseException | None) -> None:
        """Say how the call ended, before its end; what is said later of the same call changes nothing."""
        permit, self._permit = self._permit, None
        self._breaker.settle(permit, error)

    def lose(self, error: BaseException) -> None:
        """Settle the call with `error` without waiting, with any backend."""
        if self._breaker.backend.blocking:
            permit, self._permit = self._permit, None
            in_thread(lambda: self._breaker.settle(permit, error), self._breaker.stream)
        else:
            self.settle(error)

    def _give_back(self, beginning: "asyncio.Future[Permit | None]") -> None:
        """Release what was let through for a caller who is gone."""
        if not beginning.cancelled() and beginning.exception() is None:
            self._permit = beginning.result()
            self.lose(asyncio.CancelledError())


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
        raise ConfigError(f"`counts` is a class of Exceptions, a tuple of them or a function, not {counts!r:.80}")
    return counts
