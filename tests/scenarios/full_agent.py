"""An agent that has everything that agents can have, for scenarios."""

import msgspec

from refold import (
    Agent,
    AgentConfig,
    HookContext,
    Middleware,
    ModelRequest,
    RetryPolicy,
    ScriptedProvider,
    Skill,
    Summarising,
    Tool,
    ToolCall,
    ToolContext,
    tool,
)
from refold.memory import EpisodicStore, GraphStore, SemanticStore, WorkingMemory, memory_tools
from refold.resilience import CircuitBreaker, Deduplicator


class Report(msgspec.Struct):
    """What the agent's final answers are."""

    city: str
    degrees: int
    rainy: bool = False


class Careful(Middleware):
    """Marks what is asked, and keeps one call of ten away."""

    async def on_pre_llm(self, context: HookContext, request: ModelRequest) -> ModelRequest | None:
        return msgspec.structs.replace(request, system_prompt=f"{request.system_prompt}\nTake care.")

    def on_tool_call(self, context: HookContext, call: ToolCall) -> None:
        if call.tool == "note" and str(call.input.get("text", "")).startswith("j"):
            raise ValueError("nothing that begins with j")


def full_agent(*, streaming: bool = True) -> Agent:
    """Return such an agent, new with all that it holds."""
    memory = EpisodicStore()
    memory.add_episode("agent", "Anna says hello in Lisbon", importance=0.9)
    knowledge = SemanticStore()
    knowledge.put("Lisbon", "Lisbon is a city in Portugal.")
    graph = GraphStore()
    working = WorkingMemory(20)
    breaker = CircuitBreaker("weather", threshold=1, recovery_s=20.0)
    once = Deduplicator("payments")

    @tool(tier="observe", effect="pure", breaker=breaker, retries=RetryPolicy(), concurrency=2)
    async def look(city: str) -> str:
        """Look at a city."""
        return f"{city} is fine"

    @tool
    async def pay(amount: int, context: ToolContext[object]) -> object:
        """Pay."""

        async def paid() -> str:
            return f"paid {amount}"

        return await once.run(f"{context.session} {context.call}", paid)

    @tool(effect="idempotent")
    async def note(name: str, text: str) -> str:
        """Write into the working memory."""
        await working.set(name, text)
        return "noted"

    @tool(effect="idempotent")
    def plain(text: str) -> str:
        """Write, in plain code."""
        return text.upper()

    @tool(tier="confirm")
    async def send(to: str) -> str:
        """Send, once a person agrees."""
        return f"sent to {to}"

    @tool(tier="observe", effect="pure")
    async def groups() -> list[str]:
        """Tell what belongs together in the graph."""
        return [" ".join(group) for group in await graph.communities()]

    helper, checker = _subagents(look, plain, send, streaming=streaming)
    return Agent(
        config=AgentConfig(model="m", retry=RetryPolicy(), streaming=streaming, max_turns=12),
        provider=ScriptedProvider([]),
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
        context=Summarising(1_400, keep_tokens=100),
        middleware=[Careful()],
        memory=memory,
        working_memory=working,
        graph=graph,
        semantic=knowledge,
        objects=[once],
        skills=[Skill(name="greeting", description="How to greet.", instructions="Say hello.")],
    )


def _subagents(
    look: Tool[..., object], plain: Tool[..., object], send: Tool[..., object], *, streaming: bool
) -> tuple[Agent, Agent]:
    """Return one that has tools, and one that has the first as a tool."""
    helper = Agent(
        name="researcher",
        config=AgentConfig(model="m", retry=RetryPolicy(), streaming=streaming),
        provider=ScriptedProvider([]),
        tools=[look, plain],
    )
    checker = Agent(
        name="checker",
        config=AgentConfig(model="m", retry=RetryPolicy()),
        provider=ScriptedProvider([]),
        tools=[helper.as_tool(), send],
        output_type=Report,
    )
    return helper, checker
