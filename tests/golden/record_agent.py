"""Record a sample log of an agent whose answers come in streams, over a crash, with all of it decided again by `desk`.

See `record.py` for how it is run. Beside what the other samples hold, this one has approvals that are given, refused
and expire, a stream that breaks off and one that is cancelled, a model that writes ReAct text, an answer of a type
that is asked for twice, and a run that goes on after its process died.
"""

import asyncio
import shutil
import tempfile
from pathlib import Path

import refold
from refold.actors import ManualClock
from tests.golden.record_stores import Polite, look, pay, sent, started_calls, waiting_calls

REACT_LOOK = 'Thought: I look.\nAction: look\nAction Input: {"what": "bread"}'
REACT_DONE = "Thought: I know.\nFINAL_ANSWER: pão"


@refold.tool(tier="observe", effect="pure")
async def hold(context: refold.ToolContext[asyncio.Event]) -> str:
    """Wait for the gate."""
    await context.deps.wait()
    return "held"


def judge(call: refold.ProposedCall) -> refold.Deny | None:
    """Deny what is far away."""
    return refold.Deny("too far") if call.input.get("what") == "mars" else None


def desk(
    *, own: list[refold.ScriptItem], translator: list[refold.ScriptItem], counter: list[refold.ScriptItem]
) -> refold.Agent:
    """Return the agent whose sessions these are."""
    in_text = refold.Agent(
        name="translator",
        config=refold.AgentConfig(model="text-model", system_prompt="Translate.", protocol="react"),
        provider=refold.ScriptedProvider(translator),
        tools=[look],
    )
    typed = refold.Agent(
        name="counter",
        config=refold.AgentConfig(model="small", system_prompt="Count.", rejections_max=1),
        provider=refold.ScriptedProvider(counter),
        output_type=dict[str, int],
    )
    return refold.Agent(
        name="desk",
        config=refold.AgentConfig(
            model="model",
            system_prompt="Help.",
            streaming=True,
            approval_expiry_s=60,
            retry=refold.RetryPolicy(attempts_max=2, jitter=0),
        ),
        provider=refold.ScriptedProvider(own),
        tools=[look, pay, hold, in_text.as_tool(), typed.as_tool()],
        middleware=[Polite()],
        policy=judge,
        context=refold.Summarising(1_000, keep_tokens=200),
    )


async def before_the_crash(log: Path, copy: Path, clock: ManualClock) -> None:
    """Go through answers of all kinds, and copy the log while a run is open: so it lies after a crash."""
    own: list[refold.ScriptItem] = [
        [
            refold.use("look", {"what": "tea"}),
            refold.use("look", {"what": "mars"}),
            refold.use("look", {"what": "moon"}),
        ],
        refold.cut("An answer that breaks off", after=2),
        refold.say("Here is your tea."),
        [refold.use("pay", {"amount": 1}), refold.use("pay", {"amount": 2}), refold.use("pay", {"amount": 3})],
        refold.say("One was paid."),
        [refold.use("translator", {"task": "bread"}), refold.use("counter", {"task": "loaves"})],
        refold.say("Two loaves of pão."),
        refold.stall("A story that never ends", after=2),
        refold.say("long " * 500),
        refold.say("They spoke of tea and bread."),
        refold.say("The end."),
        refold.say("They spoke on, and on."),
        refold.use("hold"),
    ]
    translator: list[refold.ScriptItem] = [REACT_LOOK, REACT_DONE]
    counter: list[refold.ScriptItem] = ["two", '{"loaves": 2}']
    agent = desk(own=own, translator=translator, counter=counter)
    async with refold.AgentRuntime(agent, log=log, clock=clock, deps=asyncio.Event(), inbox_poll_s=0) as runtime:
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


async def cancelled(runtime: refold.AgentRuntime, session: refold.Session) -> None:
    """Cancel a run in the middle of an answer's stream."""
    token = refold.CancellationToken()
    async with runtime.follow() as told:
        sending = asyncio.create_task(session.send("A story, please", cancel=token))
        async for item in told:
            if isinstance(item, refold.Streamed):
                break
    token.cancel()
    await sending


async def after_the_crash(log: Path, clock: ManualClock) -> None:
    """Let the open run go on, and another one follow."""
    gate = asyncio.Event()
    gate.set()
    agent = desk(own=[refold.say("It was held."), refold.say("Good bye.")], translator=[], counter=[])
    async with refold.AgentRuntime(agent, log=log, clock=clock, deps=gate, inbox_poll_s=0) as runtime:
        await sent(await runtime.session("guest"), "Good bye", clock)


async def record(log: Path) -> None:
    """Write the log."""
    clock = ManualClock()
    with tempfile.TemporaryDirectory() as folder:
        await before_the_crash(Path(folder) / "first.db", log, clock)
    clock.jump(60)
    await after_the_crash(log, clock)
