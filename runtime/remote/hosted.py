"""Commands to hosted actors from processes that do not own the log, and what such a process sees of their states.

Read `refold.actors.hosting` first. A command goes through the inbox as one to a session does. The rule: it is performed
once, however often it comes, since it is a `KeyedCommand`, whose key the actor folds from its own stream.
"""

import copy
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from refold.actors.hosting import HostedKinds
from refold.actors.kernel.system import ActorSystem
from refold.actors.shell.messages import Envelope, Performed
from refold.events.core.checked_core import CheckedCore, S
from refold.events.core.errors import CommandRejected, ConfigError, StreamDeleted, quoted
from refold.events.core.ids import SessionId, StreamName, kind_and_identifier
from refold.events.core.pure_core import KeyedCommand
from refold.remote.kept_log import ReadLog
from refold.remote.rows import NO_SESSION, InboxHosted

R = TypeVar("R")


def queue_of(address: StreamName) -> SessionId:
    """Return the name under which the commands of a hosted actor stand in the inbox, in their order."""
    return SessionId(f"{NO_SESSION}{address}")


def row_of_hosted(core: CheckedCore[Any, Any, Any], address: StreamName, command: object) -> tuple[str, InboxHosted]:
    """Return a command to a hosted actor as it goes into the inbox, and its key.

    Raises:
        ConfigError: it is no command of the core, or has no key.
        CommandRejected: it cannot be said in JSON.
    """
    name = type(command).__name__
    if not core.takes(command):
        raise ConfigError(f"{quoted(command)} is no command of {core.name}")
    if not isinstance(command, KeyedCommand):
        raise ConfigError(
            f"a {name} from a process that does not own the log could be performed twice, since it has no key; derive "
            "it from KeyedCommand, and what it becomes from KeyedEvent"
        )
    key = command.key if command.key is not None else uuid.uuid4().hex
    keyed = msgspec.structs.replace(command, key=key)
    try:
        data = msgspec.json.encode(keyed, order="deterministic")
        same = msgspec.json.decode(data, type=type(command)) == keyed
    except (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError, TypeError, ValueError) as error:
        raise CommandRejected(f"a {name} cannot go to another process: {error!s:.200}") from error
    if not same:
        raise CommandRejected(f"a {name} cannot go to another process: JSON would change it: {quoted(command, 200)}")
    kind, identifier = kind_and_identifier(address)
    return key, InboxHosted(kind=kind, id=identifier, name=name, command=msgspec.Raw(data))


async def performed_by_actor(system: ActorSystem, kinds: HostedKinds, row: InboxHosted) -> Performed | None:
    """Have a hosted actor perform a command, as `Hosted.ask`; None = its kind is not hosted here, or not yet."""
    core = kinds.cores.get(row.kind) or kinds.of_memories.get(row.kind)
    if core is None or not system.knows(row.kind):
        return None
    found: type[msgspec.Struct] | None = next((cls for cls in core.command_types if cls.__name__ == row.name), None)
    if found is None:
        raise CommandRejected(f"{row.name} is no command of {core.name}")
    try:
        command: object = msgspec.json.decode(row.command, type=found)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise CommandRejected(f"that is no {row.name}: {error!s:.200}") from error
    if not isinstance(command, KeyedCommand) or command.key is None:
        raise CommandRejected(f"a {row.name} without a key could be performed twice")
    performed: Performed = await system.ref(f"{row.kind}/{row.id}").ask(Envelope(command, vital=True), block=False)
    return performed


async def read_hosted(
    log: ReadLog, core: CheckedCore[S, Any, Any], address: StreamName, question: Callable[[S], R]
) -> R:
    """Return a copy of what `question` finds in an actor's state as the log has it now."""
    return copy.deepcopy(question(await state_of(log, core, address)))


async def state_of(log: ReadLog, core: CheckedCore[S, Any, Any], address: StreamName) -> S:
    """Return an actor's state as the log has it now, to look at only."""
    try:
        return await log.folded.state(log.store, address, core, core.codec)
    except StreamDeleted:
        return core.initial()
