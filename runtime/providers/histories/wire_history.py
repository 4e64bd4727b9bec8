"""What the two wire forms have in common: a history that was read, its calls and their results, and marks on blocks.

A mark is what a message says of itself that our messages do not: that the system said it, or who did. It lies in the
`provider_data` of its blocks under the name `history`, which is no provider's, so that no request holds it.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, TypeAlias, TypeGuard, TypeVar, cast

import msgspec

from refold.events.core.cleaning import clean_text
from refold.events.core.content import (
    Block,
    DocumentBlock,
    ImageBlock,
    Json,
    JsonObject,
    Message,
    ProviderBlock,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    is_json_array,
    is_json_object,
)
from refold.events.core.errors import ConfigError, quoted
from refold.events.core.ids import ToolCallId
from refold.events.model.messages import ToolUse
from refold.events.session.events import Verdict
from refold.events.session.normalise import ARGUMENTS_BYTES_MAX, NAME_CHARACTERS_MAX, recorded_call
from refold.providers.http.wire import object_field

MARK: Final = "history"

WireMessages: TypeAlias = Sequence[JsonObject] | JsonObject
"""A list of messages, or the body of a request that has them."""

B = TypeVar("B", bound=Block)


class WireHistory(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as a provider's API has it."""

    messages: list[Message]
    """For `Session.import_history`."""
    system_prompt: str = ""
    """What stood before the conversation; an agent's configuration has one of its own."""
    left_out: list[str] = []
    """What of the conversation is not in `messages`, by its place, such as `messages[3].logprobs`."""


class _OpenCall(msgspec.Struct, frozen=True):
    answer: int
    """The number of the answer that it is in."""
    given: str | None
    """The id that it came with."""
    name: str
    id: ToolCallId


class CallBook:
    """The calls of a history while it is read, so that each result finds its own.

    A result without an id, or with one where calls have none, belongs to the open call of its name, or of any name if
    it has none. Where there are more, results and calls are taken in their order, which is certain only if each of the
    calls gets one.
    """

    def __init__(self) -> None:
        self._open: dict[int, _OpenCall] = {}
        """The calls without a result, by their number among all."""
        self._waiting: dict[str | None, list[int]] = {}
        """The numbers of those, by the id as given."""
        self._answers = 0
        self._calls = 0
        self._ids: set[str] = set()
        self._answered: dict[str | None, ToolCallId] = {}
        """By the id as given, the call of that id that had its result last."""
        self._in_order: dict[tuple[int, str | None], str] = {}
        """By answer and name, where a result is that was taken for the first of several."""

    def called(self, calls: Sequence[ToolUseBlock], place: int) -> list[ToolUseBlock]:
        """Take the calls of an answer, and return them with ids of which no two are the same in it."""
        self.settle()
        self._answers += 1
        named: list[ToolUseBlock] = []
        here: set[str] = set()
        for number, call in enumerate(calls):
            given = call.provider_id or None
            name = given or f"call_{place}_{number}"
            while name in here or (given is None and name in self._ids):
                name += "_"
            named.append(msgspec.structs.replace(call, id=ToolCallId(name)))
            here.add(name)
            self._ids.add(name)
            self._calls += 1
            self._open[self._calls] = _OpenCall(self._answers, given, call.name, ToolCallId(name))
            self._waiting.setdefault(given, []).append(self._calls)
        return named

    def answered(self, given: Json, name: Json, path: str) -> ToolCallId:
        """Return the id of the call that a result at `path` belongs to, given what it says of id and tool."""
        given = given if isinstance(given, str) and given else None
        name = name if isinstance(name, str) and name else None
        fitting = self._waiting.get(given, []) if given is not None else []
        if not fitting and given in self._answered:
            return self._answered[given]  # A result that is there twice.
        if not fitting:
            numbers = list(self._open) if given is None else self._waiting.get(None, [])
            fitting = [number for number in numbers if name in (None, self._open[number].name)]
            if not fitting and given is not None:
                return ToolCallId(given)
            if not fitting:
                of = f" of {quoted(name)}" if name is not None else ""
                raise ConfigError(f"{path} is the result of a tool without an id, and no call{of} is open there")
            last = self._open[fitting[-1]].answer
            if len(fitting) > 1 and self._open[fitting[-2]].answer == last:
                self._in_order.setdefault((last, name), path)
        last = self._open[fitting[-1]].answer
        number = next(number for number in fitting if self._open[number].answer == last)
        found = self._open.pop(number)
        self._waiting[found.given].remove(number)
        if found.given is not None:
            self._answered[found.given] = found.id
        return found.id

    def settle(self) -> None:
        """Raise ConfigError unless every result so far is certainly of the call that it was taken for."""
        for (answer, name), path in self._in_order.items():
            if any(call.answer == answer and name in (None, call.name) for call in self._open.values()):
                raise ConfigError(
                    f"{path} is the result of a tool without an id, and of several calls that it may belong to not all "
                    "have one; give it the id of its call"
                )
        self._in_order.clear()


def is_list(value: object) -> TypeGuard[Sequence[Json]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def messages_in(given: WireMessages) -> tuple[JsonObject, list[JsonObject]]:
    """Return the body, empty where only messages were given, and the messages."""
    body: JsonObject = given if is_json_object(given) else {}
    messages: object = body.get("messages") if body else given
    if not is_list(messages):
        raise ConfigError('a history is a list of messages, or an object that has them as "messages"')
    checked: list[JsonObject] = []
    for place, message in enumerate(messages):
        if not is_json_object(message):
            raise ConfigError(f"messages[{place}] is no object with a role and content")
        checked.append(message)
    return body, checked


def parts_in(content: Json, path: str) -> list[Json]:
    """Return the parts of a content; a text is one."""
    parts = [] if content is None else [content] if isinstance(content, str) else content
    if not is_json_array(parts):
        raise ConfigError(f"{path} has neither a text nor a list as its content")
    return parts


def others(given: JsonObject, known: Mapping[str, type], path: str) -> list[str]:
    """Return the places of fields that say something and are not `known`, or are not of the type that is known."""
    said = {field: value for field, value in given.items() if value not in (None, "", [], {})}
    return [f"{path}.{field}" for field, value in said.items() if not isinstance(value, known.get(field, type(None)))]


def call_of(use: ToolUse, path: str, left_out: list[str]) -> ToolUseBlock:
    """Return a call with all that a model gave as its arguments, also where they are none; its id is not set."""
    block, _ = recorded_call(use, lambda _, arguments: (arguments, Verdict()))
    if len(use.name) > NAME_CHARACTERS_MAX:
        left_out.append(f"{path}: the end of the tool's name")
    if block.malformed_input is None:
        return block
    given = use.input if isinstance(use.input, str) else msgspec.json.encode(use.input).decode()
    if len(given) > ARGUMENTS_BYTES_MAX:
        left_out.append(f"{path}: arguments beyond {ARGUMENTS_BYTES_MAX:,} characters")
    return msgspec.structs.replace(block, malformed_input=clean_text(given[:ARGUMENTS_BYTES_MAX]))


def marked(block: B, mark: JsonObject) -> B:
    """Return a block with a mark; what only one provider knows has none."""
    if not mark or not isinstance(block, TextBlock | ImageBlock | DocumentBlock):
        return block
    return cast("B", msgspec.structs.replace(block, provider_data={**(block.provider_data or {}), MARK: mark}))


def data_of(block: Block, name: str) -> JsonObject:
    """Return what a block's `provider_data` has under a name, empty if nothing."""
    return object_field(_provider_data(block), name)


def _provider_data(block: Block) -> JsonObject:
    if isinstance(block, TextBlock | ImageBlock | DocumentBlock | ThinkingBlock | ToolUseBlock):
        return block.provider_data or {}
    return {}


def runs(content: Sequence[Block]) -> Iterator[tuple[JsonObject, list[Block]]]:
    """Yield neighbouring blocks of one mark, which were one message; a block that has none goes with those before."""
    mark: JsonObject = {}
    marks: list[JsonObject] = []
    for block in content:
        if not isinstance(block, ProviderBlock):
            mark = {name: value for name, value in data_of(block, MARK).items() if name in ("role", "name")}
        marks.append(mark)
    for said, group in groupby(zip(marks, content, strict=True), key=lambda pair: pair[0]):
        yield said, [block for _, block in group]


def foreign(block: Block, own: str, path: str) -> list[str]:
    """Return what of a block only another provider than `own` understands, in words."""
    if isinstance(block, ProviderBlock):
        what = block.data.get("type") or ", ".join(block.data)
        return [f"{path}: {what} of {block.provider}"] if block.provider != own else []
    found = [
        f"{path}: {', '.join(value) if is_json_object(value) else 'data'} of {name}"
        for name, value in _provider_data(block).items()
        if name not in (own, MARK) and value != {"type": "custom"}
    ]
    if isinstance(block, ThinkingBlock) and block.signature is not None and own != "anthropic":
        found.append(f"{path}: the signature of a thought")
    return found


def bytes_of(data: object) -> bytes | None:
    """Return what base64 holds, None if it is none or holds nothing."""
    try:
        return base64.b64decode(str(data), validate=True) or None
    except (binascii.Error, ValueError):
        return None


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
