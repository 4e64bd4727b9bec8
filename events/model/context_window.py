"""Which part of a history a model is shown: windows (`TokenWindow` keeps to a number of tokens) and cuts for summaries.

A window looks at a whole request and names the messages that stay. It runs inside the model effect, and what it keeps
is recorded, so that a replay needs no window. The rules that every window keeps: what is left is a history that
providers accept (it begins with a user's message, and no call is parted from its result), and the latest input and
what the model has not seen yet stay in it. A window that breaks the first fails its model call.

A history may instead be cut so that a summary stands for its beginning. This module says where, and what may stand for
it; `refold.actors.agent.compaction` has the summary made and recorded. The rules of a cut: it parts no call from its
result, and leaves all that the model has not answered yet unchanged; the latest input stays as it was said, before the
cut or behind it; and a summary is a user's message, so that the history still begins with one.
"""

import re
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from refold.events.core.content import (
    Block,
    DocumentBlock,
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
from refold.events.core.errors import ConfigError, quoted
from refold.events.model.configuration import ToolSpec
from refold.events.model.history_rules import HistoryRules

CHARACTERS_PER_TOKEN = 4
"""About so many characters of text are one token, as OpenAI and Anthropic both say of English text."""

_WIDE = r"[\u1100-\u11ff\u2e80-\ua4cf\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef\U00010000-\U0010ffff]"
"""Han, Kana, Hangul, other wide characters and emoji: about a token each (0.6 to 1.5 in common tokenizers)."""

_DENSE = r"[\u0370-\u10ff\u1200-\u1dff\u2000-\u2e7f\ua4d0-\ua95f\ua980-\uabff]"
"""Letters of other scripts than Latin, and signs: about two to a token."""

IMAGE_TOKENS = 1_600
"""An image is counted as so many: the most that Anthropic's documentation gives for one of the largest useful size."""

PAGE_TOKENS = 2_000
"""A document is counted as at least one page of so many: text and picture, as Anthropic's documentation gives them."""

PAGE_BYTES = 50_000
"""So many bytes of a document count as a page."""

Range = tuple[int, int]
"""From the first to before the second place."""

CountTokens = Callable[[Message], int]
"""Returns about how many tokens a message has."""

_encode = msgspec.json.Encoder().encode


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """A request before anything is left out of it, as a window sees it."""

    system_prompt: str
    """With what is added to it."""
    messages: Sequence[Message]
    """The whole history, oldest first, never empty; not to be changed."""
    tools: tuple[ToolSpec, ...] = ()
    latest_input: int = 0
    """Place of the message with the latest input."""
    scale: float = 1.0
    """How many tokens the provider counted for one of the count's, in the answer before; at least 1."""
    fits: int = 0
    """Tokens, by the count, that the provider did not find too long after it had found more so; 0 = it never has."""
    unsummarised: int = 0
    """Tokens of a history that were too long to be summarised at once; 0 = none were."""
    was_too_long: bool = False
    """The provider has found it too long, so that what an earlier run left unanswered may go, too."""


class ContextWindow(Protocol):
    """Names the messages of a history that a model is shown."""

    def kept(self, context: Context) -> Sequence[Range] | None:
        """Return the messages that stay, as ranges of places in order; None = all of them.

        It runs on the loop before each model call and must return quickly. What it raises fails the call.
        """
        ...


def about_tokens(text: str) -> int:
    """Return about how many tokens a text has, by the scripts that it is written in."""
    if text.isascii():
        return -(-len(text) // CHARACTERS_PER_TOKEN)
    wide, dense = len(re.findall(_WIDE, text)), len(re.findall(_DENSE, text))
    return wide + -(-dense // 2) + -(-(len(text) - wide - dense) // CHARACTERS_PER_TOKEN)


def message_tokens(message: Message) -> int:
    """Return about how many tokens a message has: texts by their characters, JSON by that of its text."""
    return sum(map(_block_tokens, message.content))


def _block_tokens(block: Block) -> int:
    match block:
        case TextBlock(text=text):
            return about_tokens(text)
        case ThinkingBlock(thinking=text):
            return about_tokens(text)
        case ImageBlock():
            return IMAGE_TOKENS
        case DocumentBlock(data=data):
            return max(PAGE_TOKENS, len(data) * PAGE_TOKENS // PAGE_BYTES)
        case ToolResultBlock(content=content):
            return sum(map(_block_tokens, content))
        case ProviderBlock(data=data):
            return _json_tokens(data)
        case StoredBlock(bytes=size):
            return -(-size // CHARACTERS_PER_TOKEN)
        case _:
            return about_tokens(block.name) + _json_tokens(block.input)


def _json_tokens(value: object) -> int:
    return about_tokens(_encode(value).decode())


def request_tokens(context: Context, kept: Sequence[Range] | None, count: CountTokens) -> int:
    ranges = kept if kept is not None else ((0, len(context.messages)),)
    return frame_tokens(context) + sum(
        count(message) for first, end in ranges for message in context.messages[first:end]
    )


def frame_tokens(context: Context) -> int:
    return about_tokens(context.system_prompt) + (_json_tokens(context.tools) if context.tools else 0)


def answers_calls(message: Message) -> bool:
    return any(type(block) is ToolResultBlock for block in message.content)


def begins_group(messages: Sequence[Message], place: int) -> bool:
    """Tell whether a group of messages begins at `place`: with a user's message that answers no call."""
    return messages[place].role == "user" and not answers_calls(messages[place])


def begins_unit(messages: Sequence[Message], place: int) -> bool:
    """Tell whether an answer begins at `place`; paused ones are one, and its results belong to it."""
    return messages[place].role == "assistant" and place > 0 and messages[place - 1].role == "user"


class TokenWindow:
    """Leaves out the oldest groups of messages, so that a request stays within a number of tokens.

    A group is an input and all that came of it. Where the last group alone is too long, its oldest answers are left
    out, each with its results. The system prompt, the latest input, and the last answer with calls and their results
    stay, at any cost; so do a call that is open, or waits for approval, and all that follows it.

    Args:
        max_tokens: most tokens of one request, counted about, >= 1: system prompt, tools and messages.
        count: returns about how many tokens a message has; None = an estimate by its scripts (`about_tokens`).

    Raises:
        ConfigError: `max_tokens` is not an integer of at least 1.
    """

    def __init__(self, max_tokens: int, count: CountTokens | None = None) -> None:
        if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
            raise ConfigError(f"TokenWindow.max_tokens must be an integer of at least 1, not {quoted(max_tokens)}")
        if count is not None and not callable(count):
            raise ConfigError(f"TokenWindow.count must be a function, not {type(count).__name__}")
        self.max_tokens = max_tokens
        self.count: CountTokens = count or message_tokens

    def __repr__(self) -> str:
        return f"TokenWindow({self.max_tokens})"

    def kept(self, context: Context) -> Sequence[Range] | None:
        """Return the messages that stay; it reads no more of the history than that, and one group."""
        messages, room = context.messages, int(self.max_tokens / context.scale) - frame_tokens(context)
        required = first_required(messages, context.latest_input)
        if context.was_too_long and begins_group(messages, context.latest_input):
            required = context.latest_input
        head = required
        while head > 0 and not begins_group(messages, head):
            head -= 1
        spent = sum(self.count(messages[place]) for place in range(head, len(messages)))
        if spent > room:
            return self._within_group(messages, head, required, room)
        start, place = head, head
        while place > 0:
            place -= 1
            spent += self.count(messages[place])
            if spent > room:
                break
            if place == 0 or begins_group(messages, place):
                start = place
        return None if start == 0 else ((start, len(messages)),)

    def _within_group(self, messages: Sequence[Message], head: int, required: int, room: int) -> Sequence[Range] | None:
        """Return the beginning of the last group, and as many of its last answers as there is room for."""
        count, end = self.count, len(messages)
        least = required if required > head else _last_unit(messages, head)
        spent = count(messages[head]) + sum(count(messages[place]) for place in range(least, end))
        start = place = least
        while place > head + 1:
            place -= 1
            spent += count(messages[place])
            if spent > room:
                break
            if begins_unit(messages, place):
                start = place
        if start <= head + 1:
            return None if head == 0 else ((head, end),)
        return ((head, head + 1), (start, end))


def narrowed(
    context: Context, kept: Sequence[Range] | None, max_tokens: int, count: CountTokens
) -> tuple[Range, ...] | None:
    """Return what is left of the kept messages where a request may have no more than `max_tokens`; None = all.

    It leaves out as a `TokenWindow` does, and brings nothing back that is not kept.
    """
    places = [place for first, end in kept or ((0, len(context.messages)),) for place in range(first, end)]
    latest = max((number for number, place in enumerate(places) if place <= context.latest_input), default=0)
    shorter = Context(
        system_prompt=context.system_prompt,
        messages=[context.messages[place] for place in places],
        tools=context.tools,
        latest_input=latest,
        was_too_long=True,
    )
    said = TokenWindow(max_tokens, count).kept(shorter)
    if said is None:
        return tuple(kept) if kept is not None else None
    ranges: list[Range] = []
    for place in (places[number] for first, end in said for number in range(first, end)):
        if ranges and ranges[-1][1] == place:
            ranges[-1] = (ranges[-1][0], place + 1)
        else:
            ranges.append((place, place + 1))
    return tuple(ranges)


def first_required(messages: Sequence[Message], latest_input: int) -> int:
    """Return the place of the first message that a model must be shown: all that it has not answered yet.

    That is the latest input, or the last answer where it has calls and the model has not been shown their results, or
    an answer with a call that has none.
    """
    last, calls = _last_answer(messages)
    return min(last if calls else len(messages) - 1, latest_input)


def _last_answer(messages: Sequence[Message]) -> tuple[int, bool]:
    """Return where the last answer begins, if it has calls, else where it stands; and whether it has calls."""
    last = len(messages) - 1
    while last > 0 and messages[last].role == "user":
        last -= 1
    if messages[last].role != "assistant" or not tool_uses(messages[last].content):
        return last, False
    while last > 0 and not begins_unit(messages, last):
        last -= 1
    return last, True


def _last_unit(messages: Sequence[Message], head: int) -> int:
    """Just behind `head` where the group has no answer."""
    place = len(messages) - 1
    while place > head + 1 and not begins_unit(messages, place):
        place -= 1
    return max(place, head + 1)


SUMMARY_HEADING = "Summary of the conversation so far:"

SUMMARY_PROMPT = (
    "You are given the beginning of a conversation between a user and an AI agent with tools. Summarise it for the "
    "agent, which will go on from your summary alone: what the user wants, what was decided and why, what was done "
    "and found, with the names, numbers and identifiers that may still matter, and what is still to be done. "
    "Write nothing but the summary."
)


SUMMARY_HALVINGS_MAX = 32
"""A summary is made of no less than such a part of what there is room for; what is too long is halved until then."""


class SummaryPlan(msgspec.Struct, frozen=True):
    """What a summary is to stand for."""

    replaced: int
    """How many of the oldest messages."""
    tokens: int
    """About how many tokens they have."""
    keeps_input: bool
    """The latest input is among them, and is put behind the summary unchanged."""
    size: int = 0
    """About how many tokens the summary is made of, that input with them."""
    shown: float = 1.0
    """How much of that, where a single message was too long for a summary: its middle is left out."""


def summary_plan(context: Context, max_tokens: int, keep_tokens: int, count: CountTokens) -> SummaryPlan | None:
    """Return what a summary should stand for; None where there is no need, or too little to gain.

    There is need where a request has more than `max_tokens`, or than the provider takes, as far as that is known. What
    a summary is made of is at most as much as leaves for messages, so that it can be made of one request, unless a
    single answer is longer; or half of what was too long for a summary, of a single one without its middle. It must be
    a quarter of that, so that a summary is not made again and again. Within this, the cut leaves as many of the last
    messages as `keep_tokens` hold, and at least what the model has not answered yet.
    """
    limit, too_long = int(max_tokens / context.scale), context.unsummarised
    if 0 < context.fits < limit:
        limit, keep_tokens = context.fits, min(keep_tokens, context.fits // 2)
    messages, room = context.messages, limit - frame_tokens(context)
    most = min(room, too_long // 2) if too_long else room
    enough = max(1, most // 4)
    counts = [count(message) for message in messages]
    left = sum(counts)
    if left <= room or room <= 0:
        return None
    last = _first_unanswered(messages)
    best: SummaryPlan | None = None
    before = 0
    for place in range(1, last + 1):
        before += counts[place - 1]
        left -= counts[place - 1]
        if before > most and best is not None and best.tokens >= enough:
            break
        if begins_group(messages, place) or begins_unit(messages, place):
            keeps_input = context.latest_input < place
            gained = before - (counts[context.latest_input] if keeps_input else 0)
            best = SummaryPlan(place, gained, keeps_input, before)
            if left <= keep_tokens and best.tokens >= enough:
                break
    if best is None or best.tokens < enough or most < max(1, room // SUMMARY_HALVINGS_MAX):
        return None
    if too_long and best.size > most:
        return SummaryPlan(best.replaced, best.tokens, best.keeps_input, most, most / best.size)
    return best


def middle_left_out(text: str, shown: float) -> str:
    if shown >= 1:
        return text
    half = int(len(text) * shown / 2)
    return f"{text[:half]}\n\n(… {len(text) - 2 * half:,} characters …)\n\n{text[len(text) - half :]}"


def _first_unanswered(messages: Sequence[Message]) -> int:
    """Return the place of the first message that belongs to what the model has not answered yet."""
    last, calls = _last_answer(messages)
    if messages[last].role == "user":
        return 0
    return last if calls else min(last + 1, len(messages) - 1)


def summary_messages(text: str, latest_input: Message | None) -> tuple[Message, ...]:
    """Return what stands for the messages that were summarised."""
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
        case ImageBlock(media_type=media_type) | DocumentBlock(media_type=media_type):
            return f"[{media_type or 'image'}]"
        case ProviderBlock(provider=provider, data=data):
            return f"[{data.get('type', 'block')} of {provider}]"
        case StoredBlock(holds=holds):
            return f"[{holds}]"
        case _:
            return ""
