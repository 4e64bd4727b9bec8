"""What waits for a person in a log that another process owns, and what a person says about it."""

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol, Self

import msgspec

from refold.actors.calls.policy import given_arguments
from refold.actors.kernel.clock import Clock, SystemClock
from refold.events.core.content import JsonObject
from refold.events.core.errors import CommandRejected
from refold.events.core.ids import RunId, SessionId, ToolCallId
from refold.events.session.commands import DescribeSession
from refold.events.session.state import (
    SessionState,
    calls_awaiting_answer,
    calls_awaiting_approval,
    is_of_person,
    reason_to_ask,
)
from refold.inspection.session_view import list_sessions
from refold.inspection.summaries import call_words
from refold.remote.client import Given, give, has_begun
from refold.remote.kept_log import ReadLog, kept_open
from refold.remote.protocol import Inbox, Refused, described_row
from refold.remote.rows import GivenRow, InboxAnswer, InboxCancel, InboxDecide, InboxFork, SessionRow
from refold.sessions.access import NamedUser, checked_flag, checked_name, describe_command
from refold.sessions.people import answer_command, answer_of, questions_in, sessions_below
from refold.stores.sqlite.file import absolute


class AwaitedDecision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that a person has to allow, deny or answer."""

    session: SessionId
    run: RunId | None
    call: ToolCallId
    tool: str
    what: str
    """The tool and its arguments, as text."""
    reason: str
    """Why a person is asked."""
    decided: bool
    """A decision, or an answer, waits in the inbox for a runtime."""
    question: str | None = None
    """What the call waits to be told; None = whether it may run."""
    answer_schema: JsonObject | None = None
    """What the answer fits."""
    id: str = ""
    """Of the question, for `answer`."""
    arguments: JsonObject | None = None
    """What the call runs with if it is allowed; None = it waits to be told something."""


async def awaited_decisions(
    log: str | os.PathLike[str], session: str | None = None, *, below: bool = False
) -> list[AwaitedDecision]:
    """Return the calls of a log, or of one session, that wait for a person, in order of sessions and calls.

    With `below` also those that wait in the sessions that calls of `session` began, behind its own.
    """
    inbox = Inbox(absolute(log), SystemClock())
    found: list[AwaitedDecision] = []
    async with kept_open(log) as kept:
        store = kept.store
        if session is not None:
            names = [SessionId(session)] if await has_begun(store, inbox, session) else []
            if below:
                names += [name async for name in sessions_below(store, SessionId(session), with_pending=True)]
        else:
            # What has ended waits for no person; what is open may beside other calls at work, and what is parked later.
            names = [
                listed.session
                for listed in await list_sessions(store)
                if listed.status in ("waiting", "parked") or any(map(is_of_person, listed.pending))
            ]
        for name in names:
            state, waiting = await kept.state(name), await inbox.waiting(name)
            decided = {str(entry.command.call) for entry in waiting if isinstance(entry.command, InboxDecide)}
            decided |= {entry.command.question for entry in waiting if isinstance(entry.command, InboxAnswer)}
            found += _of_session(name, state, decided)
    return found


def _of_session(session: SessionId, state: SessionState, decided: set[str]) -> list[AwaitedDecision]:
    run = state.run.id if state.run is not None else None
    asked = [
        AwaitedDecision(
            session=session,
            run=run,
            call=question.call,
            tool=question.tool,
            what=call_words(question.tool, call.input),
            reason="",
            decided=not decided.isdisjoint({question.id, question.call}),
            question=question.question,
            answer_schema=question.answer_schema,
            id=question.id,
        )
        for call, question in zip(calls_awaiting_answer(state), questions_in(state), strict=True)
    ]
    return asked + [
        AwaitedDecision(
            session=session,
            run=run,
            call=call.id,
            tool=call.name,
            what=call_words(call.name, call.input),
            reason=reason_to_ask(call),
            decided=call.id in decided,
            arguments=call.input,
        )
        for call in calls_awaiting_approval(state)
    ]


class ConnectedLog(Protocol):
    """A log, as its connection has it."""

    @property
    def log(self) -> Path: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def patience_s(self) -> float: ...

    async def wait_for_file(self) -> None: ...


async def given(
    connection: ConnectedLog,
    session: SessionId,
    command: GivenRow,
    key: str | None,
    *,
    patience_s: float | None = None,
    may_begin: bool = False,
) -> Given:
    """Give a command to the owner, and wait for its outcome; raise CommandRejected if it was refused."""
    await connection.wait_for_file()
    given = await give(
        connection.log,
        session,
        command,
        key=key,
        timeout_s=connection.patience_s if patience_s is None else patience_s,
        clock=connection.clock,
        may_begin=may_begin,
        wait_for_runtime=may_begin,
    )
    if isinstance(given.outcome, Refused):
        raise CommandRejected(given.outcome.message)
    return given


class ConnectedForPeople:
    """A session that is reached from another process, and what people decide in it."""

    def __init__(self, connection: ConnectedLog, session: SessionId, described: DescribeSession | None = None) -> None:
        self.id = session
        self.connection = connection
        self._named = NamedUser(session, described)

    def _beside(self, session: SessionId) -> Self:
        """Return another session of the log."""
        return type(self)(self.connection, session, describe_command(self._named.user, None))

    @asynccontextmanager
    async def _log(self) -> AsyncGenerator[ReadLog]:
        """Give the log to read; raise CommandRejected where the session is another user's."""
        await self.connection.wait_for_file()
        async with kept_open(self.connection.log) as log:
            await self._named.require(log.store)
            yield log
            await self._named.require(log.store)

    async def _give(
        self,
        command: SessionRow | InboxFork,
        key: str | None,
        *,
        patience_s: float | None = None,
        may_begin: bool = False,
    ) -> Given:
        """As `given`, with what is said of the session."""
        connection, named = self.connection, self._named
        if named.said is not None:
            clock = connection.clock
            until_s = clock.monotonic_s() + (connection.patience_s if patience_s is None else patience_s)
            async with self._log():
                await Inbox(connection.log, clock, until_s=until_s).require(named)
        row = described_row(command, named.said)
        done = await given(connection, self.id, row, key, patience_s=patience_s, may_begin=may_begin)
        if named.said is not None:  # Said once: what is said of the session elsewhere stays.
            named.said = describe_command(named.user, None)
        return done

    async def _done(self, command: SessionRow, key: str | None) -> bool:
        """Give a command to the owner, and return whether it is done; False = it waits in the inbox."""
        return (await self._give(command, key)).outcome is not None

    async def cancel(
        self, *, run: RunId | str | None = None, key: str | None = None, reason: str | None = None
    ) -> bool:
        """End the run under way as cancelled; without one, nothing happens.

        Args:
            run: this run instead, which may be under way, queued or for a later time; one that has ended stays.
            key: idempotency key.
            reason: is recorded.

        Returns:
            Whether that is done; False = it waits in the inbox for a runtime.

        Raises:
            ConfigError: there is no such session.
            PersistenceError: it could not be put into the inbox.
        """
        named = RunId(checked_name(run, "run")) if run is not None else None
        return await self._done(InboxCancel(run=named, reason=reason), key)

    async def decide(
        self,
        call: AwaitedDecision | ToolCallId | str,
        *,
        allow: bool,
        reason: str = "",
        always: bool = False,
        arguments: Mapping[str, object] | None = None,
        key: str | None = None,
    ) -> bool:
        """Allow or deny a call that waits for approval, as `Session.decide` does; returns and raises as `cancel`.

        Args:
            call: one of `approvals`, which may be that of a child; or the id of one of this session's own.
            arguments: where no runtime owns the log, the schema is asked that the log has of the tool; what else the
                tool finds wrong, the runtime tells that performs the decision.

        Raises:
            CommandRejected: the call does not wait for approval; or `arguments` do not fit the tool, and it waits on.
        """
        if isinstance(call, AwaitedDecision):
            return await self._beside(call.session).decide(
                call.call, allow=allow, reason=reason, always=always, arguments=arguments, key=key
            )
        decision = InboxDecide(
            call=ToolCallId(checked_name(call, "call")),
            allowed=checked_flag(allow, "allow"),
            reason=reason,
            always=checked_flag(always, "always"),
            input=given_arguments(arguments) if arguments is not None else None,
        )
        return await self._done(decision, key)

    async def approvals(self) -> list[AwaitedDecision]:
        """Return the calls of the session that wait for a person's decision, and those that its children wait for.

        Raises:
            ConfigError: the log has no such session.
            PersistenceError: the log or its inbox cannot be read.
        """
        return [each for each in await self._waiting() if each.question is None]

    async def questions(self) -> list[AwaitedDecision]:
        """Return what calls of the session wait to be told, and those of its children; raises as `approvals`."""
        return [each for each in await self._waiting() if each.question is not None]

    async def _waiting(self) -> list[AwaitedDecision]:
        async with self._log():
            return await awaited_decisions(self.connection.log, self.id, below=True)

    async def answer(
        self, question: AwaitedDecision | str, value: object = None, *, error: str | None = None, key: str | None = None
    ) -> bool:
        """Answer one of `questions`, as `Session.answer` does; returns and raises as `cancel`.

        Raises:
            CommandRejected: the call waits for no such answer; or `value` does not fit its schema, and it waits on.
        """
        if isinstance(question, AwaitedDecision):
            return await self._beside(question.session).answer(question.id, value, error=error, key=key)
        answer_command(question, value, error, key)
        command = InboxAnswer(question=question, answer=answer_of(value), error=error)
        return await self._done(command, key)
