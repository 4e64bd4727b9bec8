"""Disk full, then space again: for 45 seconds nothing can be appended to the log.

Two sessions are at work when the disk fills up; a third person speaks up while it is full.

Promised: nothing that was acknowledged is lost. What cannot be recorded is not done: no tool begins, no caller is told
an outcome, and a new input is refused with `PersistenceError`, to be sent again. The result of a tool or an answer that
came meanwhile is kept and offered to the log again. Once there is space, every run goes on to its end, with no restart.

Look at `times["DiskIsFull"]`, how many appends failed; at `lives`, which is 1; and at `operations["tool"]`, which says
that no body ran twice.
"""

from refold.agents.agent import Agent
from refold.events.model.configuration import AgentConfig
from refold.providers.scripted import ScriptedProvider
from refold.scenarios.faults import DiskIsFull
from refold.scenarios.plan.scenario import Answer, Call, Say, Scenario
from refold.scenarios.ready.playing import main, player
from refold.tools.tool import tool


@tool
async def note(line: str) -> str:
    """Note a line."""
    return f"noted: {line}"


def agent() -> Agent:
    """Return an agent that notes things."""
    return Agent(config=AgentConfig(model="sample"), provider=ScriptedProvider([]), tools=[note])


def scenario() -> Scenario:
    """Return two sessions at work, a third that begins at second 20, and the full disk from second 2 to second 47."""
    return Scenario(
        acts=(
            Say(session="anna", text="Note two things."),
            Say(session="ben", text="Note two things."),
            Say(session="cleo", text="Note two things.", at_s=20.0),
        ),
        faults=(DiskIsFull(at_s=2.0, for_s=45.0),),
        script=(
            Answer(calls=(Call("note", {"line": "milk"}),)),
            Answer(calls=(Call("note", {"line": "bread"}),)),
            Answer(text="Both are noted."),
        ),
    )


play = player(scenario, agent)

if __name__ == "__main__":
    main(__doc__, play)
