"""Putting a conversation of another system into a log that no runtime owns.

Read `import_conversation` first. The rule: what is recorded is decided by the same core as in a runtime.
"""

import os
from collections.abc import Sequence

from refold.actors.kernel.clock import Clock, SystemClock
from refold.events.core.content import Message
from refold.events.core.ids import AgentId, SessionId, checked_identifier
from refold.events.core.pure_core import Recorded
from refold.events.core.records import EncodedBatch
from refold.events.secrets.redaction import Redaction
from refold.events.session.commands import OpenSession, SessionCommand
from refold.events.session.core import SESSION_CORE
from refold.events.session.state import SessionState
from refold.providers.http.secrets import redaction_of_environment
from refold.remote.client import decided, session_state
from refold.sessions.inputs import import_command
from refold.stores.sqlite.file import absolute, look_at
from refold.stores.sqlite.store import SQLiteStore


async def import_conversation(
    log: str | os.PathLike[str],
    session: str,
    messages: Sequence[Message],
    *,
    agent: str = "agent",
    key: str | None = None,
    clock: Clock | None = None,
) -> int:
    """Put messages at the end of a session's history, and return how many its history has now.

    Args:
        log: a missing file becomes a new one.
        messages: as `refold.providers.history_from_openai` and its like give them.
        agent: the name of the agent whose session a new one is.
        key: idempotency key: the same messages under it are imported once.

    Raises:
        CommandRejected: a run of the session is under way, there is nothing to import, or something cannot be recorded.
        LogInUse: a runtime owns the log; `Session.import_history` is its way.
    """
    clock = clock if clock is not None else SystemClock()
    name = SessionId(checked_identifier(session, "session id"))
    redaction = redaction_of_environment()
    command, payloads = import_command(redaction.value(list(messages)), key)
    opening = OpenSession(session=name, agent=AgentId(checked_identifier(agent, "agent's name")))
    if look_at(absolute(log)) == "missing":  # What is refused makes no log.
        _decided(SESSION_CORE.initial(), name, (opening, command), clock, redaction)
    async with await SQLiteStore.open(log, wait_for_log_s=0) as store:
        state = await session_state(store, name)
        commands = (opening, command) if state.version == 0 else (command,)
        state, batches = _decided(state, name, commands, clock, redaction)
        await store.append(batches, payloads if batches else None)
        return len(state.messages)


def _decided(
    state: SessionState, session: SessionId, commands: Sequence[SessionCommand], clock: Clock, redaction: Redaction
) -> tuple[SessionState, list[EncodedBatch]]:
    """Return the state after commands, and what is to be recorded: nothing for one that has been."""
    batches: list[EncodedBatch] = []
    for command in commands:
        planned, batch = decided(state, session, command, clock.now_us(), redaction)
        if isinstance(planned, Recorded):
            continue
        batches.append(batch)
        state = planned.state
    return state, batches
