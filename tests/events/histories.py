"""Histories as sessions have them: inputs, paused and rejected answers, calls in parallel with their results."""

from typing import Literal

from hypothesis import strategies as st

from refold.events.core.content import (
    AnswerContent,
    Block,
    ImageBlock,
    Message,
    ProviderBlock,
    ResultContent,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from refold.events.core.ids import ToolCallId

WORDS = st.text("ab é\N{SNOWMAN}", min_size=1, max_size=60).filter(lambda text: bool(text.strip()))


def said(role: Literal["user", "assistant"], *blocks: str | Block) -> Message:
    return Message(role, tuple(TextBlock(text=block) if isinstance(block, str) else block for block in blocks))


def called(*calls: str) -> Message:
    """Return an answer with calls, given their ids."""
    return Message("assistant", tuple(ToolUseBlock(id=ToolCallId(call), name="look", input={}) for call in calls))


def answered(*calls: str, text: str = "seen") -> Message:
    """Return the results of calls."""
    return Message(
        "user", tuple(ToolResultBlock(tool_use_id=ToolCallId(call), content=(TextBlock(text=text),)) for call in calls)
    )


@st.composite
def inputs(draw: st.DrawFn) -> Message:
    blocks: list[Block] = [TextBlock(text=draw(WORDS))]
    if draw(st.integers(0, 5)) == 0:
        blocks.append(ImageBlock(media_type="image/png", data=b"PNG"))
    return Message("user", tuple(blocks))


@st.composite
def turns(draw: st.DrawFn, number: int) -> list[Message]:
    """Return one turn of a run: a pause, a rejected answer, or calls with their results."""
    match draw(st.sampled_from(("calls", "calls", "calls", "pause", "rejected"))):
        case "pause":
            data = {"type": "server_tool_use", "n": number}
            return [said("assistant", ProviderBlock(provider="anthropic", data=data)), *draw(turns(number + 100))]
        case "rejected":
            return [said("assistant", draw(WORDS)), said("user", "Say it otherwise.")]
        case _:
            content: list[AnswerContent] = [TextBlock(text="I look.")] if draw(st.booleans()) else []
            if draw(st.booleans()):
                content.insert(0, ThinkingBlock(thinking="hm", signature="s"))
            ids = [ToolCallId(f"call_{number}_{place}") for place in range(draw(st.integers(1, 3)))]
            uses = [ToolUseBlock(id=call, name="look", input={"what": draw(WORDS)}) for call in ids]
            results: list[ResultContent] = [TextBlock(text=draw(WORDS))]
            answers = tuple(ToolResultBlock(tool_use_id=call, content=tuple(results)) for call in ids)
            return [Message("assistant", (*content, *uses)), Message("user", answers)]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Message], int]:
    """Return a history that a model may be shown, and the place of the latest input."""
    messages: list[Message] = []
    latest = 0
    for run in range(draw(st.integers(1, 6))):
        latest = len(messages)
        messages.append(draw(inputs()))
        last = run
        for turn in range(draw(st.integers(0, 4))):
            messages += draw(turns(1_000 * run + turn))
            last = turn
        if draw(st.integers(0, 4)) == 0:  # One that joined.
            latest = len(messages)
            messages.append(draw(inputs()))
        if draw(st.booleans()):
            messages.append(said("assistant", f"Done {last}."))
    if messages[-1].role == "assistant":
        latest = len(messages)
        messages.append(draw(inputs()))
    return messages, latest
