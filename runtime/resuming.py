"""Which open runs go on first when a runtime takes over a log.

A run whose last batch is a fruitless resume may be the one that kills the process. Runs beyond suspicion go on at once;
suspects go on one after another, each when the one before has made progress or has lived through its probation. So a
run that kills every process is parked in the end, and takes no innocent run with it.
"""

import asyncio
import logging
from collections.abc import Sequence

from refold.actors.actor_system import ActorSystem
from refold.actors.errors import ActorStopped
from refold.actors.session_messages import WakeSession
from refold.events.codec import tag_of
from refold.events.errors import PersistenceError
from refold.events.ids import SessionId, StreamName, kind_and_identifier
from refold.events.records import StreamHead
from refold.events.session_core import SESSION_KIND
from refold.events.session_events import AgentConfigured, RunResumed
from refold.events.session_state import is_work
from refold.published import Recorded
from refold.session_hub import SessionHub
from refold.stores.event_store import EventStore

log = logging.getLogger("refold.runtime")

PROBATION_S = 5.0
"""How long a suspect runs without progress before the next one goes on."""

LAST_EVENTS = 200
"""How many events are read to find a stream's last batch."""

RESUMED_TAG = RunResumed.__struct_config__.tag


async def resume_open_runs(system: ActorSystem, hub: SessionHub, store: EventStore) -> None:
    """Let every open run of a log go on, suspects last and one by one.

    Raises:
        PersistenceError: the streams cannot be listed. A stream that cannot be read costs its own session only.
    """
    suspects: list[StreamName] = []
    for head in await store.list_streams(prefix=f"{SESSION_KIND}/", with_pending=True):
        if any(is_work(key) for key in head.pending) and await _was_just_resumed(store, head):
            suspects.append(head.stream)
        else:
            _wake(system, head.stream)
    await _resume_one_by_one(system, hub, suspects)


def _wake(system: ActorSystem, stream: StreamName) -> bool:
    """Start a session's actor; tell whether there is one that can be started."""
    try:
        system.ref(stream).tell(WakeSession())
    except ActorStopped as error:  # It was used before its turn came, and has failed for good.
        log.warning("the open run of %s does not go on: %s", stream, error)
        return False
    return True


async def _was_just_resumed(store: EventStore, head: StreamHead) -> bool:
    """Tell whether the last thing that happened to a session is that its run was resumed."""
    try:
        last = await store.read_stream(head.stream, after_version=max(0, head.version - LAST_EVENTS))
    except PersistenceError as error:  # Its own actor will say so; the other sessions must not wait for it.
        log.warning("%s cannot be read: %s", head.stream, error)
        return False
    stimuli = [event for event in last if event.version == event.batch]
    return bool(stimuli) and tag_of(stimuli[-1].data) == RESUMED_TAG


async def _resume_one_by_one(system: ActorSystem, hub: SessionHub, suspects: Sequence[StreamName]) -> None:
    for stream in suspects:
        passed = asyncio.Event()

        def see(recorded: Recorded, passed: asyncio.Event = passed) -> None:
            if recorded.version == recorded.batch and not isinstance(recorded.event, AgentConfigured | RunResumed):
                passed.set()

        unsubscribe = hub.subscribe(see, SessionId(kind_and_identifier(stream)[1]))
        probation = system.clock.call_later(PROBATION_S, passed.set)
        try:
            if _wake(system, stream):
                await passed.wait()
        finally:
            probation.cancel()
            unsubscribe()
