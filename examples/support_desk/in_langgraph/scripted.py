"""The scripted model, for LangGraph."""

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import uuid4

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from examples.support_desk.shop import Answer, scripted_step


class ScriptedChatModel(BaseChatModel):
    """Takes the steps of the script."""

    profile: dict[str, Any] = {"structured_output": True}

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> "ScriptedChatModel":
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        asked = max(place for place, message in enumerate(messages) if isinstance(message, HumanMessage))
        results = [message.text for message in messages[asked + 1 :] if isinstance(message, ToolMessage)]
        system = "\n".join(message.text for message in messages if isinstance(message, SystemMessage))
        taken = scripted_step(messages[asked].text, results, system)
        if isinstance(taken, Answer):
            message = AIMessage(taken.model_dump_json())
        else:
            message = AIMessage("", tool_calls=[{"name": taken[0], "args": taken[1], "id": uuid4().hex}])
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _astream(self, messages: list[BaseMessage], *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
        message = self._generate(messages).generations[0].message
        pieces = [message.text[at : at + 8] for at in range(0, len(message.text), 8)] or [""]
        for piece in pieces:
            calls = [{**call, "args": json.dumps(call["args"]), "index": 0} for call in message.tool_calls]
            yield ChatGenerationChunk(message=AIMessageChunk(content=piece, tool_call_chunks=calls))
