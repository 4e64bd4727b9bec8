"""Tool calls in ReAct text, for any model that writes text: a provider in front of another.

`AgentConfig(protocol="react")` puts it in front of the agent's provider. It is a codec and nothing more: a request
becomes text (`refold.react.prompt`), an answer becomes a thought and a tool call or a final answer
(`refold.react.text`), and the state machine behind it is the same as for native calls. A text that is no step is
marked as rejected, with the reason: the session tells the model and asks again, `AgentConfig.rejections_max` times in a
row at most.
"""

from collections.abc import AsyncIterator, Sequence

import msgspec

from refold.actors.calls.protocols import Provider, StreamingProvider, StreamItem
from refold.actors.calls.request import sent_digest
from refold.actors.calls.streaming import answer_stream, close_behind
from refold.actors.calls.validation import checked_delta, checked_response
from refold.events.core.cleaning import clean_text
from refold.events.core.content import TextBlock, ThinkingBlock, ToolUseBlock
from refold.events.core.errors import AgentLoopError
from refold.events.model.configuration import Protocol, ToolSpec
from refold.events.model.messages import ModelRequest, ModelResponse, ResponseContent, StopReason, TextDelta, ToolUse
from refold.memory.stream_object import stream_objects_of
from refold.providers.function import ProviderFunction, as_provider
from refold.providers.http.secrets import redaction_of
from refold.react.labels import reasoning_in
from refold.react.prompt import THOUGHT_DATA, UNPARSED_DATA, said_data, text_request
from refold.react.stream import StepPieces
from refold.react.text import EXPECTED, ReActStep, call_of, parse_react_step, step_text

CUT = f"The answer was cut at its length limit before its Action or FINAL_ANSWER. Think more briefly. {EXPECTED}"
"""What a model is told whose answer was cut before it said anything that counts."""


class ReActProvider(StreamingProvider):
    """Asks another provider for ReAct text.

    What is streamed are the thoughts, as `ThinkingDelta`, and the final answer, as `TextDelta`. Native calls of a model
    that makes such nevertheless are accepted unchanged.

    Args:
        provider: answers the requests, which are text without tools.
        stop: whether requests say that an answer ends where the model begins an observation. A few models refuse stop
            sequences; without one, what a model invents is cut off afterwards, and paid for.

    Raises:
        ConfigError: what is given is no provider.
    """

    def __init__(self, provider: Provider | ProviderFunction, *, stop: bool = True) -> None:
        self._provider = as_provider(provider)
        self.redaction = redaction_of(self._provider)
        self.stream_objects = stream_objects_of(self._provider)
        self._stop = stop
        self._text: tuple[ModelRequest, ModelRequest] | None = None
        """A request that is about to be sent, and the text that it becomes."""

    def sent_digest(self, request: ModelRequest, *, streamed: bool) -> str:
        """Return the digest of the text that would be sent."""
        self._text = (request, text_request(request, stop=self._stop))
        return sent_digest(self._provider, self._text[1], streamed=streamed)

    def _text_of(self, request: ModelRequest) -> ModelRequest:
        made, self._text = self._text, None
        return made[1] if made is not None and made[0] is request else text_request(request, stop=self._stop)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        answer = await self._provider.complete(self._text_of(request))
        return self._step(answer, request)

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        stream = answer_stream(self._provider, self._text_of(request))
        pieces = StepPieces()
        try:
            async for item in stream:
                if isinstance(item, ModelResponse):
                    for delta in pieces.rest():
                        yield delta
                    yield self._step(item, request)
                    return
                piece = checked_delta(item)
                if isinstance(piece, TextDelta):
                    for delta in pieces.add(piece.text):
                        yield delta
                else:
                    yield piece
        finally:
            await close_behind(stream)

    def _step(self, answer: object, request: ModelRequest) -> ModelResponse:
        # Arguments are read out of the text only here, and with them what escapes in their JSON have hidden.
        return self.redaction.value(step_response(checked_response(answer), request.tools))


def in_protocol(provider: Provider, protocol: Protocol) -> Provider:
    """Return what answers the requests of an agent whose model asks for tools as `protocol` says."""
    return ReActProvider(provider) if protocol == "react" and not isinstance(provider, ReActProvider) else provider


def step_response(response: ModelResponse, tools: Sequence[ToolSpec]) -> ModelResponse:
    """Return a text model's answer as the step that it takes, or as rejected where it takes none."""
    content = response.content
    called = any(isinstance(block, ToolUse | ToolUseBlock) for block in content)
    text = clean_text("".join(block.text for block in content if isinstance(block, TextBlock)))
    if called or response.rejected or response.stop_reason == "pause_turn" or not text.strip():
        return response
    others: list[ResponseContent] = [block for block in content if not isinstance(block, TextBlock)]
    if reasoning := reasoning_in(text):
        others.append(ThinkingBlock(thinking=reasoning))
    unparsed = msgspec.structs.replace(response, content=(*others, TextBlock(text=text, provider_data=UNPARSED_DATA)))
    if response.stop_reason == "refusal":
        return unparsed
    try:
        step = parse_react_step(text)
    except AgentLoopError as error:
        reason = CUT if response.stop_reason == "max_tokens" else str(error)
        return msgspec.structs.replace(unparsed, rejected=reason)
    if step.thought:
        others.append(ThinkingBlock(thinking=step.thought, provider_data=THOUGHT_DATA))
    others.append(_ending(step, tools))
    return msgspec.structs.replace(response, content=tuple(others), stop_reason=_stop_reason(response, step))


def _ending(step: ReActStep, tools: Sequence[ToolSpec]) -> ToolUse | TextBlock:
    """Return what a step comes to; the model's own words are kept where its history cannot be told from that alone."""
    as_asked = step_text(step) == step.said
    if step.action is None:
        answer = step.final_answer or ""
        return TextBlock(text=answer, provider_data=None if as_asked else said_data(step))
    name, arguments = call_of(step, tools)
    meant = msgspec.structs.replace(step, action=name, arguments=arguments)
    as_asked = as_asked and meant == step
    return ToolUse(name=name, input=arguments, provider_data=None if as_asked else said_data(meant))


def _stop_reason(response: ModelResponse, step: ReActStep) -> StopReason:
    cut = response.stop_reason == "max_tokens" and not step.closed
    if step.action is not None:
        return "max_tokens" if cut else "tool_use"
    return "end_turn" if response.stop_reason == "max_tokens" and not cut else response.stop_reason
