"""Crash during approval: the process dies while a call waits for a person, and the person answers its successor.

The agent asks for a payment, which needs a person's consent. Before it is decided, the process is gone. It starts
again, and half a minute later the person consents.

Promised: the wait is in the log, so it survives the crash: what is asked is asked once, the person need not be asked
again, and the payment is made once, after the consent.

Look at `lives`, which is 2; at `event_kinds`, which has one `session.tool_approval_requested.v1` and one
`session.tool_approval_decided.v1`; and at `operations["tool"]`, which is 1.
"""

from refold.agents.agent import Agent
from refold.events.model.configuration import AgentConfig
from refold.providers.scripted import ScriptedProvider
from refold.scenarios.faults import Crash
from refold.scenarios.plan.scenario import Answer, Call, Decide, Say, Scenario
from refold.scenarios.ready.playing import main, player
from refold.tools.tool import tool


@tool(tier="confirm")
async def pay(amount: int, to: str) -> str:
    """Pay an amount, once a person has agreed."""
    return f"paid {amount} to {to}"


def agent() -> Agent:
    """Return an agent that pays."""
    return Agent(config=AgentConfig(model="sample"), provider=ScriptedProvider([]), tools=[pay])


def scenario() -> Scenario:
    """Return the request, the crash at second 10 and the consent at second 40."""
    return Scenario(
        acts=(Say(session="alice", text="Pay the rent."), Decide(session="alice", at_s=40.0)),
        faults=(Crash(at_s=10.0),),
        script=(Answer(calls=(Call("pay", {"amount": 800, "to": "the landlord"}),)), Answer(text="The rent is paid.")),
    )


play = player(scenario, agent)

if __name__ == "__main__":
    main(__doc__, play)
