"""The program that is killed in the middle of its subagents' work: an agent that has two others do an errand each.

    python -P delegation.py LOG DONE

It writes each tool call that it carries out to the file DONE, as a line, before the call returns, and says so; and
"ended" when the whole run has ended. A call returns once it has read a line, or stdin has ended, so that it can be
killed before that.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

from refold import Agent, AgentConfig, AgentRuntime, ScriptedProvider, say, tool, use

ERRANDS = ("north", "south")
STEPS = 4


def boss(done: Path) -> Agent:
    """Return the agent."""

    @tool(effect="idempotent")
    async def walk(to: str, step: int) -> str:
        """Walk one step."""
        with done.open("a") as file:
            file.write(f"{to} {step}\n")
        sys.stdout.write(f"{to} {step}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.readline)
        return f"{to} {step}"

    def walker_says(request: Any) -> Any:
        """Return what the subagent's model says next; it needs nothing but the request."""
        turns = sum(message.role == "assistant" for message in request.messages)
        to = request.messages[0].content[0].text
        return use("walk", {"to": to, "step": turns}) if turns < STEPS else say(f"been {to}")

    def boss_says(request: Any) -> Any:
        """Return what the agent's model says next."""
        if len(request.messages) == 1:
            return [use("walker", {"task": errand}) for errand in ERRANDS]
        return say("; ".join(block.text for block in request.messages[-1].content))

    config = AgentConfig(model="scripted", resumes_max=1000)
    walker = Agent(name="walker", config=config, provider=ScriptedProvider([walker_says] * 1000), tools=[walk])
    return Agent(
        name="boss",
        config=config,
        provider=ScriptedProvider([boss_says] * 1000),
        tools=[walker.as_tool(tier="observe")],
    )


async def main(log: Path, done: Path) -> None:
    """Run to the end."""
    async with AgentRuntime(boss(done), log=log) as runtime:
        session = await runtime.session("trip")
        result = await session.send("Go.", key="go")
        with done.open("a") as file:
            file.write(f"ended: {result.text}\n")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
