"""Slow subscriber: a client follows a session and takes five seconds for each item, while answers are streamed.

Promised: a slow reader delays no other client: what the others are told, when, and the whole log are the same as
without it. It gets every event of the session once and in order, read from the log where it is too far behind; of the
pieces of answers that found no room it is told how many it missed. What waits for it never exceeds its capacity.

Look at `watched`: `events` is as many as the session has, and `missed` says what passed by unseen. (That `passing` and
`missed` are together all that passed by is checked: `FOLLOW` in `exercised`.) And play it without the watcher, as
`without_watcher()`: the digest is the same.
"""

import msgspec

from refold.agents.agent import Agent
from refold.events.model.configuration import AgentConfig
from refold.providers.scripted import ScriptedProvider
from refold.scenarios.plan.scenario import Answer, Call, Say, Scenario, Watch
from refold.scenarios.ready.playing import main, player
from refold.tools.tool import tool


@tool(tier="observe", effect="pure")
async def look(place: str) -> str:
    """Look at a place."""
    return f"{place} is quiet"


def agent() -> Agent:
    """Return an agent whose answers are streamed."""
    config = AgentConfig(model="sample", streaming=True)
    return Agent(config=config, provider=ScriptedProvider([]), tools=[look])


def scenario() -> Scenario:
    """Return what is said to two sessions, and who follows the first of them, in the fair order of steps."""
    told = "The harbour is quiet, the market is quiet, and nobody is in the streets at this hour. " * 5
    return Scenario(
        acts=(
            *(Say(session="watched", text="Is it quiet?", at_s=20.0 * number) for number in range(3)),
            *(Say(session="other", text="Is it quiet?", at_s=20.0 * number + 1.0) for number in range(3)),
            Watch(session="watched", pause_s=5.0, for_s=70.0, capacity=8),
        ),
        script=(
            Answer(text="Let me see.", calls=(Call("look", {"place": "the harbour"}),)),
            Answer(text=told),
            Answer(text=told),
            Answer(text=told),
        ),
        deviations={},
    )


def without_watcher() -> Scenario:
    """Return the same without the watcher."""
    plan = scenario()
    return msgspec.structs.replace(plan, acts=tuple(act for act in plan.acts if not isinstance(act, Watch)))


play = player(scenario, agent)

if __name__ == "__main__":
    main(__doc__, play)
