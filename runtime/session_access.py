"""How the handles of a session reach it: its actor while it lives, its log always."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from refold.actors.actor_ref import ActorRef
from refold.actors.errors import ActorStopped
from refold.actors.folded_actor import Performed
from refold.actors.session import ReadSession
from refold.actors.session_messages import ForAcceptedWork, InsistOnCancel
from refold.actors.stream_messages import WithPayloads
from refold.events.core import evolve_all
from refold.events.ids import PayloadHash, SessionId, stream_name
from refold.events.session_commands import (
    AllowTurn,
    CancelRun,
    DecideApproval,
    ResumeRun,
    SendInput,
    SessionCommand,
)
from refold.events.session_core import SESSION_CODEC, SESSION_CORE, SESSION_KIND
from refold.events.session_state import SessionState
from refold.kept_content import content_by_hash
from refold.user_messages import hooked_input

if TYPE_CHECKING:
    from refold.agent_runtime import AgentRuntime

T = TypeVar("T")

ABOUT_ACCEPTED_WORK = (AllowTurn, CancelRun, DecideApproval, ResumeRun)
"""Commands that let go on or end what was accepted before: the very load that fills a mailbox must not stop them."""


class SessionAccess:
    """Takes commands and questions to one session of a runtime."""

    def __init__(self, runtime: "AgentRuntime", session: SessionId) -> None:
        self.runtime = runtime
        self.session = session
        self.stream = stream_name(SESSION_KIND, session)

    async def read(self, question: Callable[[SessionState], T], *, vital: bool = False) -> T:
        """Return what the actor's state answers; what is handed back is the caller's own.

        Args:
            question: asked where the state is durable.
            vital: a full mailbox takes it all the same.

        Raises:
            ActorStopped: the runtime is closed, or the session has failed.
            BackpressureShed: too many messages wait, and this one is not vital.
        """
        self.runtime.require_open()
        message = ReadSession(question)
        answer: T = await self._ref.ask(ForAcceptedWork(message) if vital else message, block=False)
        return answer

    async def ask(self, command: SessionCommand, payloads: dict[PayloadHash, bytes] | None = None) -> Performed:
        """Have a command accepted, and durable.

        Raises:
            CommandRejected: the session refuses it.
            AgentLoopError: middleware failed on an input.
            PersistenceError: it could not be recorded.
            ActorStopped: the runtime is closed, or the session has failed.
            BackpressureShed: too many messages wait, and this one is not about a run that was accepted before.
        """
        self.runtime.require_open()
        if isinstance(command, SendInput):
            await self.runtime.tools_in_force()
        if isinstance(command, SendInput) and self.runtime.has_hooks:
            hooks = self.runtime.hooks_of(await self.read(lambda state: state.agent))
            if hooks is not None:
                command, payloads = await hooked_input(hooks, self.session, command, payloads or {})
                self.runtime.require_open()
        message: object = WithPayloads(command, payloads) if payloads else command
        if isinstance(command, ABOUT_ACCEPTED_WORK):
            message = ForAcceptedWork(message)
        performed = await self._ref.ask(message, block=False)
        assert isinstance(performed, Performed)
        return performed

    def cancel_surely(self, command: CancelRun) -> None:
        """Have a run cancelled, also where the log refuses at first; from any thread."""
        self._insist(InsistOnCancel(command))

    def _insist(self, message: InsistOnCancel) -> None:
        try:
            self._ref.tell(message)
        except ActorStopped as error:
            self.runtime.log.info("session %s: a cancellation came too late: %s", self.session, error)

    async def state_at(self, version: int | None = None) -> SessionState:
        """Return the state folded from the log, as of a version or as of now; it is the caller's own.

        Raises:
            PersistenceError: the log cannot be read.
        """
        stored = await self.runtime.store.read_stream(self.stream, limit=version)
        return evolve_all(SESSION_CORE, SESSION_CODEC.decode_all(stored))

    async def payload(self, name: PayloadHash | str) -> bytes:
        """Return content of this session that the log keeps by its hash: a text as UTF-8, an image as its file.

        Raises:
            ConfigError: nothing of this session has that name.
            PersistenceError: the log cannot be read.
        """
        self.runtime.require_open()
        return await content_by_hash(self.runtime.store, self.stream, name)

    @property
    def _ref(self) -> ActorRef:
        return self.runtime.system.ref(self.stream)
