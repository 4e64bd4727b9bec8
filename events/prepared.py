"""What was done to a request before it went to a model, beyond putting configuration and history together.

It rides in the reference to the request (`refold.events.model.RequestReference`), so that the exact request can be
built again from the log alone; `refold.events.request_building` does that. What was not done is left out.
The rule: these are recorded shapes; a field is added with a default, and what one means never changes.
"""

from typing import Literal

import msgspec

from refold.events.configuration import ToolSpec
from refold.events.content import AnswerContent, Message


class SystemAddition(msgspec.Struct, frozen=True, omit_defaults=True):
    """A text that stands behind the system prompt, with an empty line before it."""

    source: Literal["recall", "working_memory"]
    """Where it comes from."""
    text: str


class Splice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Some messages of a request that others stand for."""

    first: int = 0
    """Place of the first message that is replaced, from 0."""
    removed: int = 0
    """How many are replaced."""
    messages: tuple[Message, ...] = ()
    """What stands in their place; blocks are whole, none stands for a payload."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the model is to answer, where that is not as configured."""

    max_tokens: int | None = None
    temperature: float | None = None
    stop_sequences: tuple[str, ...] = ()


class Rewritten(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What else differs in a request; None = nothing of that."""

    model: str | None = None
    system_prompt: str | None = None
    messages: Splice | None = None
    tools: tuple[ToolSpec, ...] | None = None
    """All that the model was offered instead."""
    sampling: Sampling | None = None


class Prepared(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was done to one request, in this order: messages were left out, texts were added, the rest was rewritten."""

    kept: tuple[tuple[int, int], ...] | None = None
    """The messages of the history that were kept, as ranges from the first to before the second place, in order; None =
    all of them."""
    added: tuple[SystemAddition, ...] = ()
    """In the order in which they stand."""
    rewritten: Rewritten | None = None
    answer: tuple[AnswerContent, ...] | None = None
    """The model's own answer, where middleware changed it before it was recorded; its call ids are ours in form only.
    """
    notes: tuple[str, ...] = ()
    """What could not be done, and the model was asked without, in words."""


NOTHING = Prepared()
"""A plain request."""
