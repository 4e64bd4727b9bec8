"""Histories in the form of the Messages API.

Sources: `anthropic.types.message_param` and the params in it; "Mid-conversation system messages"
(platform.claude.com/docs). Read `history_from_anthropic` first; the reader of answers reads what the assistant said.
"""

from collections.abc import Sequence

from refold.events.core.content import (
    Block,
    DocumentBlock,
    GivenContent,
    ImageBlock,
    Json,
    JsonObject,
    Message,
    ProviderBlock,
    StoredBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    is_json_array,
    is_json_object,
    without_blanks,
)
from refold.events.core.errors import ConfigError, ProviderError
from refold.events.model.messages import ToolUse
from refold.providers.anthropic.answer import content_of
from refold.providers.anthropic.history import NAME as ANTHROPIC
from refold.providers.anthropic.request import wire_block
from refold.providers.histories.wire_history import (
    MARK,
    CallBook,
    WireHistory,
    WireMessages,
    bytes_of,
    call_of,
    data_of,
    foreign,
    is_utf8,
    marked,
    messages_in,
    others,
    parts_in,
    runs,
)
from refold.providers.http.wire import encoded, object_field

_RESULT_FIELDS = {"type": str, "tool_use_id": str, "name": str, "content": object, "is_error": bool}


def history_from_anthropic(given: WireMessages) -> WireHistory:
    """Return a history of the Messages API as ours.

    Messages of the system at its beginning are the system prompt, behind the `system` of a body; later ones become a
    user's text that is marked, so that they are written as what they were.

    Args:
        given: the `messages`, or the body of a request, of which `system` is read, too, and nothing else.

    Raises:
        ConfigError: it is no such history, or a result's call is not certain; names the message.
    """
    body, messages = messages_in(given)
    left_out: list[str] = []
    system = _system_texts(body.get("system"), "system", left_out)
    book = CallBook()
    read: list[Message] = []
    for place, message in enumerate(messages):
        path = f"messages[{place}]"
        left_out += others(message, {"role": str, "content": object}, path)
        match message.get("role"):
            case "system" if not any(message.content for message in read):
                system += _system_texts(message.get("content"), f"{path}.content", left_out)
            case "assistant":
                read.append(Message("assistant", _answer(message, place, book, left_out)))
            case "user" | "system" as role:
                parts = enumerate(_parts(message, path))
                blocks = [_block(part, f"{path}.content[{number}]", book, left_out) for number, part in parts]
                mark: JsonObject = {"role": role} if role == "system" else {}
                read.append(Message("user", tuple(marked(block, mark) for block in without_blanks(blocks))))
            case role:
                raise ConfigError(f"{path} has the role {role!r:.40}; there are user, assistant and system")
    book.settle()
    return WireHistory(messages=read, system_prompt="\n\n".join(system), left_out=left_out)


def _system_texts(given: Json, path: str, left_out: list[str]) -> list[str]:
    texts: list[str] = []
    for number, part in enumerate(given if is_json_array(given) else [given] if given else []):
        text = part.get("text") if is_json_object(part) else part
        if isinstance(text, str):
            texts += [text] if text else []
        else:
            left_out.append(f"{path}[{number}]")
    return texts


def _parts(message: JsonObject, path: str) -> list[Json]:
    given = parts_in(message.get("content"), path)
    parts: list[Json] = [{"type": "text", "text": part} if isinstance(part, str) else part for part in given]
    # The marker that tells what may be cached is set anew by each request.
    return [
        {field: value for field, value in part.items() if field != "cache_control"} if is_json_object(part) else part
        for part in parts
    ]


def _answer(message: JsonObject, place: int, book: CallBook, left_out: list[str]) -> tuple[Block, ...]:
    path = f"messages[{place}]"
    blocks: list[Block] = []
    calls: list[ToolUseBlock] = []
    for number, part in enumerate(_parts(message, path)):
        try:
            block = content_of(part, str)
        except ProviderError as error:
            raise ConfigError(f"{path} cannot be understood: {error}") from None
        if isinstance(block, ToolUse):
            calls.append(call_of(block, f"{path}.content[{number}]", left_out))
            blocks.append(calls[-1])
        else:
            assert not isinstance(block, ToolUseBlock)
            blocks.append(block)
    named = iter(book.called(calls, place))
    return tuple(next(named) if isinstance(block, ToolUseBlock) else block for block in without_blanks(blocks))


def _block(part: Json, path: str, book: CallBook, left_out: list[str]) -> Block:
    if not is_json_object(part) or not isinstance(part.get("type"), str):
        raise ConfigError(f"{path} is no object with a type")
    match part["type"]:
        case "text" if isinstance(part.get("text"), str):
            left_out += others(part, {"type": str, "text": str}, path)
            return TextBlock(text=str(part["text"]))
        case "image" if (image := _image(part)) is not None:
            return image
        case "document" if (document := _document(part)) is not None:
            return document
        case "tool_result":
            return _result(part, path, book, left_out)
        case _:
            return ProviderBlock(provider=ANTHROPIC, data=part)


def _own(part: JsonObject, known: tuple[str, ...]) -> JsonObject | None:
    own = {field: value for field, value in part.items() if field not in known and value is not None}
    return {ANTHROPIC: own} if own else None


def _image(part: JsonObject) -> ImageBlock | None:
    source, own = object_field(part, "source"), _own(part, ("type", "source"))
    match source:
        case {"type": "url", "url": str(url)} if len(source) == 2:
            return ImageBlock(url=url, provider_data=own)
        case {"type": "base64", "media_type": str(media_type), "data": str(data)} if len(source) == 3:
            content = bytes_of(data)
            return ImageBlock(media_type=media_type, data=content, provider_data=own) if content is not None else None
        case _:
            return None


def _document(part: JsonObject) -> DocumentBlock | None:
    """Return a document as every provider can be given it, or None if it is of a kind that only this one has."""
    source, title, own = object_field(part, "source"), part.get("title") or "", _own(part, ("type", "source", "title"))
    if not isinstance(title, str):
        return None
    match source:
        case {"type": "url", "url": str(url)} if len(source) == 2:
            return DocumentBlock(url=url, name=title, provider_data=own)
        case {"type": "text", "media_type": "text/plain", "data": str(text)} if len(source) == 3 and text:
            data = text.encode(errors="replace")
            return DocumentBlock(media_type="text/plain", data=data, name=title, provider_data=own)
        case {"type": "base64", "media_type": str(media_type), "data": str(data)} if len(source) == 3:
            content = bytes_of(data) if not media_type.startswith("text/") else None
            if content is None:
                return None
            return DocumentBlock(media_type=media_type, data=content, name=title, provider_data=own)
        case _:
            return None


def _result(part: JsonObject, path: str, book: CallBook, left_out: list[str]) -> ToolResultBlock:
    call = book.answered(part.get("tool_use_id"), part.get("name"), path)
    blocks: list[GivenContent] = []
    for number, item in enumerate(_parts(part, path)):
        block = _block(item, f"{path}.content[{number}]", book, left_out)
        # A result of ours is text, images and documents; what else there is, is kept as its JSON.
        blocks.append(block if isinstance(block, GivenContent) else TextBlock(text=encoded(item).decode()))
    left_out += others(part, _RESULT_FIELDS, path)
    failed = part.get("is_error") is True
    return ToolResultBlock(tool_use_id=call, content=without_blanks(blocks), is_error=failed)


def history_to_anthropic(
    messages: Sequence[Message], *, system_prompt: str = "", left_out: list[str] | None = None
) -> JsonObject:
    """Return `system` (where there is one) and `messages` in the form of the Messages API.

    They are the messages that were read, in their order; nothing is put in. What kind of error a result was is not in
    this form.

    Args:
        messages: as `Session.history` or `history_from_anthropic` give them.
        system_prompt: of the agent.
        left_out: gets what this form cannot hold, in words, by its place.

    Raises:
        ConfigError: a part is where it cannot be, or was not loaded; names the message.
    """
    notes = left_out if left_out is not None else []
    written: list[Json] = []
    for place, message in enumerate(messages):
        for mark, blocks in runs(message.content):
            path = f"messages[{place}]"
            content = [part for block in blocks for part in _written(block, message.role, path, notes)]
            notes += [f"{path}: the name {mark['name']!r:.80}"] if "name" in mark else []
            if content:
                role = "system" if mark.get("role") in ("system", "developer") else message.role
                written.append({"role": role, "content": content})
    return {**({"system": system_prompt} if system_prompt.strip() else {}), "messages": written}


def _written(block: Block, role: str, path: str, notes: list[str]) -> list[Json]:
    """Return a block as the form has it, in a list that is empty for what it has not."""
    notes += foreign(block, ANTHROPIC, path)
    if data_of(block, MARK).get("refusal") is True:
        notes.append(f"{path}: that the text is a refusal")
    if isinstance(block, DocumentBlock) and block.media_type.startswith("text/") and not is_utf8(block.data):
        notes.append(f"{path}: bytes of a text that is not UTF-8")
    match block:
        case StoredBlock():
            raise ConfigError(f"{path} holds a stored block whose payload was not loaded")
        case ProviderBlock(provider=provider):
            return [block.data] if provider == ANTHROPIC else []
        case TextBlock(text=text) if not text.strip():
            return []
        case ToolUseBlock(id=call, name=name, malformed_input=malformed):
            if role == "user":
                raise ConfigError(f"{path} is a user's and holds what only an assistant says")
            if malformed is not None:
                notes.append(f"{path}: the arguments of {call}, which are no JSON object: {malformed}")
            return [{**wire_block(block, role), "id": call, "name": name}]
        case ThinkingBlock() if role == "user":
            raise ConfigError(f"{path} is a user's and holds what only an assistant says")
        case ToolResultBlock(tool_use_id=call, content=content, is_error=failed):
            shown = [part for inner in content for part in _written(inner, "user", path, notes)]
            result: JsonObject = {"type": "tool_result", "tool_use_id": call}
            return [{**result, **({"content": shown} if shown else {}), **({"is_error": True} if failed else {})}]
        case _:
            return [wire_block(block, role)]
