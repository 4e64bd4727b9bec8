"""Actors that the owner of a log hosts, as other processes reach them; read `refold.remote.hosted` first."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from refold.actors.kernel.errors import AskTimeout
from refold.actors.loop_thread import HasLoopThread, LoopThread, blocking
from refold.actors.shell.messages import Performed
from refold.connections.people import ConnectedLog, given
from refold.events.core.checked_core import CheckedCore, S
from refold.events.core.errors import ConfigError
from refold.events.core.ids import StreamName, checked_identifier, stream_name
from refold.events.core.pure_core import C, PureCore
from refold.remote.client import Given
from refold.remote.hosted import queue_of, read_hosted, row_of_hosted
from refold.remote.kept_log import kept_open
from refold.remote.protocol import Done
from refold.stores.sqlite.ownership import log_owner

R = TypeVar("R")


class ConnectedHosted(Generic[S, C]):
    """The actors of one kind that the owner of a log hosts by `AgentRuntime.host`; get it from `Connection.hosted`.

    Commands are `KeyedCommand`s, so that each takes effect once, also where a process ends meanwhile.
    """

    def __init__(
        self, connection: ConnectedLog, kind: str, core: type[PureCore[S, C, Any]] | PureCore[S, C, Any]
    ) -> None:
        if not kind or "/" in kind:
            raise ConfigError(f"{kind!r} cannot be a kind of actor; use the word that the owner hosts it by")
        self.kind = kind
        self.connection = connection
        self._core: CheckedCore[S, C, Any] = CheckedCore(core)

    async def ask(self, identifier: str, command: C, *, timeout: float | None = None) -> Performed:  # noqa: ASYNC109 - as `Hosted.ask`
        """Send a command through the log's owner, and return when what follows from it is durable.

        Args:
            identifier: of the actor.
            command: what it is to do; one without a key is given one.
            timeout: seconds; None = the connection's `patience_s`.

        Raises:
            CommandRejected: it may not happen now, or cannot go to another process; nothing was recorded.
            ConfigError: it is no command of the core, or no `KeyedCommand`; the identifier cannot be one; or the log is
                owned by an `EventSourcedSystem`, which other processes cannot command.
            AskTimeout: no owner that hosts the kind has performed it in time; it waits in the inbox for one, under its
                key.
            PersistenceError: it could not be put into the inbox.
        """
        patience_s = self.connection.patience_s if timeout is None else timeout
        done = await self._give(identifier, command, patience_s)
        if not isinstance(done.outcome, Done):
            raise AskTimeout(f"a runtime that hosts {self.kind}", patience_s)
        return Performed(done.outcome.version, done.outcome.new and not done.known)

    async def tell(self, identifier: str, command: C) -> None:
        """Send a command, and return once it is durable in the inbox, or performed; raises as `ask`.

        A refusal that comes later is in the inbox only.
        """
        await self._give(identifier, command, 0)

    async def read(self, identifier: str, question: Callable[[S], R]) -> R:
        """Return a copy of what `question` finds in an actor's state as the log has it now.

        Raises:
            PersistenceError: the log cannot be read, or is damaged.
            Exception: what `question` raised.
        """
        await self.connection.wait_for_file()
        async with kept_open(self.connection.log) as log:
            return await read_hosted(log, self._core, self._address(identifier), question)

    def _address(self, identifier: str) -> StreamName:
        return stream_name(self.kind, checked_identifier(identifier, f"{self.kind} id"))

    async def _give(self, identifier: str, command: C, patience_s: float) -> Given:
        address = self._address(identifier)
        key, row = row_of_hosted(self._core, address, command)
        connection = self.connection
        await connection.wait_for_file()
        owner = log_owner(connection.log)
        if owner is not None and not owner.takes_commands:
            raise ConfigError(
                f"process {owner.pid} owns the log {connection.log} as an EventSourcedSystem, which other processes "
                f"cannot command; host {self.kind} in an AgentRuntime: `await runtime.host({self.kind!r}, ...)`"
            )
        return await given(connection, queue_of(address), row, key, patience_s=patience_s, may_begin=True)


class SyncConnectedHosted(Generic[S, C]):
    """The actors of one kind that the owner of a log hosts, for threads; get it from `SyncConnection.hosted`."""

    def __init__(self, connection: HasLoopThread, hosted: ConnectedHosted[S, C]) -> None:
        self.asynchronous = hosted
        self._connection = connection

    @property
    def kind(self) -> str:
        """What stands before the slash of their addresses."""
        return self.asynchronous.kind

    @property
    def loop_thread(self) -> LoopThread:
        """The thread of the connection's loop."""
        return self._connection.loop_thread

    ask = blocking(ConnectedHosted[S, C].ask)
    tell = blocking(ConnectedHosted[S, C].tell)
    read = blocking(ConnectedHosted[S, C].read)
