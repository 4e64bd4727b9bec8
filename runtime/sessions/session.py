"""A session as its user holds it: send, follow, cancel, look back.

A `Session` is a light handle on an address: make as many as you like. What is known lies in the log.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar, Unpack, overload

from refold.actors.agent.session import PerformedInRun
from refold.actors.agent.subsession import children_prefix, parent_of
from refold.actors.calls.conversation import Conversation
from refold.actors.cancellation import CancellationToken
from refold.context import RuntimeContext
from refold.events.core.cleaning import recorded_reason
from refold.events.core.codec import RecordedEvent
from refold.events.core.content import Message
from refold.events.core.errors import ConfigError, quoted
from refold.events.core.ids import PayloadHash, RunId, SessionId, kind_and_identifier, stream_name
from refold.events.model.cooperative import ITEMS_PER_STEP
from refold.events.session.commands import (
    AllowTurn,
    CancelRun,
    DescribeSession,
    ResumeRun,
    SendInput,
)
from refold.events.session.core import SESSION_KIND
from refold.events.session.events import SessionEvent
from refold.events.session.state import SessionState, results_message
from refold.events.views.statistics import SessionStatistics
from refold.events.views.steps import Step
from refold.lineage.fork import Results, WantedFork
from refold.metrics.reading import read_steps, read_stream_statistics
from refold.publishing.notifications import RecordedSessionEvent
from refold.publishing.subscription import CAPACITY, Subscription
from refold.sessions.access import SessionAccess, SessionMetadata, checked_name, describe_command, metadata_in
from refold.sessions.checkpoint import Checkpoint, checkpoint_bytes, completed, encode_message, with_history
from refold.sessions.inputs import (
    Input,
    InputOptions,
    RunOverrides,
    SendOptions,
    StreamOptions,
    SubmitOptions,
    checked_key,
    due_times,
    input_blocks,
    run_options,
)
from refold.sessions.named_content import EditedHistory
from refold.sessions.outcome import RunResult, Spent, TurnResult
from refold.sessions.people import SessionForPeople
from refold.sessions.run_handle import RunHandle, known_run
from refold.sessions.sent_input import RunWatcher, SentInput, begin
from refold.sessions.stream import RunStream
from refold.stores.event_store import EventStore
from refold.stores.values.backend import PersistenceBackend, save_in
from refold.type_parameters import Out_co

T = TypeVar("T")

EVENTS_PAGE = 1000
"""How many events are read from the log at once."""


class Session(EditedHistory, SessionForPeople, Generic[Out_co]):
    """One conversation of an `AgentRuntime`; get it from `AgentRuntime.session`."""

    def __init__(
        self,
        context: RuntimeContext,
        session: SessionId,
        output_type: type[Out_co] | None = None,
        deps: object = None,
        described: DescribeSession | None = None,
    ) -> None:
        self.id = session
        self._context = context
        self._output_type = output_type
        self._access = SessionAccess(context, session, output_type, deps, described)

    def _repr_html_(self) -> str | None:
        """Return the session for a notebook: the page on which it is looked at, at any version."""
        from refold.page.one_file import framed_session

        return framed_session(self._context.store, self.id)

    @overload
    async def send(
        self,
        content: Input,
        *,
        on_event: Callable[[RecordedSessionEvent], object] | None = None,
        output_type: type[T],
        **options: Unpack[SendOptions],
    ) -> RunResult[T]: ...

    @overload
    async def send(
        self,
        content: Input,
        *,
        on_event: Callable[[RecordedSessionEvent], object] | None = None,
        output_type: None = None,
        **options: Unpack[SendOptions],
    ) -> RunResult[Out_co]: ...

    async def send(
        self,
        content: Input,
        *,
        cancel: CancellationToken | None = None,
        key: str | None = None,
        on_event: Callable[[RecordedSessionEvent], object] | None = None,
        at: datetime | None = None,
        now: bool = False,
        deps: object = None,
        output_type: type[Any] | None = None,
        **options: Unpack[RunOverrides],
    ) -> RunResult[Any]:
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
            at: accept it now, durably, and begin its run at this time or after it; None = at once. It does not hold
                up what is sent meanwhile.
            now: let it join the run under way before that one's next model call, and return how that one ended;
                where no run is under way it is an ordinary input.
            deps: what its run depends on from now on, instead of what its session or its agent does. It is given as it
                is, is the caller's to close, and is not recorded. None = as these.
            output_type: what the answer of this run must be, and `output` of its result is; None = as its agent has it.
                Its JSON Schema is recorded with the input.
            options: what else the run does otherwise than its agent: `model`, `max_turns`, `max_tokens`, `temperature`;
                `tools`, names of those that it may use; `traceparent`, the caller's trace. They are recorded with the
                input, so that the run keeps them when it is resumed.

        Raises:
            ConfigError: an argument makes no sense.
            CommandRejected: the input is empty or cannot be recorded, the key was used for something else, or the agent
                has no tool of a name in `tools`.
            PersistenceError: the input could not be recorded.
            ActorStopped: the runtime closed before the run ended; it goes on at the next start.
            BackpressureShed: too many inputs are queued or run (`backpressure`), or too many messages wait; nothing of
                this one is recorded.
            AskCycle: a tool would wait for this session, which waits for that tool.
        """
        access, own = self._access.of_run(deps, output_type), run_options(options, output_type)
        if on_event is None:
            handle = begin(access, content, cancel=cancel, key=key, at=at, now=now, options=own)
            await handle.done()
            return handle.result()
        if inspect.iscoroutinefunction(on_event):
            raise ConfigError("on_event must be a plain function that returns quickly, not an async one")
        with RunWatcher(access, on_event, reason="on_event raised") as watcher:
            handle = begin(
                access, content, cancel=cancel, key=key, on_performed=watcher.watch, at=at, now=now, options=own
            )
            await handle.done()
        result = handle.result()
        if watcher.failure is not None:
            raise watcher.failure
        return result

    @overload
    async def submit(
        self, content: Input, *, output_type: type[T], **options: Unpack[SubmitOptions]
    ) -> RunHandle[T]: ...

    @overload
    async def submit(
        self, content: Input, *, output_type: None = None, **options: Unpack[SubmitOptions]
    ) -> RunHandle[Out_co]: ...

    async def submit(
        self,
        content: Input,
        *,
        key: str | None = None,
        at: datetime | None = None,
        now: bool = False,
        deps: object = None,
        output_type: type[Any] | None = None,
        **options: Unpack[RunOverrides],
    ) -> RunHandle[Any]:
        """Send an input and return its run as soon as the input is durable; the run goes on by itself.

        The arguments, and what is raised of the input, are as for `send`. With a key this may be called any number of
        times, by any process: it is one run, also when that has ended.
        """
        access = self._access.of_run(deps, output_type)
        sent = begin(
            access,
            content,
            cancel=None,
            key=key,
            at=at,
            now=now,
            options=run_options(options, output_type),
            detached=True,
        )
        await sent.accepted()
        if sent.run is None:
            sent.result()
        assert sent.run is not None
        return RunHandle(access, sent.run)

    async def run(self, run: RunId | str | None = None, *, key: str | None = None) -> RunHandle[Out_co]:
        """Return a run of the session, which may be queued, under way, or over.

        Args:
            run: its id, such as `run_3`.
            key: instead of it, the key of its input.

        Raises:
            ConfigError: the session has no such run.
            PersistenceError: the log cannot be read.
        """
        record = await self._access.read(lambda state: state.keys.get(key)) if isinstance(key, str) else None
        async with self._access.own():
            name, options = await known_run(self._context.store, self.id, run, key, lambda _: record)
        return RunHandle(self._access.of_found(options), name)

    async def remind(
        self,
        content: Input,
        *,
        at: datetime | None = None,
        every: timedelta | str | None = None,
        zone: str = "UTC",
        key: str | None = None,
        output_type: type[Any] | None = None,
        **options: Unpack[RunOverrides],
    ) -> RunId:
        """Accept an input for a later time, or for many, and return its run as soon as that is durable.

        The runtime that is open then begins the run; one that opens later does so at once. With `every` there is a run
        for each time, which `refold show` names, and what is returned stands for all that are still to come. Of times
        that passed while no runtime was open one run begins, not one for each; and of the same reminder never more
        than one waits in the queue. Cancel it with `cancel(run=…)`.

        Args:
            content: text or blocks; not empty.
            at: a time with a time zone; with `every` the first one. None = the first time of `every` from now on.
            every: an interval of at least a second, or a cron line (minute, hour, day, month, day of the week), for
                which `refold[cron]` is installed.
            zone: IANA name of the time zone in which the cron line is read.
            key: idempotency key, of the input and of `every`, not of its times.
            options: as for `send`.

        Raises:
            ConfigError: there is neither a time nor an interval; the time has no time zone; or the interval, the line
                or the zone cannot be one.
            CommandRejected: the input is empty or cannot be recorded, or the key was used for something else.
            PersistenceError: the input could not be recorded.
        """
        repeat, due_at = due_times(at, every, zone, self._context.system.clock.now_us())
        command = SendInput(
            content=tuple(input_blocks(content)),
            key=checked_key(key),
            due_at=due_at,
            every=repeat,
            options=run_options(options, output_type),
        )
        performed = await self._access.ask(command)
        assert isinstance(performed, PerformedInRun)
        return performed.run

    @overload
    async def next_turn(self, content: None = None, *, deps: object = None) -> TurnResult[Out_co]: ...

    @overload
    async def next_turn(
        self, content: Input, *, output_type: type[T], **options: Unpack[InputOptions]
    ) -> TurnResult[T]: ...

    @overload
    async def next_turn(
        self, content: Input, *, output_type: None = None, **options: Unpack[InputOptions]
    ) -> TurnResult[Out_co]: ...

    async def next_turn(
        self,
        content: Input | None = None,
        *,
        key: str | None = None,
        deps: object = None,
        output_type: type[Any] | None = None,
        **options: Unpack[RunOverrides],
    ) -> TurnResult[Any]:
        """Take one turn, a model call and the tool calls that it asks for, and return.

        With an input, the first turn of its run; without, the next one of the run under way, which was begun by
        this method. `resume` lets such a run go on to its end. Cancelling the task that awaits this cancels the run.

        Args:
            content: text or blocks; None = go on with the run under way.
            key: idempotency key of the input.
            deps: as for `send`; without an input, only for a run that has been given none in this process.
            options: of the run that the input begins, as for `send`.

        Raises:
            ConfigError: there is a key or an option, and no input that it is of.
            CommandRejected: as `send`; or no run waits for its next turn.
            PersistenceError: it could not be recorded.
        """
        access, own = self._access.of_run(deps, output_type), run_options(options, output_type)
        if content is None and (key is not None or own is not None):
            raise ConfigError("next_turn has a key and options for an input alone; give an input too, or neither")
        seen: list[RecordedSessionEvent] = []
        with RunWatcher(access, seen.append) as watcher:
            if content is not None:
                handle = begin(
                    access, content, cancel=None, key=key, on_performed=watcher.watch, stepwise=True, options=own
                )
            else:
                self._context.require_open()
                access = access.of_found(await access.read(lambda state: state.run.options if state.run else None))
                handle = SentInput(access, AllowTurn(), {}, None, watcher.watch, stepwise=True)
            await handle.done()
        ended = handle.turn_result()
        assert handle.run is not None
        return TurnResult(run=handle.run, events=tuple(seen), result=ended if isinstance(ended, RunResult) else None)

    step = next_turn

    @overload
    def stream(self, content: Input, *, output_type: type[T], **options: Unpack[StreamOptions]) -> RunStream[T]: ...

    @overload
    def stream(
        self, content: Input, *, output_type: None = None, **options: Unpack[StreamOptions]
    ) -> RunStream[Out_co]: ...

    def stream(
        self,
        content: Input,
        *,
        cancel: CancellationToken | None = None,
        key: str | None = None,
        deps: object = None,
        output_type: type[Any] | None = None,
        **options: Unpack[RunOverrides],
    ) -> RunStream[Any]:
        """Send an input and return an async iterator of what happens in its run, as it happens.

        Use it as `async with session.stream("…") as stream:` and `async for item in stream:`. It yields the run's
        events (`RecordedEvent`) in order up to its terminal event, and what passes by: `Streamed` pieces of answers
        (where the configuration has `streaming=True`), `Progressed` reports of tools, and `Missed` where the reader
        was too slow for some of them. Then `stream.result` says how the run ended.

        The input is sent when the iteration, or the `async with`, begins. Who leaves before the end cancels the run,
        unless another caller with the same key waits for it too. The arguments, and what may be raised from the
        iteration, are as for `send`; a run with the same key that is over is read from the log.
        """
        access = self._access.of_run(deps, output_type)
        return RunStream(access, content, cancel=cancel, key=key, options=run_options(options, output_type))

    async def cancel(
        self, *, run: RunId | str | None = None, key: str | None = None, reason: str | None = None
    ) -> None:
        """End the run under way as cancelled; return when that is durable. Without one, nothing happens.

        Calls of its tools that are still open are answered with `Cancelled by user`; what completed before stays.

        Args:
            run: this run instead, which may be under way, queued or for a later time; one that has ended stays.
            key: idempotency key.
            reason: is recorded.
        """
        named = RunId(checked_name(run, "run")) if run is not None else None
        with self._context.event_bus.follow(self.id) as follower:
            ending = named or await self._access.read(_run_now, vital=True)
            wanted = named if key is not None else ending  # A repeated command that named no run means that of its key.
            why = recorded_reason(reason) if reason is not None else None
            performed = await self._access.ask(CancelRun(run=wanted, key=checked_key(key), reason=why))
            if performed.new and ending is not None:
                await follower.ended(ending)

    async def children(self) -> "list[Session[Any]]":
        """Return the sessions that calls of subagents in this one began, in order of their names.

        Raises:
            PersistenceError: the log cannot be read.
        """
        store, of_user = self._context.store, describe_command(self._access.named.user, None)
        async with self._access.own():
            heads = await store.list_streams(prefix=stream_name(SESSION_KIND, children_prefix(self.id)))
            names = [SessionId(kind_and_identifier(head.stream)[1]) for head in heads]
            found = [name for name in names if await parent_of(store, name) == self.id]
        return [Session(self._context, name, described=of_user) for name in found]

    async def resume(self) -> None:
        """Let an open run go on that was parked, goes step by step, or waits because of `auto_resume=False`."""
        await self._access.ask(ResumeRun(tools=self._context.tools_of(None).names(), asked=True))

    async def fork(
        self,
        at: int | None = None,
        *,
        name: str | None = None,
        model: str | None = None,
        system_prompt: str | None = None,
        results: Results | None = None,
        keep_run: bool = False,
    ) -> "Session[Out_co]":
        """Return a new session that goes on from a place in this one, which does not change.

        It costs one event, wherever the place is. What tools did before it is not done again. Inputs that waited there
        or were scheduled stay with this session. Memories with a user's scope are the user's in both.

        Args:
            at: the version of the last event that both have: the end of a batch. None = the last one.
            name: of the fork; None = `alice~57`. The same fork made twice under one name is one.
            model: that its runs ask; None = as the agent has it. So is the prompt.
            system_prompt: what it is told in place of the agent's text.
            results: what calls that are open there are answered with, by their ids; the run waits for `resume` then.
            keep_run: a run that is open there waits in the fork until `resume`; else it ends as cancelled there. Calls
                that had begun, unless they are pure, are answered: their outcome is not known.

        Raises:
            ConfigError: there is no such version, a batch goes on behind it, or an argument makes no sense.
            CommandRejected: there is another session of that name.
            PersistenceError: it could not be recorded.
        """
        self._context.require_open()
        wanted = WantedFork(
            at=at,
            name=name,
            options=run_options({"model": model}),
            system_prompt=system_prompt,
            results=results,
            keep_run=keep_run,
        )
        async with self._access.own():
            made = await self._context.fork(self.id, wanted)
        of_user = describe_command(self._access.named.user, None)
        return Session(self._context, made, self._output_type, self._access.deps, of_user)

    async def history(self) -> list[Message]:
        """Return the balanced history as the model sees it; open calls have a result that says so."""
        return await whole_history(await self._access.read(history_parts), self._context.store)

    async def checkpoint(self, backend: PersistenceBackend, key: str | None = None) -> Checkpoint:
        """Export the session at its present version to a backend and return what was written; nothing is recorded.

        Args:
            backend: where it goes.
            key: under which key, in place of what is there; None = `"session/<id>"`.

        Raises:
            ConfigError: what is given as a backend is none.
            PersistenceError: the log cannot be read, or the backend could not keep it.
        """
        if not isinstance(backend, PersistenceBackend):
            raise ConfigError(f"a checkpoint goes to a PersistenceBackend, not {quoted(backend, 60)}")
        facts = await self._access.read(lambda state: with_history(state, self.id))
        checkpoint = await completed(facts, self._context.store, self._access.stream)
        document = checkpoint_bytes(checkpoint, map(encode_message, checkpoint.history))
        await save_in(backend, self._access.stream if key is None else key, document)
        return checkpoint

    async def payload(self, name: PayloadHash | str) -> bytes:
        """Return content that the log keeps by its hash, such as the whole of a tool's long result, as it was given.

        Args:
            name: 64 hexadecimal digits, as in a StoredBlock or where a text says that it was cut.

        Raises:
            ConfigError: nothing of this session has that name.
            PersistenceError: the log cannot be read.
        """
        return await self._access.payload(name)

    async def spent(self) -> Spent:
        """Return what all model calls of the session have taken so far, those that failed included."""
        return await self._access.read(lambda state: Spent(usage=state.usage, cost=state.cost))

    async def metadata(self) -> SessionMetadata | None:
        """Return whose the session is, and what is said of it and was noted when it began; None = it has not begun.

        Raises:
            PersistenceError: the log cannot be read.
        """
        first = await self._access.recorded_after(self.id, 0, 1)
        if not first:
            return None
        user, metadata = await self._access.read(lambda state: (state.user, dict(state.metadata)))
        return metadata_in(first[0], self.id, user, metadata)

    async def describe(self, *, user: str | None = None, metadata: Mapping[str, str | None] | None = None) -> None:
        """Say whose the session is, and what the application has to say of it; return when that is durable.

        A session that has not begun begins by this.

        Args:
            user: whose it is, if it has no user yet; None = nothing is said of that.
            metadata: what is another from now on, at most 16 KiB of texts by text altogether; None drops a key.

        Raises:
            ConfigError: an argument cannot be one.
            CommandRejected: the session is another user's, or its metadata has too many bytes.
            PersistenceError: it could not be recorded.
        """
        if (command := describe_command(user, metadata)) is not None:
            await self._access.ask(command)

    async def steps(self) -> tuple[Step, ...]:
        """Return what the agent thought, did and saw, step by step, oldest first; see `refold.events.views.steps`.

        Raises:
            PersistenceError: the log cannot be read.
        """
        self._context.require_open()
        async with self._access.own():
            return await read_steps(self._context.store, self._access.stream)

    async def statistics(self) -> SessionStatistics:
        """Return the session's steps with its thoughts, actions and observations, and how it went as a whole.

        Raises:
            PersistenceError: the log cannot be read.
        """
        self._context.require_open()
        stream = self._access.stream
        failed = self._context.failed_appends_of(stream)
        async with self._access.own():
            return await read_stream_statistics(self._context.store, stream, append_errors=failed)

    async def state_at(self, version: int | None = None) -> SessionState:
        """Return the state folded from the log, as of a version or as of now; it is the caller's own.

        Raises:
            ConfigError: that can be no version.
            PersistenceError: the log cannot be read.
        """
        return await self._access.state_at(version)

    async def events(self, *, after_version: int = 0) -> AsyncIterator[RecordedEvent[SessionEvent]]:
        """Yield the session's recorded events with a version greater than `after_version`, up to now."""
        version = after_version
        while page := await self._access.recorded_after(self.id, version, EVENTS_PAGE):
            for recorded in page:
                yield recorded
            if len(page) < EVENTS_PAGE:
                return
            version = page[-1].version

    def follow(self, *, after_version: int | None = None, capacity: int = CAPACITY) -> Subscription:
        """Return an async iterator of what happens in this session, as it happens.

        It yields each event (`RecordedEvent`) once and in order, and as far as there is room `Streamed` pieces of
        answers, `Progressed` reports of tools, and `Missed` where such were left out. It never slows a run.

        Args:
            after_version: begin in the log, after this version, 0 for its beginning; what has come of an answer that is
                being streamed follows behind that. None = from now on.
            capacity: how many items may wait for the reader, >= 1.

        Raises:
            ConfigError: an argument makes no sense, or the runtime is not open.
            ActorStopped: the runtime is closed.
        """
        self._context.require_open()
        return self._access.followed().subscribe(capacity=capacity, after_version=after_version)


def history_parts(state: SessionState) -> list[tuple[Sequence[Message], int]]:
    """Return the history and how long it is now, and the results of the turn under way."""
    parts: list[tuple[Sequence[Message], int]] = [(state.messages, len(state.messages))]  # It grows at its end only.
    return parts if state.turn is None else [*parts, ([results_message(state.turn)], 1)]


async def whole_history(parts: list[tuple[Sequence[Message], int]], store: EventStore) -> list[Message]:
    """Return the messages of a history's parts, whole and the caller's own."""
    found: list[Message] = []
    for source, length in parts:
        view, _ = await Conversation(store.read_payloads).upto(source, length)
        for message in view:
            found.append(message)
            if not len(found) % ITEMS_PER_STEP:
                await asyncio.sleep(0)
    return found


def _run_now(state: SessionState) -> RunId | None:
    return state.run.id if state.run is not None else None
