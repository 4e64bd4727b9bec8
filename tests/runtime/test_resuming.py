"""Which open runs go on when a runtime takes over a log: at once, or one after another."""

import asyncio

import msgspec

from refold.actors import Actor, ActorSystem, ManualClock
from refold.events import SESSION_CODEC
from refold.events.core.errors import PersistenceError
from refold.events.core.ids import RunId, SessionId
from refold.events.model.configuration import CORE_VERSION, CodeIdentity
from refold.events.model.messages import RequestReference
from refold.events.session.events import RequestBuilt, RunCompleted, RunResumed, SessionEvent
from refold.life.takeover import PROBATION_S, resume_open_runs
from refold.publishing.event_bus import EventBus
from refold.stores import EventStore, InMemoryStore, batch
from tests.conformance.failing_store import FailingStore
from tests.runtime.talking import recorded_event

RESUMED = RunResumed(run=RunId("run_1"), code=CodeIdentity(refold="0.1.0", core=CORE_VERSION), fingerprint="")

ASKED = RequestBuilt(run=RunId("run_1"), turn=1, asked=3, request=RequestReference(configured=2, messages=1))


class Sleeper(Actor):
    """Stands where a session would, and notes that it was woken."""

    def __init__(self, woken: list[str]) -> None:
        self._woken = woken

    def on_receive(self, message: object) -> None:
        self._woken.append(self.address.removeprefix("session/"))


class Setup:
    def __init__(self, store: EventStore | None = None) -> None:
        self.clock = ManualClock()
        self.store = store or InMemoryStore()
        self.event_bus = EventBus()
        self.woken: list[str] = []
        self.system = ActorSystem(clock=self.clock)
        self.system.register("session", lambda _: Sleeper(self.woken))

    async def open_run(self, session: str, *happened: SessionEvent) -> None:
        opened = batch(f"session/{session}", 0, 3, pending=("model:3",))
        await self.store.append([opened])
        for version, event in enumerate(happened, 3):
            events = (SESSION_CODEC.encode(event),)
            await self.store.append([msgspec.structs.replace(opened, expected_version=version, events=events)])

    async def resume(self) -> None:
        heads = await self.store.list_streams(prefix="session/", with_pending=True)
        await resume_open_runs(self.system, self.event_bus, self.store, heads)

    def happens(self, session: str, event: SessionEvent) -> None:
        recorded = recorded_event(event, session, 5)
        self.event_bus.recorded(SessionId(session), [recorded])


async def test_runs_that_were_resumed_in_vain_go_on_last_and_each_after_the_one_before_has_made_progress() -> None:
    setup = Setup()
    await setup.open_run("a", RESUMED)
    await setup.open_run("b", RESUMED, ASKED)
    await setup.open_run("c", RESUMED)
    await setup.open_run("d")
    await setup.store.append([batch("session/closed", 0)])
    resuming = asyncio.create_task(setup.resume())
    await setup.clock.settle()
    assert setup.woken == ["d", "a"]
    setup.happens("a", RESUMED)
    setup.happens("a", ASKED)
    await setup.clock.settle()
    assert setup.woken == ["d", "a"]
    setup.happens("a", RunCompleted(run=RunId("run_1")))
    await setup.clock.settle()
    assert setup.woken == ["d", "a", "b"]
    await setup.clock.advance(PROBATION_S - 0.1)
    assert setup.woken == ["d", "a", "b"]
    await setup.clock.advance(0.2)
    assert setup.woken == ["d", "a", "b", "c"]
    setup.happens("c", RunCompleted(run=RunId("run_1")))
    await resuming
    assert setup.clock.waiting() == ()
    await setup.system.close()


async def test_a_stream_that_cannot_be_read_costs_its_own_session_only() -> None:
    store = FailingStore(InMemoryStore())
    store.fail_reads(lambda: PersistenceError("the disk is broken there"), of="session/b")
    setup = Setup(store)
    for session in "abc":
        await setup.open_run(session)
    await setup.resume()
    await setup.clock.settle()
    assert setup.woken == ["a", "b", "c"]
    await setup.system.close()
