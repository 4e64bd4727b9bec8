"""The support desk whose logs are replayed: six tools of all tiers and effects, and all else that decides."""

import asyncio
import hashlib
import os
import signal
from dataclasses import dataclass, field
from typing import Any

import msgspec

from refold import (
    Agent,
    AgentConfig,
    Allow,
    Ask,
    Budget,
    Deny,
    EpisodicStore,
    HookContext,
    Message,
    Middleware,
    ModelRequest,
    ModelResponse,
    Price,
    ProposedCall,
    RetryPolicy,
    RunContext,
    ScriptedProvider,
    ScriptItem,
    Skill,
    Summarising,
    TextBlock,
    TokenWindow,
    ToolCall,
    ToolContext,
    ToolError,
    ToolResultBlock,
    ToolSpec,
    WorkingMemory,
    guardrail,
    tool,
)
from refold.events.core.content import GivenContent, text_of
from refold.memory import GraphStore, SemanticStore
from refold.resilience import CircuitBreaker, Deduplicator

PROMPT = "You answer for a shop of tea. Be brief. Never promise a date."

PRICES = {
    "desk-model": Price(input=3, output=15, cache_read=0.3),
    "desk-model-2026": Price(input=4, output=20),
    "small-model": Price(input=0.1, output=0.7),
}


@dataclass
class World:
    """What tools act on: parcels that are waited for, carriers that are down, and a process that may die."""

    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    outages: int = 0
    dies: bool = False


@tool(tier="observe", effect="pure")
async def find_order(order: str) -> str:
    """Find an order by its number."""
    return f"{order}: two tins of Assam, paid with card 4111-2222, sent on Monday"


@tool(tier="observe", effect="idempotent", retries=RetryPolicy(attempts_max=3, base_s=2, jitter=0))
async def track_parcel(order: str, context: ToolContext[World]) -> str:
    """Ask the carrier where a parcel is."""
    if context.deps.outages > 0:
        context.deps.outages -= 1
        raise ToolError("the carrier is down", kind="transient")
    return f"{order}: in Lisbon"


@tool(tier="observe", effect="pure", timeout_s=600)
async def await_parcel(order: str, context: ToolContext[World]) -> str:
    """Wait until a parcel has arrived."""
    await context.deps.arrived.wait()
    return f"{order}: arrived"


@tool(tier="act", effect="idempotent")
async def add_note(order: str, text: str, urgent: bool = False) -> str:
    """Add a note to an order."""
    return f"{order}: noted"


@tool(tier="act", effect="once")
async def send_again(order: str, context: ToolContext[World]) -> str:
    """Send an order once more."""
    if context.deps.dies:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{order}: sent again"


@tool(tier="confirm", effect="once")
async def refund(order: str, amount: float) -> str:
    """Pay money back."""
    if amount > 90:
        raise ToolError("the till holds less", kind="permanent")
    return f"{order}: {amount} paid back"


class Wired(ScriptedProvider):
    """Says of a request what goes over the wire, as those that ask a server do."""

    effort = "low"

    def sent_digest(self, request: ModelRequest, *, streamed: bool) -> str:
        """Return the digest of what a server would be told."""
        tools = [(tool.name, tool.description, tool.input_schema) for tool in request.tools]
        told = (
            msgspec.structs.replace(request, messages=list(request.messages), tools=()),
            tools,
            streamed,
            self.effort,
        )
        return f"desk:{hashlib.sha256(msgspec.json.encode(told)).hexdigest()[:32]}"


class House(Middleware):
    """The manners of the house."""

    def on_user_message(self, context: HookContext, content: tuple[GivenContent, ...]) -> str:
        """Take names out."""
        return text_of(content).strip().replace("Ann Smith", "the customer")

    def on_pre_llm(self, context: HookContext, request: ModelRequest) -> ModelRequest:
        """Say what day it is."""
        return msgspec.structs.replace(request, system_prompt=f"{request.system_prompt}\n\nIt is Monday.")

    def on_post_llm(self, context: HookContext, response: ModelResponse) -> ModelResponse | None:
        """Sign what is said."""
        if response.stop_reason != "end_turn" or not response.usage.output_tokens:
            return None
        return msgspec.structs.replace(response, content=(*response.content, TextBlock(text="Your tea desk")))

    def on_tool_call(self, context: HookContext, call: ToolCall) -> Deny | None:
        """Keep orders that lawyers have from being touched."""
        return Deny("a lawyer has this order") if call.input.get("order") == "A-13" else None

    def on_tool_result(self, context: HookContext, result: ToolResultBlock) -> ToolResultBlock | None:
        """Hide cards."""
        if "4111" not in result.text:
            return None
        return msgspec.structs.replace(result, content=(TextBlock(text=result.text.replace("4111-2222", "[card]")),))


@guardrail
def no_threats(context: RunContext[World], said: Message) -> Deny | None:
    """Leave threats to people."""
    return Deny("a threat") if "or else" in said.text else None


@guardrail
def no_promises(context: RunContext[World], answer: str) -> Deny | None:
    """Let no date be promised."""
    return Deny("a promise") if "tomorrow" in answer else None


def judge(call: ProposedCall) -> Allow | Ask | Deny | None:
    """Judge what the model wants to do."""
    if call.tool == "refund" and float(str(call.input["amount"])) > 500:
        return Deny("more than the desk may pay")
    if call.tool == "send_again" and str(call.input["order"]).startswith("X-"):
        return Ask("it goes abroad")
    return None


def offered(session: str, spec: ToolSpec) -> bool:
    """Offer no refunds to guests."""
    return not (session.startswith("guest") and spec.name == "refund")


RETURNS = Skill(
    name="returns",
    description="How tea is taken back.",
    instructions="1. Find the order. 2. Ask whether the tin is closed. 3. Refund what was paid.",
)


class Stores:
    """What the desk remembers."""

    def __init__(self) -> None:
        self.memory = EpisodicStore(capacity=3, scope="agent")
        self.working = WorkingMemory(2, scope="agent")
        self.graph = GraphStore(scope="agent")
        self.knowledge = SemanticStore(scope="agent")
        self.breaker = CircuitBreaker("carrier", threshold=2, recovery_s=30)
        self.dedup = Deduplicator("labels", ttl_s=3_600)


def agent(script: list[ScriptItem] | None = None, below: list[ScriptItem] | None = None) -> Agent[World, Any]:
    """Return the desk; its models say what the scripts say."""
    stores = Stores()
    warehouse = Agent(
        name="warehouse",
        config=AgentConfig(model="small-model", system_prompt="You know the shelves.", max_turns=6, prices=PRICES),
        provider=Wired(below or []),
        tools=[find_order, track_parcel],
        context=TokenWindow(230),
    )
    return Agent(
        name="desk",
        config=AgentConfig(
            model="desk-model",
            system_prompt=PROMPT,
            max_turns=4,
            max_tokens=500,
            temperature=0.5,
            stop_sequences=("END",),
            max_memory_recalls=2,
            run_timeout_s=900,
            approval_expiry_s=60,
            retry=RetryPolicy(attempts_max=2, base_s=1, jitter=0),
            budget=Budget(tokens=50_000),
            prices=PRICES,
            streaming=True,
        ),
        provider=Wired(script or []),
        tools=[
            find_order,
            track_parcel,
            await_parcel,
            add_note,
            send_again,
            refund,
            warehouse.as_tool(description="Ask who knows the shelves."),
        ],
        middleware=[House()],
        policy=judge,
        offer=offered,
        input_guardrails=[no_threats],
        output_guardrails=[no_promises],
        context=Summarising(1_500, keep_tokens=300),
        memory=stores.memory,
        working_memory=stores.working,
        objects=[stores.graph, stores.knowledge, stores.breaker, stores.dedup],
        skills=[RETURNS],
        keep_originals=True,
    )
