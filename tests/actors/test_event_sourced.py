"""The event-sourced shell, by itself: a small core, no agent, and a store that can be told to fail."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from refold.actors import ActorRef, ActorSystem, EventSourcedActor, Journal, ManualClock
from refold.actors.shell.effect_port import EffectPort, Recovery
from refold.actors.shell.effects import EffectsInFlight
from refold.actors.shell.messages import EffectEnded, Envelope, Performed, read_state
from refold.events import Effect, Event, EventCodec, PureCore, Recorded, WaitUntil
from refold.events.core.errors import CommandRejected, PersistenceError
from refold.events.core.ids import EventRef, PayloadHash
from refold.events.core.records import Appended, EncodedBatch
from refold.stores import InMemoryStore

ADDRESS = "works/one"
STREAM = ADDRESS


# A core: pieces of work are wanted, done, or no longer wanted


class Wanted(Event, frozen=True, kw_only=True, tag="works.wanted.v1"):
    name: str


class Done(Event, frozen=True, kw_only=True, tag="works.done.v1"):
    name: str
    what: object = None


class Dropped(Event, frozen=True, kw_only=True, tag="works.dropped.v1"):
    name: str


class Want(msgspec.Struct, frozen=True):
    name: str


class Finish(msgspec.Struct, frozen=True):
    name: str
    what: object = None


class Drop(msgspec.Struct, frozen=True):
    name: str


class GoOn(Want, frozen=True):
    """Lets held work go on."""


class Fail(msgspec.Struct, frozen=True):
    name: str = "fail"


WorkEvent = Wanted | Done | Dropped
Command = Want | Finish | Drop | Fail


class Work(Effect, frozen=True, kw_only=True):
    name: str


class State(msgspec.Struct):
    version: int = 0
    wanted: dict[str, int] = {}
    done: dict[str, object] = {}


class WorksCore(PureCore[State, Command, WorkEvent]):
    def admit(self, state: State, command: Command) -> WorkEvent | Recorded:
        match command:
            case Want(name=name):
                if name in state.wanted or name in state.done:
                    raise CommandRejected(f"{name} is wanted already")
                return Wanted(name=name)
            case Finish(name=name, what=what):
                if what == "trouble":
                    raise LookupError("a fault of the core")
                return Done(name=name, what=what)
            case Drop(name=name):
                return Dropped(name=name) if name in state.wanted else Recorded(0)
            case Fail():
                raise RuntimeError("made to fail")

    def evolve(self, state: State, event: WorkEvent) -> State:
        state.version += 1
        match event:
            case Wanted(name=name):
                state.wanted[name] = state.version
            case Done(name=name, what=what):
                state.wanted.pop(name, None)
                state.done[name] = what
            case Dropped(name=name):
                del state.wanted[name]
        return state

    def pending(self, state: State) -> list[Effect]:
        return [
            WaitUntil(key=f"wait:{name}", causation=version, correlation=version, due_at=int(name.partition("@")[2]))
            if "@" in name
            else Work(key=f"work:{name}", causation=version, correlation=version, name=name)
            for name, version in state.wanted.items()
        ]


CODEC: EventCodec[WorkEvent] = EventCodec([Wanted, Done, Dropped])


class World:
    """What happens outside of the actor."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.cancelled: list[str] = []
        self.abandoned: list[str] = []
        self.published: list[str] = []
        self.settled = 0
        self.blocks = False
        self.recovery: tuple[Command, ...] = ()
        self.joins = False
        self.instances = 0
        self.fault: Exception | None = None

    def fail_once(self) -> None:
        error, self.fault = self.fault, None
        if error is not None:
            raise error


class WorksPort(EffectPort[State, Command, WorkEvent]):
    resumed_by = (GoOn,)

    def __init__(self, world: World) -> None:
        self.world = world
        world.instances += 1

    def begin(self, effect: Work) -> bool:
        self.world.fail_once()
        self.world.begun.append(effect.name)
        return True

    def cancel(self, effect: Work) -> None:
        self.world.fail_once()
        self.world.cancelled.append(effect.name)

    def abandon(self, effect: Work) -> None:
        self.world.abandoned.append(effect.name)

    def due(self, effect: WaitUntil) -> Command:
        return Finish(effect.key.removeprefix("wait:"))

    def joins(self, envelope: Envelope) -> bool:
        return self.world.joins and isinstance(envelope.command, Want)

    def published(self, events: Sequence[Any]) -> None:
        self.world.published += [f"{type(item.event).__name__} {item.event.name} @{item.version}" for item in events]

    def settled(self) -> None:
        self.world.settled += 1

    def recovery(self, wanted: Sequence[Effect]) -> Recovery:
        blocked = frozenset(effect.key for effect in wanted if self.world.blocks)
        return Recovery(self.world.recovery, blocked=blocked)

    def failed(self, effect: Effect | None, command: Command, error: Exception) -> Command | None:
        return Finish(command.name, f"unrecordable: {error}")


class FaultyStore(InMemoryStore):
    """Fails appends and reads as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str | None] = []
        self.unreadable = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def append(
        self, batches: Sequence[EncodedBatch], payloads: Mapping[PayloadHash, bytes] | None = None
    ) -> list[Appended]:
        await self.gate.wait()
        fault = self.faults.pop(0) if self.faults else None
        if fault == "before":
            raise PersistenceError("the disk is full")
        if fault == "anything":
            raise KeyError("anything")
        appended = await super().append(batches, payloads)
        if fault == "after":
            raise PersistenceError("the disk went away", outcome_unknown=True)
        return appended

    async def read_stream(self, stream: str, *, after_version: int = 0, limit: int | None = None) -> Any:
        if self.unreadable:
            raise PersistenceError(f"stream {stream!r} cannot be read")
        return await super().read_stream(stream, after_version=after_version, limit=limit)


class Setup:
    def __init__(self, passivate_after_s: float | None = None) -> None:
        self.clock = ManualClock()
        self.store = FaultyStore()
        self.world = World()
        self.in_flight = EffectsInFlight()
        self.system = ActorSystem(clock=self.clock, passivate_after_s=passivate_after_s)
        self.journal = journal = Journal(self.store)
        self.instances: list[weakref.ref[object]] = []

        def works(_: str) -> EventSourcedActor[State, Command, WorkEvent]:
            port = WorksPort(self.world)
            actor = EventSourcedActor(WorksCore(), CODEC, journal, port, self.in_flight)
            self.instances.append(weakref.ref(actor))
            return actor

        self.system.register("works", works)

    @property
    def ref(self) -> ActorRef:
        return self.system.ref(ADDRESS)

    async def ask(self, message: object) -> Any:
        return await self.ref.ask(message, block=False)

    async def ask_at_once(self, *messages: object) -> list[Any]:
        """Return the reply to each of several messages that wait one behind the other, or its error."""
        return await asyncio.gather(*(self.ask(message) for message in messages), return_exceptions=True)

    async def state(self) -> State:
        return await read_state(self.ref, lambda state: state, copied=True)

    async def ended(self, name: str, what: object = None) -> None:
        """Let a piece of work end, and wait until the actor has dealt with it."""
        self.ref.tell(EffectEnded(key=f"work:{name}", command=Finish(name, what)))
        await self.clock.settle()

    async def left_wanting_a(self) -> None:
        """Write the log that an earlier process left, which wants the work "a"."""
        events = (CODEC.encode(Wanted(name="a")),)
        await self.store.append([EncodedBatch(stream=STREAM, expected_version=0, at=1, events=events)])  # type: ignore[arg-type]

    async def recorded(self) -> list[str]:
        stored = await InMemoryStore.read_stream(self.store, STREAM)
        return [f"{type(event).__name__} {event.name}" for event in CODEC.decode_all(stored)]


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    made = Setup()
    yield made
    made.store.gate.set()
    assert await made.system.close() == ()


async def test_a_command_is_published_and_answered_only_once_it_is_durable(setup: Setup) -> None:
    setup.store.gate.clear()
    asking = asyncio.create_task(setup.ask(Want("a")))
    await setup.clock.settle()
    assert (setup.world.published, setup.world.begun, asking.done()) == ([], [], False)
    setup.store.gate.set()
    assert await asking == Performed(1, True)
    assert (setup.world.published, setup.world.begun) == (["Wanted a @1"], ["a"])


@pytest.mark.parametrize("fault", ["before", "anything"])
async def test_an_append_that_fails_is_the_askers_error_changes_nothing_and_the_next_may_succeed(
    setup: Setup, fault: str
) -> None:
    setup.store.faults = [fault]
    with pytest.raises(PersistenceError):
        await setup.ask(Want("a"))
    assert (await setup.state()) == State()
    assert (setup.world.published, setup.world.begun, setup.world.instances) == ([], [], 1)
    assert await setup.ask(Want("a")) == Performed(1, True)
    assert setup.world.published == ["Wanted a @1"]


async def test_an_append_that_fails_after_it_took_effect_is_the_askers_error_and_what_it_wrote_goes_on(
    setup: Setup,
) -> None:
    setup.store.faults = ["after"]
    with pytest.raises(PersistenceError) as raised:
        await setup.ask(Want("a"))
    assert raised.value.outcome_unknown
    assert (setup.world.published, setup.world.begun) == (["Wanted a @1"], ["a"])
    with pytest.raises(CommandRejected):
        await setup.ask(Want("a"))


async def test_messages_that_wait_together_are_recorded_in_one_transaction(setup: Setup) -> None:
    setup.world.joins = True
    await setup.ask(Want("a"))
    commits = setup.journal.commits
    envelopes = [Envelope(Want(name)) for name in "bcd"]
    assert await setup.ask_at_once(*envelopes) == [Performed(2, True), Performed(3, True), Performed(4, True)]
    assert (setup.journal.commits, setup.world.begun) == (commits + 1, ["a", "b", "c", "d"])


async def test_a_message_that_is_refused_costs_those_that_waited_with_it_nothing(setup: Setup) -> None:
    setup.world.joins = True
    await setup.ask(Want("a"))
    first, second, third = await setup.ask_at_once(*(Envelope(Want(name)) for name in "bac"))
    assert (first, third) == (Performed(2, True), Performed(3, True))
    assert isinstance(second, CommandRejected)
    assert await setup.recorded() == ["Wanted a", "Wanted b", "Wanted c"]


async def test_a_state_that_could_not_be_read_again_is_shown_to_nobody(setup: Setup) -> None:
    await setup.ask(Want("a"))
    setup.store.faults, setup.store.unreadable = ["before"], True
    with pytest.raises(PersistenceError, match="disk is full"):
        await setup.ask(Want("b"))
    with pytest.raises(PersistenceError, match="cannot be read"):
        await setup.state()
    with pytest.raises(PersistenceError, match="cannot be read"):
        await setup.ask(Want("c"))
    setup.store.unreadable = False
    assert (await setup.state()).wanted == {"a": 1}
    assert (await setup.ask(Want("c"))).version == 2
    assert setup.world.begun == ["a", "c"]


async def test_a_stream_that_moved_on_is_folded_again_and_the_command_admitted_anew(setup: Setup) -> None:
    await setup.ask(Want("a"))
    other = EncodedBatch(stream=STREAM, expected_version=1, at=1, events=(CODEC.encode(Wanted(name="b")),))  # type: ignore[arg-type]
    await setup.store.append([other])
    with pytest.raises(CommandRejected, match="b is wanted already"):
        await setup.ask(Want("b"))
    assert await setup.ask(Want("c")) == Performed(3, True)
    assert setup.world.published == ["Wanted a @1", "Wanted b @2", "Wanted c @3"]


async def test_a_result_that_could_not_be_recorded_is_offered_again_and_its_work_not_done_twice(setup: Setup) -> None:
    await setup.ask(Want("a"))
    setup.store.faults = ["before", "anything"]
    await setup.ended("a", "result")
    assert await setup.recorded() == ["Wanted a"]
    await setup.clock.advance(0.5)
    assert await setup.recorded() == ["Wanted a"]
    await setup.clock.advance(0.9)
    assert await setup.recorded() == ["Wanted a"]
    await setup.clock.advance(0.2)
    assert await setup.recorded() == ["Wanted a", "Done a"]
    assert (await setup.state()).done == {"a": "result"}
    await setup.clock.advance(60)
    assert await setup.recorded() == ["Wanted a", "Done a"]
    assert (setup.world.begun, setup.clock.waiting()) == (["a"], ())


async def test_a_result_whose_append_takes_effect_long_after_it_failed_is_recorded_once(setup: Setup) -> None:
    await setup.ask(Want("a"))
    setup.store.faults = ["before"]
    await setup.ended("a")
    late = EncodedBatch(
        stream=STREAM,  # type: ignore[arg-type]
        expected_version=1,
        at=1,
        events=(CODEC.encode(Done(name="a")),),
        causation=EventRef(f"{STREAM}@1"),
    )
    await setup.store.append([late])
    await setup.clock.advance(60)
    assert await setup.recorded() == ["Wanted a", "Done a"]
    assert setup.world.published == ["Wanted a @1", "Done a @2"]
    assert (setup.world.begun, setup.in_flight.count()) == (["a"], 0)


async def test_a_result_that_waits_for_the_log_comes_before_a_later_command(setup: Setup) -> None:
    await setup.ask(Want("a"))
    setup.store.faults = ["before"]
    await setup.ended("a", "result")
    assert (await setup.ask(Drop("a"))) == Performed(0, False)
    assert await setup.recorded() == ["Wanted a", "Done a"]
    await setup.clock.advance(60)
    assert await setup.recorded() == ["Wanted a", "Done a"]


async def test_a_result_outlives_an_unreadable_log_and_a_restart_of_its_actor(setup: Setup) -> None:
    await setup.ask(Want("a"))
    setup.store.faults, setup.store.unreadable = ["before"], True
    await setup.ended("a", "result")
    setup.store.unreadable = False
    setup.ref.tell(Fail())
    await setup.clock.advance(1)
    assert (await setup.state()).done == {"a": "result"}
    assert (setup.world.begun, setup.world.instances) == (["a"], 2)


async def test_the_end_of_work_begins_nothing_that_is_not_in_the_log(setup: Setup) -> None:
    await setup.ask(Want("a"))
    await setup.ask(Drop("a"))
    setup.store.faults, setup.store.unreadable = ["before"], True
    with pytest.raises(PersistenceError):
        await setup.ask(Want("b"))  # In memory it is wanted, until the log can be read again.
    setup.ref.tell(EffectEnded(key="work:a"))
    await setup.clock.settle()
    setup.store.unreadable = False
    await setup.clock.advance(60)
    assert (setup.world.begun, await setup.recorded()) == (["a"], ["Wanted a", "Dropped a"])
    await setup.ask(Want("c"))
    assert setup.world.begun == ["a", "c"]


async def test_the_end_of_work_costs_other_work_nothing_where_the_log_cannot_be_read_after_a_restart(
    setup: Setup,
) -> None:
    await setup.ask(Want("a"))
    await setup.ask(Want("b"))
    setup.store.unreadable = True
    setup.ref.tell(Fail())
    await setup.clock.advance(1)
    setup.ref.tell(EffectEnded(key="work:a"))
    await setup.clock.settle()
    setup.store.unreadable = False
    await setup.clock.advance(60)
    assert setup.world.cancelled == []
    await setup.ended("b", "result")
    assert (setup.world.begun, (await setup.state()).done) == (["a", "b", "a"], {"b": "result"})


async def test_work_of_an_earlier_process_waits_for_its_recovery_whatever_else_ends(setup: Setup) -> None:
    await setup.left_wanting_a()
    setup.world.recovery = (GoOn("go-on"),)
    setup.store.faults = ["before", "before"]
    await setup.ended("late")  # It was begun before this process had the log, and given up.
    assert (setup.world.begun, await setup.recorded()) == ([], ["Wanted a"])
    await setup.clock.advance(60)
    assert await setup.recorded() == ["Wanted a", "Wanted go-on", "Done late"]
    assert setup.world.begun == ["a", "go-on"]


async def test_a_restart_in_the_middle_of_work_does_not_begin_it_again(setup: Setup) -> None:
    await setup.ask(Want("a"))
    setup.ref.tell(Fail())
    await setup.clock.advance(1)
    await setup.ask(Want("b"))
    assert (setup.world.begun, setup.world.instances) == (["a", "b"], 2)
    await setup.ended("a")
    await setup.ended("b")
    assert list((await setup.state()).done) == ["a", "b"]


async def test_a_restart_in_the_middle_of_work_is_not_taken_for_the_end_of_a_process(setup: Setup) -> None:
    await setup.ask(Want("a"))
    setup.world.recovery = (GoOn("go-on"),)
    setup.ref.tell(Fail())
    await setup.clock.advance(1)
    assert (await setup.recorded(), setup.world.instances) == (["Wanted a"], 2)


async def test_a_restart_keeps_waits_and_lets_go_of_them_when_they_are_no_longer_wanted(setup: Setup) -> None:
    soon = setup.clock.now_us() + 10_000_000
    late = setup.clock.now_us() + 20_000_000
    await setup.ask(Want(f"soon@{soon}"))
    await setup.ask(Want(f"late@{late}"))
    setup.ref.tell(Fail())
    await setup.clock.advance(1)
    await setup.ask(Drop(f"late@{late}"))
    await setup.clock.advance(30)
    assert [line.partition("@")[0] for line in await setup.recorded()] == [
        "Wanted soon",
        "Wanted late",
        "Dropped late",
        "Done soon",
    ]
    assert setup.world.instances == 2
    assert setup.clock.waiting() == ()


async def test_a_time_that_has_come_is_recorded_before_a_command_that_arrives_after_it(setup: Setup) -> None:
    soon, late = (f"at@{setup.clock.now_us() + seconds * 1_000_000}" for seconds in (10, 60))
    await setup.ask(Want(soon))
    await setup.ask(Want(late))
    setup.clock.jump(11)  # As after the machine was asleep: no timer has noticed.
    assert await setup.ask(Drop(soon)) == Performed(0, False)
    assert (await setup.ask(Drop(late))).new
    assert await setup.recorded() == [f"Wanted {soon}", f"Wanted {late}", f"Done {soon}", f"Dropped {late}"]
    await setup.clock.advance(60)
    assert (len(await setup.recorded()), setup.clock.waiting()) == (4, ())


async def test_a_time_that_the_log_refused_is_told_again_by_itself_after_a_restart(setup: Setup) -> None:
    soon = f"soon@{setup.clock.now_us() + 10_000_000}"
    await setup.ask(Want(soon))
    setup.store.faults = ["before"] * 5
    await setup.clock.advance(12)
    setup.ref.tell(Fail())
    await setup.clock.advance(60)
    assert await setup.recorded() == [f"Wanted {soon}", f"Done {soon}"]
    assert setup.clock.waiting() == ()


async def test_a_time_that_is_recorded_while_its_actor_is_cancelled_is_not_kept_for_the_log(setup: Setup) -> None:
    soon = f"soon@{setup.clock.now_us() + 10_000_000}"
    await setup.ask(Want(soon))
    setup.store.faults = ["before"]
    await setup.clock.advance(10)
    setup.store.gate.clear()
    setup.ref.tell(Drop("other"))
    await setup.clock.settle()
    (handling,) = (task for task in asyncio.all_tasks() if task.get_name() == ADDRESS)
    handling.cancel()
    setup.store.gate.set()
    await setup.clock.advance(60)
    assert await setup.recorded() == [f"Wanted {soon}", f"Done {soon}"]
    assert setup.in_flight.of(STREAM).at_rest()  # So that it may leave memory.


@pytest.mark.parametrize("steps", range(12))
async def test_a_time_that_comes_is_recorded_whenever_its_actor_is_cancelled(setup: Setup, steps: int) -> None:
    soon = f"soon@{setup.clock.now_us() + 10_000_000}"
    await setup.ask(Want(soon))
    advancing = asyncio.create_task(setup.clock.advance(10))
    while setup.clock.monotonic_s() < 10:  # noqa: ASYNC110 - A clock sets no event.
        await asyncio.sleep(0)
    for _ in range(steps):
        await asyncio.sleep(0)
    for task in asyncio.all_tasks():
        if task.get_name() == ADDRESS:
            task.cancel()
    await advancing
    await setup.clock.advance(120)
    assert await setup.recorded() == [f"Wanted {soon}", f"Done {soon}"]


async def test_the_time_of_a_stream_never_goes_back(setup: Setup) -> None:
    begun = setup.clock.now_us()
    await setup.ask(Want("a"))
    setup.clock.jump(-60)
    await setup.ask(Want("b"))
    setup.ref.tell(Fail())
    await setup.clock.advance(1)
    await setup.ask(Want("c"))
    setup.clock.jump(120)
    await setup.ask(Want("d"))
    times = [event.at for event in await setup.store.read_stream(STREAM)]
    assert times == [begun, begun, begun, begun + 61_000_000]


async def test_the_next_work_waits_for_cancelled_work_to_end(setup: Setup) -> None:
    await setup.ask(Want("a"))
    settled = setup.world.settled
    await setup.ask(Drop("a"))
    await setup.ask(Want("b"))
    assert (setup.world.cancelled, setup.world.begun, setup.world.settled) == (["a"], ["a"], settled)
    setup.ref.tell(EffectEnded(key="work:a"))
    await setup.clock.settle()
    assert (setup.world.begun, setup.world.abandoned) == (["a", "b"], [])
    await setup.clock.advance(60)
    assert setup.world.abandoned == []


async def test_cancelled_work_that_does_not_end_is_abandoned_after_the_grace_period(setup: Setup) -> None:
    await setup.ask(Want("a"))
    await setup.ask(Drop("a"))
    await setup.ask(Want("b"))
    await setup.clock.advance(4.9)
    assert (setup.world.begun, setup.world.abandoned) == (["a"], [])
    await setup.clock.advance(0.2)
    assert (setup.world.begun, setup.world.abandoned) == (["a", "b"], ["a"])


async def test_the_end_of_an_earlier_grace_period_costs_later_work_none_of_its_own(setup: Setup) -> None:
    await setup.ask(Want("a"))
    await setup.ask(Drop("a"))
    setup.store.gate.clear()
    setup.ref.tell(Want("b"))
    setup.ref.tell(EffectEnded(key="work:a"))
    setup.ref.tell(Drop("b"))
    await setup.clock.advance(5)  # The grace period of "a" is over while what ended it waits in the mailbox.
    setup.store.gate.set()
    await setup.clock.settle()
    assert (setup.world.cancelled, setup.world.abandoned) == (["a", "b"], [])
    await setup.clock.advance(4.9)
    assert setup.world.abandoned == []
    await setup.clock.advance(0.2)
    assert setup.world.abandoned == ["b"]


@pytest.mark.parametrize("fault", [RuntimeError, CommandRejected], ids=["failure", "refusal"])
async def test_work_that_could_not_be_begun_is_begun_later(setup: Setup, fault: type[Exception]) -> None:
    setup.world.fault = fault("a fault of the port")
    with pytest.raises(fault, match="a fault of the port"):
        await setup.ask(Want("a"))
    await setup.clock.advance(1)
    await setup.ask(Want("b"))
    assert setup.world.begun == ["a", "b"]


@pytest.mark.parametrize("fault", [RuntimeError, CommandRejected], ids=["failure", "refusal"])
async def test_work_that_could_not_be_cancelled_is_abandoned_after_the_grace_period(
    setup: Setup, fault: type[Exception]
) -> None:
    await setup.ask(Want("a"))
    setup.world.fault = fault("a fault of the port")
    with pytest.raises(fault, match="a fault of the port"):
        await setup.ask(Drop("a"))
    await setup.clock.advance(10)
    assert setup.world.abandoned == ["a"]
    await setup.ask(Want("b"))
    assert setup.world.begun == ["a", "b"]


async def test_an_actor_that_was_let_go_while_it_waits_is_not_kept_in_memory_by_its_timer() -> None:
    setup = Setup(passivate_after_s=1)
    await setup.ask(Want(f"later@{setup.clock.now_us() + 300_000_000}"))
    await setup.clock.advance(120)
    gc.collect()
    assert [instance() for instance in setup.instances] == [None]
    await setup.clock.advance(240)
    assert len(setup.instances) == len(await setup.recorded()) == 2
    assert await setup.system.close() == ()


async def test_what_abandoned_work_brings_after_all_is_recorded(setup: Setup) -> None:
    await setup.ask(Want("a"))
    await setup.ask(Drop("a"))
    await setup.clock.advance(5.1)
    await setup.ended("a", "late")
    assert (setup.world.abandoned, (await setup.state()).done) == (["a"], {"a": "late"})


async def test_a_restart_during_the_grace_period_still_waits_for_the_cancelled_work(setup: Setup) -> None:
    await setup.ask(Want("a"))
    await setup.ask(Drop("a"))
    setup.ref.tell(Fail())
    await setup.clock.advance(1)
    await setup.ask(Want("b"))
    assert setup.world.begun == ["a"]
    setup.ref.tell(EffectEnded(key="work:a"))
    await setup.clock.settle()
    assert (setup.world.begun, setup.world.abandoned) == (["a", "b"], [])


@pytest.mark.parametrize("what", ["trouble", {1, 2}, float("nan"), "\ud800"])
async def test_a_result_that_cannot_be_recorded_is_recorded_as_a_failure_and_never_lost(
    setup: Setup, what: object
) -> None:
    await setup.ask(Want("a"))
    await setup.ended("a", what)
    assert str((await setup.state()).done["a"]).startswith("unrecordable: ")
    assert (setup.world.instances, setup.world.begun) == (1, ["a"])


async def test_work_of_an_earlier_process_is_blocked_until_a_command_resumes_it(setup: Setup) -> None:
    await setup.left_wanting_a()
    setup.world.blocks = True
    assert (await setup.state()).wanted == {"a": 1}
    await setup.ask(Want("b"))
    assert setup.world.begun == ["b"]
    await setup.ask(GoOn("go-on"))
    assert setup.world.begun == ["b", "a", "go-on"]


async def test_blocked_work_that_is_no_longer_wanted_is_not_remembered(setup: Setup) -> None:
    await setup.left_wanting_a()
    setup.world.blocks = True
    await setup.ask(Drop("a"))
    before = setup.in_flight.of(STREAM)
    assert before.blocked == set()
    setup.in_flight.forget(STREAM)
    assert setup.in_flight.of(STREAM) is not before


async def test_work_goes_on_by_itself_once_a_log_that_could_not_be_read_can_be(setup: Setup) -> None:
    await setup.left_wanting_a()
    setup.store.unreadable = True
    with pytest.raises(PersistenceError, match="cannot be read"):
        await setup.ask(Want("b"))
    setup.store.unreadable = False
    await setup.clock.advance(2)
    assert (setup.world.begun, setup.world.instances) == (["a"], 1)


async def test_events_of_the_past_are_not_published_again_at_a_start(setup: Setup) -> None:
    await setup.left_wanting_a()
    await setup.ask(Want("b"))
    assert setup.world.published == ["Wanted b @2"]
    assert sorted(setup.world.begun) == ["a", "b"]


async def test_draining_begins_nothing_more_and_returns_when_the_last_work_is_recorded(setup: Setup) -> None:
    await setup.ask(Want("a"))
    draining = asyncio.create_task(setup.in_flight.drain(setup.clock, 5))
    await setup.clock.settle()
    await setup.ask(Want("b"))
    assert (setup.world.begun, draining.done()) == (["a"], False)
    await setup.ended("a")
    assert draining.done()


async def test_draining_ends_after_its_grace_period_whatever_the_work_does(setup: Setup) -> None:
    await setup.ask(Want("a"))
    draining = asyncio.create_task(setup.in_flight.drain(setup.clock, 5))
    await setup.clock.advance(4.9)
    assert not draining.done()
    await setup.clock.advance(0.2)
    assert draining.done()
