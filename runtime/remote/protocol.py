"""Commands from other processes to the runtime that owns a log: what they say, and what comes of them.

Only a log's owner writes it. Another process that wants to approve a call, cancel a run or send an input writes a row
into the file beside the log (`refold.stores.sqlite.inbox`) and waits for its outcome. `owner` is the owner's side;
`client` is that of the others, and performs rows where no runtime owns the log. The rule: a row becomes a command of
its session under the row's own key, so that performing it twice does nothing twice, and a request that is made again,
of the owner or through the inbox, is the same command.
"""

from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import msgspec

from refold.actors.calls.verdicts import given_arguments
from refold.actors.kernel.clock import Clock
from refold.events.core.cleaning import clean_text, recorded_reason
from refold.events.core.content import (
    GivenContent,
    Json,
    JsonObject,
    Message,
    TextBlock,
    UserContent,
)
from refold.events.core.errors import CommandRejected, ConfigError
from refold.events.core.ids import PayloadHash, RunId, SessionId, ToolCallId, checked_identifier
from refold.events.model.configuration import RunOptions
from refold.events.model.payloads import restored
from refold.events.session.commands import (
    AllowTurn,
    AnswerQuestion,
    CancelRun,
    ClearHistory,
    DecideApproval,
    DescribeSession,
    ImportHistory,
    ResumeRun,
    RewindHistory,
    SendInput,
    SessionCommand,
    SetContentAside,
    TakeContentBack,
)
from refold.events.session.events import Repeat
from refold.events.session.state import question_id
from refold.keeping.deletion import Deletion
from refold.lineage.fork import WantedFork
from refold.sessions.access import (
    KEY_BYTES_MAX,
    Input,
    checked_key,
    describe_command,
    input_blocks,
    input_content,
    run_options,
)
from refold.sessions.named_content import NamedContent, aside_command, content_at, take_back_command
from refold.sessions.people import answer_command, answer_of
from refold.stores.event_store import EventStore
from refold.stores.sqlite.inbox import InboxFile, InboxRow, RowName

FORMER_PREFIX: Final = "inbox:"
"""What stands before a row's key in sessions of logs whose Refold kept keys of rows apart from those of callers."""


class InboxSend(msgspec.Struct, frozen=True, kw_only=True, tag="send", forbid_unknown_fields=True, omit_defaults=True):
    """Send an input; done when it is in the log, long before its run ends.

    It may begin a session, which takes a runtime: only that has an agent.
    """

    text: str = ""
    content: tuple[GivenContent, ...] = ()
    """Its blocks, where it is more than a text."""
    options: RunOptions | None = None
    """What its run does otherwise than the agent."""
    user: str | None = None
    """Whose the session is; that of another user refuses the input."""
    metadata: dict[str, str | None] = {}
    """What the application says of the session, where that changes with the input."""
    due_at: int | None = None
    """Accept it for this time, in microseconds since the epoch; None = at once."""
    every: Repeat | None = None
    """From `due_at` on again and again; None = once."""
    now: bool = False
    """Join the run under way before its next model call."""
    stepwise: bool = False
    """Its run takes one turn, and each further one only when that is allowed."""
    cancelled: bool = False
    """The caller's token is cancelled already."""


class InboxDescribe(
    msgspec.Struct, frozen=True, kw_only=True, tag="describe", forbid_unknown_fields=True, omit_defaults=True
):
    """Say whose a session is, and what the application says of it."""

    user: str | None = None
    metadata: dict[str, str | None] = {}


class InboxCancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel", forbid_unknown_fields=True):
    """End a run as cancelled; done also where there is nothing to cancel."""

    run: RunId | None = None
    """The run under way or one that waits; None = the one under way."""
    reason: str | None = None


class InboxDecide(
    msgspec.Struct, frozen=True, kw_only=True, tag="decide", forbid_unknown_fields=True, omit_defaults=True
):
    """Allow or deny a call that waits for approval."""

    call: ToolCallId
    allow: bool
    reason: str = ""
    """What the model is told where it is denied."""
    always: bool = False
    """Allow every later call of the same action in the session too."""
    arguments: JsonObject | None = None
    """What it is to run with in place of the model's arguments."""


class InboxAnswer(
    msgspec.Struct, frozen=True, kw_only=True, tag="answer", forbid_unknown_fields=True, omit_defaults=True
):
    """Give a call the answer or the result that it waits for."""

    question: str
    """Its id, or that of its call."""
    answer: Json = None
    error: str | None = None
    """Why there is none."""


class InboxSetAside(msgspec.Struct, frozen=True, kw_only=True, tag="set_aside", forbid_unknown_fields=True):
    """Leave what an event brought out of later requests."""

    version: int
    """Of an input, an answer, a result, a summary or an imported history."""
    message: int | None = None
    """Only this one of several messages, from 0."""
    part: int | None = None
    """Only this block of it, from 0."""
    reason: str = ""


class InboxTakeBack(msgspec.Struct, frozen=True, kw_only=True, tag="take_back", forbid_unknown_fields=True):
    """Show a model again what was set aside."""

    version: int
    """Of the InputSetAside."""
    reason: str = ""


class InboxImport(msgspec.Struct, frozen=True, kw_only=True, tag="import", forbid_unknown_fields=True):
    """Put messages of another system at the end of the history."""

    messages: tuple[Message, ...]
    payloads: dict[PayloadHash, bytes] = {}
    """What is large in them."""


class InboxClear(msgspec.Struct, frozen=True, kw_only=True, tag="clear", forbid_unknown_fields=True):
    """Begin the conversation anew."""


class InboxAllowTurn(msgspec.Struct, frozen=True, kw_only=True, tag="allow_turn", forbid_unknown_fields=True):
    """Let a run that goes step by step take its next turn. Where an owner dies under it, it may take two."""

    run: RunId | None = None
    """None = the run under way."""


class InboxResume(msgspec.Struct, frozen=True, kw_only=True, tag="resume", forbid_unknown_fields=True):
    """Let an open run go on that was parked, goes step by step, or waits because its runtime does not resume."""


class InboxDelete(
    msgspec.Struct, frozen=True, kw_only=True, tag="delete", forbid_unknown_fields=True, omit_defaults=True
):
    """Delete the session, and all other rows that it has; see `refold.keeping.deletion`."""

    cancel: bool = False
    """End its runs first."""
    forks: bool = False
    """Delete its forks with it."""


class InboxRewind(msgspec.Struct, frozen=True, kw_only=True, tag="rewind", forbid_unknown_fields=True):
    """Take the conversation back to an earlier version."""

    to: int | None = None
    """None = the one before the last input."""


class InboxFork(msgspec.Struct, frozen=True, kw_only=True, tag="fork", forbid_unknown_fields=True, omit_defaults=True):
    """Make a fork of the session; see `refold.lineage.fork`."""

    name: str
    at: int | None = None
    model: str | None = None
    system_prompt: str | None = None
    results: dict[str, str] = {}
    keep_run: bool = False

    @property
    def wanted(self) -> WantedFork:
        """What is to be made; raises ConfigError where it cannot be."""
        return WantedFork(
            at=self.at,
            name=self.name,
            options=run_options({"model": self.model}),
            system_prompt=self.system_prompt,
            results=self.results,
            keep_run=self.keep_run,
        )


SessionRow: TypeAlias = (
    InboxSend
    | InboxDescribe
    | InboxCancel
    | InboxDecide
    | InboxAnswer
    | InboxSetAside
    | InboxTakeBack
    | InboxImport
    | InboxClear
    | InboxAllowTurn
    | InboxResume
    | InboxRewind
)
"""What a row says that becomes an event of its session."""

NEEDS_RUNTIME: Final = (InboxAllowTurn, InboxResume)
"""Rows that only a runtime can perform, which has an agent to go on with."""

InboxCommand: TypeAlias = SessionRow | InboxFork | InboxDelete
"""What a row says. A field that this Refold does not know is refused, and never ignored."""


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """The command is in the log."""

    version: int
    """Of the event that it became; 0 where there was nothing to do."""
    new: bool = True
    """False where the session had it under the same key already, or there was nothing to do."""
    run: RunId | None = None
    """Of an input: its run. Of a cancellation: the run that it ended."""


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """Nothing was recorded, and nothing will be."""

    message: str


InboxOutcome: TypeAlias = Done | Refused | Deletion
"""What came of a row."""


class InboxEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A row, understood."""

    name: RowName
    session: SessionId
    key: str
    command: InboxCommand | Refused | None
    """None once it was performed; a refusal where it says nothing that can be performed."""
    outcome: InboxOutcome | None
    """None = not performed yet."""
    new: bool = False
    """It was put there just now."""


_command_decoder: msgspec.json.Decoder[InboxCommand] = msgspec.json.Decoder(InboxCommand)
_outcome_decoder: msgspec.json.Decoder[InboxOutcome] = msgspec.json.Decoder(InboxOutcome)


class Inbox:
    """The inbox of one log, which may not be there yet; for errors of its file see `InboxFile`.

    Args:
        log: the log's absolute path.
        clock: what stamps rows.
        allow_shared_folder: use it although others may make files in its folder.
        file: where its rows are; None = beside the log.
    """

    def __init__(
        self, log: Path, clock: Clock, *, allow_shared_folder: bool = False, file: InboxFile | None = None
    ) -> None:
        self.file = file or InboxFile(log, allow_shared_folder=allow_shared_folder)
        self._clock = clock

    async def put(self, session: str, command: InboxCommand, key: str) -> InboxEntry:
        """Put a command there, durably, or find what was put there under the same key.

        Raises:
            CommandRejected: the key was used for another command, or is none; or nobody could perform the command.
            ConfigError: the session's name cannot be one.
        """
        required_key(key)
        cleaned = _cleaned(command)
        if not isinstance(cleaned, InboxSetAside | InboxFork | InboxDelete):  # What that means stands in the log.
            session_command(cleaned, key)
        keyed = msgspec.structs.replace(cleaned, metadata={}) if isinstance(cleaned, InboxSend) else cleaned
        row, new = await self.file.add(
            checked_identifier(session, "session id"),
            clean_text(key),
            msgspec.json.encode(cleaned),
            self._clock.now_us(),
            keyed=msgspec.json.encode(keyed),
        )
        return _entry(row, new)

    async def outcome(self, entry: InboxEntry) -> InboxOutcome | None:
        """Return what came of a row, or None if it still waits; raise CommandRejected if it is not there any more."""
        outcome = (await self.outcomes([entry]))[entry.name]
        if isinstance(outcome, CommandRejected):
            raise outcome
        return outcome

    async def outcomes(self, entries: Sequence[InboxEntry]) -> dict[RowName, InboxOutcome | CommandRejected | None]:
        """Return what came of each of many rows, None where it still waits; an error where it is not there any more."""
        rows = await self.file.rows([entry.name for entry in entries])
        return {
            entry.name: _entry(rows[entry.name]).outcome if entry.name in rows else self._gone(entry)
            for entry in entries
        }

    def _gone(self, entry: InboxEntry) -> CommandRejected:
        return CommandRejected(
            f"the command with key {entry.key!r} is not in the inbox {self.file.path} any more: it was taken back, "
            "or removed the file"
        )

    async def waiting(self, session: str) -> list[InboxEntry]:
        """Return the commands of a session that wait, oldest first; at most a hundred."""
        return [_entry(row) for row in await self.file.waiting(session)]

    async def finish(self, entry: InboxEntry, outcome: InboxOutcome) -> None:
        await self.file.finish(entry.name, msgspec.json.encode(outcome), self._clock.now_us())


def session_command(
    command: SessionRow, key: str, named: NamedContent | None = None
) -> tuple[SessionCommand, dict[PayloadHash, bytes]]:
    """Return a row's command as its session takes it, with the payloads of what is large; or raise CommandRejected.

    Args:
        command: what the row says.
        key: of the row.
        named: what it names; see `named_content`.

    Raises:
        ConfigError: that event brought nothing that could be set aside.
    """
    match command:
        case InboxSend():
            content, payloads = input_content(_input_of(command))
            return _input_command(command, content, key), payloads
        case InboxDescribe():
            return described_by(command) or DescribeSession(), {}
        case InboxCancel(run=run, reason=reason):
            return CancelRun(run=run, reason=reason, key=key), {}
        case InboxDecide(call=call, allow=allow, reason=reason, always=always, arguments=arguments):
            return DecideApproval(call=call, allowed=allow, reason=reason, always=always, input=arguments, key=key), {}
        case InboxAnswer(question=question, answer=answer, error=error):
            return answer_command(question, answer, error, key), {}
        case InboxSetAside(version=version, message=message, part=part, reason=reason):
            assert named is not None
            return aside_command(named, version, message, part, reason, key), {}
        case InboxTakeBack(version=version, reason=reason):
            return take_back_command(version, reason, key), {}
        case InboxRewind(to=to):
            return RewindHistory(to=to, key=key), {}
        case InboxImport(messages=messages, payloads=payloads):
            return ImportHistory(messages=messages, key=key), payloads
        case InboxClear():
            return ClearHistory(key=key), {}
        case InboxAllowTurn(run=run):
            return AllowTurn(run=run), {}
        case InboxResume():
            return ResumeRun(asked=True), {}


def _input_command(command: InboxSend, content: tuple[UserContent, ...], key: str) -> SendInput:
    return SendInput(
        content=content,
        key=key,
        options=command.options,
        due_at=command.due_at,
        every=command.every,
        now=command.now,
        stepwise=command.stepwise,
        cancelled=command.cancelled,
    )


def row_of(
    command: SessionCommand, payloads: Mapping[PayloadHash, bytes], described: DescribeSession | None
) -> SessionRow:
    """Return the row that says what a caller tells a session; the inverse of `session_command`.

    Args:
        command: of a caller, as its session takes it.
        payloads: what is large in it.
        described: what is said of the session in front of an input.

    Raises:
        ConfigError: it is none that other processes can give.
    """
    match command:
        case SendInput():
            given = restored(Message("user", command.content), payloads).content
            said = send_command(cast("tuple[GivenContent, ...]", given), command.options, described)
            return msgspec.structs.replace(
                said,
                due_at=command.due_at,
                every=command.every,
                now=command.now,
                stepwise=command.stepwise,
                cancelled=command.cancelled,
            )
        case DescribeSession():
            return InboxDescribe(user=command.user, metadata=dict(command.metadata))
        case CancelRun():
            return InboxCancel(run=command.run, reason=command.reason)
        case AnswerQuestion(call=call, number=number):
            return InboxAnswer(question=question_id(call, number), answer=command.answer, error=command.error)
        case DecideApproval():
            return InboxDecide(
                call=command.call,
                allow=command.allowed,
                reason=command.reason,
                always=command.always,
                arguments=command.input,
            )
        case SetContentAside(named=(version, message, part)):
            return InboxSetAside(version=version, message=message, part=part, reason=command.reason)
        case TakeContentBack():
            return InboxTakeBack(version=command.aside, reason=command.reason)
        case ImportHistory():
            return InboxImport(messages=command.messages, payloads=dict(payloads))
        case ClearHistory():
            return InboxClear()
        case RewindHistory():
            return InboxRewind(to=command.to)
        case AllowTurn():
            return InboxAllowTurn(run=command.run)
        case ResumeRun():
            return InboxResume()
        case _:
            raise ConfigError(f"{type(command).__name__} is for the process that owns the log")


def described_by(command: SessionRow) -> DescribeSession | None:
    """Return what a row says of its session itself; None = nothing."""
    if isinstance(command, InboxSend | InboxDescribe):
        return describe_command(command.user, command.metadata)
    return None


async def named_content(store: EventStore, session: SessionId, command: InboxCommand) -> NamedContent | None:
    """Return what the event brought whose version a command names, if it names one to be set aside."""
    return await content_at(store, session, command.version) if isinstance(command, InboxSetAside) else None


def key_in_session(keys: Container[str], key: str) -> str:
    """Return the key under which a session knows, or will know, the command of a row with this key."""
    former = FORMER_PREFIX + key
    return former if former in keys else key


def send_command(
    content: Input, options: RunOptions | None = None, described: DescribeSession | None = None
) -> InboxSend:
    """Return the command that sends an input; raises as `input_blocks`."""
    said = described or DescribeSession()
    command = InboxSend(options=options, user=said.user, metadata=dict(said.metadata))
    blocks = input_blocks(content)
    if len(blocks) == 1 and isinstance(blocks[0], TextBlock):
        return msgspec.structs.replace(command, text=blocks[0].text)
    return msgspec.structs.replace(command, content=tuple(blocks))


def _input_of(command: InboxSend) -> Input:
    return command.content or command.text


def _cleaned(command: InboxCommand) -> InboxCommand:
    """Return a command that can be encoded: arguments of a process may hold bytes that are no Unicode."""
    match command:
        case InboxSend():
            said = send_command(_input_of(command))
            return msgspec.structs.replace(command, text=said.text, content=said.content, **_described(command))
        case InboxDescribe():
            return InboxDescribe(**_described(command))
        case InboxCancel(run=run, reason=reason):
            return InboxCancel(
                run=RunId(clean_text(run)) if run is not None else None,
                reason=recorded_reason(reason) if reason is not None else None,
            )
        case InboxSetAside(reason=reason) | InboxTakeBack(reason=reason):
            return msgspec.structs.replace(command, reason=recorded_reason(reason))
        case InboxDelete() | InboxRewind() | InboxImport() | InboxClear() | InboxAllowTurn() | InboxResume():
            return command
        case InboxFork(name=name, system_prompt=prompt, results=results):
            return msgspec.structs.replace(
                command,
                name=checked_identifier(name, "session id"),
                model=clean_text(command.model) if command.model is not None else None,
                system_prompt=clean_text(prompt) if prompt is not None else None,
                results={clean_text(call): clean_text(text) for call, text in results.items()},
            )
        case InboxAnswer(question=question, answer=answer, error=error):
            return msgspec.structs.replace(
                command,
                question=clean_text(question),
                answer=answer_of(answer),
                error=recorded_reason(error) if error is not None else None,
            )
        case InboxDecide(call=call, arguments=arguments):
            return msgspec.structs.replace(
                command,
                call=ToolCallId(clean_text(call)),
                reason=recorded_reason(command.reason),
                arguments=given_arguments(arguments) if arguments is not None else None,
            )


def required_key(key: str) -> str:
    """Return the key of a row; raise CommandRejected where it cannot be one."""
    if not key:
        raise CommandRejected("a key is not empty; leave it out to have one made")
    checked_key(key)
    return key


def encoded_command(command: InboxCommand) -> bytes:
    """Return a command as it stands in the inbox."""
    return msgspec.json.encode(_cleaned(command))


def encoded_outcome(outcome: InboxOutcome) -> bytes:
    """Return an outcome as it stands in the inbox."""
    return msgspec.json.encode(outcome)


def decoded_outcome(data: bytes) -> InboxOutcome | None:
    """Return an outcome that was encoded so; None of nothing."""
    return _outcome(data or None)


def entry_of(session: str, key: str, command: bytes) -> InboxEntry | None:
    """Return a command that was not put into the inbox as if it had been; None = it cannot be performed twice."""
    key = clean_text(key[:KEY_BYTES_MAX])
    entry = _entry(InboxRow(id=0, session=clean_text(session), key=key, digest=b"", command=command, at=0))
    return None if isinstance(entry.command, (InboxDelete, InboxFork, *NEEDS_RUNTIME)) else entry


def _described(command: InboxSend | InboxDescribe) -> dict[str, Any]:
    said = described_by(command) or DescribeSession()
    return {"user": said.user, "metadata": dict(said.metadata)}


def _entry(row: InboxRow, new: bool = False) -> InboxEntry:
    command: InboxCommand | Refused | None = None
    if row.command is not None:
        try:
            command = _command_decoder.decode(row.command)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            command = Refused(message=f"that is no command which this Refold knows: {error!s:.200}")
    elif row.outcome is None:
        command = Refused(message="the row holds no command")
    return InboxEntry(
        name=row.name,
        session=SessionId(row.session),
        key=row.key,
        command=command,
        outcome=_outcome(row.outcome),
        new=new,
    )


def _outcome(data: bytes | None) -> InboxOutcome | None:
    if data is None:
        return None
    try:
        return _outcome_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        return Refused(message=f"it was performed, and what came of it cannot be read: {error!s:.200}")
