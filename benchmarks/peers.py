"""The work of `one_turn.py` in other libraries, of those that are installed in the environment of this Python.

Run: PYTHON -P benchmarks/peers.py [turns] [sessions]

Prints the CPU milliseconds of a turn with a tool, in one session and of many at once. LangGraph keeps its state by its
SQLite checkpointer, durable FULL, in the mode in which each step is written before the next one. Strands keeps nothing.
"""

import asyncio
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

Turn = Callable[[str], Awaitable[object]]
"""Takes one turn of the session of this name."""


async def measured(turn: Turn, turns: int, sessions: int) -> dict[str, float]:
    """Return the CPU milliseconds of a turn."""
    await turn("s")
    start = time.process_time()
    for _ in range(turns):
        await turn("s")
    one = (time.process_time() - start) * 1000 / turns
    await asyncio.gather(*(turn(f"s{number}") for number in range(sessions)))
    start = time.process_time()
    await asyncio.gather(*(turn(f"s{number}") for number in range(sessions)))
    return {"in a session": one, "at once": (time.process_time() - start) * 1000 / sessions}


async def of_langgraph(turns: int, sessions: int) -> dict[str, float]:
    import aiosqlite
    from langchain_core.messages import AIMessage, ToolMessage
    from langchain_core.tools import tool
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    @tool
    async def weather(city: str) -> str:
        """Forecast for a city."""
        return f"{city}: sunny"

    async def model(state: Any) -> Any:
        if isinstance(state["messages"][-1], ToolMessage):
            return {"messages": [AIMessage("Sunny.")]}
        call = {"name": "weather", "args": {"city": "Lisbon"}, "id": f"call-{len(state['messages'])}"}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", model)
    graph.add_node("tools", ToolNode([weather]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    with tempfile.TemporaryDirectory() as folder:
        async with aiosqlite.connect(Path(folder, "checkpoints.db")) as connection:
            saver = AsyncSqliteSaver(connection)
            await saver.setup()
            await connection.execute("PRAGMA synchronous=FULL")
            compiled = graph.compile(checkpointer=saver)

            async def turn(session: str) -> object:
                return await compiled.ainvoke(
                    {"messages": [("user", "Weather in Lisbon?")]},
                    {"configurable": {"thread_id": session}},
                    durability="sync",
                )

            return await measured(turn, turns, sessions)


async def of_strands(turns: int, sessions: int) -> dict[str, float]:
    from strands import Agent, tool
    from strands.models import Model

    @tool
    async def weather(city: str) -> str:
        """Forecast for a city."""
        return f"{city}: sunny"

    class Scripted(Model):
        def update_config(self, **_: Any) -> None:
            """Has no settings."""

        def get_config(self) -> dict[str, Any]:
            return {}

        async def structured_output(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
            raise NotImplementedError
            yield

        async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncIterator[Any]:
            asks = not any("toolResult" in block for block in messages[-1]["content"])
            yield {"messageStart": {"role": "assistant"}}
            if asks:
                use = {"name": "weather", "toolUseId": f"call-{len(messages)}"}
                yield {"contentBlockStart": {"start": {"toolUse": use}}}
                yield {"contentBlockDelta": {"delta": {"toolUse": {"input": '{"city": "Lisbon"}'}}}}
            else:
                yield {"contentBlockDelta": {"delta": {"text": "Sunny."}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "tool_use" if asks else "end_turn"}}

    agents: dict[str, Any] = {}

    async def turn(session: str) -> object:
        agent = agents.get(session)
        if agent is None:
            agent = agents[session] = Agent(model=Scripted(), tools=[weather], callback_handler=None)
        return await agent.invoke_async("Weather in Lisbon?")

    return await measured(turn, turns, sessions)


PEERS = {"langgraph": of_langgraph, "strands": of_strands}


def main() -> None:
    turns, sessions = (int(word) for word in sys.argv[1:3] or ("50", "200"))
    found = {}
    for name, work in PEERS.items():
        if importlib.util.find_spec(name) is not None:
            found[name] = asyncio.run(work(turns, sessions))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
