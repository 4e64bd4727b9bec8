"""A user's own core, hosted: what it decides is recorded, its work is done, and its faults cost one message each."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from refold.actors import ActorFailure, ActorRef, ActorStopped, EventSourcedSystem, Hosted, ManualClock, Performed
from refold.actors.hosted import BeginWork
from refold.actors.shell.messages import CancelEffect
from refold.events import (
    CommandRejected,
    CoreFailed,
    Effect,
    Event,
    EventCodec,
    KeyedCommand,
    KeyedEvent,
    PureCore,
    RecordedEvent,
    State,
    WaitUntil,
)
from refold.events.core.errors import ConfigError, LogFormatError, PersistenceError
from refold.events.core.records import EncodedBatch
from refold.replay import replay, state_at
from refold.stores import InMemoryStore

# A core: names are collected, and jobs are wanted, done and given up


class Collect(KeyedCommand, frozen=True, kw_only=True):
    names: list[str]


class Want(msgspec.Struct, frozen=True):
    job: str
    tags: list[str] = []


class Finish(msgspec.Struct, frozen=True):
    job: str
    what: str = ""


class Drop(msgspec.Struct, frozen=True):
    job: str


class Break(msgspec.Struct, frozen=True):
    where: str


class Collected(KeyedEvent, frozen=True, kw_only=True, tag="jobs.collected.v1"):
    names: list[str]


class Sorted(Event, frozen=True, kw_only=True, tag="jobs.sorted.v1"):
    names: list[str]


class Wanted(Event, frozen=True, kw_only=True, tag="jobs.wanted.v1"):
    job: str
    tags: list[str] = []


class Finished(Event, frozen=True, kw_only=True, tag="jobs.finished.v1"):
    job: str
    what: str = ""


class Dropped(Event, frozen=True, kw_only=True, tag="jobs.dropped.v1"):
    job: str


class Broken(Event, frozen=True, kw_only=True, tag="jobs.broken.v1"):
    where: str


Command = Collect | Want | Finish | Drop | Break
JobEvent = Collected | Sorted | Wanted | Finished | Dropped | Broken


class Work(Effect, frozen=True, kw_only=True):
    job: str
    tags: list[str] = []


class Jobs(State):
    names: list[str] = []
    wanted: dict[str, list[str]] = {}
    finished: dict[str, str] = {}


class JobCore(PureCore[Jobs, Command, JobEvent]):
    def admit(self, state: Jobs, command: Command) -> JobEvent:
        match command:
            case Collect(names=names):
                if not names:
                    raise CommandRejected("no names")
                return Collected(names=names)
            case Want(job=job, tags=tags):
                return Wanted(job=job, tags=tags)
            case Finish(job=job, what=what):
                if what == "refused":
                    raise CommandRejected("this is no end")
                return Finished(job=job, what=what)
            case Drop(job=job):
                return Dropped(job=job)
            case Break(where=where):
                if where == "admit":
                    state.names.append("half done")
                    raise KeyError("a fault of admit")
                return Broken(where=where)

    def evolve(self, state: Jobs, event: JobEvent) -> Jobs:
        match event:
            case Collected(names=names):
                state.names = names
            case Sorted():
                state.names.sort()
            case Wanted(job=job, tags=tags):
                state.wanted[job] = tags
            case Finished(job=job, what=what):
                if what != "goes on":
                    state.wanted.pop(job, None)
                state.finished[job] = what
            case Dropped(job=job):
                state.wanted.pop(job, None)
            case Broken(where=where):
                state.names.append("half done")
                if where == "evolve":
                    raise ZeroDivisionError("a fault of evolve")
        return state

    def react(self, state: Jobs, event: JobEvent) -> list[JobEvent]:
        match event:
            case Collected():
                return [Sorted(names=state.names)]
            case Broken(where="react"):
                raise RecursionError("a fault of react")
            case _:
                return []

    def pending(self, state: Jobs) -> list[Effect]:
        return [
            WaitUntil(key=f"wait:{job}", due_at=int(job.partition("@")[2]))
            if "@" in job
            else Work(key=f"work:{job}", job=job, tags=tags)
            for job, tags in state.wanted.items()
        ]

    def due(self, effect: WaitUntil) -> Command:
        job = effect.key.removeprefix("wait:")
        return Finish(job, "refused" if job.startswith("never") else "in time")

    def failed(self, effect: Effect, error: Exception) -> Command | None:
        return Finish(effect.key.removeprefix("work:"), f"failed: {error}") if "told" in effect.key else None


class Outside:
    """The world that work is done in."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.cancelled: list[str] = []
        self.effects: list[Work] = []
        self.gates: dict[str, asyncio.Future[Command | None]] = {}

    async def perform(self, effect: Work) -> Command | None:
        self.begun.append(effect.job)
        self.effects.append(effect)
        if effect.job.startswith("slow"):
            gate = self.gates[effect.job] = asyncio.get_running_loop().create_future()
            try:
                command: Command | None = await gate
                return command
            except asyncio.CancelledError:
                self.cancelled.append(effect.job)
                if "late" in effect.job:
                    return Finish(effect.job, "after all")
                raise
        if "raises" in effect.job:
            raise ConnectionError(f"{effect.job} cannot be reached")
        if "nothing" in effect.job:
            return None
        if "refused" in effect.job:
            return Finish(effect.job, "refused")
        return Finish(effect.job, "done")


class World:
    """A system on a clock that stands still, its log in memory, so that it can be opened again."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = InMemoryStore()
        self.outside = Outside()
        self.failures: list[ActorFailure] = []
        self.seen: list[RecordedEvent[JobEvent]] = []

    def system(self, **options: Any) -> EventSourcedSystem:
        options = {"close_grace_s": 0, **options}
        return EventSourcedSystem(self.store, clock=self.clock, on_failure=self.failures.append, **options)

    async def host(self, system: EventSourcedSystem) -> Hosted[Jobs, Command]:
        hosted = await system.host("jobs", JobCore, perform=self.outside.perform, on_event=self.seen.append)
        await self.clock.settle()
        return hosted

    async def events(self, identifier: str) -> list[JobEvent]:
        stored = await self.store.read_stream(f"jobs/{identifier}")
        return [msgspec.structs.replace(event, at=0) for event in CODEC.decode_all(stored)]

    async def assert_live_is_folded(self, jobs: Hosted[Jobs, Command], identifier: str) -> None:
        live = await jobs.read(identifier, lambda state: state)
        assert live == await state_at(self.store, f"jobs/{identifier}", JobCore)
        (await replay(self.store, kinds={"jobs": JobCore})).raise_for_divergence()


CODEC: EventCodec[JobEvent] = EventCodec([Collected, Sorted, Wanted, Finished, Dropped, Broken])


@pytest.fixture
def world() -> World:
    return World()


async def test_a_command_is_recorded_with_what_follows_and_its_version_is_the_reply(world: World) -> None:
    async with world.system() as system:
        jobs = await world.host(system)
        assert await jobs.ask("one", Collect(names=["b", "a"])) == Performed(1, True)
        assert await jobs.ask("one", Collect(names=["c"])) == Performed(3, True)
        assert await jobs.read("one", lambda state: (state.version, state.names)) == (4, ["c"])
        assert await jobs.read("two", lambda state: state.version) == 0
        assert [(seen.version, seen.batch, type(seen.event).__name__) for seen in world.seen] == [
            (1, 1, "Collected"),
            (2, 1, "Sorted"),
            (3, 3, "Collected"),
            (4, 3, "Sorted"),
        ]
        await world.assert_live_is_folded(jobs, "one")


async def test_a_keyed_command_takes_effect_once_also_after_a_restart(world: World) -> None:
    once = Collect(names=["a"], key="k")
    async with world.system() as system:
        jobs = await world.host(system)
        assert await jobs.ask("one", once) == Performed(1, True)
        assert await jobs.ask("one", once) == Performed(1, False)
        assert await jobs.ask("two", once) == Performed(1, True)
    async with world.system() as system:
        jobs = await world.host(system)
        assert await jobs.ask("one", once) == Performed(1, False)
        with pytest.raises(CommandRejected, match="key 'k' was used for another command, at version 1"):
            await jobs.ask("one", Collect(names=["b"], key="k"))
        assert await world.events("one") == [
            Collected(names=["a"], command=world.seen[0].event.command),  # type: ignore[union-attr]
            Sorted(names=["a"]),
        ]


async def test_a_refusal_and_a_message_that_is_no_command_cost_nothing(world: World) -> None:
    async with world.system() as system:
        jobs = await world.host(system)
        with pytest.raises(CommandRejected, match="no names"):
            await jobs.ask("one", Collect(names=[]))
        with pytest.raises(ConfigError, match=r"jobs/one takes the commands of JobCore \(Collect, .*\), not 'hello'"):
            await jobs.ref("one").ask("hello", block=False)
        jobs.tell("one", Collect(names=[]))
        assert await jobs.ask("one", Collect(names=["a"])) == Performed(1, True)
        assert [parked.reason for parked in system.parked] == ["the actor refused it: CommandRejected: no names"]
    assert world.failures == []


# Nobody outside holds a part of the state


async def test_case_h10_a_list_that_its_sender_changes_after_sending_changes_nothing(world: World) -> None:
    async with world.system() as system:
        jobs = await world.host(system)
        names = ["b", "a"]
        await jobs.ask("one", Collect(names=names))
        names.append("sneaked in")
        assert await jobs.read("one", lambda state: state.names) == ["a", "b"]
        await world.assert_live_is_folded(jobs, "one")


async def test_an_event_is_recorded_as_it_was_decided_whatever_the_state_makes_of_its_parts(world: World) -> None:
    async with world.system() as system:
        jobs = await world.host(system)
        await jobs.ask("one", Collect(names=["b", "a"]))  # Kept by the state, and sorted in place by what follows.
        assert await world.events("one") == [Collected(names=["b", "a"]), Sorted(names=["b", "a"])]
        assert [seen.event.names for seen in world.seen] == [["b", "a"], ["b", "a"]]  # type: ignore[union-attr]


async def test_case_h10_what_a_reader_a_listener_or_work_was_given_is_theirs_to_change(world: World) -> None:
    async with world.system() as system:
        jobs = await world.host(system)
        await jobs.ask("one", Want("slow", ["urgent"]))
        (await jobs.read("one", lambda state: state.wanted))["slow"].append("by a reader")
        world.seen[0].event.tags.append("by a listener")  # type: ignore[union-attr]
        await world.clock.settle()
        world.outside.effects[0].tags.append("by the work")
        assert await jobs.read("one", lambda state: state.wanted) == {"slow": ["urgent"]}
        await world.assert_live_is_folded(jobs, "one")


async def test_a_question_that_fails_is_its_askers_error(world: World) -> None:
    async with world.system() as system:
        jobs = await world.host(system)
        with pytest.raises(KeyError, match="nobody"):
            await jobs.read("one", lambda state: state.finished["nobody"])
    assert world.failures == []


# Faults of the core, of which there are more in `test_hosted_core_faults`


async def append(store: InMemoryStore, identifier: str, events: Sequence[JobEvent]) -> None:
    """Append as other code would have done it."""
    data = tuple(CODEC.encode(event) for event in events)
    await store.append([EncodedBatch(stream=f"jobs/{identifier}", expected_version=0, at=1, events=data)])  # type: ignore[arg-type]


async def test_a_poison_event_makes_each_message_a_clear_error_and_costs_no_other_actor(world: World) -> None:
    await append(world.store, "one", [Wanted(job="a"), Broken(where="evolve")])
    async with world.system() as system:
        jobs = await world.host(system)
        for _ in range(20):
            with pytest.raises(LogFormatError, match="stream jobs/one: version 2 contradicts the events before it"):
                await jobs.ask("one", Drop("a"))
        with pytest.raises(LogFormatError, match=r"version 2 .* a fault of evolve"):
            await jobs.read("one", lambda state: state)
        jobs.tell("one", Drop("a"))
        assert await jobs.ask("two", Collect(names=["a"])) == Performed(1, True)
        with pytest.raises(LogFormatError):
            await jobs.ask("one", Drop("a"))
        assert len(system.parked) == 1


# Work outside


async def test_work_is_done_and_what_it_brings_is_caused_by_the_event_that_asked_for_it(world: World) -> None:
    async with world.system() as system:
        jobs = await world.host(system)
        await jobs.ask("one", Collect(names=["a"]))
        await jobs.ask("one", Want("a"))
        await world.clock.settle()
        assert await jobs.read("one", lambda state: state.finished) == {"a": "done"}
        finished = world.seen[-1]
        assert (finished.causation, finished.correlation) == ("jobs/one@3", "jobs/one@3")
        await jobs.ask("one", Want("slow"))
        await world.clock.settle()
    async with world.system() as system:
        jobs = await world.host(system)
        world.outside.gates["slow"].set_result(Finish("slow", "done"))
        await world.clock.settle()
        assert (world.seen[-1].version, world.seen[-1].causation) == (6, "jobs/one@5")


async def test_work_left_by_an_earlier_process_goes_on_as_soon_as_its_kind_is_hosted(world: World) -> None:
    await append(world.store, "none", [Collected(names=["a"])])
    async with world.system() as system:
        jobs = await world.host(system)
        for identifier in ("one", "two"):
            await jobs.ask(identifier, Want("slow"))
        await world.clock.settle()
    assert world.outside.begun == ["slow", "slow"]
    async with world.system() as system:
        await world.host(system)
        assert world.outside.begun == ["slow"] * 4
        assert [address for address in system.live() if address.startswith("jobs/")] == ["jobs/one", "jobs/two"]


async def test_work_is_cancelled_when_it_is_no_longer_pending(world: World) -> None:
    async with world.system() as system:
        jobs = await world.host(system)
        await jobs.ask("one", Want("slow"))
        await world.clock.settle()
        await jobs.ask("one", Drop("slow"))
        await world.clock.settle()
        assert world.outside.cancelled == ["slow"]
        assert (await jobs.read("one", lambda state: state.finished)) == {}
        await jobs.ask("one", Want("slow,late"))
        await world.clock.settle()
        await jobs.ask("one", Drop("slow,late"))
        await world.clock.settle()
        assert (await jobs.read("one", lambda state: state.finished)) == {"slow,late": "after all"}


class OfItsOwn(BaseException):
    """What no `except Exception` sees."""


@pytest.mark.parametrize("raised", [asyncio.CancelledError(), SystemExit("x"), OfItsOwn("x")])
async def test_work_that_raises_what_is_no_exception_has_failed(world: World, raised: BaseException) -> None:
    async def perform(effect: Work) -> Command | None:
        raise raised

    async with world.system() as system:
        jobs = await system.host("jobs", JobCore, perform=perform)
        await jobs.ask("one", Want("told"))
        await world.clock.settle()
        finished = await jobs.read("one", lambda state: state.finished["told"])
        assert finished.startswith(f"failed: the work let {raised!r} out")


async def test_work_that_its_worker_is_told_of_twice_is_done_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell = ActorRef.tell

    def twice(ref: ActorRef, message: Any) -> None:
        for _ in range(2 if isinstance(message, BeginWork) else 1):
            tell(ref, message)

    monkeypatch.setattr(ActorRef, "tell", twice)
    async with world.system() as system:
        jobs = await world.host(system)
        await jobs.ask("one", Want("a"))
        await world.clock.settle()
        assert await jobs.read("one", lambda state: state.finished) == {"a": "done"}
    assert world.outside.begun == ["a"]


async def test_work_that_is_cancelled_before_its_first_step_is_not_done_and_does_not_hold_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell, held = ActorRef.tell, list[Any]()

    def both_at_once(ref: ActorRef, message: Any) -> None:
        """Pass work on with its cancellation behind it."""
        if isinstance(message, BeginWork):
            held.append(message)
            return
        for work in held if isinstance(message, CancelEffect) else ():
            tell(ref, work)
        tell(ref, message)

    async with world.system() as system:
        jobs = await world.host(system)
        with monkeypatch.context() as patched:
            patched.setattr(ActorRef, "tell", both_at_once)
            await jobs.ask("one", Want("a"))
            await jobs.ask("one", Drop("a"))
            await world.clock.settle()
        assert world.outside.begun == []
        await jobs.ask("one", Want("b"))
        await world.clock.settle()
        assert world.outside.begun == ["b"]


async def test_work_outlives_the_restart_of_its_actor(world: World) -> None:
    async with world.system() as system:
        jobs = await world.host(system)
        await jobs.ask("one", Want("slow"))
        await world.clock.settle()

        def exit_from_the_actor(_state: Jobs) -> None:
            raise SystemExit

        with pytest.raises(ActorStopped, match="SystemExit"):
            await jobs.read("one", exit_from_the_actor)
        await world.clock.advance(1)
        assert [failure.during for failure in world.failures] == ["message"]
        world.outside.gates["slow"].set_result(Finish("slow", "done"))
        await world.clock.settle()
        assert await jobs.read("one", lambda state: state.finished) == {"slow": "done"}
        assert (world.outside.begun, world.outside.cancelled) == (["slow"], [])


@pytest.mark.parametrize("job", ["raises", "nothing", "refused"])
async def test_work_that_ends_without_a_result_is_done_again_after_growing_pauses(world: World, job: str) -> None:
    async with world.system() as system:
        jobs = await world.host(system)
        await jobs.ask("one", Want(job))
        for seconds, begun in ((0, 1), (0.19, 1), (0.02, 2), (0.38, 2), (0.02, 3), (60, 11)):
            await world.clock.advance(seconds)
            assert len(world.outside.begun) == begun, seconds
        assert len(world.failures) == (0 if job == "nothing" else 11)
        await jobs.ask("one", Drop(job))
        await world.clock.advance(60)
        assert len(world.outside.begun) == 11
        await jobs.ask("one", Want(job))
        await world.clock.advance(0.01)
        assert len(world.outside.begun) == 12
        await jobs.ask("one", Drop(job))
        await jobs.ask("one", Want(job))  # Other work, though it has the same name: it need not wait.
        await world.clock.settle()
        assert len(world.outside.begun) == 13
        await jobs.ask("one", Drop(job))
        await world.assert_live_is_folded(jobs, "one")


async def test_what_the_core_makes_of_a_failure_is_recorded(world: World) -> None:
    async with world.system() as system:
        jobs = await world.host(system)
        await jobs.ask("one", Want("raises,told"))
        await jobs.ask("one", Want("refused,told"))
        await world.clock.settle()
        assert await jobs.read("one", lambda state: state.finished) == {
            "raises,told": "failed: raises,told cannot be reached",
            "refused,told": "failed: this is no end",
        }
    assert len(world.failures) == 1


async def test_work_whose_result_leaves_it_pending_is_done_again_after_a_pause(world: World) -> None:
    async with world.system() as system:
        jobs = await world.host(system)
        await jobs.ask("one", Want("slow"))
        for round_ in range(1, 4):
            await world.clock.advance(0.11)
            assert len(world.outside.begun) == round_
            world.outside.gates["slow"].set_result(Finish("slow", "goes on"))
            await world.clock.settle()
            assert len(world.outside.begun) == round_


async def test_without_anybody_to_do_it_work_is_reported_and_waits_for_a_process_that_can(world: World) -> None:
    async with world.system() as system:
        jobs = await system.host("jobs", JobCore)
        await jobs.ask("one", Want("a"))
        await jobs.ask("one", Collect(names=["b"]))
        await world.clock.advance(60)
    assert [failure.message for failure in world.failures] == [
        "jobs/one asks for work:a, and was hosted without `perform`"
    ]
    async with world.system() as system:
        jobs = await world.host(system)
        assert await jobs.read("one", lambda state: state.finished) == {"a": "done"}


# Times


async def test_a_time_that_comes_is_recorded_also_where_nobody_was_there(world: World) -> None:
    soon, late = (f"at@{world.clock.now_us() + seconds * 1_000_000}" for seconds in (10, 1000))
    async with world.system() as system:
        jobs = await world.host(system)
        await jobs.ask("one", Want(soon))
        await jobs.ask("one", Want(late))
        await world.clock.advance(11)
        assert await jobs.read("one", lambda state: state.finished) == {soon: "in time"}
        assert (world.seen[-1].version, world.seen[-1].causation) == (3, "jobs/one@1")
    world.clock.jump(2000)
    async with world.system() as system:
        jobs = await world.host(system)
        await world.clock.advance(0)
        assert await jobs.read("one", lambda state: state.finished) == {soon: "in time", late: "in time"}


async def test_a_time_whose_command_is_refused_comes_again_after_growing_pauses(world: World) -> None:
    never = f"never@{world.clock.now_us()}"
    async with world.system() as system:
        jobs = await world.host(system)
        await jobs.ask("one", Want(never))
        await world.clock.advance(60)
        assert len(world.failures) == 11
        await jobs.ask("one", Drop(never))
        await world.clock.advance(60)
        assert len(world.failures) == 11


async def test_a_core_that_cannot_say_what_is_pending_costs_its_own_actors_a_clear_error_each_time(
    world: World,
) -> None:
    class Unsure(JobCore):
        def pending(self, state: Jobs) -> list[Effect]:
            if state.wanted:
                raise KeyError("a fault of pending")
            return []

    await append(world.store, "one", [Wanted(job="a")])
    async with world.system() as system:
        jobs = await system.host("jobs", Unsure)
        await world.clock.settle()
        for _ in range(20):
            with pytest.raises(CoreFailed, match=r"Unsure\.pending fails on the Jobs of version 1: KeyError"):
                await jobs.ask("one", Drop("a"))
        with pytest.raises(CoreFailed, match=r"Unsure\.pending fails on the Jobs of version 1: KeyError"):
            await jobs.ask("two", Want("a"))
        assert await jobs.ask("two", Collect(names=["a"])) == Performed(1, True)


@pytest.mark.parametrize("call", range(1, 5))
async def test_a_core_that_fails_once_to_say_what_is_pending_keeps_no_work_from_being_done(
    world: World, call: int
) -> None:
    class Tired(JobCore):
        calls = 0

        def pending(self, state: Jobs) -> list[Effect]:
            if state.wanted:
                self.calls += 1
                if self.calls == call:
                    raise RecursionError("too deep just now")
            return super().pending(state)

    async with world.system(passivate_after_s=60) as system:
        jobs = await system.host("jobs", Tired, perform=world.outside.perform, on_event=world.seen.append)
        while await world.store.head("jobs/one") is None:
            with contextlib.suppress(CoreFailed):
                await jobs.ask("one", Want("told"))
        await world.clock.advance(300)
        assert await jobs.read("one", lambda state: (state.wanted, len(state.finished))) == ({}, 1)
        versions = [recorded.version for recorded in world.seen]
        assert versions == list(range(1, len(versions) + 1))


async def test_an_actor_is_let_go_when_nothing_but_time_passes_and_its_time_finds_it(world: World) -> None:
    async with world.system(passivate_after_s=60) as system:
        jobs = await world.host(system)
        at = world.clock.now_us() + 300_000_000
        await jobs.ask("idle", Collect(names=["a"]))
        await jobs.ask("works", Want("slow"))
        await jobs.ask("waits", Want(f"at@{at}"))
        await world.clock.advance(200)
        stayed = [address for address in system.live() if "/" in address]
        names = await jobs.read("idle", lambda state: state.names)
        await world.clock.advance(101)
        came_back = "jobs/waits" in system.live()
        finished = await jobs.read("waits", lambda state: list(state.finished.values()))
        world.outside.gates["slow"].set_result(Finish("slow", "done"))
        await world.clock.settle()
    assert (stayed, names, came_back, finished) == (["jobs/works"], ["a"], True, ["in time"])


# The border


async def test_a_listener_that_fails_is_reported_and_changes_nothing(world: World) -> None:
    def fail(_: object) -> None:
        raise LookupError("a fault of the listener")

    async with world.system() as system:
        jobs = await system.host("jobs", JobCore, on_event=fail)
        assert await jobs.ask("one", Collect(names=["a"])) == Performed(1, True)
    assert [failure.message for failure in world.failures] == ["a fault of the listener"] * 2


@pytest.mark.parametrize("kind", ["session", "tool", "runtime", "", "a/b"])
async def test_a_kind_that_cannot_be_one_is_refused(world: World, kind: str) -> None:
    async with world.system() as system:
        with pytest.raises(ConfigError):
            await system.host(kind, JobCore)


async def test_a_core_whose_types_cannot_work_is_refused_before_its_kind_is_taken(world: World) -> None:
    class Melting(msgspec.Struct):
        """Not frozen, as a command must be."""

    class Unfit(PureCore[Jobs, Melting, JobEvent]):
        def admit(self, state: Jobs, command: Melting) -> JobEvent:
            return Dropped(job="")

        def evolve(self, state: Jobs, event: JobEvent) -> Jobs:
            return state

    async with world.system() as system:
        with pytest.raises(ConfigError, match="Melting of Unfit must be frozen"):
            await system.host("jobs", Unfit)
        await world.host(system)


async def test_two_kinds_live_side_by_side_and_ask_each_other(world: World) -> None:
    async with world.system() as system:
        jobs = await world.host(system)

        async def hand_on(effect: Work) -> Command:
            performed = await jobs.ask(effect.job, Collect(names=["from", "above"], key=effect.key))
            return Finish(effect.job, f"at version {performed.version}")

        chief = await system.host("chief", JobCore, perform=hand_on)
        await chief.ask("one", Want("one"))
        await world.clock.settle()
        assert await chief.read("one", lambda state: state.finished) == {"one": "at version 1"}
        assert await jobs.read("one", lambda state: state.names) == ["above", "from"]


async def test_an_unreadable_log_is_said_at_hosting(world: World) -> None:
    class Unreadable(InMemoryStore):
        async def list_streams(self, **_: object) -> Any:
            raise PersistenceError("the disk is gone")

    async with EventSourcedSystem(Unreadable()) as system:
        with pytest.raises(PersistenceError, match="the disk is gone"):
            await system.host("jobs", JobCore)
