"""Network split in mid-session: for seven minutes nothing gets through, in the middle of answers that are streamed.

Three sessions are at work when the network goes. The models are asked with a real provider, over HTTP on a simulated
network: who is connected hears nothing more, and who wants to connect waits.

Promised: silence ends as a time-out, and no caller waits for ever. What had been streamed of an answer is void: it is
evidence in the log, and never history. A call that failed is made again after a pause that grows, as the agent's
`RetryPolicy` says; so every run ends with an answer, and no tool is called again because of it.

Look at `event_kinds`: `session.model_interrupted.v1` for the answers that were cut, and as many
`session.retry_scheduled.v1` as `session.model_failed.v1`; at `operations["connect"]`; and at `outcomes`.
"""

from refold.agents.agent import Agent
from refold.events.model.configuration import AgentConfig, RetryPolicy
from refold.providers.scripted import ScriptedProvider
from refold.scenarios.faults import NetworkSplit
from refold.scenarios.plan.scenario import Answer, Call, Say, Scenario
from refold.scenarios.ready.playing import main, player
from refold.tools.tool import tool


@tool
async def book(city: str) -> str:
    """Book a room."""
    return f"a room in {city} is booked"


def agent() -> Agent:
    """Return an agent that is patient with broken connections."""
    config = AgentConfig(model="sample", streaming=True, retry=RetryPolicy(attempts_max=10))
    return Agent(config=config, provider=ScriptedProvider([]), tools=[book])


def scenario() -> Scenario:
    """Return three sessions, and the split two seconds after they began."""
    return Scenario(
        acts=tuple(Say(session=city, text=f"Book a room in {city}.") for city in ("Lisbon", "Oslo", "Rome")),
        faults=(NetworkSplit(at_s=2.0, seconds=420.0),),
        wire="anthropic",
        script=(
            Answer(text="I look around.", calls=(Call("book", {"city": "the middle"}),)),
            Answer(calls=(Call("book", {"city": "the suburbs"}),)),
            Answer(text="Both are booked."),
        ),
    )


play = player(scenario, agent)

if __name__ == "__main__":
    main(__doc__, play)
