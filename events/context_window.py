"""Which part of a history a model is shown: `ContextWindow`, and `TokenWindow`, which keeps to a number of tokens.

A window looks at a whole request and names the messages that stay. It runs inside the model effect, and what it keeps
is recorded, so that a replay needs no window. The rules that every window keeps: what is left is a history that
providers accept (it begins with a user's message, and no call is parted from its result), and the latest input and
what the model has not seen yet stay in it. A window that breaks the first fails its model call.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from refold.events.configuration import ToolSpec
from refold.events.content import (
    Block,
    ImageBlock,
    Message,
    ProviderBlock,
    StoredBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    tool_uses,
)
from refold.events.errors import ConfigError

CHARACTERS_PER_TOKEN = 4
"""About so many characters of text are one token, as OpenAI and Anthropic both say of English text."""

IMAGE_TOKENS = 1_600
"""An image is counted as so many: the most that Anthropic's documentation gives for one of the largest useful size."""

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


class ContextWindow(Protocol):
    """Names the messages of a history that a model is shown."""

    def kept(self, context: Context) -> Sequence[Range] | None:
        """Return the messages that stay, as ranges of places in order; None = all of them.

        It runs on the loop before each model call and must return quickly. What it raises fails the call.
        """
        ...


def about_tokens(text: str) -> int:
    """Return about how many tokens a text has, rounded up."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


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
        case ToolResultBlock(content=content):
            return sum(map(_block_tokens, content))
        case ProviderBlock(data=data):
            return _json_tokens(data)
        case StoredBlock(bytes=size):
            return -(-size // CHARACTERS_PER_TOKEN)
        case _:
            return about_tokens(block.name) + _json_tokens(block.input)


def _json_tokens(value: object) -> int:
    return -(-len(_encode(value)) // CHARACTERS_PER_TOKEN)


def frame_tokens(context: Context) -> int:
    """Return about how many tokens a request has beside its messages."""
    return about_tokens(context.system_prompt) + (_json_tokens(context.tools) if context.tools else 0)


def answers_calls(message: Message) -> bool:
    """Tell whether a message holds results, so that it belongs to the one before."""
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
    stay, whatever they cost; so do a call that is open, or waits for approval, and all that follows it.

    Args:
        max_tokens: most tokens of one request, counted about, >= 1: system prompt, tools and messages.
        count: returns about how many tokens a message has; None = a token for four characters.

    Raises:
        ConfigError: `max_tokens` is not an integer of at least 1.
    """

    def __init__(self, max_tokens: int, count: CountTokens | None = None) -> None:
        if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
            raise ConfigError(f"TokenWindow.max_tokens must be an integer of at least 1, not {max_tokens!r:.80}")
        if count is not None and not callable(count):
            raise ConfigError(f"TokenWindow.count must be a function, not {type(count).__name__}")
        self.max_tokens = max_tokens
        self.count: CountTokens = count or message_tokens

    def __repr__(self) -> str:
        return f"TokenWindow({self.max_tokens})"

    def kept(self, context: Context) -> Sequence[Range] | None:
        """Return the messages that stay; it reads no more of the history than that, and one group."""
        messages, room = context.messages, self.max_tokens - frame_tokens(context)
        required = first_required(messages, context.latest_input)
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


def first_required(messages: Sequence[Message], latest_input: int) -> int:
    """Return the place of the first message that a model must be shown: all that it has not answered yet.

    That is the latest input, or the last answer where it has calls and the model has not been shown their results, or
    an answer with a call that has none.
    """
    last = len(messages) - 1
    while last > 0 and messages[last].role == "user":
        last -= 1
    if messages[last].role != "assistant" or not tool_uses(messages[last].content):
        return min(latest_input, len(messages) - 1)
    while last > 0 and not begins_unit(messages, last):
        last -= 1
    return min(last, latest_input)


def _last_unit(messages: Sequence[Message], head: int) -> int:
    """Return where the last answer of the group that begins at `head` begins; just behind `head` where it has none."""
    place = len(messages) - 1
    while place > head + 1 and not begins_unit(messages, place):
        place -= 1
    return max(place, head + 1)
