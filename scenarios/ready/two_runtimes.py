"""Two runtimes on one log: a second process takes the log over while the first one lives and works.

A log has one owner: who opens it while another process has it waits, and is then refused (`LogInUse`). But a lock file
may be removed by a cleaning script, or lie on a disk that two machines share. Here the second process gets the log
while the first has runs under way; people whose answers do not come ask again at the second, under the same keys, while
the first knows nothing and goes on.

Promised: each append compares the log's incarnation, so the first can record nothing more. Since a tool's body begins
only after its beginning is recorded, the first begins no work either, and tells no outcome that the log has not.
The second goes on with every run as after a crash, and a tool that must not run twice does not.

Look at `lives`, which is 2; at `times["SecondRuntime"]`; at `outcomes`; and at `ONCE` and `INV5` in `exercised`.
"""

import asyncio

from refold.agents.agent import Agent
from refold.events.model.configuration import AgentConfig
from refold.providers.scripted import ScriptedProvider
from refold.scenarios.faults import SecondRuntime
from refold.scenarios.plan.scenario import Answer, Call, Say, Scenario
from refold.scenarios.ready.playing import main, player
from refold.tools.tool import tool


@tool
async def pay(amount: int) -> str:
    """Pay an amount, at a slow counter."""
    await asyncio.sleep(5.0)
    return f"paid {amount}"


def agent() -> Agent:
    """Return an agent whose tool must not run twice."""
    return Agent(config=AgentConfig(model="sample"), provider=ScriptedProvider([]), tools=[pay])


def scenario() -> Scenario:
    """Return eight sessions, and the second process at second 5, when each is in the middle of its first payment."""
    return Scenario(
        acts=tuple(Say(session=f"s{number}", text="Pay 3 and 4.") for number in range(8)),
        faults=(SecondRuntime(at_s=5.0),),
        script=(Answer(calls=(Call("pay", {"amount": 3}), Call("pay", {"amount": 4}))), Answer(text="Both are paid.")),
    )


play = player(scenario, agent)

if __name__ == "__main__":
    main(__doc__, play)
