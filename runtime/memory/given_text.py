"""Texts as callers give them, by which something is kept or found: the same text finds what was kept under it."""

from refold.events.cleaning import clean_text
from refold.events.errors import AgentMemoryError


def given_text(text: object, what: str) -> str:
    """Return `text` as it is recorded: see `clean_text`.

    Args:
        text: what a caller gave.
        what: what errors call it, such as `the name of an agent`.

    Raises:
        AgentMemoryError: it is no text.
    """
    if not isinstance(text, str):
        raise AgentMemoryError(f"{what} must be a text, not {text!r:.80}")
    return clean_text(text)
