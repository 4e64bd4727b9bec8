"""A session as its user holds it: send, follow, cancel, look back.

A `Session` is a light handle on an address: make as many as you like. What is known lies in the log.
"""

import asyncio
import copy
import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from refold.actors.actor_ref import ActorRef
from refold.actors.cancellation import CancellationToken
from refold.actors.clock import Timer
from refold.actors.conversation import own_copy
from refold.actors.errors import ActorStopped, AskCycle
from refold.actors.event_sourced import Performed, WithPayloads
from refold.actors.given_content import checked_block, checked_messages
from refold.actors.session import InsistOnCancel, ReadSession
from refold.actors.tool_context import calling_session
from refold.events.cleaning import clean_text
from refold.events.codec import RecordedEvent
from refold.events.content import ImageBlock, Message, TextBlock, UserContent
from refold.events.core import evolve_all
from refold.events.errors import CommandRejected, ConfigError, LogFormatError
from refold.events.ids import PayloadHash, RunId, SessionId, ToolCallId, stream_name
from refold.events.payloads import restored, spill, stored_hashes
from refold.events.records import StoredEvent
from refold.events.session_commands import (
    CancelRun,
    DecideApproval,
    ImportHistory,
    ResumeRun,
    SendInput,
    SessionCommand,
)
from refold.events.session_core import SESSION_CODEC, SESSION_CORE, SESSION_KIND
from refold.events.session_events import SessionEvent, ToolApprovalRequested
from refold.events.session_state import FinishedRun, SessionState, calls_awaiting_approval, history, run_of_input
from refold.outcome import RunResult, result_of
from refold.session_hub import EndedRun, Follower, Recorded, cancelled_in_queue

if TYPE_CHECKING:
    from refold.agent_runtime import AgentRuntime

Input: TypeAlias = str | TextBlock | ImageBlock | Sequence[str | TextBlock | ImageBlock]
"""What can be sent: text, a block, or several of them."""

T = TypeVar("T")

EVENTS_PAGE = 1000
"""How many events are read from the log at once."""


class Session:
    """One conversation of an `AgentRuntime`; get it from `AgentRuntime.session`."""

    def __init__(self, runtime: "AgentRuntime", session: SessionId) -> None:
        self.id = session
        self._runtime = runtime
        self._stream = stream_name(SESSION_KIND, session)

    async def send(
        self,
        content: Input,
        *,
        cancel: CancellationToken | None = None,
        key: str | None = None,
        on_event: Callable[[Recorded], object] | None = None,
    ) -> RunResult:
        """Send an input and return how its run ended.

        Inputs of a session run one after another, in the order in which they were accepted. Cancelling the task
        that awaits this cancels the run, unless another caller with the same key waits for it too; it waits until
        that is durable (at most twice the cancel grace, where the log refuses), and raises CancelledError.

        Args:
            content: text or blocks; not empty.
            cancel: cancels the run. If it is cancelled already, the run makes no model call.
            key: idempotency key: the same key with the same content is the same run, also after a restart.
            on_event: called with every event of the run as it becomes durable. What it raises cancels the run and
                is raised here.

        Raises:
            CommandRejected: the input is empty or cannot be recorded, or the key was used for something else.
            PersistenceError: the input could not be recorded.
            ActorStopped: the runtime closed before the run ended; it goes on at the next start.
            AskCycle: a tool of this session sends to it, and would wait for itself.
        """
        if calling_session.get() == (self._runtime.system, self.id):
            raise AskCycle((self._stream, "its tool", self._stream))
        blocks, payloads = input_content(content)
        if cancel is not None and not isinstance(cancel, CancellationToken):
            raise ConfigError(f"cancel must be a CancellationToken, not {type(cancel).__name__}")
        if on_event is not None and inspect.iscoroutinefunction(on_event):
            raise ConfigError("on_event must be a plain function that returns quickly, not an async one")
        cancelled = cancel is not None and cancel.cancelled
        command = SendInput(content=blocks, key=_checked_key(key), cancelled=cancelled)
        watcher = _RunWatcher(on_event) if on_event is not None else None
        self._runtime.require_open()
        given_up = CancellationToken()
        work = asyncio.get_running_loop().create_task(
            self._run_to_its_end(command, payloads, watcher, cancel, given_up), name=f"send to {self._stream}"
        )
        result = await self._until_it_ends(work, given_up)
        if watcher is not None and watcher.failure is not None:
            raise watcher.failure
        return result

    async def _until_it_ends(self, work: asyncio.Task[RunResult], given_up: CancellationToken) -> RunResult:
        """Return what `work` returns; a caller who is cancelled gives it up, and waits for its end all the same."""
        gone: asyncio.CancelledError | None = None
        patience: Timer | None = None
        while not work.done():
            try:
                await asyncio.wait([work])
            except asyncio.CancelledError as error:
                gone = error
                given_up.cancel()
                if patience is None:  # A log that refuses for ever must not hold a caller who was cancelled.
                    grace_s = 2 * self._runtime.options.cancel_grace_s
                    patience = self._runtime.system.clock.call_later(grace_s, work.cancel)
        if patience is not None:
            patience.cancel()
        if gone is not None:
            if not work.cancelled():
                work.exception()
            raise gone
        return work.result()

    async def _run_to_its_end(
        self,
        command: SendInput,
        payloads: dict[PayloadHash, bytes],
        watcher: "_RunWatcher | None",
        cancel: CancellationToken | None,
        given_up: CancellationToken,
    ) -> RunResult:
        """Do as `send` says; `given_up` is cancelled when its caller is, at whatever moment that happens."""
        with self._runtime.hub.follow(self.id) as follower:
            unsubscribe = self._runtime.hub.subscribe(watcher.see, self.id) if watcher is not None else None
            try:
                performed = await self._ask(command, payloads)
                run = run_of_input(performed.version)
                if watcher is not None:
                    watcher.watch(run, lambda: self._cancel_surely(CancelRun(run=run, reason="on_event raised")))
                finished = await self._wait(run, performed, follower, cancel, given_up)
            finally:
                if unsubscribe is not None:
                    unsubscribe()
        return await result_of(finished, self._runtime.store)

    async def _wait(
        self,
        run: RunId,
        performed: Performed,
        follower: Follower,
        cancel: CancellationToken | None,
        given_up: CancellationToken,
    ) -> FinishedRun:
        forget: list[Callable[[], None]] = []
        task = asyncio.current_task()
        assert task is not None
        follower.awaited = run

        def give_up() -> None:
            if self._runtime.hub.is_awaited(self.id, run, besides=follower):
                task.cancel()  # It is somebody else's run too, and goes on without this caller.
            else:
                self._cancel_surely(CancelRun(run=run, reason="the caller was cancelled"))

        if cancel is not None:
            forget.append(cancel.on_cancel(lambda: self._cancel_surely(CancelRun(run=run, reason=_reason_of(cancel)))))
        forget.append(given_up.on_cancel(give_up))
        try:
            if not performed.new:
                before = await self._ended_before(run)
                if before is not None:
                    return await self._finished(before)
            return await self._finished(await follower.ended(run))
        finally:
            for take_back in forget:
                take_back()

    async def _ended_before(self, run: RunId) -> EndedRun | None:
        """Return how a run of an input with a key has ended, if it has."""

        def ended(state: SessionState) -> EndedRun | None:
            for record in state.keys.values():
                if run_of_input(record.version) == run and record.terminal:
                    return EndedRun(record.terminal, None)
            for queued in state.queue:
                if run_of_input(queued.version) == run and queued.cancelled:
                    return EndedRun(queued.version, cancelled_in_queue(run, queued.version))
            return None

        return await self._read(ended)

    async def _finished(self, ended: EndedRun) -> FinishedRun:
        if ended.finished is not None:
            return ended.finished
        finished = (await self.state_at(ended.version)).last_run
        if finished is None or finished.version != ended.version:
            raise LogFormatError(f"version {ended.version} of {self._stream} ends no run")
        return finished

    async def cancel(self, *, key: str | None = None, reason: str | None = None) -> None:
        """End the run under way as cancelled; return when that is durable. Without one, nothing happens.

        Calls of its tools that are still open are answered with `Cancelled by user`; what completed before stays.
        """
        with self._runtime.hub.follow(self.id) as follower:
            run = await self._read(lambda state: state.run.id if state.run is not None else None)
            wanted = run if key is None else None  # A repeated command names no run: that of its key is meant.
            why = clean_text(reason) if reason is not None else None
            performed = await self._ask(CancelRun(run=wanted, key=_checked_key(key), reason=why))
            if performed.new and run is not None:
                await follower.ended(run)

    async def decide(self, call: ToolCallId | str, *, allow: bool, reason: str = "", key: str | None = None) -> None:
        """Allow or deny a call that waits for approval.

        Args:
            call: its id, from `approvals` or the event ToolApprovalRequested.
            allow: whether it may run.
            reason: what the model is told where it may not.
            key: idempotency key.

        Raises:
            CommandRejected: the call does not wait for approval.
        """
        await self._ask(
            DecideApproval(call=ToolCallId(call), allowed=allow, reason=clean_text(reason), key=_checked_key(key))
        )

    async def approvals(self) -> list[ToolApprovalRequested]:
        """Return the calls that wait for somebody's decision now, in order; also after a restart."""

        def waiting(state: SessionState) -> list[ToolApprovalRequested]:
            run = state.run
            return [
                ToolApprovalRequested(
                    run=run.id,
                    call=call.id,
                    tool=call.name,
                    input=copy.deepcopy(call.input),
                    reason=call.verdict.reason,
                )
                for call in calls_awaiting_approval(state)
                if run is not None
            ]

        return await self._read(waiting)

    async def resume(self) -> None:
        """Let an open run go on that was parked, or that waits because the runtime has `auto_resume=False`."""
        await self._ask(ResumeRun(tools=self._runtime.tools.names(), asked=True))

    async def import_history(self, messages: Sequence[Message], *, key: str | None = None) -> None:
        """Put messages of another system at the end of the history; open calls in them get a crash result.

        Raises:
            CommandRejected: a run is under way, there is nothing to import, or something in it cannot be recorded.
        """
        kept: list[Message] = []
        payloads: dict[PayloadHash, bytes] = {}
        for message in checked_messages(messages):
            content, large = spill(message.content)
            kept.append(Message(message.role, content))
            payloads.update(large)
        await self._ask(ImportHistory(messages=tuple(kept), key=_checked_key(key)), payloads)

    async def history(self) -> list[Message]:
        """Return the balanced history as the model sees it; open calls have a result that says so."""
        messages = await self._read(history)
        hashes = stored_hashes(messages)
        payloads = await self._runtime.store.read_payloads(hashes) if hashes else {}
        return [own_copy(restored(message, payloads)) for message in messages]

    async def state_at(self, version: int | None = None) -> SessionState:
        """Return the state folded from the log, as of a version or as of now; it is the caller's own.

        Raises:
            PersistenceError: the log cannot be read.
        """
        stored = await self._runtime.store.read_stream(self._stream, limit=version)
        return evolve_all(SESSION_CORE, SESSION_CODEC.decode_all(stored))

    async def events(self, *, after_version: int = 0) -> AsyncIterator[RecordedEvent[SessionEvent]]:
        """Yield the session's recorded events with a version greater than `after_version`, up to now."""
        store, version = self._runtime.store, after_version
        held: list[StoredEvent] = []
        while True:
            page = await store.read_stream(self._stream, after_version=version, limit=EVENTS_PAGE)
            if (
                page and not held and page[0].version != page[0].batch
            ):  # What a batch goes back to is in its first event.
                first = page[0]
                held = await store.read_stream(
                    self._stream, after_version=first.batch - 1, limit=first.version - first.batch
                )
            held += page
            over = len(page) < EVENTS_PAGE
            whole = held if over else [item for item in held if item.batch != held[-1].batch]
            for recorded in SESSION_CODEC.recorded(whole):
                if recorded.version > after_version:
                    yield recorded
            if over:
                return
            held, version = held[len(whole) :], page[-1].version

    async def _read(self, question: Callable[[SessionState], T]) -> T:
        self._runtime.require_open()
        answer: T = await self._ref.ask(ReadSession(question), block=False)
        return answer

    async def _ask(self, command: SessionCommand, payloads: dict[PayloadHash, bytes] | None = None) -> Performed:
        self._runtime.require_open()
        message = WithPayloads(command, payloads) if payloads else command
        performed = await self._ref.ask(message, block=False)
        assert isinstance(performed, Performed)
        return performed

    def _cancel_surely(self, command: CancelRun) -> None:
        """Have a run cancelled, also where the log refuses at first; from any thread."""
        try:
            self._ref.tell(InsistOnCancel(command))
        except ActorStopped as error:
            self._runtime.log.info("session %s: a cancellation came too late: %s", self.id, error)

    @property
    def _ref(self) -> ActorRef:
        return self._runtime.system.ref(self._stream)


class _RunWatcher:
    """Calls a handler with the events of one run, and keeps its error."""

    def __init__(self, handler: Callable[[Recorded], object]) -> None:
        self.failure: BaseException | None = None
        self._handler = handler
        self._early: list[Recorded] | None = []
        self._run: RunId | None = None
        self._on_failure: Callable[[], None] | None = None
        self._open = False

    def watch(self, run: RunId, on_failure: Callable[[], None]) -> None:
        """Begin with the events of `run`; some of them may have come already."""
        self._run = run
        self._on_failure = on_failure
        early, self._early = self._early or [], None
        for event in early:
            self.see(event)

    def see(self, recorded: Recorded) -> None:
        """Pass an event on if it belongs to the run."""
        if self._early is not None:
            self._early.append(recorded)
            return
        event = recorded.event
        run = getattr(event, "run", None)
        if run == self._run or run_of_input(recorded.version) == self._run:
            self._open = True
        elif run is not None or not self._open:
            return
        if self.failure is None:
            try:
                answer = self._handler(recorded)
                if inspect.iscoroutine(answer):
                    answer.close()
                    raise ConfigError("on_event must be a plain function that returns quickly, not an async one")
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - The caller's own error: it is raised to the caller.
                self.failure = error
                if self._on_failure is not None:
                    self._on_failure()


def input_content(content: Input) -> tuple[tuple[UserContent, ...], dict[PayloadHash, bytes]]:
    """Return what is recorded of an input, and the payloads of what is large in it.

    Raises:
        CommandRejected: it is empty, or not text or blocks.
    """
    if isinstance(content, str | TextBlock | ImageBlock):
        parts: Sequence[object] = [content]
    elif isinstance(content, Sequence) and not isinstance(content, bytes | bytearray):
        parts = content
    else:
        raise CommandRejected(f"an input is text or blocks, not {type(content).__name__}")
    blocks: list[TextBlock | ImageBlock] = []
    for place, part in enumerate(parts):
        if isinstance(part, ImageBlock):
            blocks.append(checked_block(part, f"content[{place}]"))
        elif isinstance(part, str | TextBlock):
            text = part if isinstance(part, str) else checked_block(part, f"content[{place}]").text
            if text.strip():
                blocks.append(TextBlock(text=clean_text(str.__str__(text))))
        else:
            raise CommandRejected(f"an input is text or blocks, not {type(part).__name__}")
    if not blocks:
        raise CommandRejected("the input is empty; send some text")
    return spill(blocks)


def _reason_of(token: CancellationToken) -> str | None:
    return clean_text(token.reason) if token.reason is not None else None


KEY_BYTES_MAX = 512
"""Longest idempotency key, in UTF-8 bytes."""


def _checked_key(key: str | None) -> str | None:
    if key is None:
        return None
    if not isinstance(key, str) or not key or len(clean_text(key).encode()) > KEY_BYTES_MAX:
        raise CommandRejected(f"a key is text of 1 to {KEY_BYTES_MAX} UTF-8 bytes, not {key!r:.60}")
    return clean_text(key)
