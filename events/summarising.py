"""Where a history is cut so that a summary stands for its beginning, what is summarised, and what may stand for it.

Pure; `refold.actors.compaction` has the summary made and recorded. The rules: a cut parts no call from its result, and
leaves all that the model has not answered yet as it is; the latest input stays as it was said, before the cut or behind
it; and a summary is a user's message, so that the history still begins with one.
"""

from collections.abc import Sequence

import msgspec

from refold.events.content import (
    Block,
    ImageBlock,
    Message,
    ProviderBlock,
    StoredBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    tool_uses,
)
from refold.events.context_window import Context, CountTokens, begins_group, begins_unit, frame_tokens
from refold.events.history_rules import HistoryRules

SUMMARY_HEADING = "Summary of the conversation so far:"

SUMMARY_PROMPT = (
    "You are given the beginning of a conversation between a user and an AI agent with tools. Summarise it for the "
    "agent, which will go on from your summary alone: what the user wants, what was decided and why, what was done "
    "and found, with the names, numbers and identifiers that may still matter, and what is still to be done. "
    "Write nothing but the summary."
)

_encode = msgspec.json.Encoder().encode


class SummaryPlan(msgspec.Struct, frozen=True):
    """What a summary is to stand for."""

    replaced: int
    """How many of the oldest messages."""
    tokens: int
    """About how many tokens they have."""
    keeps_input: bool
    """The latest input is among them, and is put behind the summary as it is."""


def summary_plan(context: Context, max_tokens: int, keep_tokens: int, count: CountTokens) -> SummaryPlan | None:
    """Return what a summary should stand for; None where there is no need, or too little to gain.

    There is need where a request has more than `max_tokens`. The cut leaves as many of the last messages as
    `keep_tokens` hold, and at least what the model has not answered yet. What a summary stands for must be a quarter
    of what `max_tokens` leave for messages, so that a summary is not made again and again; and it is at most all of
    that, so that it can be made of one request, unless a single answer is longer.
    """
    messages, room = context.messages, max_tokens - frame_tokens(context)
    counts = [count(message) for message in messages]
    left = sum(counts)
    if left <= room or room <= 0:
        return None
    last, least = _first_unanswered(messages), max(1, room // 4)
    best: SummaryPlan | None = None
    before = 0
    for place in range(1, last + 1):
        before += counts[place - 1]
        left -= counts[place - 1]
        if before > room and best is not None and best.tokens >= least:
            break
        if begins_group(messages, place) or begins_unit(messages, place):
            keeps_input = context.latest_input < place
            gained = before - (counts[context.latest_input] if keeps_input else 0)
            best = SummaryPlan(place, gained, keeps_input)
            if left <= keep_tokens:
                break
    return best if best is not None and best.tokens >= least else None


def _first_unanswered(messages: Sequence[Message]) -> int:
    """Return the place of the first message that belongs to what the model has not answered yet."""
    last = len(messages) - 1
    while last > 0 and messages[last].role == "user":
        last -= 1
    if messages[last].role == "user":
        return 0
    if not tool_uses(messages[last].content):
        return min(last + 1, len(messages) - 1)
    while last > 0 and not begins_unit(messages, last):
        last -= 1
    return last


def summary_messages(text: str, latest_input: Message | None) -> tuple[Message, ...]:
    """Return what stands for the messages that were summarised.

    Args:
        text: of the summary.
        latest_input: where it was one of them, as it is recorded.
    """
    summary = Message("user", (TextBlock(text=f"{SUMMARY_HEADING}\n\n{text.strip()}"),))
    return (summary,) if latest_input is None else (summary, latest_input)


def summary_fault(
    messages: Sequence[Message], latest_input: int, replaced: int, summary: Sequence[Message]
) -> str | None:
    """Return why `summary` may not stand for the first `replaced` messages of a history; None = it may."""
    if not 1 <= replaced <= len(messages):
        return f"a summary for {replaced} of {len(messages)} messages"
    if latest_input < replaced and messages[latest_input] not in summary:
        return "a summary that leaves out the latest input"
    rules = HistoryRules()
    findings = [finding for message in (*summary, *messages[replaced:]) for finding in rules.add(message)]
    findings.extend(rules.unanswered())
    return findings[0].message if findings else None


def transcript_text(messages: Sequence[Message]) -> str:
    """Return messages as one text, which any model can read, whatever tools it knows."""
    names: dict[str, str] = {}
    lines: list[str] = []
    for message in messages:
        speaker = "User" if message.role == "user" else "Agent"
        for block in message.content:
            if type(block) is ToolUseBlock:
                names[block.id] = block.name
            line = _block_line(block, speaker, names)
            lines += [line] if line else []
    return "\n\n".join(lines)


def _block_line(block: Block, speaker: str, names: dict[str, str]) -> str:
    match block:
        case TextBlock(text=text):
            return f"{speaker}: {text}"
        case ThinkingBlock():
            return ""
        case ToolUseBlock(name=name, input=arguments):
            return f"Agent calls {name}({_encode(arguments).decode()})"
        case ToolResultBlock(tool_use_id=call, content=content, is_error=failed):
            said = " ".join(line for part in content if (line := _part_words(part)))
            return f"{'Error' if failed else 'Result'} of {names.get(call, 'a call')}: {said or '(nothing)'}"
        case _:
            return f"{speaker}: {_part_words(block)}"


def _part_words(block: Block) -> str:
    match block:
        case TextBlock(text=text):
            return text
        case ImageBlock(media_type=media_type):
            return f"[{media_type}]"
        case ProviderBlock(provider=provider, data=data):
            return f"[{data.get('type', 'block')} of {provider}]"
        case StoredBlock(holds=holds):
            return f"[{holds}]"
        case _:
            return ""
