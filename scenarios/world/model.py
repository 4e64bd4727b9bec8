"""A model that answers by chance: calls of the agent's tools with arguments that fit their schemas, and then a text.

Unless the scenario has a script it keeps to none, so that any history gets an answer, also one that a crash or a
repeated call has changed. Most answers call one tool or several; the longer a run, the likelier it is that the answer
is a text that ends it.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, cast

import msgspec

from refold.actors.calls.protocols import Provider, StreamItem
from refold.events.core.content import TextBlock
from refold.events.core.errors import ProviderError
from refold.events.model.configuration import ToolSpec
from refold.events.model.messages import ModelRequest, ModelResponse, StopReason, ToolUse, Usage, deltas_of
from refold.providers.fallback import FallbackProvider
from refold.scenarios import faults
from refold.scenarios.faults import AnyFault
from refold.scenarios.plan.scenario import Answer
from refold.scenarios.plan.world import World

DELTA_CHARACTERS = 12
"""Most characters of one piece of a streamed answer."""

NO_SUCH_TOOL = "no_such_tool"
"""Called by an answer that babbles."""


class SimulatedModel:
    """A provider without a model.

    `asked`, told of each request, returns the sessions whose it is, as far as it knows. Most final answers fit the
    schema `output`, if there is one. With `steps`, it calls those tools in ReAct text, also if a request lacks them.
    """

    def __init__(
        self,
        world: World,
        asked: Callable[[ModelRequest], list[str]],
        *,
        place: int = 1,
        output: dict[str, Any] | None = None,
        steps: tuple[ToolSpec, ...] | None = None,
    ) -> None:
        self._place = place
        self._life = world.life
        self._world = world
        self._asked = asked
        self._output = output
        self._steps = steps

    async def complete(self, request: ModelRequest) -> ModelResponse:
        said: ModelResponse | ProviderError | None = None
        try:
            answer, delay_s, cut = self._heard(request)
            await asyncio.sleep(delay_s)
            if cut:
                raise _dropped()
            said = answer
            return answer
        except ProviderError as error:
            said = error
            raise
        finally:
            self._world.on_answer(request, self._life, said, False)

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        said: ModelResponse | ProviderError | None = None
        begun = False
        try:
            answer, delay_s, cut = self._heard(request)
            deltas = deltas_of(answer, DELTA_CHARACTERS)
            pause_s = delay_s / (len(deltas) + 1)
            for delta in deltas[: len(deltas) // 2] if cut else deltas:
                await asyncio.sleep(pause_s)
                begun = True
                yield delta
            await asyncio.sleep(pause_s)
            if cut:
                raise _dropped()
            said = answer
            yield answer
        except ProviderError as error:
            said = error
            raise
        finally:
            self._world.on_answer(request, self._life, said, begun)

    def _heard(self, request: ModelRequest) -> tuple[ModelResponse, float, bool]:
        self._world.on_ask(request, self._life, self._place)
        return self.begin(request)

    def begin(self, request: ModelRequest) -> tuple[ModelResponse, float, bool]:
        """Return the answer, in how many seconds it comes, and whether it is cut off half-way."""
        sessions = self._asked(request)
        if self._steps is not None:
            request = msgspec.structs.replace(request, tools=self._steps)
        chance = self._world.chance("model")
        answer, delay_s, cut = self._answer(request, chance), chance.uniform(0.1, 3.0), False
        for fault in self._world.plan.count("model", sessions or None):
            _raise_if_refused(fault)
            match fault:
                case faults.ProviderStalls(seconds=seconds):
                    delay_s += seconds
                case faults.ProviderDrops():
                    cut = True
                case faults.ProviderBabbles():
                    answer = _babble(request)
                case _:
                    raise AssertionError(f"{fault} is no fault of a model call")
        self._raise_in_brown_out()
        if self._steps is not None:  # What is read of its text says less than the answer.
            return _as_step(answer), delay_s, cut
        self._world.on_said(request, answer)
        return answer, delay_s, cut

    def _raise_in_brown_out(self) -> None:
        for fault in self._world.plan.lasting("model"):
            assert isinstance(fault, faults.ProviderBrownOut)
            if fault.place in (None, self._place) and self._world.chance("brown-out").random() < fault.share:
                self._world.plan.note(fault)
                raise ProviderError("the simulated provider is not well", kind=fault.kind, retryable=True)

    def _answer(self, request: ModelRequest, chance: random.Random) -> ModelResponse:
        if self._world.scenario.script:
            return _scripted(request, self._world.scenario.script)
        results = 0
        for message in reversed(request.messages):
            if message.role == "user" and any(isinstance(block, TextBlock) for block in message.content):
                break
            results += 1
        content: list[TextBlock | ToolUse] = []
        if request.tools and chance.random() < 0.8 - 0.08 * results:
            if chance.random() < 0.3:
                content.append(TextBlock(text="Let me see."))
            for _ in range(chance.choice((1, 1, 1, 2, 3))):
                spec = chance.choice(request.tools)
                content.append(ToolUse(name=spec.name, input=arguments_for(spec, chance)))
            return ModelResponse(content=tuple(content), stop_reason="tool_use", usage=_usage(request))
        text = f"That is answer {chance.randrange(1_000_000)}."
        if self._output is not None and chance.random() < 0.8:
            text = msgspec.json.encode(value_for(self._output, chance)).decode()
        return ModelResponse(content=(TextBlock(text=text),), stop_reason="end_turn", usage=_usage(request))


def simulated_provider(given: Provider, model: Callable[[int], Provider]) -> Provider:
    """Return what takes an agent's provider's place: a simulated model, or as many behind the same breakers.

    `model` returns one, or what reaches it, for its place among them, from 1.
    """
    return given.with_providers(model) if isinstance(given, FallbackProvider) else model(1)


def _scripted(request: ModelRequest, script: Sequence[Answer]) -> ModelResponse:
    given = sum(message.role == "assistant" for message in request.messages)
    answer = script[given] if given < len(script) else Answer(text="That is all.")
    calls = [ToolUse(name=call.tool, input=dict(call.input)) for call in answer.calls]
    texts = [TextBlock(text=answer.text)] if answer.text else []
    stop_reason: StopReason = "tool_use" if calls else "end_turn"
    return ModelResponse(content=(*texts, *calls), stop_reason=stop_reason, usage=_usage(request))


def arguments_for(spec: ToolSpec, chance: random.Random) -> dict[str, Any]:
    """Return arguments that fit a tool's schema, as far as its types, enumerations and required fields say."""
    value = value_for(cast("dict[str, Any]", spec.input_schema), chance)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def value_for(schema: dict[str, Any], chance: random.Random) -> Any:
    """Return a value that fits a JSON schema, as far as `arguments_for` does."""
    return _value(schema, schema.get("$defs", {}), chance, 0)


def misfit_for(schema: dict[str, Any]) -> Any:
    """Return a value that does not fit a JSON schema; None = it is not plain which does not."""
    if "enum" in schema or "const" in schema:
        return "no such choice"
    kind = schema.get("type")
    return (1.5 if kind == "string" else "of another type") if isinstance(kind, str) else None


def _value(schema: dict[str, Any], definitions: dict[str, Any], chance: random.Random, depth: int) -> Any:
    if "$ref" in schema:
        return _value(definitions[str(schema["$ref"]).rpartition("/")[2]], definitions, chance, depth + 1)
    choices: list[Any] = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    if choices:
        return chance.choice(choices)
    variants: list[dict[str, Any]] = schema.get("anyOf") or schema.get("oneOf") or []
    if variants:
        return _value(chance.choice(variants) if depth < 5 else variants[-1], definitions, chance, depth + 1)
    kinds: str | list[str] = schema.get("type", "integer")
    kind = kinds if isinstance(kinds, str) else chance.choice(kinds)
    if kind == "object":
        required: list[str] = schema.get("required", [])
        properties: dict[str, dict[str, Any]] = schema.get("properties", {})
        chosen = [name for name in properties if name in required or (depth < 3 and chance.random() < 0.3)]
        return {name: _value(properties[name], definitions, chance, depth + 1) for name in chosen}
    if kind == "array":
        size = max(int(schema.get("minItems", 0)), chance.randrange(3) if depth < 3 else 0)
        return [_value(schema.get("items", {}), definitions, chance, depth + 1) for _ in range(size)]
    return _scalar(kind, schema, chance)


def _scalar(kind: str, schema: dict[str, Any], chance: random.Random) -> Any:
    if kind == "string":
        least, most = int(schema.get("minLength", 1)), int(schema.get("maxLength", 12))
        return "".join(chance.choice("abcdefghij") for _ in range(max(least, min(most, 6))))
    if kind in ("integer", "number"):
        low = int(schema.get("minimum", schema.get("exclusiveMinimum", 0))) + ("exclusiveMinimum" in schema)
        high = int(schema.get("maximum", low + 100))
        return chance.randint(low, max(low, high))
    if kind == "boolean":
        return chance.random() < 0.5
    return None


def _usage(request: ModelRequest) -> Usage:
    return Usage(input_tokens=10 * len(request.messages), output_tokens=20)


def _babble(request: ModelRequest) -> ModelResponse:
    calls: Sequence[ToolUse] = [ToolUse(name=NO_SUCH_TOOL, input={})]
    if request.tools:
        calls = [*calls, ToolUse(name=request.tools[0].name, input="{not even JSON")]
    return ModelResponse(content=tuple(calls), stop_reason="tool_use", usage=_usage(request))


def _as_step(answer: ModelResponse) -> ModelResponse:
    """Return an answer, or the first call in it, as a step in ReAct text."""
    call = next((block for block in answer.content if isinstance(block, ToolUse)), None)
    if call is None:
        text = "".join(block.text for block in answer.content if isinstance(block, TextBlock))
        text = f"Thought: I know it.\nFINAL_ANSWER: {text}"
    else:
        given = call.input if isinstance(call.input, str) else msgspec.json.encode(call.input).decode()
        text = f"Thought: Let me see.\nAction: {call.name}\nAction Input: {given}"
    return ModelResponse(content=(TextBlock(text=text),), stop_reason="end_turn", usage=answer.usage)


def _raise_if_refused(fault: AnyFault) -> None:
    if isinstance(fault, faults.ProviderRefuses):
        raise ProviderError(
            "the simulated provider refuses",
            kind=fault.kind,
            retryable=fault.retryable,
            retry_after_s=fault.retry_after_s,
        )


def _dropped() -> ProviderError:
    return ProviderError("the simulated connection broke off", kind="connection", retryable=True)
