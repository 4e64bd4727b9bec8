"""Taking over a log: what the runtime before this one left to be done.

Which open runs go on first. A run whose last batch is a fruitless resume may be the one that kills the process. Runs
beyond suspicion go on at once; suspects go on one after another, each when the one before has made progress or has
lived through its probation. So a run that kills every process is parked in the end, and takes no innocent run with it.

Which recalls are noted late. That episodes were recalled is noted once their answer is durable, and no session waits
for that; so a process that dies in between leaves an answer whose recalls nobody counts. But the answer names them. So
a runtime that takes over a log whose last runtime did not end in order goes through the answers since then, and has
each noted under the key that it would have had: a recall counts once, however often this is done. The runtime's stream
keeps how far it was done.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from refold.actors.agent.subsession import ancestors_of
from refold.actors.calls.context import session_context
from refold.actors.kernel.errors import ActorStopped, AskTimeout
from refold.actors.kernel.ref import ActorRef
from refold.actors.kernel.system import ActorSystem
from refold.actors.shell.effects import once_log_allows
from refold.actors.shell.messages import Wake
from refold.context import RuntimeContext
from refold.events.core.codec import tag_of
from refold.events.core.errors import LogFormatError, PersistenceError
from refold.events.core.ids import SessionId, StreamName, kind_and_identifier
from refold.events.core.records import StoredEvent, StreamHead
from refold.events.kinds.runtime import RUNTIME_CODEC, RUNTIME_STREAM, RecallsNoted, RuntimeClosed, RuntimeStarted
from refold.events.session.core import SESSION_CODEC, SESSION_CORE, SESSION_KIND
from refold.events.session.events import AgentConfigured, ModelResponded, RequestBuilt, RunResumed, SessionEvent
from refold.events.session.state import SessionState, is_work
from refold.memory.stream_object import StreamObject
from refold.publishing.event_bus import EventBus
from refold.publishing.notifications import RecordedSessionEvent
from refold.running_agents import RunningAgents
from refold.stores.event_store import EventStore
from refold.stores.folding import Fold

log = logging.getLogger("refold.runtime")

PROBATION_S = 5.0
"""How long a suspect runs without progress before the next one goes on."""

LAST_EVENTS = 200
"""How many events are read to find a stream's last batch."""

NO_PROGRESS = (AgentConfigured, RequestBuilt, RunResumed)
"""Stimuli that work which kills its process leaves as well."""

BUILT_TAG = RequestBuilt.__struct_config__.tag

RESUMED_TAG = RunResumed.__struct_config__.tag

ANSWER_TAG = ModelResponded.__struct_config__.tag

EVENTS_PER_PAGE = 1_000


async def ended_in_order(store: EventStore) -> bool:
    """Tell whether the runtime that had the log before recorded its end."""
    head = await store.head(RUNTIME_STREAM)
    if head is None:
        return False
    last = RUNTIME_CODEC.decode_all(await store.read_stream(RUNTIME_STREAM, after_version=head.version - 1))
    return bool(last) and isinstance(last[-1], RuntimeClosed)


async def take_up(context: RuntimeContext, agents: RunningAgents, note: ActorRef) -> None:
    """Have open runs go on, and note lost recalls; what the log refuses waits for a message or for the next start.

    The start of this runtime is in the log, and `note` is the actor of the runtime's stream.
    """
    store, clock = context.store, context.system.clock
    try:
        if context.settings.auto_resume:
            listed = partial(store.list_streams, prefix=f"{SESSION_KIND}/", with_pending=True)
            heads = await once_log_allows(listed, clock, f"what was open in {store.name}")
            if heads:
                await resume_open_runs(context.system, context.event_bus, store, heads)
    except PersistenceError as error:
        log.error("open runs of %s cannot be found and wait for their next message: %s", store.name, error)
    try:
        if any(found.agent.memory is not None for found in agents):
            await _note_lost_recalls(store, agents, note)
    except (PersistenceError, ActorStopped, AskTimeout) as error:
        log.error("recalls before a crash of %s are noted after the next start: %s", store.name, error)


async def resume_open_runs(
    system: ActorSystem, event_bus: EventBus, store: EventStore, heads: Iterable[StreamHead]
) -> None:
    """Let every open run go on, suspects last and one by one; a stream that cannot be read costs its own session only.

    Args:
        heads: the ends of the sessions in which something is pending.
    """
    suspects: list[StreamName] = []
    for head in heads:
        if any(is_work(key) for key in head.pending) and await _was_just_resumed(store, head):
            suspects.append(head.stream)
        else:
            _wake(system, head.stream)
    await _resume_one_by_one(system, event_bus, suspects)


def _wake(system: ActorSystem, stream: StreamName) -> bool:
    """Start a session's actor; tell whether there is one that can be started."""
    try:
        system.ref(stream).tell(Wake())
    except ActorStopped as error:  # It was used before its turn came, and has failed for good.
        log.warning("the open run of %s does not go on: %s", stream, error)
        return False
    return True


async def _was_just_resumed(store: EventStore, head: StreamHead) -> bool:
    """Tell whether nothing has happened to a session since its run was resumed, but that a model was asked."""
    try:
        last = await store.read_stream(head.stream, after_version=max(0, head.version - LAST_EVENTS))
    except PersistenceError as error:  # Its own actor will say so; the other sessions must not wait for it.
        log.warning("%s cannot be read: %s", head.stream, error)
        return False
    tags = [tag_of(event.data) for event in last if event.version == event.batch]
    return next((tag for tag in reversed(tags) if tag != BUILT_TAG), None) == RESUMED_TAG


async def _resume_one_by_one(system: ActorSystem, event_bus: EventBus, suspects: Sequence[StreamName]) -> None:
    for stream in suspects:
        passed = asyncio.Event()

        def see(recorded: RecordedSessionEvent, passed: asyncio.Event = passed) -> None:
            if recorded.version == recorded.batch and not isinstance(recorded.event, NO_PROGRESS):
                passed.set()

        unsubscribe = event_bus.subscribe(see, SessionId(kind_and_identifier(stream)[1]))
        probation = system.clock.call_later(PROBATION_S, passed.set)
        try:
            if _wake(system, stream):
                await passed.wait()
        finally:
            probation.cancel()
            unsubscribe()


async def _note_lost_recalls(store: EventStore, agents: RunningAgents, note: ActorRef) -> None:
    """Have noted what was recalled for answers before this runtime, and was not noted by the one that got them."""
    first, last = _unnoted(await store.read_stream(RUNTIME_STREAM))
    if first is None:
        return
    position = first
    while position < last:
        page = await store.read_all(after_position=position, limit=EVENTS_PER_PAGE)
        if not page:
            break
        position = page[-1].position
        memories: dict[StreamName, StreamObject[Any, Any, Any]] = {}
        folds: dict[StreamName, Fold[SessionState, SessionEvent]] = {}
        for item in page:
            if item.position < last and item.stream.startswith(f"{SESSION_KIND}/") and tag_of(item.data) == ANSWER_TAG:
                memory = await _note(store, agents, item, folds)
                if isinstance(memory, StreamObject):
                    memories[memory.stream] = memory
        for noted in memories.values():
            await noted.read(_nothing)  # Behind the notes, so that they do not pile up.
    await note.ask(RecallsNoted(position=last), block=False)


def _unnoted(stored: list[StoredEvent]) -> tuple[int | None, int]:
    """Return after which position answers may have recalls that nobody noted (None = there are none), and until which.

    The start of this runtime is among the `stored` events of its stream.
    """
    noted, is_known, is_open, last = 0, True, False, 0
    for item, event in zip(stored, RUNTIME_CODEC.decode_all(stored), strict=True):
        match event:
            case RuntimeStarted():
                is_known, is_open, last = is_known and not is_open, True, item.position
            case RuntimeClosed():
                is_open = False
                noted = item.position if is_known else noted
            case RecallsNoted(position=position):
                noted, is_known = position, True
            case _:
                pass
    return None if is_known else noted, last


async def _note(
    store: EventStore,
    agents: RunningAgents,
    item: StoredEvent,
    folds: dict[StreamName, Fold[SessionState, SessionEvent]],
) -> object:
    """Have noted what an answer recalled; return the memory that it was recalled from, if there is one.

    The `folds` are sessions as they were at earlier answers, which go on from there.
    """
    [answer] = SESSION_CODEC.decode_all([item])
    if not (isinstance(answer, ModelResponded) and answer.request.recalled):
        return None
    then = folds.pop(item.stream, None) or Fold(item.stream, SESSION_CORE, SESSION_CODEC)
    try:
        if then.version:
            behind = item.version - then.version
            await then.advance(await store.read_stream(item.stream, after_version=then.version, limit=behind))
        else:
            await then.read(store, version=item.version, sealed=False)
    except LogFormatError as error:  # Its own actor says so too.
        log.warning("what %s recalled is not noted: %s", item.stream, error)
        return None
    folds[item.stream] = then
    found = agents[then.state.agent or ""]
    if found.recalling is None:
        return None
    session = SessionId(kind_and_identifier(item.stream)[1])
    assert then.first is not None
    context = session_context(session, await ancestors_of(store, session, then.first), then.state)
    return found.recalling.note(context, answer.run, answer.request.recalled)


def _nothing(_: object) -> None:
    """Ask nothing."""
