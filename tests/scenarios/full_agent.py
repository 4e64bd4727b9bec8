"""An agent that has everything that agents can have, for scenarios."""

from typing import Any

import msgspec

import refold
from refold.memory import EpisodicStore, GraphStore, SemanticStore, WorkingMemory, memory_tools
from refold.resilience import CircuitBreaker, Deduplicator


class Report(msgspec.Struct):
    """What the agent's final answers are."""

    city: str
    degrees: int
    rainy: bool = False


class Careful(refold.Middleware):
    """Marks what is asked, and keeps one call of ten away."""

    async def on_pre_llm(self, context: refold.HookContext, request: refold.ModelRequest) -> refold.ModelRequest | None:
        return msgspec.structs.replace(request, system_prompt=f"{request.system_prompt}\nTake care.")

    def on_tool_call(self, context: refold.HookContext, call: refold.ToolCall) -> None:
        if call.tool == "note" and str(call.input.get("text", "")).startswith("j"):
            raise ValueError("nothing that begins with j")


def full_agent(*, streaming: bool = True) -> refold.Agent[Any, Report]:
    """Return such an agent, new with all that it holds."""
    memory = EpisodicStore(scope="agent")
    memory.add_episode("agent", "Anna says hello in Lisbon", importance=0.9)
    knowledge = SemanticStore(scope="agent")
    knowledge.put("Lisbon", "Lisbon is a city in Portugal.")
    graph = GraphStore(scope="agent")
    working = WorkingMemory(20, scope="agent")
    breaker = CircuitBreaker("weather", threshold=1, recovery_s=20.0)
    once = Deduplicator("payments")

    @refold.tool(tier="observe", effect="pure", breaker=breaker, retries=refold.RetryPolicy(), concurrency=2)
    async def look(city: str) -> str:
        """Look at a city."""
        return f"{city} is fine"

    @refold.tool
    async def pay(amount: int, context: refold.ToolContext[object]) -> object:
        """Pay."""

        async def paid() -> str:
            return f"paid {amount}"

        return await once.run(f"{context.session} {context.call}", paid)

    @refold.tool(effect="idempotent")
    async def note(name: str, text: str) -> str:
        """Write into the working memory."""
        await working.set(name, text)
        return "noted"

    @refold.tool(effect="idempotent")
    def plain(text: str) -> str:
        """Write, in plain code."""
        return text.upper()

    @refold.tool(tier="confirm")
    async def send(to: str) -> str:
        """Send, once a person agrees."""
        return f"sent to {to}"

    @refold.tool(tier="observe", effect="pure")
    async def groups() -> list[str]:
        """Tell what belongs together in the graph."""
        return [" ".join(group) for group in await graph.communities()]

    helper, checker = _subagents(look, plain, send, streaming=streaming)
    return refold.Agent(
        config=refold.AgentConfig(model="m", retry=refold.RetryPolicy(), streaming=streaming, max_turns=12),
        provider=refold.ScriptedProvider([]),
        tools=[
            look,
            pay,
            note,
            plain,
            send,
            groups,
            helper.as_tool(tier="observe"),
            checker.as_tool(),
            *memory_tools(episodic=memory, semantic=knowledge, graph=graph),
        ],
        output_type=Report,
        context=refold.Summarising(1_400, keep_tokens=100),
        middleware=[Careful()],
        memory=memory,
        working_memory=working,
        graph=graph,
        semantic=knowledge,
        objects=[once],
        skills=[refold.Skill(name="greeting", description="How to greet.", instructions="Say hello.")],
    )


def _subagents(
    look: refold.Tool[..., object], plain: refold.Tool[..., object], send: refold.Tool[..., object], *, streaming: bool
) -> tuple[refold.Agent, refold.Agent[Any, Report]]:
    """Return one that has tools, and one that has the first as a tool."""
    helper = refold.Agent(
        name="researcher",
        config=refold.AgentConfig(model="m", retry=refold.RetryPolicy(), streaming=streaming),
        provider=refold.ScriptedProvider([]),
        tools=[look, plain],
    )
    checker = refold.Agent(
        name="checker",
        config=refold.AgentConfig(model="m", retry=refold.RetryPolicy()),
        provider=refold.ScriptedProvider([]),
        tools=[helper.as_tool(), send],
        output_type=Report,
    )
    return helper, checker
