"""Reasoning in an answer of the Chat Completions API, told from what the model says.

Most servers give it in fields of its own (`answer` reads them). Here is what needs more than that: thoughts in tags
within the content, and OpenRouter's `reasoning_details`.

Models write `<think>…</think>` before their answer, and a server without a parser for them leaves the tags in the
content; where the model's template writes the first tag, only the last one is there (vllm.ai "Reasoning outputs", the
chat templates of DeepSeek-R1 and QwQ). Gemini's compatible endpoint puts summaries of its thoughts into
`<thought>…</thought>` (ai.google.dev/gemini-api/docs/openai, "Thinking").
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

from refold.events.core.content import Json, JsonObject, is_json_array, is_json_object
from refold.providers.http.wire import text_field

TaggedThinking: TypeAlias = Literal["tags", "end_tag"]
"""How a model marks its thoughts within its text: between `<think>` and `</think>`, or with the first tag or without.
"""

_GROWING_DETAILS = ("text", "summary", "data")


class TaggedThoughts:
    """Splits content that comes in pieces into thoughts and text; a tag may be cut anywhere.

    Thoughts stand at the beginning of the content only: what looks like a tag behind them is text. Content that has
    `begun` inside the thoughts may lack the first tag.
    """

    def __init__(self, tag: str, *, begun: bool = False) -> None:
        self._first, self._last = f"<{tag}>", f"</{tag}>"
        self._begun = begun
        self._place: Literal["before", "inside", "behind", "text"] = "before"
        self._held = ""
        """White space, and what may be the beginning of a tag."""

    @property
    def are_open(self) -> bool:
        """Whether thoughts have begun and not ended."""
        return self._place == "inside"

    def split(self, piece: str) -> tuple[str, str]:
        """Take the next piece, and return what is new of the thoughts and of the text."""
        content, self._held = self._held + piece, ""
        thoughts = ""
        if self._place == "before":
            begins = content.lstrip()
            if begins.startswith(self._first):
                self._place, content = "inside", begins.removeprefix(self._first)
            elif self._first.startswith(begins):
                self._held = content
                return "", ""
            else:
                self._place = "inside" if self._begun else "text"
        if self._place == "inside":
            thoughts, end, content = content.partition(self._last)
            if not end:
                kept = len(thoughts) - _beginning_of(self._last, thoughts)
                self._held = thoughts[kept:]
                return thoughts[:kept], ""
            self._place = "behind"
        if self._place == "behind":
            content = content.lstrip()
            if content:
                self._place = "text"
        return thoughts, content

    def rest(self) -> tuple[str, str]:
        """Return what was held back, the content having ended."""
        held, self._held = self._held, ""
        return (held, "") if self.are_open else ("", held)

    def close(self) -> None:
        """End thoughts that have no last tag."""
        self._place = "behind"


def _beginning_of(tag: str, text: str) -> int:
    """Return how many characters at the end of `text` may be the beginning of a tag."""
    return next((size for size in range(len(tag) - 1, 0, -1) if text.endswith(tag[:size])), 0)


class ReasoningDetails:
    """OpenRouter's `reasoning_details`: in a stream, neighbours of one kind and place are pieces of one another."""

    def __init__(self) -> None:
        self._entries: list[JsonObject] = []
        self._pieces: dict[str, list[str]] = {}
        """Of the last entry."""

    def __bool__(self) -> bool:
        return bool(self._entries)

    def add(self, values: Sequence[Json]) -> str:
        """Take entries, and return what can be read of them."""
        shown: list[str] = []
        for value in values:
            if not is_json_object(value):
                continue
            shown.append(text_field(value, "text") or text_field(value, "summary"))
            last = self._entries[-1] if self._entries else None
            if last is None or any(last.get(key) != value.get(key) for key in ("type", "index")):
                self._close()
                self._entries.append({})
            self._entries[-1].update(
                (key, item) for key, item in value.items() if item is not None and key not in _GROWING_DETAILS
            )
            for key in _GROWING_DETAILS:
                if key in value:
                    self._pieces.setdefault(key, []).append(text_field(value, key))
        return "".join(shown)

    def kept(self) -> list[Json]:
        self._close()
        return list(self._entries)

    def _close(self) -> None:
        if self._entries:
            self._entries[-1].update((key, "".join(pieces)) for key, pieces in self._pieces.items())
        self._pieces = {}


def thoughts_in(part: Json) -> str:
    """Return the text of a `thinking` part, which Mistral gives as parts of its own."""
    if isinstance(part, str):
        return part
    parts = part if is_json_array(part) else []
    return "".join(text_field(inner, "text") for inner in parts if is_json_object(inner))
