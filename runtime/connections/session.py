"""One session of a log that another process owns; read `refold.connections.connection` first."""

import math
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar, Unpack, overload

from refold.actors.kernel.errors import AskTimeout
from refold.actors.loop_thread import HasLoopThread, LoopThread, blocking, blocking_face
from refold.connections.people import ConnectedForPeople
from refold.connections.run import (
    ConnectedReader,
    ConnectedRun,
    SyncConnectedReader,
    SyncConnectedRun,
    Unfinished,
    taken,
)
from refold.events.core.cleaning import is_finite
from refold.events.core.content import Message
from refold.events.core.errors import ConfigError, quoted
from refold.events.core.ids import RunId, SessionId
from refold.events.session.commands import DescribeSession
from refold.events.session.core import SESSION_CORE
from refold.inspection.log_reading import session_head
from refold.lineage.fork import Results, WantedFork
from refold.publishing.notifications import RecordedSessionEvent
from refold.publishing.subscription import CAPACITY, FollowableSession, ReadingPlace, Subscription
from refold.remote import rows
from refold.remote.mirror import follow_run, joined_mirror
from refold.remote.protocol import row_of_fork, send_command
from refold.sessions.access import checked_version, describe_command
from refold.sessions.inputs import Input, RunOverrides, run_options
from refold.sessions.outcome import RunResult
from refold.sessions.run_handle import RunReader, known_run
from refold.sessions.session import EVENTS_PAGE, history_parts, whole_history
from refold.sync.session import paged

T = TypeVar("T")


class ConnectedOptions(RunOverrides, total=False):
    """What inputs take by keyword beside `output_type`, for type checkers."""

    key: str | None


class ConnectedSession(ConnectedForPeople):
    """One conversation in a log that another process owns; get it from `Connection.session`."""

    @overload
    async def send(
        self, content: Input, *, wait_s: float | None = None, output_type: type[T], **options: Unpack[ConnectedOptions]
    ) -> RunResult[T] | Unfinished: ...

    @overload
    async def send(
        self,
        content: Input,
        *,
        wait_s: float | None = None,
        output_type: None = None,
        **options: Unpack[ConnectedOptions],
    ) -> RunResult | Unfinished: ...

    async def send(
        self,
        content: Input,
        *,
        key: str | None = None,
        wait_s: float | None = None,
        output_type: type[Any] | None = None,
        **options: Unpack[RunOverrides],
    ) -> RunResult[Any] | Unfinished:
        """Send an input through the log's owner, and return how its run ended.

        The input is accepted for good as soon as it lies in the inbox, even if this process or the owner ends
        then. Cancelling the task that awaits this stops the wait and leaves the run alone; `cancel` ends it.

        It is returned early, as `Unfinished`, when a call of the session waits for approval, when the run is
        parked, or when no runtime has owned the log for as long as the connection has patience.

        Args:
            content: text or blocks; not empty.
            key: idempotency key: the same key with the same content is the same run, whether it is sent here or by the
                owner's `Session.send`; None = a new one.
            wait_s: for how long to wait for the end of the run, 0 = only until the input is accepted; None = for as
                long as it takes.
            output_type: what the answer of this run must be, and `output` of its result is; None = as its agent has it,
                and then `output` is the text.
            options: what else this run does otherwise than its agent, as for `Session.send`.

        Raises:
            ConfigError: an argument makes no sense.
            CommandRejected: the input is empty or cannot be recorded, the key was used for something else, or the
                owner refuses it, as where the session is one of another agent.
            PersistenceError: the input could not be put into the inbox, or the log cannot be read.
        """
        connection = self.connection
        clock = connection.clock
        until_s = clock.monotonic_s() + (math.inf if wait_s is None else checked_seconds(wait_s, "wait_s"))
        command = send_command(content, run_options(options, output_type), self._named.said)
        await connection.wait_for_file()
        async with joined_mirror(connection.log, clock) as mirror:  # One connection to the owner for all that follows.
            given = await self._give(
                command,
                key,
                patience_s=connection.patience_s if wait_s is None else min(connection.patience_s, wait_s),
                may_begin=True,
            )
            run = given.run
            if run is None:
                return Unfinished(session=self.id, key=given.key, run=None, why=given.why)
            followed = await follow_run(
                mirror,
                self.id,
                run,
                wait_s=until_s - clock.monotonic_s(),
                ownerless_s=connection.patience_s,
                owned=not given.directly,
                named=self._named,
                output_type=output_type,
            )
        if isinstance(followed, RunResult):
            return followed
        return Unfinished(session=self.id, key=given.key, run=run, why=followed.why, calls=followed.calls)

    @overload
    async def submit(
        self, content: Input, *, output_type: type[T], **options: Unpack[ConnectedOptions]
    ) -> ConnectedRun[T]: ...

    @overload
    async def submit(
        self, content: Input, *, output_type: None = None, **options: Unpack[ConnectedOptions]
    ) -> ConnectedRun: ...

    async def submit(
        self,
        content: Input,
        *,
        key: str | None = None,
        output_type: type[Any] | None = None,
        **options: Unpack[RunOverrides],
    ) -> ConnectedRun[Any]:
        """Send an input and return its run as soon as a runtime has taken it, or the connection's patience is over.

        It is accepted for good as soon as it lies in the inbox. The arguments, and what is raised, are as for `send`.
        """
        command = send_command(content, run_options(options, output_type), self._named.said)
        given = await self._give(command, key, may_begin=True)

        async def take() -> RunId | None:
            return (await self._give(command, given.key, may_begin=True)).run

        return ConnectedRun(self, self._named, given.run, take, key=given.key, output_type=output_type)

    async def run(self, run: RunId | str | None = None, *, key: str | None = None) -> ConnectedRun:
        """Return a run of the session, by its id or by the key of its input; see `Session.run`.

        Raises:
            ConfigError: the session has no such run, or no runtime has taken the input yet.
            PersistenceError: the log cannot be read.
        """
        async with self._log() as log:
            state = await log.state(self.id) if key is not None else SESSION_CORE.initial()
            name, _ = await known_run(log.store, self.id, run, key, state.keys.get)
        return ConnectedRun(self, self._named, name, key=key)

    async def set_aside(
        self,
        version: int,
        *,
        message: int | None = None,
        part: int | None = None,
        reason: str = "",
        key: str | None = None,
    ) -> bool:
        """Leave what an event brought out of later requests, as `Session.set_aside` does; returns as `cancel`.

        Raises:
            CommandRejected: a run is under way, or that is not in what the model is shown, or can be no such thing.
            ConfigError: there is no such session.
            PersistenceError: it could not be put into the inbox.
        """
        command = rows.InboxSetAside(version=version, message=message, part=part, reason=reason)
        return await self._done(command, key)

    async def take_back(self, version: int, *, reason: str = "", key: str | None = None) -> bool:
        """Show a model again what was set aside, as `Session.take_back` does; returns and raises as `set_aside`."""
        return await self._done(rows.InboxTakeBack(aside=version, reason=reason), key)

    async def rewind(self, at: int | None = None, *, key: str | None = None) -> bool:
        """Take the conversation back to an earlier version, as `Session.rewind`; returns and raises as `set_aside`."""
        return await self._done(rows.InboxRewind(to=at), key)

    async def fork(
        self,
        at: int | None = None,
        *,
        name: str | None = None,
        model: str | None = None,
        system_prompt: str | None = None,
        results: Results | None = None,
        keep_run: bool = False,
    ) -> "ConnectedSession":
        """Return a new session that goes on from a place in this one; the arguments are those of `Session.fork`.

        Raises:
            ConfigError: there is no such session, or an argument makes no sense.
            CommandRejected: there is no such version, a batch goes on behind it, or another session has that name.
            AskTimeout: no runtime that owns the log has made it in time; it waits in the inbox for one.
            PersistenceError: it could not be put into the inbox.
        """
        wanted = WantedFork(
            at=at,
            name=name,
            options=run_options({"model": model}),
            system_prompt=system_prompt,
            results=results,
            keep_run=keep_run,
        )
        if at is None:
            async with self._log() as log:
                at = (await session_head(log.store, self.id)).version
        row = row_of_fork(self.id, checked_version(at), wanted)
        if (await self._give(row, None)).outcome is None:
            raise AskTimeout("a runtime that owns the log", self.connection.patience_s)
        return self._beside(SessionId(row.name))

    async def describe(
        self, *, user: str | None = None, metadata: Mapping[str, str | None] | None = None, key: str | None = None
    ) -> bool:
        """Say whose the session is, and what the application has to say of it, as `Session.describe` does.

        Returns as `cancel`, and raises as that and `Session.describe` do.
        """
        said = describe_command(user, metadata) or DescribeSession()
        command = rows.InboxDescribe(user=said.user, metadata=dict(said.metadata))
        return await self._done(command, key)

    async def history(self) -> list[Message]:
        """Return the balanced history as the model sees it; of a session that has not begun, none.

        Raises:
            PersistenceError: the log cannot be read.
        """
        async with self._log() as log:
            return await whole_history(history_parts(await log.state(self.id)), log.store)

    async def events(self, *, after_version: int = 0) -> AsyncIterator[RecordedSessionEvent]:
        """Yield the session's recorded events with a version greater than `after_version`, up to now.

        Raises:
            ConfigError: that can be no version.
            PersistenceError: the log cannot be read.
        """
        version = checked_version(after_version, "after_version")
        async with self._log() as log:
            while page := await log.recorded_after(self.id, version, EVENTS_PAGE):
                await self._named.require(log.store)
                for recorded in page:
                    yield recorded
                version = page[-1].version

    @overload
    def stream(
        self, content: Input, *, output_type: type[T], **options: Unpack[ConnectedOptions]
    ) -> ConnectedReader[T]: ...

    @overload
    def stream(
        self, content: Input, *, output_type: None = None, **options: Unpack[ConnectedOptions]
    ) -> ConnectedReader: ...

    def stream(
        self,
        content: Input,
        *,
        key: str | None = None,
        output_type: type[Any] | None = None,
        **options: Unpack[RunOverrides],
    ) -> ConnectedReader[Any]:
        """Send an input and return an async iterator of what happens in its run, as it happens, to its end.

        Use it as `async with session.stream("…") as stream:` and `async for item in stream:`. It yields what the
        owner's `Session.stream` yields, pieces of answers among it; then `stream.result` says how the run ended. The
        input is sent when the iteration, or the `async with`, begins. Who leaves before the end leaves the run alone.

        The arguments, and what may be raised from the iteration, are as for `send`.
        """
        key = key if key is not None else uuid.uuid4().hex  # Who is cancelled while it begins may ask again.

        async def begin(followed: FollowableSession) -> RunReader:
            begun = followed.subscribe()
            run = await self.submit(content, key=key, output_type=output_type, **options)
            return RunReader(followed, await taken(run), ReadingPlace(), begun=begun)

        return ConnectedReader(self, self._named, begin, ReadingPlace(), output_type)

    def follow(self, *, after_version: int | None = None, capacity: int = CAPACITY) -> ConnectedReader:
        """Return an async iterator of what happens in the session, as it happens, until the reader leaves.

        It yields what the owner's `Session.follow` yields: each event once and in order, and as far as there is room
        pieces of answers (`Streamed`), `Progressed` reports of tools, and `Missed` where such were left out. Where the
        owner cannot be heard (see "Embedding" in the documents), it yields only the events.

        Args:
            after_version: begin after this version, 0 for the beginning; None = from now on.
            capacity: how many items may wait for the reader, >= 1.
        """

        async def begin(followed: FollowableSession) -> Subscription:
            return followed.subscribe(capacity=capacity, after_version=after_version)

        return ConnectedReader(self, self._named, begin, ReadingPlace())


class SyncConnectedSession:
    """One conversation in a log that another process owns; get it from `SyncConnection.session`. For many threads.

    What `ConnectedSession` says of the task that awaits holds for the thread that calls: an interrupt, such as Ctrl-C,
    stops the wait, and leaves the run alone.
    """

    def __init__(self, connection: HasLoopThread, session: ConnectedSession) -> None:
        self.asynchronous = session
        self._connection = connection

    @property
    def id(self) -> SessionId:
        """Its id in the log."""
        return self.asynchronous.id

    @property
    def loop_thread(self) -> LoopThread:
        """The thread of the connection's loop."""
        return self._connection.loop_thread

    send = blocking(ConnectedSession.send)

    @overload
    def submit(
        self, content: Input, *, output_type: type[T], **options: Unpack[ConnectedOptions]
    ) -> SyncConnectedRun[T]: ...

    @overload
    def submit(
        self, content: Input, *, output_type: None = None, **options: Unpack[ConnectedOptions]
    ) -> SyncConnectedRun: ...

    def submit(
        self,
        content: Input,
        *,
        key: str | None = None,
        output_type: type[Any] | None = None,
        **options: Unpack[RunOverrides],
    ) -> SyncConnectedRun[Any]:
        """Send an input and return its run; see `ConnectedSession.submit`."""
        sent = partial(self.asynchronous.submit, content, key=key, output_type=output_type, **options)
        return SyncConnectedRun(self.loop_thread, self.loop_thread.run(sent))

    run = blocking_face(
        ConnectedSession.run, lambda face, run: SyncConnectedRun(face.loop_thread, run), "SyncConnectedRun"
    )
    cancel = blocking(ConnectedSession.cancel)
    decide = blocking(ConnectedSession.decide)
    answer = blocking(ConnectedSession.answer)
    questions = blocking(ConnectedSession.questions)
    set_aside = blocking(ConnectedSession.set_aside)
    take_back = blocking(ConnectedSession.take_back)
    rewind = blocking(ConnectedSession.rewind)

    fork = blocking_face(
        ConnectedSession.fork, lambda face, made: SyncConnectedSession(face, made), "SyncConnectedSession"
    )
    describe = blocking(ConnectedSession.describe)
    approvals = blocking(ConnectedSession.approvals)
    history = blocking(ConnectedSession.history)

    def events(self, *, after_version: int = 0) -> Iterator[RecordedSessionEvent]:
        """Yield the session's recorded events with a version greater than `after_version`, up to now."""
        return paged(self.loop_thread, self.asynchronous.events(after_version=after_version))

    @overload
    def stream(
        self, content: Input, *, output_type: type[T], **options: Unpack[ConnectedOptions]
    ) -> SyncConnectedReader[T]: ...

    @overload
    def stream(
        self, content: Input, *, output_type: None = None, **options: Unpack[ConnectedOptions]
    ) -> SyncConnectedReader: ...

    def stream(
        self,
        content: Input,
        *,
        key: str | None = None,
        output_type: type[Any] | None = None,
        **options: Unpack[RunOverrides],
    ) -> SyncConnectedReader[Any]:
        """Send an input and return an iterator of what happens in its run; see `ConnectedSession.stream`."""
        stream = self.asynchronous.stream(content, key=key, output_type=output_type, **options)
        return SyncConnectedReader(self.loop_thread, stream)

    def follow(self, *, after_version: int | None = None, capacity: int = CAPACITY) -> SyncConnectedReader:
        """Return an iterator of what happens in the session, until the reader leaves; see `ConnectedSession.follow`."""
        followed = self.asynchronous.follow(after_version=after_version, capacity=capacity)
        return SyncConnectedReader(self.loop_thread, followed)


def checked_seconds(value: float, name: str) -> float:
    """Return a number of seconds, or raise ConfigError where it is none."""
    if not is_finite(value) or value < 0:
        raise ConfigError(f"{name} must be a number of seconds of at least 0, not {quoted(value, 60)}")
    return value
