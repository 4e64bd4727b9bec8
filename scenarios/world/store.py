"""The log as one life of a simulated process sees it: a real store, with the faults of the plan.

What the store behind it keeps outlives the process. A crash in an append leaves the append there or not, as the fault
says, and its caller waits for ever: the process is gone.

The way of replies to the sessions that asked: once, twice or late, as the plan says.

A reply is what a model, a tool or a person has answered, as the actor that asked it for the session sends it back. On
its way it is like a letter: who has sent it may be gone when it arrives. What a tool has returned is gone with the
process that it ran in; a provider and a person are outside, and their answers may still come.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from refold.actors.kernel.errors import ActorStopped
from refold.actors.kernel.ref import ActorRef, System
from refold.actors.kernel.system import ActorSystem
from refold.actors.shell.messages import EffectEnded, Later
from refold.events.core.errors import LogInUse, PersistenceError
from refold.events.core.ids import PayloadHash, kind_and_identifier
from refold.events.core.records import Appended, EncodedBatch, Snapshot, StoredEvent, StreamHead
from refold.events.session.core import SESSION_KIND
from refold.scenarios import faults
from refold.scenarios.monitors.monitor import Monitor
from refold.scenarios.plan.world import World


class SimulatedStore:
    """An `EventStore` for one life on the world's log, which it does not close.

    The monitor is told of what has just become durable, and what the process reads of a stream, which may be in the log
    although its append was told as failed.
    """

    def __init__(self, world: World, monitor: Monitor) -> None:
        self._disk = world.disk
        self._plan = world.plan
        self._die = world.die
        self._committed = monitor.committed
        self._seen = monitor.seen
        self._dead = False
        self._fenced = False
        self._never: asyncio.Future[None] | None = None
        """What the caller waits for whose append the process has died in."""

    @property
    def name(self) -> str:
        return "the simulated log"

    async def append(
        self, batches: Sequence[EncodedBatch], payloads: Mapping[PayloadHash, bytes] | None = None
    ) -> list[Appended]:
        self._require_life()
        failure: faults.AppendFails | faults.LogIsGone | None = None
        crash: faults.CrashAtAppend | None = None
        for fault in self._plan.count("append", sessions_in(batch.stream for batch in batches)):
            match fault:
                case faults.AppendIsSlow(seconds=seconds):
                    await asyncio.sleep(seconds)
                    self._require_life()
                case faults.AppendFails():
                    failure = fault
                case faults.CrashAtAppend():
                    crash = fault
                case _:
                    raise AssertionError(f"{fault} is no fault of an append")
        for fault in self._plan.lasting("append"):
            if isinstance(fault, faults.LogIsGone):
                failure = failure if fault.reads_only else fault
                continue
            self._plan.note(fault)
            raise PersistenceError("the simulated disk is full")
        if isinstance(failure, faults.LogIsGone):
            self._plan.note(failure)
        await asyncio.sleep(0)
        self._require_life()
        if (crash is not None and not crash.committed) or (failure is not None and not failure.committed):
            appended: list[Appended] = []
        else:
            self._require_ownership()
            appended = await self._disk.append(batches, payloads)
            self._require_life()
            await self._committed(batches, appended)
        if crash is not None:
            self._die()
            self._never = asyncio.get_running_loop().create_future()
            await self._never
        if failure is not None:
            raise PersistenceError("the simulated disk failed", outcome_unknown=failure.committed)
        await asyncio.sleep(0)
        self._require_life()
        return appended

    async def read_stream(self, stream: str, *, after_version: int = 0, limit: int | None = None) -> list[StoredEvent]:
        await self._before_reading(stream, sessions_in([stream]))
        stored = await self._disk.read_stream(stream, after_version=after_version, limit=limit)
        self._require_life()
        self._seen(stored)
        return stored

    async def read_all(self, *, after_position: int = 0, limit: int = 1000) -> list[StoredEvent]:
        self._require_reach()
        return await self._disk.read_all(after_position=after_position, limit=limit)

    async def head(self, stream: str) -> StreamHead | None:
        self._require_reach()
        return await self._disk.head(stream)

    async def list_streams(
        self, *, prefix: str = "", after: str = "", limit: int | None = None, with_pending: bool = False
    ) -> list[StreamHead]:
        self._require_reach()
        return await self._disk.list_streams(prefix=prefix, after=after, limit=limit, with_pending=with_pending)

    async def read_payloads(self, hashes: Iterable[PayloadHash]) -> dict[PayloadHash, bytes]:
        wanted = list(hashes)
        if wanted:
            await self._before_reading("payloads", [])
        return await self._disk.read_payloads(wanted)

    async def save_snapshot(self, snapshot: Snapshot) -> None:
        self._require_life()
        for fault in self._plan.count("snapshot", sessions_in([snapshot.stream])):
            assert isinstance(fault, faults.SnapshotGoesWrong)
            if fault.how == "damaged":
                half = len(snapshot.state) // 2
                snapshot = msgspec.structs.replace(snapshot, state=snapshot.state[:half].ljust(2 * half, b"?"))
                continue
            if fault.how == "crash":
                self._die()
            return
        await self._disk.save_snapshot(snapshot)

    async def load_snapshot(self, stream: str) -> Snapshot | None:
        self._require_life()
        return await self._disk.load_snapshot(stream)

    async def close(self) -> None:
        self.tear_down()

    def fence(self) -> None:
        """Refuse every append from now on, as a log does that another process has taken over."""
        self._fenced = True

    def tear_down(self) -> None:
        """Refuse everything from now on: the life is over."""
        self._dead = True
        if self._never is not None and not self._never.done():
            self._never.set_exception(PersistenceError("the simulated process is gone", outcome_unknown=True))

    async def _before_reading(self, what: str, sessions: Sequence[str]) -> None:
        self._require_life()
        due = self._plan.count("read", sessions or None)
        await asyncio.sleep(0)
        self._require_reach()
        if due:
            raise PersistenceError(f"the simulated disk failed to read {what}")

    def _require_reach(self) -> None:
        self._require_life()
        for fault in self._plan.lasting("read"):
            self._plan.note(fault)
            raise PersistenceError("the simulated log is out of reach")

    def _require_life(self) -> None:
        if self._dead:
            raise PersistenceError("the simulated process is gone")

    def _require_ownership(self) -> None:
        if self._fenced:
            raise LogInUse(self.name, pid=None, host=None)


def sessions_in(streams: Iterable[str]) -> list[str]:
    found = (kind_and_identifier(stream) for stream in streams)
    return [identifier for kind, identifier in found if kind == SESSION_KIND]


class _Letter(msgspec.Struct, frozen=True, eq=False):
    """A reply under way."""

    address: str
    ended: EffectEnded
    due_s: float


class SimulatedReplies:
    """Takes the ends of effects to their sessions, over all lives of the process."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._under_way: dict[_Letter, None] = {}
        self._systems: list[System] = []
        """Of the present life, and of processes that have lost the log and live beside it."""

    def serve(self, system: ActorSystem) -> None:
        self._systems.append(system)
        system.courier = self._deliver
        for letter in self._under_way:
            if not letter.ended.key.startswith("tool:"):  # That of a process that lives beside this one stays there.
                self._set_timer(letter, system)

    def tear_down(self) -> None:
        """Take nothing more of the present life, and forget what only it could tell."""
        self._systems.clear()
        for letter in [letter for letter in self._under_way if letter.ended.key.startswith("tool:")]:
            del self._under_way[letter]

    def _deliver(self, asker: ActorRef, ended: EffectEnded) -> None:
        if asker.system not in self._systems:
            return
        kind, session = kind_and_identifier(asker.address)
        due = self._world.plan.count("reply", [session]) if kind == SESSION_KIND else []
        if any(isinstance(fault, faults.ActorFails) for fault in due):
            asker.tell(Later("no method of it"))
        late_s = sum(fault.seconds for fault in due if isinstance(fault, faults.LateReply))
        if late_s:
            self._send(asker, ended, late_s)
        else:
            asker.tell(ended)
        for fault in due:
            if isinstance(fault, faults.DuplicateReply):
                self._send(asker, ended, late_s + fault.after_s)

    def _send(self, asker: ActorRef, ended: EffectEnded, after_s: float) -> None:
        letter = _Letter(asker.address, ended, self._world.now_s() + after_s)
        self._under_way[letter] = None
        self._set_timer(letter, asker.system)

    def _set_timer(self, letter: _Letter, system: System) -> None:
        loop = asyncio.get_running_loop()
        loop.call_at(max(letter.due_s, loop.time()), self._arrive, letter, system)

    def _arrive(self, letter: _Letter, system: System) -> None:
        try:
            system.ref(letter.address).tell(letter.ended)
        except ActorStopped:  # It comes once there is an actor again.
            return
        self._under_way.pop(letter, None)
