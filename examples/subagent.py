"""An editor that has two researchers work for it at once; it needs no key and no network. Run it from the folder above.

    python examples/subagent.py

Each call of a researcher is a session of its own in `subagent.db`, linked to the editor's. Kill the program while it
works, and start it again: what was found by then is not looked up a second time. Its models play scripts.
"""

import asyncio

from refold import (
    Agent,
    AgentConfig,
    AgentRuntime,
    Message,
    ModelRequest,
    ScriptedProvider,
    TextBlock,
    ToolResultBlock,
    ToolUse,
    tool,
    use,
)

FACTS = {"tea": "Tea was drunk in China first.", "coffee": "Coffee was drunk in Yemen first."}


@tool(tier="observe", effect="pure", timeout_s=10)
async def look_up(topic: str) -> str:
    """Look a topic up."""
    await asyncio.sleep(0.2)
    return FACTS.get(topic, "Nothing is known.")


def last_text(request: ModelRequest) -> str:
    """Return what a model was told last: an input, or the results of its calls."""
    return " ".join(
        block.text for block in request.messages[-1].content if isinstance(block, TextBlock | ToolResultBlock)
    )


def shown(message: Message) -> str:
    """Return a message's text."""
    return " ".join(block.text for block in message.content if isinstance(block, TextBlock))


def research(request: ModelRequest) -> ToolUse | str:
    """Play a researcher: look the topic up, then tell."""
    if len(request.messages) == 1:
        return use("look_up", {"topic": last_text(request).split()[-1]})
    return last_text(request)


def edit(request: ModelRequest) -> list[ToolUse] | str:
    """Play the editor: have both topics researched, then put the answers together."""
    if len(request.messages) == 1:
        return [use("research", {"topic": topic}) for topic in FACTS]
    return last_text(request)


def research_task(topic: str) -> str:
    """Have a researcher find out where a drink comes from.

    Args:
        topic: the drink.
    """
    return f"Find out where people first drank {topic}"


researcher = Agent(
    name="researcher",
    config=AgentConfig(model="scripted"),
    provider=ScriptedProvider([research] * 100),
    tools=[look_up],
)

editor = Agent(
    name="editor",
    config=AgentConfig(model="scripted"),
    provider=ScriptedProvider([edit] * 100),
    tools=[researcher.as_tool(name="research", task=research_task, tier="observe")],
)


async def main() -> None:
    """Have the article written once; a start after that tells what it says."""
    async with AgentRuntime(editor, log="subagent.db") as runtime:
        session = await runtime.session("drinks")
        result = await session.send("Write about tea and coffee.", key="article")
        for child in await session.children():
            print(f"{child.id}: {shown((await child.history())[0])}")
        print(result.output)


if __name__ == "__main__":
    asyncio.run(main())
