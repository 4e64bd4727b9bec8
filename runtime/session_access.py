"""How the handles of a session reach it: its actor while it lives, its log always."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from refold.actors.actor_ref import ActorRef
from refold.actors.errors import ActorStopped
from refold.actors.event_sourced import WithPayloads
from refold.actors.folded_actor import Performed
from refold.actors.session import InsistOnCancel, ReadSession
from refold.events.core import evolve_all
from refold.events.ids import PayloadHash, SessionId, stream_name
from refold.events.session_commands import CancelRun, SessionCommand
from refold.events.session_core import SESSION_CODEC, SESSION_CORE, SESSION_KIND
from refold.events.session_state import SessionState

if TYPE_CHECKING:
    from refold.agent_runtime import AgentRuntime

T = TypeVar("T")


class SessionAccess:
    """Takes commands and questions to one session of a runtime."""

    def __init__(self, runtime: "AgentRuntime", session: SessionId) -> None:
        self.runtime = runtime
        self.session = session
        self.stream = stream_name(SESSION_KIND, session)

    async def read(self, question: Callable[[SessionState], T]) -> T:
        """Return what the actor's state answers; what is handed back is the caller's own.

        Raises:
            ActorStopped: the runtime is closed, or the session has failed.
        """
        self.runtime.require_open()
        answer: T = await self._ref.ask(ReadSession(question), block=False)
        return answer

    async def ask(self, command: SessionCommand, payloads: dict[PayloadHash, bytes] | None = None) -> Performed:
        """Have a command accepted, and durable.

        Raises:
            CommandRejected: the session refuses it.
            PersistenceError: it could not be recorded.
            ActorStopped: the runtime is closed, or the session has failed.
        """
        self.runtime.require_open()
        message = WithPayloads(command, payloads) if payloads else command
        performed = await self._ref.ask(message, block=False)
        assert isinstance(performed, Performed)
        return performed

    def cancel_surely(self, command: CancelRun) -> None:
        """Have a run cancelled, also where the log refuses at first; from any thread."""
        try:
            self._ref.tell(InsistOnCancel(command))
        except ActorStopped as error:
            self.runtime.log.info("session %s: a cancellation came too late: %s", self.session, error)

    async def state_at(self, version: int | None = None) -> SessionState:
        """Return the state folded from the log, as of a version or as of now; it is the caller's own.

        Raises:
            PersistenceError: the log cannot be read.
        """
        stored = await self.runtime.store.read_stream(self.stream, limit=version)
        return evolve_all(SESSION_CORE, SESSION_CODEC.decode_all(stored))

    @property
    def _ref(self) -> ActorRef:
        return self.runtime.system.ref(self.stream)
