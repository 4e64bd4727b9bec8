"""Thundering restart: the process dies with a thousand runs under way, and all of them go on at once.

Promised: the next process finds the open runs without reading the whole log, and every one of them goes on where it
stood, with no command given. A model call that was under way is made again; a tool's body that was under way is run
again only where the tool says that it may be.

Look at `event_kinds["session.run_resumed.v1"]`, which is 1,000; at `outcomes`; and at `virtual_s`, how soon all is
over.
"""

from refold.agents.agent import Agent
from refold.events.model.configuration import AgentConfig
from refold.providers.scripted import ScriptedProvider
from refold.scenarios.faults import Crash
from refold.scenarios.plan.scenario import Answer, Call, Say, Scenario
from refold.scenarios.ready.playing import main, player
from refold.tools.tool import tool

SESSIONS = 1_000


@tool(tier="observe", effect="pure")
async def look(place: str) -> str:
    """Look at a place."""
    return f"{place} is quiet"


def agent() -> Agent:
    """Return an agent that looks once before it answers."""
    return Agent(config=AgentConfig(model="sample"), provider=ScriptedProvider([]), tools=[look])


def scenario(sessions: int = SESSIONS) -> Scenario:
    """Return a thousand people who speak at once, and the crash before the first of them has an answer."""
    return Scenario(
        acts=tuple(Say(session=f"s{number:03}", text="Is it quiet?") for number in range(sessions)),
        faults=(Crash(at_s=0.5),),
        script=(Answer(calls=(Call("look", {"place": "the harbour"}),)), Answer(text="It is.")),
        deviations={},
        calm_s=60.0,
    )


play = player(scenario, agent)

if __name__ == "__main__":
    main(__doc__, play)
