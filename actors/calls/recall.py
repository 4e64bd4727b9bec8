"""What an agent remembers, put into its requests: episodes that match the latest input, and the working memory.

It runs inside the model effect, and asks the part of a memory that the session sees. What entered a request is
recorded with it; that it was recalled is noted in the memory once the answer is durable, and nobody waits for that. A
memory that fails costs the request what it would have said, with a warning and a note in the record, never the call.
"""

import hashlib
import logging
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import msgspec

from refold.actors.calls.context import SessionContext
from refold.actors.calls.results import passes
from refold.events.core.cleaning import clean_text, error_words, text_of_error
from refold.events.core.ids import MemoryId, RunId
from refold.events.model.configuration import AgentConfiguration
from refold.events.model.context_window import about_tokens
from refold.events.model.messages import SystemAddition

M = TypeVar("M")

log = logging.getLogger("refold.model")

RECALL_HEADING = "What you remember of earlier conversations:"


class RecalledItem(Protocol):
    """Something that was found in a memory."""

    @property
    def id(self) -> MemoryId: ...
    @property
    def content(self) -> str: ...


class Recall(Protocol):
    """A memory of episodes, as a model call asks it."""

    def look(self, agent: str, query: str, limit: int) -> Awaitable[Sequence[RecalledItem]]:
        """Return what matches a query, the best first, at most `limit` items; nothing is recorded."""
        ...

    def note_recalled(self, ids: Sequence[MemoryId], key: str | None = None) -> object:
        """Have it recorded that items were recalled, once for each key; it returns at once."""
        ...


@runtime_checkable
class Scoped(Protocol):
    """A memory of which each session sees its own part only; all of Refold's are. Another one is shared by all."""

    def within(self, context: SessionContext, /) -> Any:
        """Return what a session sees of it, which is asked as the whole is."""
        ...


def seen_in(memory: M, context: SessionContext) -> M:
    return cast("M", memory.within(context)) if isinstance(memory, Scoped) else memory


class PromptText(Protocol):
    """A working memory, as a model call asks it."""

    def prompt_text(self) -> Awaitable[str]:
        """Return what is to stand behind the system prompt; nothing where it is empty."""
        ...


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """What enters one request."""

    added: tuple[SystemAddition, ...] = ()
    recalled: tuple[str, ...] = ()
    """Identifiers of the episodes among it."""
    notes: tuple[str, ...] = ()
    """What could not be asked."""


class Recalling:
    """Asks an agent's memories."""

    def __init__(self, memory: Recall | None, working_memory: PromptText | None) -> None:
        self._memory = memory
        self._working_memory = working_memory

    async def remembered(self, configuration: AgentConfiguration, query: str, context: SessionContext) -> Remembered:
        added: list[SystemAddition] = []
        recalled: tuple[str, ...] = ()
        notes: list[str] = []
        if self._memory is not None and configuration.max_memory_recalls and query.strip():
            try:
                memory = seen_in(self._memory, context)
                found = await memory.look(configuration.agent, query, configuration.max_memory_recalls)
                unmatched: bool = getattr(memory, "unmatched", True)
                given = [
                    (str(item.id), clean_text(item.content))
                    for item in found
                    if unmatched or getattr(item, "shared_words", None) != 0
                ]
            except BaseException as error:  # The border to a memory, which may be the user's own.
                if passes(error):
                    raise
                notes.append(_failed("nothing was recalled", error))
            else:
                recalled, text = recall_text(given[: configuration.max_memory_recalls], configuration.max_memory_tokens)
                added += [SystemAddition("recall", text)] if text else []
        if self._working_memory is not None:
            try:
                text = clean_text(await seen_in(self._working_memory, context).prompt_text())
            except BaseException as error:  # Likewise.
                if passes(error):
                    raise
                notes.append(_failed("the working memory was left out", error))
            else:
                added += [SystemAddition("working_memory", text)] if text.strip() else []
        return Remembered(added=tuple(added), recalled=recalled, notes=tuple(notes))

    def note(self, context: SessionContext, run: RunId, recalled: Sequence[str]) -> Recall | None:
        """Have it noted that an answer, now durable, was given with these episodes; each counts once in a run."""
        if self._memory is None:
            return None
        session, memory = context.session, None
        for item in recalled:
            key = hashlib.sha256("\0".join((session, run, item)).encode()).hexdigest()[:32]
            try:
                memory = seen_in(self._memory, context)
                memory.note_recalled((MemoryId(item),), f"recall {key}")
            except BaseException as error:
                if passes(error):
                    raise
                log.exception("session %s: that %s was recalled is not noted: %s", session, item, text_of_error(error))
        return memory


def recall_text(found: Sequence[tuple[str, str]], max_tokens: int | None) -> tuple[tuple[str, ...], str]:
    """Return which items enter a prompt, and the text that does: a heading, and a line `- content` each.

    An item for which there is no room is left out, and the next one tried. Further lines of an item are indented, so
    that none can pass for another one.

    Args:
        found: identifiers and contents, the best first.
        max_tokens: most tokens of the whole text, counted about; None = no limit.
    """
    names: list[str] = []
    text = RECALL_HEADING
    for name, content in found:
        first, *more = content.strip().splitlines() or [""]
        longer = "\n".join((text, f"- {first}", *(f"  {line}" for line in more)))
        if first and (max_tokens is None or about_tokens(longer) <= max_tokens):
            names.append(name)
            text = longer
    return tuple(names), text if names else ""


def _failed(what: str, error: BaseException) -> str:
    said = error_words(error)[:2_000]
    log.warning("%s: %s", what, said, exc_info=error)
    return f"{what} ({said})"
