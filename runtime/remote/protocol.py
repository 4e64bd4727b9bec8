"""Commands from other processes to the runtime that owns a log: what they say, and what comes of them.

Only a log's owner writes it. Another process that wants to approve a call, cancel a run or send an input writes a row
into the file beside the log (`refold.stores.sqlite.inbox`) and waits for its outcome. `owner` is the owner's side;
`client` is that of the others, and performs rows where no runtime owns the log. The rule: a row becomes a command of
its session under the row's own key, so that performing it twice does nothing twice, and a request that is made again,
of the owner or through the inbox, is the same command.
"""

import math
import uuid
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import msgspec

from refold.actors.calls.policy import given_arguments
from refold.actors.kernel.clock import Clock
from refold.events.core.cleaning import clean_text, recorded_reason
from refold.events.core.content import GivenContent, Message, TextBlock
from refold.events.core.errors import CommandRejected, ConfigError
from refold.events.core.ids import PayloadHash, RunId, SessionId, checked_identifier
from refold.events.model.configuration import RunOptions
from refold.events.model.payloads import restored
from refold.events.session import commands
from refold.events.session.commands import DescribeSession, SessionCommand
from refold.events.session.state import question_id
from refold.keeping.deletion import Deletion, UserDeletion
from refold.keeping.retention import Retention
from refold.lineage.fork import WantedFork, names_for
from refold.remote import rows
from refold.sessions.access import NamedUser, describe_command
from refold.sessions.inputs import KEY_BYTES_MAX, Input, checked_key, input_blocks, input_content
from refold.sessions.named_content import NamedContent, aside_command, content_at
from refold.sessions.people import answer_command, answer_of
from refold.stores.event_store import EventStore
from refold.stores.sqlite.inbox import InboxFile, InboxRow, RowName

INBOX_S: Final = 5.0
"""For so long at least the inbox is waited for where other processes have it, however little time its caller has."""

FORMER_PREFIX: Final = "inbox:"
"""What stands before a row's key in sessions of logs whose Refold kept keys of rows apart from those of callers."""


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


class UserDeleted(msgspec.Struct, frozen=True, kw_only=True, tag="user_deleted"):
    """All of a user was deleted."""

    deletion: UserDeletion
    """Without the user, whose id would stay in the inbox; who asked knows it."""


class Retained(msgspec.Struct, frozen=True, kw_only=True, tag="retained"):
    """What was too old was deleted."""

    retention: Retention


InboxOutcome: TypeAlias = Done | Refused | Deletion | UserDeleted | Retained
"""What came of a row."""


class InboxEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A row, understood."""

    name: RowName
    session: SessionId
    key: str
    command: rows.InboxCommand | Refused | None
    """None once it was performed; a refusal where it says nothing that can be performed."""
    describes: DescribeSession | None = None
    """What its sender says of the session beside it."""
    outcome: InboxOutcome | None
    """None = not performed yet."""
    new: bool = False
    """It was put there just now."""


class RowGone(CommandRejected):
    """A row is not in the inbox any more. Its session knows by its key whether it was performed: put it there again."""


_command_decoder: msgspec.json.Decoder[rows.GivenRow] = msgspec.json.Decoder(rows.GivenRow)
_outcome_decoder: msgspec.json.Decoder[InboxOutcome] = msgspec.json.Decoder(InboxOutcome)


class Inbox:
    """The inbox of one log, which may not be there yet; for errors of its file see `InboxFile`.

    Args:
        log: the log's absolute path.
        clock: what stamps rows.
        allow_shared_folder: use it although others may make files in its folder.
        file: where its rows are; None = beside the log.
        until_s: by when other processes that have the file are waited for no longer, on the monotonic clock; see
            `INBOX_S`.
    """

    def __init__(
        self,
        log: Path,
        clock: Clock,
        *,
        allow_shared_folder: bool = False,
        file: InboxFile | None = None,
        until_s: float = math.inf,
    ) -> None:
        self.file = file or InboxFile(log, allow_shared_folder=allow_shared_folder)
        self._log = log
        self._clock = clock
        self._until_s = until_s

    def until(self, until_s: float) -> "Inbox":
        """Return the same inbox with another limit."""
        return Inbox(self._log, self._clock, file=self.file, until_s=until_s)

    @property
    def _wait_s(self) -> float:
        return max(INBOX_S, self._until_s - self._clock.monotonic_s()) if self._until_s < math.inf else math.inf

    async def put(self, session: str, command: rows.GivenRow, key: str) -> InboxEntry:
        """Put a command there, durably, or find what was put there under the same key.

        Raises:
            CommandRejected: the key was used for another command, or is none; or nobody could perform the command.
            ConfigError: the session's name cannot be one.
        """
        required_key(key)
        cleaned = _cleaned(command)
        asked = cleaned.command if isinstance(cleaned, rows.InboxDescribed) else cleaned
        # What an InboxSetAside means stands in the log.
        if isinstance(asked, rows.SessionRow) and not isinstance(asked, rows.InboxSetAside):
            session_command(asked, key)
        beside = isinstance(cleaned, rows.InboxSend | rows.InboxDescribed)
        keyed = msgspec.structs.replace(cleaned, metadata={}) if beside else cleaned
        if isinstance(cleaned, rows.InboxDescribed) and cleaned.user is None:
            keyed = asked  # Metadata is said once, and a repetition comes without.
        row, new = await self.file.add(
            checked_queue(session, asked),
            clean_text(key),
            msgspec.json.encode(cleaned),
            self._clock.now_us(),
            keyed=msgspec.json.encode(keyed),
            wait_s=self._wait_s,
        )
        return _entry(row, new)

    async def outcome(self, entry: InboxEntry) -> InboxOutcome | None:
        """Return what came of a row, or None if it still waits; raise RowGone if it is not there any more."""
        outcome = (await self.outcomes([entry]))[entry.name]
        if isinstance(outcome, RowGone):
            raise outcome
        return outcome

    async def outcomes(self, entries: Sequence[InboxEntry]) -> dict[RowName, InboxOutcome | RowGone | None]:
        """Return what came of each of many rows, None where it still waits; an error where it is not there any more."""
        found = await self.file.rows([entry.name for entry in entries], wait_s=self._wait_s)
        return {
            entry.name: _entry(found[entry.name]).outcome if entry.name in found else self._gone(entry)
            for entry in entries
        }

    def _gone(self, entry: InboxEntry) -> RowGone:
        return RowGone(
            f"the command with key {entry.key!r} is not in the inbox {self.file.path} any more: it was taken back, its "
            "outcome was removed as too old, or the file was removed; give it again with the same key"
        )

    async def waiting(self, session: str) -> list[InboxEntry]:
        """Return the commands of a session that wait, oldest first; at most a hundred."""
        return [_entry(row) for row in await self.file.waiting(session, wait_s=self._wait_s)]

    async def require(self, named: NamedUser) -> None:
        """Raise CommandRejected where what waits will give the session to another user than is named."""
        for entry in await self.waiting(named.session) if not named.is_checked else ():
            said = entry.command if isinstance(entry.command, rows.InboxDescribe) else entry.describes
            if said is not None and said.user is not None:
                if said.user != named.user:
                    named.check(said.user)
                return

    async def finish(self, entry: InboxEntry, outcome: InboxOutcome) -> None:
        data = msgspec.json.encode(outcome)
        await self.file.finish(entry.name, data, self._clock.now_us(), wait_s=self._wait_s)

    async def take_back(self, entry: InboxEntry) -> bool:
        """Remove a row that has no outcome; return whether there was one."""
        return await self.file.take_back(entry.name, wait_s=self._wait_s)


def session_command(
    command: rows.SessionRow, key: str, named: NamedContent | None = None
) -> tuple[SessionCommand, dict[PayloadHash, bytes]]:
    """Return a row's command as its session takes it, with payloads; `named` is its `named_content`."""
    match command:
        case rows.InboxSend():
            content, payloads = input_content(_input_of(command))
            said: dict[str, Any] = {name: getattr(command, name) for name in rows.OF_INPUT}
            return commands.SendInput(content=content, key=key, **said), payloads
        case rows.InboxDescribe():
            return _said(command) or DescribeSession(), {}
        case rows.InboxAnswer(question=question, answer=answer, error=error):
            return answer_command(question, answer, error, key), {}
        case rows.InboxSetAside(version=version, message=message, part=part, reason=reason):
            assert named is not None
            return aside_command(named, version, message, part, reason, key), {}
        case rows.InboxImport(messages=messages, payloads=payloads):
            return commands.ImportHistory(messages=messages, key=key), payloads
        case rows.InboxResume():
            return commands.ResumeRun(asked=True), {}
        case _:
            said = msgspec.structs.asdict(command) | ({} if isinstance(command, rows.ONCE_GIVEN) else {"key": key})
            return rows.SAID_ALIKE[type(command)](**said), {}


def row_of(
    command: SessionCommand, payloads: Mapping[PayloadHash, bytes], described: DescribeSession | None
) -> rows.SessionRow:
    """Return the row that says what a caller tells a session, as `session_command` reads it, or raise ConfigError."""
    match command:
        case commands.SendInput():
            given = restored(Message("user", command.content), payloads).content
            row = send_command(cast("tuple[GivenContent, ...]", given), command.options, described)
            return msgspec.structs.replace(row, **{name: getattr(command, name) for name in rows.OF_INPUT})
        case DescribeSession():
            return rows.InboxDescribe(user=command.user, metadata=dict(command.metadata))
        case commands.AnswerQuestion(call=call, number=number):
            return rows.InboxAnswer(question=question_id(call, number), answer=command.answer, error=command.error)
        case commands.SetContentAside(named=(version, message, part)):
            return rows.InboxSetAside(version=version, message=message, part=part, reason=command.reason)
        case commands.ImportHistory():
            return rows.InboxImport(messages=command.messages, payloads=dict(payloads))
        case commands.ResumeRun():
            return rows.InboxResume()
        case _:
            row_type = next((row for row, said in rows.SAID_ALIKE.items() if said is type(command)), None)
            if row_type is None:
                raise ConfigError(f"{type(command).__name__} is for the process that owns the log")
            return row_type(**{name: getattr(command, name) for name in row_type.__struct_fields__})


def row_of_fork(origin: str, version: int, wanted: WantedFork) -> rows.InboxFork:
    """Return the row that makes a fork, with a name, so that it is one fork however often it is performed."""
    results = wanted.named_results()
    return rows.InboxFork(
        name=wanted.name if wanted.name is not None else f"{next(names_for(origin, version))}.{uuid.uuid4().hex[:8]}",
        at=version,
        model=wanted.options.model if wanted.options is not None else None,
        system_prompt=wanted.system_prompt,
        results={call: given if isinstance(given, str) else tuple(given) for call, given in results.items()},
        keep_run=wanted.keep_run,
    )


def described_row(command: rows.SessionRow | rows.InboxFork, described: DescribeSession | None) -> rows.GivenRow:
    """Return a row with what its sender says of the session; an input says that itself."""
    if described is None or isinstance(command, rows.InboxSend):
        return command
    return rows.InboxDescribed(command=command, user=described.user, metadata=dict(described.metadata))


def checked_queue(name: str, command: rows.InboxCommand) -> str:
    """Return the name under which a command may stand in the inbox; raise ConfigError where it can be no session's."""
    if isinstance(command, (rows.InboxHosted, *rows.OF_WHOLE_LOG)):
        assert name.startswith(rows.NO_SESSION)
        return name
    return checked_identifier(name, "session id")


async def named_content(store: EventStore, session: SessionId, command: rows.InboxCommand) -> NamedContent | None:
    """Return what the event brought whose version a command names, if it names one to be set aside."""
    return await content_at(store, session, command.version) if isinstance(command, rows.InboxSetAside) else None


def key_in_session(keys: Container[str], key: str) -> str:
    """Return the key under which a session knows, or will know, the command of a row with this key."""
    former = FORMER_PREFIX + key
    return former if former in keys else key


def send_command(
    content: Input, options: RunOptions | None = None, described: DescribeSession | None = None
) -> rows.InboxSend:
    """Return the command that sends an input; raises as `input_blocks`."""
    said = described or DescribeSession()
    command = rows.InboxSend(options=options, user=said.user, metadata=dict(said.metadata))
    blocks = input_blocks(content)
    if len(blocks) == 1 and isinstance(blocks[0], TextBlock):
        return msgspec.structs.replace(command, text=blocks[0].text)
    return msgspec.structs.replace(command, content=tuple(blocks))


def _input_of(command: rows.InboxSend) -> Input:
    return command.content or command.text


def _cleaned(command: rows.GivenRow) -> rows.GivenRow:
    """Return a command that can be encoded: arguments of a process may hold bytes that are no Unicode."""
    may_be_unsaid = isinstance(command, rows.InboxCancel | rows.InboxAnswer)
    given = msgspec.structs.asdict(command)
    changed: dict[str, object] = {name: clean_text(value) for name, value in given.items() if isinstance(value, str)}
    for name in {"reason", "error"} & given.keys():
        if given[name] is not None or not may_be_unsaid:
            changed[name] = recorded_reason(given[name])
    match command:
        case rows.InboxDescribed(command=inner):
            changed = {"command": _cleaned(inner), **_described(command)}
        case rows.InboxSend():
            said = send_command(_input_of(command))
            changed = {"text": said.text, "content": said.content, **_described(command)}
        case rows.InboxDescribe():
            changed = _described(command)
        case rows.InboxDeleteUser() | rows.InboxRetain() | rows.InboxHosted():  # They are checked where they are made.
            return command
        case rows.InboxFork(results=results):
            changed["name"] = checked_identifier(command.name, "session id")
            changed["results"] = {
                clean_text(call): clean_text(given) if isinstance(given, str) else given
                for call, given in results.items()
            }
        case rows.InboxAnswer(answer=answer):
            changed["answer"] = answer_of(answer)
        case rows.InboxDecide(input=arguments) if arguments is not None:
            changed["input"] = given_arguments(arguments)
        case _:
            pass
    return msgspec.structs.replace(command, **changed)


def required_key(key: str) -> str:
    """Return the key of a row; raise CommandRejected where it cannot be one."""
    if not key:
        raise CommandRejected("a key is not empty; leave it out to have one made")
    checked_key(key)
    return key


def encoded_command(command: rows.GivenRow) -> bytes:
    return msgspec.json.encode(_cleaned(command))


def encoded_outcome(outcome: InboxOutcome) -> bytes:
    return msgspec.json.encode(outcome)


def decoded_outcome(data: bytes | None) -> InboxOutcome | None:
    """Return an outcome that was encoded so; None of nothing."""
    return _outcome(data or None)


def entry_of(session: str, key: str, command: bytes) -> InboxEntry | None:
    """Return a command that was not put into the inbox as if it had been; None = it cannot be performed twice."""
    key = clean_text(key[:KEY_BYTES_MAX])
    entry = _entry(InboxRow(id=0, session=clean_text(session), key=key, digest=b"", command=command, at=0))
    twice = (rows.InboxDelete, rows.InboxFork, *rows.ONCE_GIVEN, *rows.OF_WHOLE_LOG)
    return None if isinstance(entry.command, twice) else entry


def _said(row: rows.InboxSend | rows.InboxDescribe | rows.InboxDescribed) -> DescribeSession | None:
    return describe_command(row.user, row.metadata)


def _described(row: rows.InboxSend | rows.InboxDescribe | rows.InboxDescribed) -> dict[str, Any]:
    said = _said(row) or DescribeSession()
    return {"user": said.user, "metadata": dict(said.metadata)}


def _entry(row: InboxRow, new: bool = False) -> InboxEntry:
    command: rows.InboxCommand | Refused | None = None
    describes: DescribeSession | None = None
    if row.command is not None:
        try:
            given = _command_decoder.decode(row.command)
            describes = _said(given) if isinstance(given, rows.InboxSend | rows.InboxDescribed) else None
            command = given.command if isinstance(given, rows.InboxDescribed) else given
        except (msgspec.MsgspecError, ConfigError, UnicodeError, RecursionError) as error:
            command = Refused(message=f"that is no command which this Refold knows: {error!s:.200}")
    elif row.outcome is None:
        command = Refused(message="the row holds no command")
    return InboxEntry(
        name=row.name,
        session=SessionId(row.session),
        key=row.key,
        command=command,
        describes=describes,
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
