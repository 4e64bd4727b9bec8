"""A breaker decides from its log: what it leaves there, with what, and how it goes on from it."""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

import refold
from refold.actors import EventSourcedSystem, ManualClock
from refold.events.core.pure_core import evolve_all
from refold.events.core.records import StoredEvent
from refold.events.kinds.breaker import BREAKER_CORE, BreakerState, CallEnd, ConfigureBreaker, Permit
from refold.events.session.events import ToolCallFailed
from refold.providers import FallbackProvider
from refold.resilience import CircuitBreaker
from refold.stores import EventStore, InMemoryStore, SQLiteStore
from tests.conformance.failing_store import FailingStore, When
from tests.conformance.sessions import assert_sound as assert_sound_run
from tests.conformance.sessions import crash, events_of, results_of
from tests.conformance.sessions import runtime_of as session_runtime_of
from tests.resilience.breaker_model import OfCore
from tests.resilience.conftest import assert_sound, fail, fail_on_the_loop, runtime_of

ENDS: list[tuple[BaseException | None, CallEnd]] = [
    (OSError("no"), "failed"),
    (OSError("no"), "failed"),
    (None, "succeeded"),
    (asyncio.CancelledError(), "neither"),
]
DOWN = refold.ProviderError("refused", kind="connection", retryable=True)


def breaker_of(name: str = "weather", **settings: float) -> CircuitBreaker:
    return CircuitBreaker(name, **{"threshold": 2, "recovery_s": 10, **settings})  # type: ignore[arg-type]


async def types_in(log: EventStore, stream: str = "breaker/weather") -> list[str]:
    return [type(event).__name__ for event in BREAKER_CORE.codec.decode_all(await log.read_stream(stream))]


async def folded(log: EventStore, stream: str = "breaker/weather") -> BreakerState:
    return evolve_all(BREAKER_CORE, BREAKER_CORE.codec.decode_all(await log.read_stream(stream)))


def weather_of(
    breaker: CircuitBreaker | None, *errors: Exception, name: str = "weather", **rules: Any
) -> refold.Tool[..., Any]:
    """Return a tool whose calls fail with one error after the other, and then succeed."""
    left = list(errors)

    @refold.tool(name=name, effect="pure", breaker=breaker, **rules)
    async def weather() -> str:
        """Forecast."""
        if left:
            raise left.pop(0)
        return "sunny"

    return weather


# From one process to the next


async def test_e1_its_state_survives_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    log = tmp_path / "events.db"
    breaker = breaker_of()
    async with runtime_of(log, clock, breaker):
        fail(breaker, 1)
    breaker = breaker_of()
    async with runtime_of(log, clock, breaker):
        assert (await breaker.report()).failures == 1
        fail(breaker, 1)
        before = await breaker.report()
    await clock.advance(4)
    again = breaker_of()
    async with runtime_of(log, clock, again):
        with pytest.raises(refold.CircuitOpen, match="since breaker/weather@3") as raised:
            await again.call(lambda: 1)
        assert (raised.value.retry_after_s, raised.value.opened) == (6, "breaker/weather@3")
        assert (await again.report()).error == before.error == "OSError: no route"
        await clock.advance(6)
        assert await again.call(lambda: 1) == 1
    last = breaker_of()
    async with runtime_of(log, clock, last):
        report = await last.report()
        assert (report.phase, report.generation, report.closed_at) == ("closed", 2, clock.now_us())


async def test_e1_a_probe_that_died_with_its_process_gives_up_its_slot(tmp_path: Path, clock: ManualClock) -> None:
    log = tmp_path / "events.db"
    breaker = breaker_of(probe_s=5)
    async with runtime_of(log, clock, breaker):
        fail(breaker, 2)
        await clock.advance(10)
        await breaker.guard().begin()
    again, second = breaker_of(probe_s=5), breaker_of(probe_s=5)
    async with runtime_of(log, clock, again) as runtime:
        probe = again.guard()
        await probe.begin()
        runtime.tools.register(weather_of(second))  # It finds a probe of this process, which keeps its slot.
        await runtime.tools_in_force()
        for same in (again, second):
            with pytest.raises(refold.CircuitOpen):
                await same.call(lambda: 1)
        await probe.end(None)
        assert await second.call(lambda: 1) == 1
    store = await SQLiteStore.open(log)
    assert (await types_in(store))[-4:] == ["ProbeBegun", "ProbeReleased", "ProbeBegun", "CircuitClosed"]
    await store.close()


async def test_a_call_that_was_the_probe_is_made_again_when_its_run_goes_on() -> None:
    """The log is cut off behind the beginning of the probe."""
    log, clock = FailingStore(InMemoryStore()), ManualClock()
    asked = asyncio.Event()
    calls: list[str] = []

    def tool_of(life: str) -> refold.Tool[..., Any]:
        @refold.tool(name="weather", effect="pure", breaker=breaker_of(threshold=1))
        async def weather() -> str:
            """Forecast."""
            calls.append(life)
            if len(calls) == 1:
                raise OSError("down")
            if life == "first":
                asked.set()
                await asyncio.Event().wait()
            return "sunny"

        return weather

    script = [refold.use("weather", {}), refold.say("down"), refold.use("weather", {})]
    runtime = session_runtime_of(log, *script, tools=[tool_of("first")], clock=clock, close_grace_s=0)
    async with runtime:
        session = await runtime.session("s")
        await session.send("go")
        await clock.advance(10)
        sending = asyncio.create_task(session.send("again", key="k"))
        await asked.wait()
        while (await types_in(log))[-1] != "ProbeBegun":  # noqa: ASYNC110 - As a user would look.
            await asyncio.sleep(0)
        await crash(runtime, log, clock)
        await asyncio.gather(sending, return_exceptions=True)
    async with session_runtime_of(log, refold.say("well"), tools=[tool_of("second")], clock=clock) as runtime:
        assert (await (await runtime.session("s")).send("again", key="k")).text == "well"
    assert calls == ["first", "first", "second"]
    assert (await types_in(log))[-4:] == ["ProbeBegun", "ProbeReleased", "ProbeBegun", "CircuitClosed"]
    await assert_sound(log)


KILLED = """
import asyncio, os, signal, sys
from refold import AgentConfig, AgentRuntime, ScriptedProvider
from refold.resilience import CircuitBreaker
breaker = CircuitBreaker("weather", threshold=9)

def fail():
    try:
        with breaker.guard():
            raise OSError("no route")
    except OSError:
        print("failed", flush=True)

async def main():
    provider = ScriptedProvider([])
    async with AgentRuntime(AgentConfig(model="m"), provider=provider, log=sys.argv[1], objects=[breaker]):
        try:
            async with breaker.guard():
                raise OSError("no route")
        except OSError:
            print("failed", flush=True)
        await asyncio.to_thread(fail)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_what_a_guard_has_let_out_is_counted_after_a_kill(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    for life in (1, 2):
        child = await asyncio.create_subprocess_exec(sys.executable, "-P", "-c", KILLED, log, stdout=PIPE)
        assert (await child.communicate())[0] == b"failed\n" * 2
        assert child.returncode == -signal.SIGKILL
        store = await SQLiteStore.open(log)
        assert (await folded(store)).failures == 2 * life
        await store.close()


async def test_wherever_a_process_ends_the_next_one_has_the_count_that_its_log_tells() -> None:
    """The log is cut off behind each of its commits in turn."""
    commits = 0
    while commits < 60:
        commits += 1
        log, clock = FailingStore(InMemoryStore()), ManualClock()
        script: list[Any] = [
            refold.use("weather", {}),
            refold.use("weather", {}),
            refold.say("well"),
            refold.use("weather", {}),
            refold.say("done"),
        ]
        breaker = breaker_of(threshold=9)
        errors = [OSError("one"), OSError("two")]
        runtime = refold.AgentRuntime(
            refold.AgentConfig(model="m"),
            provider=refold.ScriptedProvider(script),
            tools=[weather_of(breaker, *errors)],
            log=log,
            clock=clock,
            close_grace_s=0,
        )
        async with runtime:
            session, went_off = await runtime.session("s"), log.go_off_after(commits)
            sending = [asyncio.create_task(session.send(text)) for text in ("go", "again")]
            while not went_off.is_set() and not all(sent.done() for sent in sending):
                await clock.advance(0)
            over = not went_off.is_set()
            await crash(runtime, log, clock)
            await asyncio.gather(*sending, return_exceptions=True)
        ends = [type(event).__name__ for event in await _session_events(log) if "ToolCall" in type(event).__name__]
        failed = 0
        for end in ends:
            failed = failed + 1 if end == "ToolCallFailed" else 0 if end == "ToolCallCompleted" else failed
        assert (await folded(log)).failures == failed, (commits, ends)
        if over:
            break
    assert 8 < commits < 60


async def _session_events(log: EventStore) -> list[Any]:
    from refold.events import SESSION_CODEC

    return SESSION_CODEC.decode_all(await log.read_stream("session/s"))


# What is recorded, with what, and what is not


async def test_what_changes_the_circuit_is_recorded_and_nothing_else(clock: ManualClock) -> None:
    log = InMemoryStore()
    breaker = breaker_of()
    async with runtime_of(log, clock, breaker) as runtime:
        commits = runtime.commits
        for _ in range(50):
            await breaker.call(lambda: 1)
        assert runtime.commits == commits
        fail(breaker, 1)
        await breaker.call(lambda: 1)
        await fail_on_the_loop(breaker, 2)
        await clock.advance(10)
        with suppress(asyncio.CancelledError), breaker.guard():
            raise asyncio.CancelledError
        fail(breaker, 1)
        await clock.advance(10)
        assert await breaker.call(lambda: 1) == 1
        assert await breaker.read(lambda state: state) == await folded(log)
    failing = ["FailureCounted", "FailuresCleared", "FailureCounted", "CircuitOpened"]
    probing = ["ProbeBegun", "ProbeReleased", "ProbeBegun", "CircuitOpened", "ProbeBegun", "CircuitClosed"]
    assert await types_in(log) == ["BreakerConfigured", *failing, *probing]
    await assert_sound(log)


async def test_settings_are_recorded_where_they_differ_and_no_stream_begins_before_there_is_need(
    clock: ManualClock,
) -> None:
    log = InMemoryStore()
    async with runtime_of(log, clock, CircuitBreaker("weather")):
        pass
    assert await log.head("breaker/weather") is None
    for threshold in (2, 2, 3):
        async with runtime_of(log, clock, breaker_of(threshold=threshold)):
            pass
    assert await types_in(log) == ["BreakerConfigured"] * 2


async def run_once(runtime: refold.AgentRuntime) -> int:
    """Return how many commits an input, one tool call and the final answer cost."""
    session = await runtime.session("s")
    before = runtime.commits
    assert (await session.send("go")).outcome == refold.Completed()
    return runtime.commits - before


@pytest.mark.parametrize("guarded", [False, True])
async def test_a_run_with_one_tool_call_costs_four_commits_also_where_it_fails(guarded: bool) -> None:
    log = FailingStore(InMemoryStore())
    script = [item for _ in range(3) for item in (refold.use("weather", {}), refold.say("Sunny."))]
    provider: Any = refold.ScriptedProvider(script)
    if guarded:
        provider = FallbackProvider([refold.ScriptedProvider([DOWN] * 9), provider])
    tools = [weather_of(CircuitBreaker("weather") if guarded else None, OSError("1"), OSError("2"), concurrency=1)]
    async with session_runtime_of(log, provider=provider, tools=tools) as runtime:
        assert await run_once(runtime) <= 5, "the first run has the tool defined, in its own stream"
        assert await run_once(runtime) == 4
        assert log.commits_of("session/s") == 8
        assert await run_once(runtime) == 4
    await assert_sound_run(log)


def parts_of(log: FailingStore, stream: str) -> list[set[str]]:
    """Return what else was in each transaction with something of a stream."""
    return [set(streams) - {stream} for streams in log.commits if stream in streams]


async def causes_in(log: EventStore, stream: str) -> list[tuple[str, str | None]]:
    """Return the types of what is in a stream, and of the event of a session that each follows from."""
    found: list[tuple[str, str | None]] = []
    for stored in await log.read_stream(stream):
        cause = None
        if stored.causation is not None:
            of, _, version = stored.causation.rpartition("@")
            cause = _type_of((await log.read_stream(of, after_version=int(version) - 1, limit=1))[0])
        found.append((_type_of(stored), cause))
    return found


def _type_of(stored: StoredEvent) -> str:
    return str(msgspec.json.decode(stored.data)["type"]).split(".")[1]


@pytest.mark.parametrize("in_thread", [False, True])
async def test_what_a_call_brings_is_in_the_transaction_of_its_end_which_is_its_cause(in_thread: bool) -> None:
    log, clock = FailingStore(InMemoryStore()), ManualClock()
    first = refold.ScriptedProvider([DOWN, DOWN, refold.say("back again")])
    second = refold.ScriptedProvider(
        [[refold.use("weather", {}), refold.use("weather", {})], refold.say("Rain."), refold.say("from the second")]
    )
    breakers = [breaker_of("first"), breaker_of("second")]
    provider = FallbackProvider([first, second], breakers=breakers)
    inside = breaker_of("inside", threshold=9)

    def forecast() -> str:
        """Forecast."""
        with inside.guard():
            raise ConnectionError("no route")

    async def forecast_on_loop() -> str:
        """Forecast."""
        async with inside.guard():
            raise ConnectionError("no route")

    weather: refold.Tool[..., Any] = refold.tool(tier="observe", effect="pure", name="weather", breaker=breaker_of())(
        forecast_on_loop
    )
    if in_thread:  # One after the other, or those that end at one moment could change places on the way to the log.
        weather = refold.tool(tier="act", effect="pure", name="weather", breaker=breaker_of())(forecast)

    async with session_runtime_of(
        log, provider=provider, tools=[weather], objects=[inside], clock=clock, close_grace_s=0
    ) as runtime:
        session = await runtime.session("s")
        assert (await session.send("go")).text == "Rain."
        assert (await session.send("again")).text == "from the second"
        assert (len(first.requests), log.commits_of("session/s")) == (2, 7)
        await clock.advance(10)
        assert (await session.send("again")).text == "back again"
    assert await causes_in(log, "breaker/first") == [
        ("configured", None),
        ("failure_counted", "model_responded"),
        ("opened", "model_responded"),
        ("probe_begun", "model_requested"),
        ("closed", "model_responded"),
    ]
    ended = ("tool_call_failed", "tool_call_failed")
    for name, kinds in (("weather", ("failure_counted", "opened")), ("inside", ("failure_counted", "failure_counted"))):
        assert (await causes_in(log, f"breaker/{name}"))[1:] == list(zip(kinds, ended, strict=True))
    assert await log.head("breaker/second") is not None
    assert await types_in(log, "breaker/second") == ["BreakerConfigured"]
    together = [{"session/s"}, {"session/s"}]
    assert parts_of(log, "breaker/first")[1:3] == together
    assert parts_of(log, "breaker/weather")[1:] == [{"session/s", "breaker/inside"}] * 2
    await assert_sound_run(log)


async def test_where_nothing_is_recorded_of_a_calls_end_what_it_brought_is_recorded_nevertheless() -> None:
    log, clock = InMemoryStore(), ManualClock()

    @refold.tool(effect="pure", breaker=breaker_of())
    async def weather() -> str:
        """Fail when it is cancelled."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("no route") from None
        return "never"

    async with session_runtime_of(log, refold.use("weather", {}), tools=[weather], clock=clock) as runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("go"))
        await clock.advance(1)
        await session.cancel()
        await sending
    assert (await causes_in(log, "breaker/weather"))[1:] == [("failure_counted", "tool_result_late")]


@pytest.mark.parametrize("kind", ["tool", "provider"])
async def test_a_refused_call_names_the_breaker_and_the_event_that_opened_it(kind: str) -> None:
    log, clock, breaker = InMemoryStore(), ManualClock(), breaker_of(threshold=1)
    if kind == "tool":
        script = [refold.use("weather", {}), refold.use("weather", {}), refold.say("No idea.")]
        runtime = session_runtime_of(log, *script, tools=[weather_of(breaker, OSError("no route"))], clock=clock)
    else:
        config = refold.AgentConfig(model="m", retry=refold.RetryPolicy(attempts_max=1))
        provider = FallbackProvider([refold.ScriptedProvider([DOWN])], breakers=[breaker])
        runtime = session_runtime_of(log, provider=provider, config=config, clock=clock)
    async with runtime:
        session = await runtime.session("s")
        if kind == "tool":
            await session.send("go")
            said = (await results_of(session))[-1].text
            assert [event.kind for event in await events_of(session, ToolCallFailed)] == ["permanent", "shed"]
        else:
            await session.send("go")
            said = str((await session.send("go")).outcome)
    assert "weather" in said
    assert "breaker/weather@2" in said
    assert await types_in(log) == ["BreakerConfigured", "CircuitOpened"]


# One name, one circuit


async def test_agents_whose_providers_have_one_name_share_a_circuit(clock: ManualClock) -> None:
    log = InMemoryStore()
    down, other = refold.ScriptedProvider([DOWN] * 9), refold.ScriptedProvider([DOWN] * 9)

    def agent_of(name: str, first: refold.ScriptedProvider, *answers: Any, **options: Any) -> refold.Agent:
        provider = FallbackProvider([first, refold.ScriptedProvider(answers)], breakers=[breaker_of("openai"), None])
        return refold.Agent(name=name, config=refold.AgentConfig(model="m"), provider=provider, **options)

    helper = agent_of("helper", other, refold.say("helped"))
    main = agent_of("main", down, refold.use("helper", {"task": "go"}), refold.say("done"), tools=[helper.as_tool()])
    async with refold.AgentRuntime(main, log=log, clock=clock) as runtime:
        assert (await (await runtime.session("s")).send("go")).text == "done"
    assert (len(down.requests), len(other.requests)) == (1, 1), "the third call found it open"
    assert await types_in(log, "breaker/openai") == ["BreakerConfigured", "FailureCounted", "CircuitOpened"]
    async with refold.AgentRuntime(agent_of("later", down, refold.say("helped")), log=log, clock=clock) as runtime:
        assert (await (await runtime.session("later")).send("go")).text == "helped"
    assert len(down.requests) == 1, "an agent of the next runtime finds it open"
    with pytest.raises(
        refold.ConfigError, match=r"the stream breaker/openai; give each .* or breakers of one name the same"
    ):
        agent_of("other", down, objects=[CircuitBreaker("openai", threshold=7)])


async def test_a_tool_that_is_registered_later_shares_the_circuit_of_its_name(
    tmp_path: Path, clock: ManualClock
) -> None:
    script = [refold.use("weather", {}), refold.use("another", {}), refold.use("another", {}), refold.say("No idea.")]
    runtime = runtime_of(tmp_path / "events.db", clock, script=script)
    runtime.tools.register(weather_of(breaker_of(), OSError("1")))
    async with runtime:
        runtime.tools.register(weather_of(breaker_of(), OSError("2"), name="another"))
        with pytest.raises(refold.ConfigError, match="the stream breaker/weather"):
            runtime.tools.register(weather_of(breaker_of(threshold=3), name="third"))
        assert runtime.tools.names() == ("another", "weather")
        session = await runtime.session("alice")
        await session.send("How will the weather be?")
        assert [event.kind for event in await events_of(session, ToolCallFailed)] == ["permanent"] * 2 + ["shed"]
        assert await types_in(runtime.store) == ["BreakerConfigured", "FailureCounted", "CircuitOpened"]
    await assert_sound(tmp_path / "events.db")


# Before a runtime, and after it


@pytest.mark.parametrize(("failures", "left"), [(1, ["FailureCounted"]), (2, ["CircuitOpened"])])
async def test_what_happened_before_a_runtime_counts_in_it_once(
    clock: ManualClock, failures: int, left: list[str]
) -> None:
    log = InMemoryStore()
    for _ in range(2):  # The same program, started twice.
        breaker = breaker_of(recovery_s=30)
        fail(breaker, failures)
        async with runtime_of(log, clock, breaker):
            assert (await breaker.report()).failures == failures
    assert await types_in(log) == ["BreakerConfigured", *left]


async def test_a_tool_registered_in_another_thread_brings_its_open_circuit(tmp_path: Path, clock: ManualClock) -> None:
    first, second = (CircuitBreaker("weather", threshold=2, recovery_s=10, clock=clock) for _ in range(2))
    async with runtime_of(tmp_path / "events.db", clock, CircuitBreaker("other")) as runtime:
        fail(first, 2)
        await asyncio.to_thread(runtime.tools.register, weather_of(first))
        runtime.tools.remove("weather")
        runtime.tools.register(weather_of(second))
        await runtime.tools_in_force()
        assert (await second.report()).phase == "open"
        assert await types_in(runtime.store) == ["BreakerConfigured", "CircuitOpened"]
    runtime.tools.register(weather_of(CircuitBreaker("after the end"), name="late"))


async def test_after_its_runtime_it_goes_on_in_memory(clock: ManualClock) -> None:
    breaker = breaker_of()
    async with EventSourcedSystem(clock=clock) as system:
        await breaker.attach(system.host)
        await asyncio.to_thread(fail, breaker, 1)
    fail(breaker, 1)
    with pytest.raises(refold.CircuitOpen) as raised:
        await breaker.call(lambda: 1)
    assert raised.value.opened is None


# A log that fails


async def test_a_log_that_fails_stops_no_call_and_gets_what_it_missed(clock: ManualClock) -> None:
    log = FailingStore(InMemoryStore())
    breaker = breaker_of()
    async with runtime_of(log, clock, breaker):
        log.fail_appends(lambda: refold.PersistenceError("no space left"))
        await fail_on_the_loop(breaker, 2)
        with pytest.raises(refold.CircuitOpen):
            await breaker.call(lambda: 1)
        await clock.advance(10)
        assert await breaker.call(lambda: 1) == 1
        with pytest.raises(refold.PersistenceError):
            await breaker.read(lambda state: state)
        log.mend()
        await clock.advance(100)
        assert (await breaker.report()).phase == "closed"
        assert (await types_in(log))[1:] == ["FailureCounted", "CircuitOpened", "ProbeBegun", "CircuitClosed"]


async def test_whatever_fails_of_the_log_each_call_counts_once(clock: ManualClock) -> None:
    """Many lives, in which appends fail before and after they took effect, beside the core alone."""
    for seed in range(60):
        random, log, core = Random(seed), FailingStore(InMemoryStore()), OfCore()
        breaker = breaker_of(threshold=3, probe_s=4)
        calls: list[tuple[Permit, Permit]] = []
        async with EventSourcedSystem(log, clock=clock) as system:
            await breaker.attach(system.host)
            core.state = BreakerState()
            core.perform(ConfigureBreaker(threshold=3, recovery_us=10_000_000, probe_us=4_000_000), 1)
            for _ in range(30):
                match random.choice(["begin", "begin", "end", "end", "wait", "fail", "mend", "turn"]):
                    case "begin":
                        with suppress(refold.CircuitOpen):
                            expected = core.begin("weather", breaker.settings, clock.now_us())
                            permit = breaker.begin().get()
                            assert permit == expected
                            calls.append((permit, expected))
                    case "end" if calls:
                        permit, expected = calls.pop(random.randrange(len(calls)))
                        error, end = random.choice(ENDS)
                        breaker.end(permit, error)
                        core.settle("weather", breaker.settings, expected, end, "OSError: no", clock.now_us())
                    case "wait":
                        await clock.advance(random.choice([1, 4, 10]))
                    case "fail":
                        when: When = random.choice(["before", "after"])
                        log.fail_appends(
                            lambda: refold.PersistenceError("it failed"), when=when, times=random.randint(1, 3)
                        )
                    case "mend":
                        log.mend()
                    case _:
                        await asyncio.sleep(0)
            log.mend()
            await clock.advance(100)
            state = await breaker.read(lambda state: state)
            assert state == core.state == await folded(log), seed


@pytest.mark.parametrize("when", ["before", "after"])
async def test_whichever_append_fails_once_a_run_counts_its_failures_once(when: When) -> None:
    for number in range(3, 14):
        log, clock = FailingStore(InMemoryStore()), ManualClock()
        breaker = breaker_of(threshold=9)
        script = [refold.use("weather", {}), refold.use("weather", {}), refold.say("done")]
        tools = [weather_of(breaker, OSError("one"), OSError("two"))]
        async with session_runtime_of(log, *script, tools=tools, clock=clock) as runtime:
            session = await runtime.session("s")
            log.fail_append(number, lambda: refold.PersistenceError("it failed"), when=when)
            sending = asyncio.create_task(session.send("go"))
            for _ in range(20):
                await clock.advance(5)
            if sending.done() and sending.exception() is not None:  # The input itself was refused.
                await session.send("go")
            assert (await sending).outcome == refold.Completed() if sending.exception() is None else True
        failed = [event for event in await _session_events(log) if isinstance(event, ToolCallFailed)]
        assert (await folded(log)).failures == len(failed) == 2, number
