"""A new session that goes on from a place in another one, with another model, prompt or tool result.

A fork is one event, and one append: nothing is folded for it, and nothing of the origin is copied, so that it takes
the same time and room wherever it is made. `refold.events.session.evolve` says what it means for what was open at its
place, and `refold.stores.forked` how its prefix is read. The rule: what a tool did before that place is not done again.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Final, TypeAlias

import msgspec

from refold.actors.calls.results import result_content
from refold.context import RuntimeContext
from refold.events.core.cleaning import clean_text
from refold.events.core.content import GivenContent, ToolResultBlock, tool_uses, without_blanks
from refold.events.core.errors import CommandRejected, ConfigError, LogFormatError, WrongExpectedVersion, quoted
from refold.events.core.ids import (
    IDENTIFIER_BYTES_MAX,
    PayloadHash,
    SessionId,
    ToolCallId,
    checked_identifier,
    stream_name,
)
from refold.events.core.records import EncodedBatch, StoredEvent, event_ref
from refold.events.model.configuration import RunOptions, payload_hash
from refold.events.model.cooperative import at_once
from refold.events.model.payloads import recordable, without_secrets
from refold.events.secrets.redaction import Redaction
from refold.events.session.core import SESSION_CODEC, SESSION_KIND
from refold.events.session.events import (
    ModelResponded,
    SessionForked,
    SessionOpened,
    ToolCallCompleted,
    ToolCallFailed,
)
from refold.events.session.state import CALL_ID
from refold.inspection.log_reading import session_head
from refold.stores.event_store import EventStore

Results: TypeAlias = Mapping[str, str | Sequence[GivenContent]]
"""What calls are answered with, by their ids: a text, or blocks."""

EVENTS_PER_PAGE: Final = 500


class WantedFork(msgspec.Struct, frozen=True, kw_only=True):
    """A fork that is to be made; see `Session.fork`."""

    at: int | None = None
    name: str | None = None
    options: RunOptions | None = None
    system_prompt: str | None = None
    results: Results | None = None
    keep_run: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.keep_run, bool):
            raise ConfigError(f"keep_run of a fork must be True or False, not {quoted(self.keep_run)}")
        if not isinstance(self.system_prompt, str | None):
            raise ConfigError(f"the system prompt of a fork is a text, not {quoted(self.system_prompt)}")
        if self.name is not None:
            checked_identifier(self.name, "session id")

    def named_results(self) -> Results:
        """Return what calls are answered with, or raise ConfigError where that is not given by their ids."""
        results: Results = self.results if self.results is not None else {}
        if not isinstance(results, Mapping) or not all(isinstance(call, str) for call in results):
            raise ConfigError(f"the results of a fork are given by the ids of their calls, not as {quoted(results)}")
        for call, given in results.items():
            blocks: Sequence[object] = given if isinstance(given, list | tuple) else ()
            if not (isinstance(given, str) or blocks) or not all(isinstance(each, GivenContent) for each in blocks):
                raise ConfigError(f"the result of {quoted(call)} in a fork is a text or blocks, not {quoted(given)}")
        return results


class ForkedLog(msgspec.Struct, frozen=True, kw_only=True):
    """A log that this process may write, as a fork needs it."""

    store: EventStore
    append: Callable[[Sequence[EncodedBatch], Mapping[PayloadHash, bytes]], Awaitable[object]]
    redaction: Redaction
    now_us: int


class MadeFork(msgspec.Struct, frozen=True, kw_only=True):
    """A fork that is in the log."""

    session: SessionId
    version: int
    """Of its own first event."""
    stored: list[StoredEvent]
    """That event; empty where the same fork had been made before."""


async def fork_in(context: RuntimeContext, origin: SessionId, wanted: WantedFork) -> MadeFork:
    """Make a fork in the runtime that owns the log; raises as `fork_session`."""
    context.require_open()
    log = ForkedLog(
        store=context.store,
        append=context.journal.append,
        redaction=context.journal.redaction,
        now_us=context.system.clock.now_us(),
    )
    made = await fork_session(log, origin, wanted)
    if made.stored:
        context.event_bus.recorded(made.session, SESSION_CODEC.recorded(made.stored))
    return made


async def fork_session(log: ForkedLog, origin: SessionId, wanted: WantedFork) -> MadeFork:
    """Make a fork of a session, and return it once it is durable; raises as `Session.fork`."""
    store, stream = log.store, (await session_head(log.store, origin)).stream
    last, chain = await _place(store, stream, wanted.at)
    [first] = SESSION_CODEC.decode_all(await store.read_stream(stream, limit=1))
    if not isinstance(first, SessionOpened):
        raise LogFormatError(f"session {origin!r} does not begin by saying whose it is; `refold check` says more")
    options, payloads = wanted.options, dict[PayloadHash, bytes]()
    if wanted.system_prompt is not None:
        prompt = clean_text(wanted.system_prompt).encode()
        payloads[payload_hash(prompt)] = prompt
        options = msgspec.structs.replace(options or RunOptions(), system_prompt=payload_hash(prompt))
    answers: list[ToolResultBlock] = []
    for call, content in wanted.named_results().items():
        await _require_open(store, stream, call, last.version)
        kept, large = result_content(content)
        answers.append(ToolResultBlock(tool_use_id=ToolCallId(call), content=without_blanks(kept)))
        payloads.update(large)
    forked = SessionForked(
        session=SessionId(""),
        agent=first.agent,
        origin=origin,
        version=last.version,
        chain=chain.hex(),
        origin_at=last.at,
        options=options,
        keeps_run=wanted.keep_run or bool(answers),
        results=tuple(answers),
    )
    name = wanted.name
    for each in [name] if name is not None else names_for(origin, last.version):
        made = msgspec.structs.replace(forked, session=SessionId(each))
        if (stored := await _append(log, made, stream, payloads)) is not None:
            return MadeFork(session=made.session, version=last.version + 1, stored=stored)
        if name is not None and not await _is_there(store, made):
            raise CommandRejected(f"there is another session {name!r} already; name the fork otherwise")
        if name is not None:
            return MadeFork(session=made.session, version=last.version + 1, stored=[])
    raise AssertionError("unreachable")


def names_for(origin: str, version: int) -> Iterator[str]:
    """Return names for a fork without one: `alice~57`, then `alice~57.2` and so on."""
    room = IDENTIFIER_BYTES_MAX - 32
    short = origin.encode()[:room].decode(errors="ignore")
    return (f"{short}~{version}" + (f".{number}" if number > 1 else "") for number in count(1))


async def _place(store: EventStore, stream: str, at: int | None) -> tuple[StoredEvent, bytes]:
    """Return the last event that a fork begins with, and the digest of the stream there."""
    head = await store.head(stream)
    last = head.version if head is not None else 0
    version = last if at is None else at
    if type(version) is not int or not 1 <= version <= last:
        raise ConfigError(f"{stream} has the versions 1 to {last}, and not {quoted(version, 40)}")
    found = await store.read_stream(stream, after_version=version - 1, limit=2)
    event = found[0]
    if len(found) == 2 and found[1].batch == event.batch:
        end = version
        while len(found) > 1 and found[-1].batch == event.batch:
            end = found[-1].version
            found = await store.read_stream(stream, after_version=end - 1, limit=EVENTS_PER_PAGE)
        end = max([end, *(item.version for item in found if item.batch == event.batch)])
        before = f"{event.batch - 1}, before it, or at " if event.batch > 1 else ""
        raise ConfigError(
            f"version {version} of {stream} was recorded together with what follows it; fork at {before}{end}, its end"
        )
    begin = event
    if event.version != event.batch:
        [begin] = await store.read_stream(stream, after_version=event.batch - 1, limit=1)
    if begin.chain is None:
        raise LogFormatError(f"the batch of version {version} of {stream} has no chain; restore a backup")
    return event, begin.chain


async def _require_open(store: EventStore, stream: str, call: str, version: int) -> None:
    """Raise ConfigError unless a call is open after a version."""
    made = CALL_ID.fullmatch(call)
    first = int(made[1]) if made is not None else version + 1
    after = first - 1
    while 0 <= after < version:
        page = await store.read_stream(stream, after_version=after, limit=min(EVENTS_PER_PAGE, version - after))
        for place, event in enumerate(SESSION_CODEC.decode_all(page), after + 1):
            if place == first and not (
                isinstance(event, ModelResponded) and any(use.id == call for use in tool_uses(event.content))
            ):
                after = version  # It is no call of this answer.
                break
            if isinstance(event, ToolCallCompleted | ToolCallFailed) and event.call == call:
                raise ConfigError(f"{call} is answered at version {place} already; fork at a version before that")
        else:
            after += len(page)
            if after >= version:
                return
    raise ConfigError(f"{quoted(call)} is no call of {stream} that is open after version {version}")


async def _append(
    log: ForkedLog, forked: SessionForked, origin: str, payloads: Mapping[PayloadHash, bytes]
) -> list[StoredEvent] | None:
    """Append the event of a fork and return it; None where there is a stream of its name."""
    redaction, stream = log.redaction, stream_name(SESSION_KIND, forked.session)
    (forked,), payloads = at_once(without_secrets(redaction, (forked,), payloads))
    if redaction:
        redaction.require_none(stream, f"the name {redaction.text(stream)!r}")
    _, data = recordable(redaction, SESSION_CODEC, forked)
    place = event_ref(origin, forked.version)
    batch = EncodedBatch(
        stream=stream,
        expected_version=forked.version,
        at=max(log.now_us, forked.origin_at),
        events=(data,),
        causation=place,
        correlation=place,
        begins_fork=True,
    )
    try:
        await log.append([batch], payloads)
    except WrongExpectedVersion as error:
        if error.actual:
            return None
        if await log.store.head(origin) is None:
            raise CommandRejected(f"{origin} was deleted while it was to be forked") from None
        raise ConfigError(
            f"the store {log.store.name} cannot keep forks: it takes no stream that begins with another's events "
            "(refold.stores.forked)"
        ) from None
    return await log.store.read_stream(stream, after_version=forked.version, limit=1)


async def _is_there(store: EventStore, forked: SessionForked) -> bool:
    """Tell whether the same fork was made before, so that making it again changes nothing."""
    stream = stream_name(SESSION_KIND, forked.session)
    found = await store.read_stream(stream, after_version=forked.version, limit=1)
    if not found or found[0].stream != stream:
        return False
    [event] = SESSION_CODEC.decode_all(found)
    return msgspec.structs.replace(event, at=0) == forked
