"""Record a sample log of an agent whose answers come in streams, over a crash, with all of it decided again by `desk`.

See `record.py` for how it is run. Beside what the other samples hold, this one has approvals that are given, refused
and expire, a stream that breaks off and one that is cancelled, a model that writes ReAct text, an answer of a type
that is asked for twice, and a run that goes on after its process died.
"""

import asyncio
import shutil
import tempfile
from pathlib import Path

from refold import (
    Agent,
    AgentConfig,
    AgentRuntime,
    CancellationToken,
    Deny,
    ProposedCall,
    RetryPolicy,
    ScriptedProvider,
    ScriptItem,
    Session,
    Streamed,
    Summarising,
    ToolContext,
    cut,
    say,
    stall,
    tool,
    use,
)
from refold.actors import ManualClock
from tests.golden.record_stores import Polite, look, pay, sent, started_calls, waiting_calls

REACT_LOOK = 'Thought: I look.\nAction: look\nAction Input: {"what": "bread"}'
REACT_DONE = "Thought: I know.\nFINAL_ANSWER: pão"


@tool(tier="observe", effect="pure")
async def hold(context: ToolContext[asyncio.Event]) -> str:
    """Wait for the gate."""
    await context.deps.wait()
    return "held"


def judge(call: ProposedCall) -> Deny | None:
    """Deny what is far away."""
    return Deny("too far") if call.input.get("what") == "mars" else None


def desk(*, own: list[ScriptItem], translator: list[ScriptItem], counter: list[ScriptItem]) -> Agent:
    """Return the agent whose sessions these are."""
    in_text = Agent(
        name="translator",
        config=AgentConfig(model="text-model", system_prompt="Translate.", protocol="react"),
        provider=ScriptedProvider(translator),
        tools=[look],
    )
    typed = Agent(
        name="counter",
        config=AgentConfig(model="small", system_prompt="Count.", rejections_max=1),
        provider=ScriptedProvider(counter),
        output_type=dict[str, int],
    )
    return Agent(
        name="desk",
        config=AgentConfig(
            model="model",
            system_prompt="Help.",
            streaming=True,
            approval_expiry_s=60,
            retry=RetryPolicy(attempts_max=2, jitter=0),
        ),
        provider=ScriptedProvider(own),
        tools=[look, pay, hold, in_text.as_tool(), typed.as_tool()],
        middleware=[Polite()],
        policy=judge,
        context=Summarising(1_000, keep_tokens=200),
    )


async def before_the_crash(log: Path, copy: Path, clock: ManualClock) -> None:
    """Go through answers of all kinds, and copy the log while a run is open: so it lies after a crash."""
    own: list[ScriptItem] = [
        [use("look", {"what": "tea"}), use("look", {"what": "mars"}), use("look", {"what": "moon"})],
        cut("An answer that breaks off", after=2),
        say("Here is your tea."),
        [use("pay", {"amount": 1}), use("pay", {"amount": 2}), use("pay", {"amount": 3})],
        say("One was paid."),
        [use("translator", {"task": "bread"}), use("counter", {"task": "loaves"})],
        say("Two loaves of pão."),
        stall("A story that never ends", after=2),
        say("long " * 500),
        say("They spoke of tea and bread."),
        say("The end."),
        say("They spoke on, and on."),
        use("hold"),
    ]
    translator: list[ScriptItem] = [REACT_LOOK, REACT_DONE]
    counter: list[ScriptItem] = ["two", '{"loaves": 2}']
    agent = desk(own=own, translator=translator, counter=counter)
    async with AgentRuntime(agent, log=log, clock=clock, deps=asyncio.Event(), inbox_poll_s=0) as runtime:
        session = await runtime.session("guest")
        await sent(session, "Tea, please", clock)
        paying = asyncio.create_task(sent(session, "Pay", clock))
        paid, refused, _ = await waiting_calls(session, 3)
        await session.decide(paid, allow=True)
        await session.decide(refused, allow=False, reason="too much")
        await paying
        await sent(session, "How many loaves, and what are they called?", clock)
        await cancelled(runtime, session)
        for text in ("A long story " + "x" * 1_500, "And then?"):
            await sent(session, text, clock)
        left = asyncio.create_task(session.send("Hold on."))
        await started_calls(session, 1)
        for suffix in ("", "-wal"):
            shutil.copy(f"{log}{suffix}", f"{copy}{suffix}")
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)


async def cancelled(runtime: AgentRuntime, session: Session) -> None:
    """Cancel a run in the middle of an answer's stream."""
    token = CancellationToken()
    async with runtime.follow() as told:
        sending = asyncio.create_task(session.send("A story, please", cancel=token))
        async for item in told:
            if isinstance(item, Streamed):
                break
    token.cancel()
    await sending


async def after_the_crash(log: Path, clock: ManualClock) -> None:
    """Let the open run go on, and another one follow."""
    gate = asyncio.Event()
    gate.set()
    agent = desk(own=[say("It was held."), say("Good bye.")], translator=[], counter=[])
    async with AgentRuntime(agent, log=log, clock=clock, deps=gate, inbox_poll_s=0) as runtime:
        await sent(await runtime.session("guest"), "Good bye", clock)


async def record(log: Path) -> None:
    """Write the log."""
    clock = ManualClock()
    with tempfile.TemporaryDirectory() as folder:
        await before_the_crash(Path(folder) / "first.db", log, clock)
    clock.jump(60)
    await after_the_crash(log, clock)
