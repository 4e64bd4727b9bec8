"""Clock jumping backwards: the wall clock is set back by a day while a retry waits for its time, and then a crash.

A model call fails, and the next attempt is due in some seconds. Meanwhile the clock is set back by a day; the process
dies, and its successor reads due times that now lie a day ahead.

Promised: order is by version and never by time, and the times of a session's events never go back. A pause takes as
long as it was meant to: no caller waits for a day, not even after the restart.

Look at `virtual_s`, which is minutes and not a day; at `outcomes`; and at `CHECK` in `exercised`: the whole log was
read, and each event is at or after the time of the one before it.
"""

from refold.agents.agent import Agent
from refold.events.model.configuration import AgentConfig, RetryPolicy
from refold.providers.scripted import ScriptedProvider
from refold.scenarios.faults import ClockJumps, Crash, ProviderRefuses
from refold.scenarios.plan.scenario import Answer, Call, Say, Scenario
from refold.scenarios.ready.playing import main, player
from refold.tools.tool import tool

DAY_S = 86_400.0


@tool(tier="observe", effect="pure")
async def look(place: str) -> str:
    """Look at a place."""
    return f"{place} is quiet"


def agent() -> Agent:
    """Return an agent that tries again after twenty seconds."""
    retry = RetryPolicy(base_s=20.0, jitter=0.0)
    return Agent(config=AgentConfig(model="sample", retry=retry), provider=ScriptedProvider([]), tools=[look])


def scenario() -> Scenario:
    """Return two inputs, a failed call, and the jump and the crash while its retry is waited for."""
    return Scenario(
        acts=(Say(session="alice", text="Is it quiet?"), Say(session="alice", text="And now?", at_s=60.0)),
        faults=(
            ProviderRefuses(nth=1, kind="overloaded"),
            ClockJumps(at_s=5.0, seconds=-DAY_S),
            Crash(at_s=10.0),
            ClockJumps(at_s=61.0, seconds=-DAY_S),
        ),
        script=(Answer(calls=(Call("look", {"place": "the harbour"}),)), Answer(text="It is.")),
        calm_s=300.0,
        patience_s=600.0,
    )


play = player(scenario, agent)

if __name__ == "__main__":
    main(__doc__, play)
