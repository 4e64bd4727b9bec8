"""Agents as data: tools with signatures and behaviours, configuration, policy; for hypothesis to draw and to shrink.

    AgentPlan(tools=(ToolPlan(name="tool_a", parameters=("int", "text"), tier="confirm"),)).built()

The rule: an agent that is built behaves as its plan says and in no other way; what a policy says depends on the call
alone.
"""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import msgspec

from refold.actors.calls.policy import Ask, Deny, Policy, PolicyDecision, ProposedCall
from refold.actors.calls.questions import DeferredResult
from refold.actors.calls.tool_context import ToolContext
from refold.agents.agent import Agent
from refold.events.core.errors import ToolError
from refold.events.model.configuration import AgentConfig, EffectClass, RetryPolicy, Tier
from refold.providers.scripted import ScriptedProvider
from refold.tools.tool import Tool, tool

Kind: TypeAlias = Literal["int", "text", "flag", "number", "choice", "texts", "maybe", "place"]
"""Of a parameter."""

Behaviour: TypeAlias = Literal[
    "answers", "raises", "fails_for_now", "breaks", "rests", "tells", "ends", "odd", "huge", "nothing", "asks", "leaves"
]
"""What a tool's body does.

`raises`: a permanent ToolError. `fails_for_now`: a transient one. `breaks`: an error of Python's. `rests`: takes some
seconds. `tells`: reports its progress. `ends`: ends the run with an answer. `odd`, `huge`, `nothing`: what it returns.
`asks`: a person, twice, where it is no plain function. `leaves`: its result for later.
"""

PolicyKind: TypeAlias = Literal["none", "denies", "asks", "depends", "breaks"]
"""What a policy does with calls; `depends`: by the length of the arguments."""


class Place(msgspec.Struct, frozen=True):
    """A parameter with fields."""

    city: str
    days: int = 1


_TYPES: dict[Kind, Any] = {
    "int": int,
    "text": str,
    "flag": bool,
    "number": float,
    "choice": Literal["red", "green", "blue"],
    "texts": list[str],
    "maybe": int | None,
    "place": Place,
}


class ToolPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A tool."""

    name: str
    parameters: tuple[Kind, ...] = ()
    """They are named `p0`, `p1` and so on; `maybe` has a default."""
    tier: Tier = "act"
    effect: EffectClass = "once"
    behaviour: Behaviour = "answers"
    plain: bool = False
    """Whether its body is a plain function and no coroutine."""
    attempts: int = 1
    """Most attempts of a call, where the effect allows several."""

    def built(self) -> Tool[..., object]:
        plan = self

        def plain(ctx: ToolContext[object], **arguments: object) -> object:
            return _result(plan.behaviour, ctx, arguments)

        async def body(ctx: ToolContext[object], **arguments: object) -> object:
            if plan.behaviour == "rests":
                await asyncio.sleep(5.0)
            if plan.behaviour == "asks":
                return f"for {await ctx.ask('Who?', type=str)}, {await ctx.ask('How many?', type=int)}"
            return _result(plan.behaviour, ctx, arguments)

        function: Any = plain if self.plain else body
        function.__name__ = function.__qualname__ = self.name
        function.__doc__ = f"Do {self.behaviour}."
        annotations: dict[str, Any] = {"ctx": ToolContext[object]}
        annotations.update({f"p{place}": _TYPES[kind] for place, kind in enumerate(self.parameters)})
        function.__annotations__ = {**annotations, "return": object}
        function.__signature__ = inspect.Signature(
            [
                inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    annotation=annotation,
                    default=None if annotation == _TYPES["maybe"] else inspect.Parameter.empty,
                )
                for name, annotation in annotations.items()
            ]
        )
        retries = RetryPolicy(attempts_max=self.attempts) if self.attempts > 1 and self.effect != "once" else None
        made: Callable[[Any], Tool[..., object]] = tool(tier=self.tier, effect=self.effect, retries=retries)
        return made(function)


class AgentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """An agent."""

    tools: tuple[ToolPlan, ...] = ()
    config: AgentConfig = AgentConfig(model="m")
    policy: PolicyKind = "none"
    offers_all: bool = True
    """Whether the model is offered all tools; else only those that observe."""

    def built(self) -> Agent:
        """Return the agent, with a provider that has no answers, since a simulation replaces it."""
        return Agent(
            config=self.config,
            provider=ScriptedProvider([]),
            tools=[plan.built() for plan in self.tools],
            policy=_policy(self.policy),
            offer=None if self.offers_all else lambda session, spec: spec.tier == "observe",
        )


def _result(behaviour: Behaviour, ctx: ToolContext[object], arguments: dict[str, object]) -> object:
    match behaviour:
        case "raises":
            raise ToolError("it cannot be done", kind="permanent")
        case "fails_for_now":
            raise ToolError("it cannot be done now", kind="transient")
        case "breaks":
            raise ZeroDivisionError("a bug")
        case "ends":
            return ctx.finish("That was all.")
        case "odd":
            return {"nul": "\0", "turned": "\u202etxet", "number": 2**53, "none": None, "list": [1.5, True]}
        case "huge":
            return "word " * 40_000
        case "nothing":
            return None
        case "tells":
            for part in range(3):
                ctx.progress({"part": part})
            return "told"
        case "leaves":
            return DeferredResult("the weight", float)
        case "answers" | "rests" | "asks":
            return f"done with {sorted(arguments)}"


def _policy(kind: PolicyKind) -> Policy | None:
    def judge(call: ProposedCall) -> PolicyDecision | None:
        match kind:
            case "denies":
                return Deny(reason="this is not allowed")
            case "asks":
                return Ask(reason="a person decides this")
            case "depends":
                return (None, Ask(), Deny())[len(str(call.input)) % 3]
            case "breaks":
                raise ZeroDivisionError("a bug in the policy")
            case "none":
                return None

    return None if kind == "none" else judge
