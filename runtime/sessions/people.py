"""What waits for a person in a session, and what a person says about it.

A subagent's call waits in the session of the subagent, and its parent waits for that; so a caller that asks the parent
is told of both, and each says whose it is.
"""

import copy
import re
from collections.abc import AsyncIterator, Mapping

import msgspec

from refold.actors.agent.subsession import ancestors_of, children_prefix
from refold.actors.calls.policy import given_arguments
from refold.context import RuntimeContext
from refold.events.core.cleaning import clean_json, recorded_reason
from refold.events.core.content import Json
from refold.events.core.errors import CommandRejected
from refold.events.core.ids import SessionId, ToolCallId, kind_and_identifier
from refold.events.session.commands import AnswerQuestion, DecideApproval
from refold.events.session.core import SESSION_KIND
from refold.events.session.events import QuestionAsked, ToolApprovalRequested
from refold.events.session.state import (
    SessionState,
    calls_awaiting_answer,
    calls_awaiting_approval,
    question_id,
    reason_to_ask,
)
from refold.sessions.access import SessionAccess, checked_flag, checked_name
from refold.sessions.inputs import checked_key
from refold.stores.event_store import EventStore


class AwaitedApproval(ToolApprovalRequested, frozen=True, kw_only=True):
    """A call that waits for a person's decision; `Session.decide` takes it."""

    session: SessionId
    """Whose call it is: the session that was asked, or one that a call of a subagent began below it."""


def approvals_in(state: SessionState) -> list[AwaitedApproval]:
    """Return the calls of one session that wait, in the order in which that was asked for."""
    run, session = state.run, state.session
    if run is None or session is None:
        return []
    return [
        AwaitedApproval(
            session=session,
            run=run.id,
            call=call.id,
            tool=call.name,
            input=copy.deepcopy(call.input),
            reason=reason_to_ask(call),
            action=call.verdict.action,
            expires_at=call.expires_at,
            at=call.requested_at,
        )
        for call in calls_awaiting_approval(state)
    ]


async def sessions_below(
    store: EventStore, session: SessionId, *, with_pending: bool = False
) -> AsyncIterator[SessionId]:
    """Yield the sessions that calls in a session began, and calls in those, and so on.

    Args:
        with_pending: only those with open work.
    """
    prefixes = [children_prefix(session)]
    while prefixes:
        prefix = prefixes.pop()
        for head in await store.list_streams(prefix=f"{SESSION_KIND}/{prefix}", with_pending=with_pending):
            found = SessionId(kind_and_identifier(head.stream)[1])
            first = await store.read_stream(head.stream, limit=1)
            if first and session in await ancestors_of(store, found, first[0]):  # A damaged log may have lost it.
                yield found
            if not (own := children_prefix(found)).startswith(prefix):  # The id is so long that its hash stands there.
                prefixes.append(own)


class AwaitedQuestion(QuestionAsked, frozen=True, kw_only=True):
    """What a call waits to be told: the answer to its question, or its result; `Session.answer` takes it."""

    session: SessionId
    """Whose call it is, as of `AwaitedApproval`."""
    tool: str

    @property
    def id(self) -> str:
        """Its id in its session, such as `call_6_0.1`."""
        return question_id(self.call, self.number)


def questions_in(state: SessionState) -> list[AwaitedQuestion]:
    """Return what the calls of one session wait to be told, in the order in which they asked."""
    session = state.session
    asked = [(call.name, copy.deepcopy(call.question)) for call in calls_awaiting_answer(state)]
    return [
        AwaitedQuestion(session=session, tool=tool, **{name: getattr(question, name) for name in _FIELDS_ASKED})
        for tool, question in asked
        if session is not None and question is not None
    ]


_FIELDS_ASKED = QuestionAsked.__struct_fields__


ANSWER_BYTES_MAX = 256 * 1024
"""Most bytes of an answer, as JSON."""

_QUESTION_ID = re.compile(r"(call_[0-9]+_[0-9]+)\.([1-9][0-9]{0,8})")


def answer_command(question: str, value: object, error: str | None, key: str | None) -> AnswerQuestion:
    """Return the command that answers a question, named by its id or by its call."""
    name = checked_name(question, "question")
    numbered = _QUESTION_ID.fullmatch(name)
    if error is not None and value is not None:
        raise CommandRejected("give an answer, or the reason why there is none, not both")
    answer = answer_of(value)
    return AnswerQuestion(
        call=ToolCallId(numbered[1] if numbered is not None else name),
        number=int(numbered[2]) if numbered is not None else None,
        answer=answer,
        error=(recorded_reason(error) or NO_ANSWER_TEXT) if error is not None else None,
        key=checked_key(key),
    )


NO_ANSWER_TEXT = "There is no answer."


def answer_of(value: object) -> Json:
    """Return an answer as plain JSON; raise CommandRejected where it cannot be recorded, or is too large."""
    answer = clean_json(value, "answer")
    if (size := len(msgspec.json.encode(answer))) > ANSWER_BYTES_MAX:
        raise CommandRejected(f"an answer has at most {ANSWER_BYTES_MAX:,} bytes of JSON, not {size:,}")
    return answer


class SessionForPeople:
    """The part of a session that people decide about."""

    id: SessionId
    _context: RuntimeContext
    _access: SessionAccess

    async def decide(
        self,
        call: AwaitedApproval | ToolCallId | str,
        *,
        allow: bool,
        reason: str = "",
        always: bool = False,
        arguments: Mapping[str, object] | None = None,
        key: str | None = None,
    ) -> None:
        """Allow or deny a call that waits for approval.

        Args:
            call: one of `approvals`, which may be that of a child; or the id of one of this session's own, as in the
                event ToolApprovalRequested.
            allow: whether it may run.
            reason: what the model is told where it may not.
            always: allow, in this session, every later call of the same action too, and those that wait.
            arguments: all arguments that it is to run with, in place of those that the model gave; None = with these.
                The model is told of the change together with the result, and of `reason`.
            key: idempotency key.

        Raises:
            CommandRejected: the call does not wait for approval; or `arguments` do not fit the tool, and it waits on.
        """
        access = self._access
        if isinstance(call, AwaitedApproval):
            access = access if call.session == self.id else await access.of_session_below(call.session)
            call = call.call
        await access.ask(
            DecideApproval(
                call=ToolCallId(checked_name(call, "call")),
                allowed=checked_flag(allow, "allow"),
                reason=recorded_reason(reason),
                always=checked_flag(always, "always"),
                input=given_arguments(arguments) if arguments is not None else None,
                key=checked_key(key),
            )
        )

    async def approvals(self, *, below: bool = True) -> list[AwaitedApproval]:
        """Return the calls that wait for a person's decision now, in order; also after a restart.

        Args:
            below: also those that its children wait for, and theirs, behind its own; each says whose it is.

        Raises:
            PersistenceError: the log cannot be read.
        """
        found = await self._access.read(approvals_in)
        if below:
            async for name in sessions_below(self._context.store, self.id, with_pending=True):
                found += await self._access.of_session(name).read(approvals_in)
        return found

    async def answer(
        self,
        question: AwaitedQuestion | str,
        value: object = None,
        *,
        error: str | None = None,
        key: str | None = None,
    ) -> None:
        """Answer what a call asks with `ToolContext.ask`, or give a call the result that it left for later.

        Its tool goes on with the answer; a deferred result is what the model is told.

        Args:
            question: one of `questions`, which may be that of a child; or the id of one, such as `call_6_0.1`; or that
                of its call, for what that waits for now.
            value: plain JSON values, or a Struct, a dataclass or a model of pydantic that is written as such.
            error: instead of it, why there is none: the tool's `ask` raises `NoAnswer`, a deferred call fails.
            key: idempotency key.

        Raises:
            CommandRejected: the call waits for no such answer; or `value` does not fit its schema, and it waits on.
        """
        access = self._access
        if isinstance(question, AwaitedQuestion):
            access = access if question.session == self.id else await access.of_session_below(question.session)
            question = question.id
        await access.ask(answer_command(question, value, error, key))

    async def questions(self, *, below: bool = True) -> list[AwaitedQuestion]:
        """Return what calls wait to be told from outside: answers to their questions, and deferred results.

        Args:
            below: also those of its children, as of `approvals`.

        Raises:
            PersistenceError: the log cannot be read.
        """
        found = await self._access.read(questions_in)
        if below:
            async for name in sessions_below(self._context.store, self.id, with_pending=True):
                found += await self._access.of_session(name).read(questions_in)
        return found
