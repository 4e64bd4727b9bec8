"""Memories in a process that does not own the log: asked there, they answer from the log, and change through its owner.

Read `refold.memory.stream_object` first. Behind such an object is an actor as behind one of the owner's, in a system of
its own; it folds what is asked from the log, and has commands performed as those to hosted actors are
(`refold.remote.hosted`).
"""

from collections.abc import Iterable
from typing import Any, cast

from refold.actors.kernel.actor import Actor
from refold.actors.kernel.system import ActorSystem
from refold.actors.shell.messages import Envelope, Performed, Query, QueryResult, answer_to
from refold.events.core.checked_core import CheckedCore
from refold.events.core.errors import CommandRejected
from refold.events.core.ids import StreamName
from refold.events.kinds.semantic import out_of_blocks
from refold.memory.scoped import ScopedObject
from refold.memory.stream_object import StreamObject
from refold.remote.guest import Guest


class ObjectElsewhere(Actor):
    """Stands for an object that lives where another process owns the log.

    Args:
        core: decides for it there.
        guest: reaches that process.
    """

    def __init__(self, core: CheckedCore[Any, Any, Any], guest: Guest) -> None:
        super().__init__()
        self._core = core
        self._guest = guest

    async def on_receive(self, message: Any) -> QueryResult | Performed | list[Performed]:
        """Answer a query, or return when a command is performed; raises as `Hosted.ask` of a guest."""
        address = StreamName(self.address)
        if isinstance(message, Query):
            state = await self._guest.state_of(self._core, address)
            found, noted = await answer_to(message, state, self._guest.store.read_payloads)
            if noted is not None:
                await self._guest.ask_hosted(self._core, address, noted, None)
            return found
        envelope = message if isinstance(message, Envelope) else Envelope(message)
        if envelope.called:
            raise CommandRejected(
                f"{address}: another process owns the shared log, and only there {envelope.called} are added together, "
                "all or none, as by a tool, which runs there. Here, add them one by one, each with a key of its own "
                "(such as 'import 7 3'), so that adding them again after an error or a crash adds nothing twice"
            )
        given: object = envelope.command
        commands = cast("tuple[object, ...]", given) if isinstance(given, tuple) else (given,)
        performed = [
            # Its payloads stay here: what another process is asked for is the command alone.
            await self._guest.ask_hosted(self._core, address, out_of_blocks(command), None)
            for command in commands
        ]
        return performed if isinstance(given, tuple) else performed[0]


class ObjectsElsewhere:
    """The memories of agents in a process that does not own their log, until `end`.

    Args:
        objects: what agents have.
        guest: reaches the owner.
        system: for what stands for them, and for nothing else.
    """

    def __init__(self, objects: Iterable[StreamObject[Any, Any, Any]], guest: Guest, system: ActorSystem) -> None:
        self._system = system
        for living in objects:
            if isinstance(living, ScopedObject):
                core = living.core
                if not system.knows(living.kind):
                    system.register(living.kind, lambda _, core=core: ObjectElsewhere(core, guest))  # type: ignore[misc]
                living.look_through(system)

    async def end(self) -> None:
        """Answer nothing more: this process has the log, or ends."""
        await self._system.close(0)
