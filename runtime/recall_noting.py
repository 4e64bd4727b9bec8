"""What was recalled for answers, noted in the memories though the process died before it could be.

That episodes were recalled is noted once their answer is durable, and no session waits for that; so a process that dies
in between leaves an answer whose recalls nobody counts. But the answer names them. So a runtime that takes over a log
whose last runtime did not end in order goes through the answers since then, and has each noted under the key that it
would have had: a recall counts once, however often this is done. The runtime's stream keeps how far it was done.
"""

from typing import Any, cast

from refold.actors.actor_ref import ActorRef
from refold.events.codec import tag_of
from refold.events.ids import AgentId, SessionId, StreamName, kind_and_identifier
from refold.events.records import StoredEvent
from refold.events.runtime_core import RUNTIME_CODEC
from refold.events.runtime_events import RUNTIME_STREAM, RecallsNoted, RuntimeClosed, RuntimeStarted
from refold.events.session_core import SESSION_CODEC, SESSION_KIND
from refold.events.session_events import ModelResponded, SessionOpened
from refold.running_agents import RunningAgents
from refold.stores.event_store import EventStore
from refold.stream_object import StreamObject

ANSWER_TAG = ModelResponded.__struct_config__.tag

EVENTS_PER_PAGE = 1_000


async def note_lost_recalls(store: EventStore, agents: RunningAgents, runtime: ActorRef) -> None:
    """Have noted what was recalled for answers before this runtime, and was not noted by the one that got them.

    Args:
        store: the log, where this runtime's start is recorded.
        agents: whose memories they are.
        runtime: the actor of the runtime's stream.

    Raises:
        PersistenceError: the log cannot be read or written; it is tried again after the next start.
    """
    if not any(found.agent.memory is not None for found in agents):
        return
    first, last = _unnoted(await store.read_stream(RUNTIME_STREAM))
    if first is None:
        return
    whose: dict[StreamName, AgentId] = {}
    position = first
    while position < last:
        page = await store.read_all(after_position=position, limit=EVENTS_PER_PAGE)
        if not page:
            break
        position = page[-1].position
        for item in page:
            if item.position < last and item.stream.startswith(f"{SESSION_KIND}/") and tag_of(item.data) == ANSWER_TAG:
                await _note(store, agents, item, whose)
        for found in agents:
            if isinstance(found.agent.memory, StreamObject):
                await cast("StreamObject[Any, Any, Any]", found.agent.memory).read(
                    _nothing
                )  # Behind the notes, so that they do not pile up.
    await runtime.ask(RecallsNoted(position=last), block=False)


def _unnoted(stored: list[StoredEvent]) -> tuple[int | None, int]:
    """Return after which position answers may have recalls that nobody noted (None = there are none), and until which.

    Args:
        stored: the events of the runtime's stream, the start of this runtime among them.
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


async def _note(store: EventStore, agents: RunningAgents, item: StoredEvent, whose: dict[StreamName, AgentId]) -> None:
    [answer] = SESSION_CODEC.decode_all([item])
    if not (isinstance(answer, ModelResponded) and answer.request.recalled):
        return
    if item.stream not in whose:
        whose[item.stream] = await _agent_of(store, item.stream)
    recalling = agents[whose[item.stream]].recalling
    if recalling is not None:
        session = SessionId(kind_and_identifier(item.stream)[1])
        recalling.note(session, answer.run, answer.request.recalled)


async def _agent_of(store: EventStore, stream: StreamName) -> AgentId:
    [opened] = SESSION_CODEC.decode_all(await store.read_stream(stream, limit=1))
    assert isinstance(opened, SessionOpened)
    return opened.agent


def _nothing(_: object) -> None:
    """Ask nothing."""
