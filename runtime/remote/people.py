"""What waits for a person in a log that another process owns, and what a person says about it."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec

from refold.actors.calls.verdicts import given_arguments
from refold.actors.kernel.clock import SystemClock
from refold.events.core.cleaning import recorded_reason
from refold.events.core.content import JsonObject
from refold.events.core.ids import RunId, SessionId, ToolCallId
from refold.events.session.state import SessionState, calls_awaiting_answer, calls_awaiting_approval, reason_to_ask
from refold.inspection.log_reading import opened
from refold.inspection.session_view import list_sessions
from refold.inspection.summaries import call_words
from refold.remote.client import Given, has_begun, session_state
from refold.remote.protocol import Inbox, InboxAnswer, InboxCommand, InboxDecide
from refold.sessions.access import checked_flag, checked_name
from refold.sessions.people import answer_command, answer_of, questions_in, sessions_below
from refold.stores.event_store import EventStore
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


async def awaited_decisions(
    log: str | os.PathLike[str], session: str | None = None, *, below: bool = False
) -> list[AwaitedDecision]:
    """Return the calls of a log, or of one session, that wait for a person, in order of sessions and calls.

    Args:
        log: path of the log.
        session: None = all.
        below: also those that wait in the sessions that calls of `session` began, behind its own.

    Raises:
        ConfigError: there is no such session.
        PersistenceError: the log or its inbox cannot be read.
    """
    inbox = Inbox(absolute(log), SystemClock())
    found: list[AwaitedDecision] = []
    async with opened(log) as store:
        if session is not None:
            names = [SessionId(session)] if await has_begun(store, inbox, session) else []
            if below:
                names += [name async for name in sessions_below(store, SessionId(session), with_pending=True)]
        else:
            # What has ended waits for no person; what is open or parked may, beside other calls at work.
            names = [
                listed.session
                for listed in await list_sessions(store)
                if listed.status in ("open", "waiting", "parked")
            ]
        for name in names:
            state, waiting = await session_state(store, name), await inbox.waiting(name)
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
        )
        for call in calls_awaiting_approval(state)
    ]


class ConnectedForPeople(ABC):
    """The part of a session that people decide about."""

    id: SessionId
    _path: Path
    """Of the log."""

    @abstractmethod
    def _log(self) -> AbstractAsyncContextManager[EventStore]:
        """Give the log to read; raise CommandRejected where the session is another user's."""

    @abstractmethod
    async def _give(self, command: InboxCommand, key: str | None) -> Given:
        """Give a command to the owner, and wait for its outcome; raise CommandRejected if it was refused."""

    @abstractmethod
    def _beside(self, session: SessionId) -> "ConnectedForPeople":
        """Return another session of the log."""

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
        """Allow or deny a call that waits for approval.

        Args:
            call: one of `approvals`, which may be that of a child; or the id of one of this session's own.
            allow: whether it may run.
            reason: what the model is told where it may not.
            always: allow, in this session, every later call of the same action too, and those that wait.
            arguments: all arguments that it is to run with, in place of those that the model gave; see
                `Session.decide`. Whether they fit the tool, the runtime tells that performs the decision.
            key: idempotency key.

        Returns:
            Whether that is done; False = it waits in the inbox for a runtime.

        Raises:
            CommandRejected: the call does not wait for approval; or `arguments` do not fit the tool, and it waits on.
            ConfigError: there is no such session.
            PersistenceError: it could not be put into the inbox.
        """
        if isinstance(call, AwaitedDecision):
            return await self._beside(call.session).decide(
                call.call, allow=allow, reason=reason, always=always, arguments=arguments, key=key
            )
        decision = InboxDecide(
            call=ToolCallId(checked_name(call, "call")),
            allow=checked_flag(allow, "allow"),
            reason=recorded_reason(reason),
            always=checked_flag(always, "always"),
            arguments=given_arguments(arguments) if arguments is not None else None,
        )
        return (await self._give(decision, key)).outcome is not None

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
            return await awaited_decisions(self._path, self.id, below=True)

    async def answer(
        self, question: AwaitedDecision | str, value: object = None, *, error: str | None = None, key: str | None = None
    ) -> bool:
        """Answer what a call asks, or give it the result that it left for later; see `Session.answer`.

        Args:
            question: one of `questions`; or its id, or that of its call.
            value: plain JSON values, or what is written as such.
            error: instead of it, why there is none.
            key: idempotency key.

        Returns:
            Whether that is done; False = it waits in the inbox for a runtime.

        Raises:
            CommandRejected: the call waits for no such answer; or `value` does not fit its schema, and it waits on.
            ConfigError: there is no such session.
            PersistenceError: it could not be put into the inbox.
        """
        if isinstance(question, AwaitedDecision):
            return await self._beside(question.session).answer(question.id, value, error=error, key=key)
        answer_command(question, value, error, key)
        command = InboxAnswer(question=question, answer=answer_of(value), error=error)
        return (await self._give(command, key)).outcome is not None
