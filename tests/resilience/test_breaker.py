"""Circuit breakers as they are used, with each place where their state may be: E1, E2, K07."""

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from refold import CircuitOpen, ConfigError, ProviderError, ToolError
from refold.actors import AskTimeout, EventSourcedSystem, ManualClock
from refold.events.kinds.breaker import BreakerState, Permit
from refold.resilience import CircuitBreaker, RedisBreakerState
from refold.resilience.breaker import BreakerSettings

MakeBreaker = Callable[..., Awaitable[CircuitBreaker]]


class Service:
    """What is called: it answers, fails or waits, as it is told."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.calls = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = asyncio.Event()

    async def __call__(self, word: str = "hello") -> str:
        self.calls += 1
        if not self.gate.is_set():
            self.waiting.set()
        error = self.error
        await self.gate.wait()
        if error is not None:
            raise error
        return word

    async def fails(self, breaker: CircuitBreaker, times: int = 1) -> None:
        self.error = ConnectionError("no route")
        for _ in range(times):
            with pytest.raises(ConnectionError):
                await breaker.call(self)
        self.error = None


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture(params=["memory", "log", "redis"])
async def make(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[MakeBreaker]:
    """Give a function that makes a breaker whose state is in memory, on a log, or in Redis."""
    settings: dict[str, Any] = {"threshold": 3, "recovery_s": 10, "probe_s": 5, "clock": clock}
    backend: RedisBreakerState | None = None
    if request.param == "redis":
        backend = RedisBreakerState(request.getfixturevalue("redis_url"), prefix=f"{uuid.uuid4()}:", clock=clock)
        settings["backend"] = backend
    async with EventSourcedSystem(clock=clock) as system:

        async def made(**given: Any) -> CircuitBreaker:
            breaker = CircuitBreaker("weather", **{**settings, **given})
            if request.param == "log":
                await breaker.attach(system.host)
            return breaker

        yield made
    if backend is not None:
        backend.close()


async def test_e1_it_opens_after_so_many_failures_in_a_row_and_fails_fast(make: MakeBreaker, service: Service) -> None:
    breaker = await make()
    await service.fails(breaker, 2)
    assert await breaker.call(service, "hi") == "hi"
    await service.fails(breaker, 2)
    assert (await breaker.report()).phase == "closed"
    assert (await breaker.report()).failures == 2
    await service.fails(breaker, 1)
    calls = service.calls
    with pytest.raises(CircuitOpen, match=r"the circuit of .weather. is open.*in 10 s") as raised:
        await breaker.call(service)
    assert (raised.value.service, raised.value.retry_after_s, service.calls) == ("weather", 10, calls)
    report = await breaker.report()
    assert (report.phase, report.failures, report.error) == ("open", 3, "ConnectionError: no route")
    assert (report.opened_at, report.retry_after_s) == (breaker.now_us(), 10)


async def test_e1_it_closes_when_a_probe_succeeds_and_opens_again_when_one_fails(
    make: MakeBreaker, service: Service, clock: ManualClock
) -> None:
    breaker = await make()
    await service.fails(breaker, 3)
    await clock.advance(9.9)
    with pytest.raises(CircuitOpen):
        await breaker.call(service)
    await clock.advance(0.1)
    assert (await breaker.report()).phase == "half_open"
    await service.fails(breaker)
    with pytest.raises(CircuitOpen) as raised:
        await breaker.call(service)
    assert raised.value.retry_after_s == 10
    await clock.advance(10)
    assert await breaker.call(service) == "hello"
    report = await breaker.report()
    assert (report.phase, report.failures, report.generation) == ("closed", 0, 3)
    await service.fails(breaker, 2)
    assert await breaker.call(service) == "hello"


async def test_case_k07_of_many_callers_one_is_the_probe(
    make: MakeBreaker, service: Service, clock: ManualClock
) -> None:
    breaker = await make()
    await service.fails(breaker, 3)
    await clock.advance(10)
    service.gate.clear()
    calls = service.calls
    callers = [asyncio.create_task(breaker.call(service)) for _ in range(10)]
    while sum(caller.done() for caller in callers) < 9:
        waiting = [caller for caller in callers if not caller.done()]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    [probe] = [caller for caller in callers if not caller.done()]
    assert all(isinstance(caller.exception(), CircuitOpen) for caller in callers if caller is not probe)
    await service.waiting.wait()
    assert service.calls == calls + 1
    service.gate.set()
    assert await probe == "hello"
    assert (await breaker.report()).phase == "closed"


async def test_e1_a_cancelled_probe_gives_its_slot_back(
    make: MakeBreaker, service: Service, clock: ManualClock
) -> None:
    breaker = await make()
    await service.fails(breaker, 3)
    await clock.advance(10)
    service.gate.clear()
    probe = asyncio.create_task(breaker.call(service))
    await service.waiting.wait()
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
    service.gate.set()
    assert await breaker.call(service) == "hello"
    assert (await breaker.report()).phase == "closed"


@pytest.mark.parametrize(
    "counts",
    [OSError, (OSError, KeyError), lambda error: isinstance(error, OSError)],
    ids=["class", "tuple", "function"],
)
async def test_e1_which_errors_count_can_be_chosen(make: MakeBreaker, service: Service, counts: Any) -> None:
    breaker = await make(counts=counts)
    await service.fails(breaker, 2)
    with pytest.raises(ValueError, match="an answer"):
        async with breaker.guard():
            raise ValueError("an answer")
    assert (await breaker.report()).failures == 0


async def test_e1_threads_use_it_as_well(make: MakeBreaker) -> None:
    breaker = await make()
    entered: list[str] = []

    def work() -> None:
        with breaker.guard():
            entered.append(threading.current_thread().name)
        for _ in range(3):
            with suppress(OSError), breaker.guard():
                raise OSError("no")
        try:
            with breaker.guard():
                raise AssertionError("it is open")
        except CircuitOpen as error:
            entered.append(str(error.service))

    await asyncio.to_thread(work)
    assert entered[1:] == ["weather"]
    assert (await breaker.report()).phase == "open"


def test_case_k07_of_many_threads_one_is_the_probe(clock: ManualClock) -> None:
    breaker = CircuitBreaker("b", threshold=1, recovery_s=10, clock=clock)
    with suppress(OSError), breaker.guard():
        raise OSError
    clock.jump(10)
    together = threading.Barrier(10)
    asked: list[str] = []

    def ask() -> None:
        together.wait()
        try:
            with breaker.guard():
                asked.append("admitted")
                together.wait()
        except CircuitOpen:
            asked.append("refused")
            together.wait()

    threads = [threading.Thread(target=ask) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(asked) == ["admitted"] + ["refused"] * 9


def test_what_is_a_requests_own_fault_does_not_count_by_default() -> None:
    breaker = CircuitBreaker("b", threshold=1)
    answers: list[Exception] = [
        ProviderError("no such field", kind="invalid_request"),
        ProviderError("too long", kind="context_too_long"),
        ToolError("no such city"),
    ]
    for error in answers:
        with suppress(ProviderError, ToolError), breaker.guard():
            raise error
        assert breaker.report().get().phase == "closed"
    with suppress(ToolError), breaker.guard():
        raise ToolError("try again", kind="transient")
    assert breaker.report().get().phase == "open"


def test_counting_that_fails_counts(caplog: pytest.LogCaptureFixture) -> None:
    def broken(error: Exception) -> bool:
        raise RuntimeError("broken")

    breaker = CircuitBreaker("b", threshold=1, counts=broken)
    with suppress(OSError), breaker.guard():
        raise OSError
    assert breaker.report().get().phase == "open"
    assert "`counts` failed" in caplog.text


class MuteFailure(AskTimeout):
    """What a backend of a user's own raises, and cannot show itself."""

    def __init__(self) -> None:
        super().__init__("breaker/b", 1.0)

    def __str__(self) -> str:
        raise NotImplementedError


class BackendThatFails:
    blocking = False

    def __init__(self, *, begins: bool) -> None:
        self.begins = begins

    def begin(self, name: str, settings: BreakerSettings, now_us: int) -> Permit | None:
        if self.begins:
            return Permit(1)
        raise MuteFailure

    def settle(self, *given: object) -> None:
        raise MuteFailure

    def known(self, name: str, settings: BreakerSettings) -> BreakerState:
        raise MuteFailure


@pytest.mark.parametrize(
    ("begins", "said"), [(False, "is not asked, and its call is let through"), (True, "is not recorded yet")]
)
def test_a_backend_whose_error_cannot_show_itself_is_logged_and_hinders_no_call(
    caplog: pytest.LogCaptureFixture, begins: bool, said: str
) -> None:
    with CircuitBreaker("b", backend=BackendThatFails(begins=begins)).guard():
        pass
    (line,) = [record.getMessage() for record in caplog.records]
    assert said in line
    assert line.endswith("(its text cannot be had: NotImplementedError)")


async def test_a_plain_function_may_be_called_too() -> None:
    assert await CircuitBreaker("b").call(lambda: 7) == 7


def test_what_cannot_work_is_refused() -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({"threshold": 0}, "threshold"),
        ({"threshold": True}, "threshold"),
        ({"recovery_s": 0}, "recovery_s"),
        ({"recovery_s": float("nan")}, "recovery_s"),
        ({"probe_s": 1e9}, "probe_s"),
        ({"counts": 7}, "`counts`"),
        ({"counts": KeyboardInterrupt}, "`counts`"),
    ]
    for given, says in bad:
        with pytest.raises(ConfigError, match=says):
            CircuitBreaker("b", **given)
    with pytest.raises(ConfigError, match="breaker name"):
        CircuitBreaker("")
