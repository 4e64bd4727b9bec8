"""What comes from elsewhere, made into what a session records: messages of another system, and a provider's response.

Read `imported_messages` first. Of messages, what is certain is put right: neighbours of one role become one message,
calls get ids of ours, so that no two in the session share one, blank texts go, results move to the message behind their
call, from wherever they stand behind it, a result that is there twice is there once, and a call without one gets a
result that says so. What would need a guess is refused, with the place of the message. Calls of the very last message
stay open: the session closes them by events of its own.

Of a response (`recorded_answer`), text is cleaned, empty blocks are dropped, arguments are brought to a JSON object
where their meaning is certain, and every tool call gets a verdict. What a call finally holds here is what an approval
shows and what executes.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Literal, TypeAlias

import msgspec

from refold.events.core.cleaning import Unrecordable, clean_json, clean_text
from refold.events.core.content import (
    NO_RESULT_TEXT,
    OPENING_TEXT,
    AnswerContent,
    Block,
    ImageBlock,
    JsonObject,
    Message,
    ProviderBlock,
    Role,
    StoredBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    error_result,
    is_json_object,
    without_blanks,
)
from refold.events.core.errors import CommandRejected
from refold.events.core.ids import PayloadHash, ToolCallId
from refold.events.model.messages import ModelResponse, ToolUse
from refold.events.model.payloads import spill
from refold.events.session.events import Verdict

UNEXPLAINED_TEXT = "The tool failed."
"""The result of an imported call that failed and said nothing; providers refuse an error result without text."""


Placed: TypeAlias = list[tuple[int, Block]]
"""Blocks, each with the place of the message that it was given in."""


def imported_messages(messages: Sequence[Message], version: int, *, first: bool) -> tuple[Message, ...]:
    """Return `messages` as they enter the history.

    Args:
        messages: the given history, oldest first; its calls and results are paired by id.
        version: of the event that will hold it; calls get the ids `call_<version>_<index>`.
        first: whether the session's history begins with it; where it begins with an assistant's message, a user's that
            says so goes before it, since no provider takes another beginning.

    Raises:
        CommandRejected: nothing is left to import, or a message cannot stand where it stands; names it (`messages[3]`).
    """
    imported: list[Message] = []
    groups = list(_joined(messages))
    results = _results_by_call(groups)
    calls = 0
    open_calls: list[tuple[ToolCallId, ToolResultBlock | None]] = []
    for group, (role, placed) in enumerate(groups):
        if role == "user":
            content = _user_content(placed, open_calls)
            open_calls = []
        else:
            content, ids = _answer_content(placed, f"call_{version}_", calls)
            calls += len(ids)
            open_calls = [(call, results.get((group, number))) for number, call in enumerate(ids)]
        if imported and imported[-1].role == role:  # Between them were results only, which belong elsewhere.
            imported[-1] = Message(role, (*imported[-1].content, *content))
        elif content:
            imported.append(Message(role, content))
    if not imported:
        raise CommandRejected("there is nothing to import: no message has any content")
    if first and imported[0].role != "user":
        imported.insert(0, Message("user", (TextBlock(text=OPENING_TEXT),)))
    return tuple(imported)


def _joined(messages: Sequence[Message]) -> Iterator[tuple[Role, Placed]]:
    """Yield the role and the blocks of neighbours that have one role, messages without content left out."""
    given = [(place, Message(message.role, without_blanks(message.content))) for place, message in enumerate(messages)]
    for _, group in groupby((one for one in given if one[1].content), key=lambda one: one[1].role):
        neighbours = list(group)
        yield neighbours[0][1].role, [(place, block) for place, message in neighbours for block in message.content]


def _results_by_call(groups: Sequence[tuple[Role, Placed]]) -> dict[tuple[int, int], ToolResultBlock]:
    """Return the result of each call that has one, by the place of its group and its number there.

    A result is of the last answer before it that called its id, and of the first such call in it; where a provider
    repeats ids, results belong to the calls in their order. One that says again what another one said is left out.
    """
    found: dict[tuple[int, int], ToolResultBlock] = {}
    waiting: dict[str, list[tuple[int, int]]] = {}
    said: dict[str, list[ToolResultBlock]] = {}
    for group, (role, placed) in enumerate(groups):
        number = 0
        for place, block in placed:
            if type(block) is ToolUseBlock:
                waiting.setdefault(block.id, []).append((group, number))
                number += 1
            elif type(block) is not ToolResultBlock or role != "user":
                continue
            elif open_calls := waiting.get(block.tool_use_id):
                last = open_calls[-1][0]
                if last < group - 1 and open_calls[0][0] != last:
                    raise CommandRejected(
                        f"messages[{place}] has a result for {block.tool_use_id!r}, which two messages before it call; "
                        "put it behind its call"
                    )
                call = next(one for one in open_calls if one[0] == last)
                open_calls.remove(call)
                found[call] = block
                said.setdefault(block.tool_use_id, []).append(block)
            elif not _is_repeated(block, said.get(block.tool_use_id, [])):
                raise CommandRejected(
                    f"messages[{place}] has a result for {block.tool_use_id!r} that no message before it calls, or "
                    "calls less often; remove it"
                )
    return found


def _is_repeated(result: ToolResultBlock, said: Sequence[ToolResultBlock]) -> bool:
    return any(one.content == result.content and one.is_error == result.is_error for one in said)


def _answer_content(placed: Placed, prefix: str, calls: int) -> tuple[tuple[Block, ...], list[ToolCallId]]:
    """Return an assistant's blocks with ids of ours, and the ids of its calls."""
    blocks: list[Block] = []
    ids: list[ToolCallId] = []
    for place, block in placed:
        if type(block) is ToolResultBlock:
            raise CommandRejected(f"messages[{place}] is the assistant's and holds a tool result; results are a user's")
        if type(block) is not ToolUseBlock:
            blocks.append(block)
            continue
        ids.append(ToolCallId(f"{prefix}{calls + len(ids)}"))
        blocks.append(msgspec.structs.replace(block, id=ids[-1], provider_id=block.provider_id or block.id))
    return tuple(blocks), ids


def _user_content(placed: Placed, open_calls: Sequence[tuple[ToolCallId, ToolResultBlock | None]]) -> tuple[Block, ...]:
    """Return a user's blocks: one result for each open call, in the order of the calls, then everything else."""
    blocks: list[Block] = [
        _renamed(result, call) if result is not None else error_result(call, "crashed", NO_RESULT_TEXT)
        for call, result in open_calls
    ]
    for place, block in placed:
        if isinstance(block, ToolUseBlock | ThinkingBlock):
            raise CommandRejected(f"messages[{place}] is a user's and holds what only an assistant says")
        if type(block) is not ToolResultBlock:
            blocks.append(block)
    return tuple(blocks)


def _renamed(result: ToolResultBlock, call: ToolCallId) -> ToolResultBlock:
    content = without_blanks(result.content)
    if result.is_error and not content:
        content = (TextBlock(text=UNEXPLAINED_TEXT),)
    kind = (result.kind or "permanent") if result.is_error else None
    return ToolResultBlock(tool_use_id=call, content=content, is_error=result.is_error, kind=kind)


ARGUMENTS_BYTES_MAX = 256 * 1024
"""Largest JSON of one call's arguments."""

NAME_CHARACTERS_MAX = 256
"""A model's tool name is cut after so many characters; no tool has a longer one."""

MALFORMED_SHOWN = 500
"""How many characters of unusable arguments are kept as evidence."""

CheckCall = Callable[[str, JsonObject], tuple[JsonObject, Verdict]]
"""Given a tool's name and arguments, returns the arguments to record (repaired where certain) and the verdict."""


class NormalisedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What is recorded of a response."""

    content: tuple[AnswerContent, ...]
    verdicts: tuple[Verdict, ...]
    payloads: dict[PayloadHash, bytes]


def recorded_answer(response: ModelResponse, check: CheckCall) -> NormalisedResponse:
    """Return what is recorded of `response`, large blocks spilled to payloads."""
    content: list[AnswerContent] = []
    verdicts: list[Verdict] = []
    for block in response.content:
        if isinstance(block, ToolUse):
            use, verdict = recorded_call(block, check)
            content.append(use)
            verdicts.append(verdict)
        elif isinstance(block, ToolUseBlock):
            given = ToolUse(name=block.name, input=block.input, id=block.provider_id, provider_data=block.provider_data)
            use, verdict = recorded_call(given, check)
            content.append(use)
            verdicts.append(verdict)
        elif (cleaned := _cleaned(block)) is not None:
            content.append(cleaned)
    kept, payloads = spill(content)
    return NormalisedResponse(content=kept, verdicts=tuple(verdicts), payloads=payloads)


def _cleaned(block: TextBlock | ImageBlock | ThinkingBlock | ProviderBlock | StoredBlock) -> AnswerContent | None:
    """Return a block that can be recorded and sent again, or None for one that is empty."""
    match block:
        case TextBlock(text=text, provider_data=data):
            return TextBlock(text=clean_text(text), provider_data=cleaned_data(data)) if text.strip() else None
        case ThinkingBlock(thinking=thinking, signature=signature, provider_data=data):
            if not thinking and not signature and not data:
                return None
            signed = clean_text(signature) if signature is not None else None
            return ThinkingBlock(thinking=clean_text(thinking), signature=signed, provider_data=cleaned_data(data))
        case ProviderBlock(provider=provider, data=data):
            return ProviderBlock(provider=clean_text(provider), data=cleaned_data(data) or {})
        case _:
            return block


def cleaned_data(data: JsonObject | None) -> JsonObject | None:
    if not data:
        return None
    cleaned = clean_json(data)
    assert is_json_object(cleaned)
    return cleaned


def recorded_call(use: ToolUse, check: CheckCall) -> tuple[ToolUseBlock, Verdict]:
    """Return a model's call in its recorded form, but for its id, which is the session's to give."""
    name = clean_text(use.name)[:NAME_CHARACTERS_MAX]
    provider_id = clean_text(use.id)[:NAME_CHARACTERS_MAX] if use.id is not None else None
    data = cleaned_data(use.provider_data)
    try:
        arguments = _arguments(use.input)
    except Unrecordable as error:
        reason = f"The arguments of {name} cannot be used: {error}. Give one JSON object that fits the tool's schema."
        return (
            ToolUseBlock(
                id=ToolCallId(""),
                name=name,
                input={},
                provider_id=provider_id,
                malformed_input=_shown(use.input),
                provider_data=data,
            ),
            Verdict(verdict="invalid_arguments", reason=reason),
        )
    checked, verdict = check(name, arguments)
    block = ToolUseBlock(id=ToolCallId(""), name=name, input=checked, provider_id=provider_id, provider_data=data)
    return block, verdict


def _arguments(given: object) -> JsonObject:
    """Return arguments as a JSON object; none at all (empty or blank text, null) are an empty one."""
    value = given
    if isinstance(value, str | bytes):
        if not value.strip():
            return {}
        try:
            value = msgspec.json.decode(value if isinstance(value, bytes) else clean_text(value))
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise Unrecordable("$", f"is not valid JSON ({error!s:.100})") from None
    if value is None:
        return {}
    if not is_json_object(value):
        raise Unrecordable("$", f"is {_json_type(value)}, not an object")
    cleaned = clean_json(value)
    assert is_json_object(cleaned)
    size = len(msgspec.json.encode(cleaned))
    if size > ARGUMENTS_BYTES_MAX:
        raise Unrecordable("$", f"has {size:,} bytes; at most {ARGUMENTS_BYTES_MAX:,} are accepted")
    return cleaned


def _json_type(value: object) -> Literal["an array", "text", "a boolean", "a number", "something else"]:
    if isinstance(value, list | tuple):
        return "an array"
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool):
        return "a boolean"
    return "a number" if isinstance(value, int | float) else "something else"


def _shown(given: object) -> str:
    if isinstance(given, bytes):
        return given[:MALFORMED_SHOWN].decode(errors="replace")
    if isinstance(given, str):
        return clean_text(given[:MALFORMED_SHOWN])
    try:
        return clean_text(repr(given)[:MALFORMED_SHOWN])
    except (RecursionError, ValueError):
        return f"({type(given).__name__} that cannot be shown)"
