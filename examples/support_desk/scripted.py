"""The scripted model, for Refold."""

from examples.support_desk.shop import Answer, scripted_step
from refold import ModelRequest, ModelResponse, ScriptedProvider, ToolResultBlock, ToolUse, say, use


def step(request: ModelRequest) -> ModelResponse | ToolUse:
    """Take the next step of the script."""
    asked = max(place for place, message in enumerate(request.messages) if message.role == "user" and message.text)
    blocks = [block for message in request.messages[asked + 1 :] for block in message.content]
    results = [block.text for block in blocks if isinstance(block, ToolResultBlock)]
    taken = scripted_step(request.messages[asked].text, results, request.system_prompt or "")
    return say(taken.model_dump_json()) if isinstance(taken, Answer) else use(*taken)


provider = ScriptedProvider([step] * 10_000)
