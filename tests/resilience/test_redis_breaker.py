"""Breakers in Redis: the same rules, one circuit for several processes, and a server that is gone."""

import asyncio
import itertools
import subprocess
import sys
import uuid
from contextlib import suppress

import pytest

from refold import CircuitOpen, ConfigError, PersistenceError
from refold.actors import ManualClock
from refold.resilience import CircuitBreaker, RedisBreakerState
from tests.resilience.breaker_model import OPENED, PROBING, STEPS, Compared, lives, play_any_life
from tests.resilience.conftest import MakeBackend, fail_on_the_loop
from tests.resilience.redis_server import FOUND, REASON, redis_server


def test_e2_in_any_life_the_script_does_what_the_simple_model_says(
    make_backend: MakeBackend, clock: ManualClock
) -> None:
    backend = make_backend(clock)
    play_any_life(lambda: Compared(backend, clock, str(uuid.uuid4())), max_examples=30, stateful_step_count=30)


@pytest.mark.slow
def test_e2_in_all_short_lives_the_script_does_what_the_simple_model_says(
    make_backend: MakeBackend, clock: ManualClock
) -> None:
    backend = make_backend(clock)
    for number, life in enumerate(itertools.chain(lives(OPENED, 2), lives(PROBING, 3))):
        compared = Compared(backend, clock, str(number))
        for step in life:
            STEPS[step](compared)


PROCESS = """
import sys
from contextlib import suppress
from refold.resilience import CircuitBreaker, RedisBreakerState
backend = RedisBreakerState(sys.argv[1], prefix=sys.argv[2])
breaker = CircuitBreaker("shared", threshold=40, recovery_s=3600, backend=backend)
failed = refused = 0
sys.stdin.readline()
from refold import CircuitOpen
for _ in range(30):
    try:
        with breaker.guard():
            failed += 1
            raise OSError("no")
    except CircuitOpen:
        refused += 1
    except OSError:
        pass
print(failed, refused)
"""


def test_e2_processes_share_one_circuit(redis_url: str) -> None:
    prefix = f"{uuid.uuid4()}:"
    command = [sys.executable, "-P", "-c", PROCESS, redis_url, prefix]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(3)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.communicate()[0].split() for process in processes]
    failed, refused = (sum(int(numbers[place]) for numbers in said) for place in (0, 1))
    assert failed + refused == 90
    assert 40 <= failed <= 42, "those that were under way when the 40th failed may fail too"
    backend = RedisBreakerState(redis_url, prefix=prefix)
    report = CircuitBreaker("shared", threshold=40, recovery_s=3600, backend=backend).report().get(timeout=10)
    assert (report.phase, report.failures, report.generation, report.error) == ("open", 40, 1, "OSError: no")
    backend.close()


async def test_e2_the_servers_clock_is_used_unless_one_is_given(make_backend: MakeBackend) -> None:
    breaker = CircuitBreaker("b", threshold=1, recovery_s=3600, backend=make_backend(), clock=ManualClock())
    await fail_on_the_loop(breaker)
    with pytest.raises(CircuitOpen) as raised:
        await breaker.call(lambda: 1)
    assert raised.value.retry_after_s is not None
    assert 3000 < raised.value.retry_after_s <= 3600


@pytest.mark.skipif(FOUND is None, reason=REASON)
async def test_e2_while_the_server_is_gone_calls_are_let_through(caplog: pytest.LogCaptureFixture) -> None:
    with redis_server() as url:
        backend = RedisBreakerState(url)
        breaker = CircuitBreaker("b", threshold=1, recovery_s=3600, backend=backend)
        await fail_on_the_loop(breaker)
        with pytest.raises(CircuitOpen):
            await breaker.call(lambda: 1)
        under_way = CircuitBreaker("c", backend=backend).guard()
        await under_way.__aenter__()
    assert await breaker.call(lambda: 1) == 1
    await under_way.__aexit__(None, None, None)
    assert "the breaker b is not asked, and its call is let through" in caplog.text
    assert "the breaker c is not told that a call succeeded" in caplog.text
    with pytest.raises(PersistenceError, match="the breaker b cannot be read"):
        await breaker.report()
    backend.close()


async def test_a_caller_who_is_cancelled_while_it_asks_holds_no_slot(
    make_backend: MakeBackend, clock: ManualClock
) -> None:
    breaker = CircuitBreaker("b", threshold=1, recovery_s=10, probe_s=3600, backend=make_backend(clock))
    await fail_on_the_loop(breaker)
    clock.jump(10)
    asking = asyncio.create_task(breaker.call(lambda: 1))
    await asyncio.sleep(0)  # Its question is on the way.
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking
    answers: list[int] = []
    while not answers:
        with suppress(CircuitOpen):
            answers.append(await breaker.call(lambda: 2))
    assert answers == [2]


def test_a_url_that_is_none_is_refused() -> None:
    pytest.importorskip("redis")
    with pytest.raises(ConfigError, match="no URL of a Redis server"):
        RedisBreakerState("weather")
