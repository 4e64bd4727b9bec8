"""The way of replies to the sessions that asked: once, twice or late, as the plan says.

A reply is what a model, a tool or a person has answered, as the actor that asked it for the session sends it back. On
its way it is like a letter: who has sent it may be gone when it arrives. What a tool has returned is gone with the
process that it ran in; a provider and a person are outside, and their answers may still come.
"""

import asyncio

import msgspec

from refold.actors.actor_ref import ActorRef
from refold.actors.actor_system import ActorSystem
from refold.actors.effects import EffectEnded
from refold.actors.errors import ActorStopped
from refold.events.ids import kind_and_identifier
from refold.events.session_core import SESSION_KIND
from refold.scenarios import faults
from refold.scenarios.simulated_world import World


class _Letter(msgspec.Struct, frozen=True, eq=False):
    """A reply under way."""

    address: str
    ended: EffectEnded
    due_s: float


class SimulatedReplies:
    """Takes the ends of effects to their sessions, over all lives of the process.

    Args:
        world: where faults come from.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._under_way: dict[_Letter, None] = {}
        self._systems: list[ActorSystem] = []
        """Of the present life, and of processes that have lost the log and live beside it."""

    def serve(self, system: ActorSystem) -> None:
        """Take the replies in a new life, those of earlier lives too that have not arrived."""
        self._systems.append(system)
        system.courier = self._deliver
        for letter in self._under_way:
            if not letter.ended.key.startswith("tool:"):  # That of a process that lives beside this one stays there.
                self._set_timer(letter, system)

    def bury(self) -> None:
        """Take nothing more of the present life, and forget what only it could tell."""
        self._systems.clear()
        for letter in [letter for letter in self._under_way if letter.ended.key.startswith("tool:")]:
            del self._under_way[letter]

    def _deliver(self, asker: ActorRef, ended: EffectEnded) -> None:
        if asker.system not in self._systems:
            return
        kind, session = kind_and_identifier(asker.address)
        due = self._world.plan.count("reply", [session]) if kind == SESSION_KIND else []
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

    def _set_timer(self, letter: _Letter, system: ActorSystem) -> None:
        loop = asyncio.get_running_loop()
        loop.call_at(max(letter.due_s, loop.time()), self._arrive, letter, system)

    def _arrive(self, letter: _Letter, system: ActorSystem) -> None:
        try:
            system.ref(letter.address).tell(letter.ended)
        except ActorStopped:  # It comes once there is somebody again.
            return
        self._under_way.pop(letter, None)
