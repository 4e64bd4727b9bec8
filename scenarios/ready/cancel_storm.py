"""Cancel storm: every client cancels everything, several times over, and then goes on working.

Twenty sessions are at work. Within six seconds each is cancelled three times, and half of the people who wait for an
answer hang up as well. Then every client sends something new.

Promised: a run that is cancelled ends as cancelled, once, and a second cancel changes nothing; every call that was open
is answered with `Cancelled by user`, so that the provider accepts the next request; completed work is not discarded;
once an outcome is told, nothing of the run goes on. The next input runs as if nothing had been.

Look at `outcomes`: the storm's inputs are cancelled unless they were done before, and every input after it completes;
and at `event_kinds["session.run_cancelled.v1"]`.
"""

from refold.agents.agent import Agent
from refold.events.model.configuration import AgentConfig
from refold.providers.scripted import ScriptedProvider
from refold.scenarios.plan.scenario import Abandon, AnyAct, Cancel, Say, Scenario
from refold.scenarios.ready.playing import main, player
from refold.tools.tool import tool

SESSIONS = 20


@tool(tier="observe")
async def look(place: str) -> str:
    """Look at a place."""
    return f"{place} is quiet"


@tool(effect="idempotent")
async def write(text: str) -> str:
    """Write a text."""
    return f"written: {text}"


def agent() -> Agent:
    """Return an agent with tools that run in parallel and tools that run alone."""
    config = AgentConfig(model="sample", streaming=True)
    return Agent(config=config, provider=ScriptedProvider([]), tools=[look, write])


def scenario() -> Scenario:
    """Return the work, the storm from second 1 to second 7, and the work after it; answers are drawn from the seed."""
    acts: list[AnyAct] = []
    for number in range(SESSIONS):
        session, offset_s = f"s{number}", number / 20
        acts.append(
            Say(session=session, text="Look around and write it down.")
            if number % 2
            else Abandon(session=session, text="Look around and write it down.", after_s=2.0 + offset_s)
        )
        acts.extend(Cancel(session=session, at_s=at_s + offset_s) for at_s in (1.0, 3.0, 6.0))
        acts.append(Say(session=session, text="Still there?", at_s=60.0))
    return Scenario(acts=tuple(acts), seed=5)


play = player(scenario, agent)

if __name__ == "__main__":
    main(__doc__, play)
