"""The process of the demonstration's agent: what `python -m refold.demo.agent_process` runs, before and after a crash.

The rule: it does not know whether it is the first process on the log. It sends the one question under the one key; if
the log holds that question already, the runtime has taken its run up again by itself, and this waits for that run.
"""

import asyncio
import hashlib
import os
import sys
from pathlib import Path

import msgspec

from refold.actors.effects import read_state
from refold.agent_runtime import AgentRuntime
from refold.agents.agent import Agent
from refold.demo.announcements import AgentFinished, Announcement, EventRecorded
from refold.demo.incident_tools import INCIDENT_TOOLS, Desk
from refold.demo.scripted_model import QUESTION, incident_model
from refold.demo.server_log import LOGS
from refold.events.core.errors import RefoldError
from refold.events.core.ids import stream_name
from refold.events.model.configuration import AgentConfig
from refold.events.session.core import SESSION_KIND
from refold.events.session.state import SessionState
from refold.sessions.notifications import Recorded

SESSION = "incident"
KEY = "the-question"


def incident_agent() -> Agent:
    """Return the agent."""
    return Agent(
        name="analyst",
        config=AgentConfig(model="scripted", system_prompt="You find out why a web shop failed."),
        provider=incident_model(),
        tools=INCIDENT_TOOLS,
    )


async def work(log: Path, tickets: Path, report: Path, pause_s: float) -> None:
    """Have the question answered, and announce everything that happens on the way."""
    desk = Desk(logs=LOGS, tickets=tickets, report=report, pause_s=pause_s, announce=_announce)
    runtime = AgentRuntime(incident_agent(), log=log, deps=desk)
    runtime.subscribe(_announce_event, session=SESSION)
    async with runtime:
        session = await runtime.session(SESSION)
        result = await session.send(QUESTION, key=KEY)
        actor = runtime.system.ref(stream_name(SESSION_KIND, SESSION))
        digest = await read_state(actor, state_digest)
        outcome = type(result.outcome).__name__.lower()
        _announce(AgentFinished(outcome=outcome, text=result.text, state=str(digest)))


def state_digest(state: SessionState) -> str:
    """Return the SHA-256 of everything in a state, in hexadecimal."""
    return hashlib.sha256(msgspec.json.encode(state, order="deterministic")).hexdigest()


def _announce_event(recorded: Recorded) -> None:
    tag = str(type(recorded.event).__struct_config__.tag)
    _announce(EventRecorded(version=recorded.version, event=tag, call=getattr(recorded.event, "call", None)))


def _announce(announcement: Announcement) -> None:
    """Write one line at once; tools do so from their threads, too."""
    os.write(sys.stdout.fileno(), msgspec.json.encode(announcement) + b"\n")


if __name__ == "__main__":
    log_argument, tickets_argument, report_argument, pause_argument = sys.argv[1:]
    try:
        asyncio.run(work(Path(log_argument), Path(tickets_argument), Path(report_argument), float(pause_argument)))
    except RefoldError as error:
        sys.exit(f"refold: {error}")
