"""Poisoned tool: what a tool returns cannot be kept, or is far too long, or is an error, or does not come at all.

One run calls a tool five times. The first result holds numbers that are none and half a character, the second is three
million characters long, the third is full of control characters, the fourth call raises after its work, and the fifth
goes on for an hour and ignores that it is told to end.

Promised: no result breaks the session. What cannot be recorded is an error that the model is told of; what is too long
is cut for the model and kept whole beside the log; an error is told with its kind, and silence ends as a time-out. The
run ends with an answer, and the log can be read.

Look at `happened`, all five; at `event_kinds`, for how many calls completed and how many failed; and at `outcomes`.
"""

from refold.agents.agent import Agent
from refold.events.model.configuration import AgentConfig
from refold.providers.scripted import ScriptedProvider
from refold.scenarios.faults import ToolHangs, ToolRaises, ToolReturnsGarbage, ToolReturnsHuge, ToolReturnsOddText
from refold.scenarios.plan.scenario import Answer, Call, Say, Scenario
from refold.scenarios.ready.playing import main, player
from refold.tools.tool import tool


@tool(tier="observe", timeout_s=30.0)
async def fetch(page: int) -> str:
    """Fetch a page of another site."""
    return f"page {page}"


def agent() -> Agent:
    """Return an agent that believes what it reads."""
    return Agent(config=AgentConfig(model="sample"), provider=ScriptedProvider([]), tools=[fetch])


def scenario() -> Scenario:
    """Return one input, and a fault for each of five calls."""
    return Scenario(
        acts=(Say(session="reader", text="Read it all."),),
        faults=(
            ToolReturnsGarbage(nth=1),
            ToolReturnsHuge(nth=2),
            ToolReturnsOddText(nth=3),
            ToolRaises(nth=4),
            ToolHangs(nth=5),
        ),
        script=(*(Answer(calls=(Call("fetch", {"page": page}),)) for page in range(1, 6)), Answer(text="I gave up.")),
    )


play = player(scenario, agent)

if __name__ == "__main__":
    main(__doc__, play)
