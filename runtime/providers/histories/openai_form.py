"""Histories in the form of Chat Completions, and in Ollama's, which differs in little.

Sources: `openai.types.chat` (openai 3.57), the message params in it; "Tool calling" and "Thinking" in Ollama's API
documentation: arguments are an object, calls have no ids, results a `tool_name`, users' messages `images`. Read
`history_from_openai` first. What our blocks have no word for lies in their `provider_data` or in a `ProviderBlock`, and
is written back.
"""

import base64
from collections.abc import Sequence
from typing import Final

from refold.events.core.content import (
    OPENING_TEXT,
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
from refold.providers.http.wire import ToolNames, encoded, object_field, text_field
from refold.providers.openai.calls import CallAssembly
from refold.providers.openai.request import MEDIA_TYPE, call_part, media_part
from refold.providers.openai.thoughts import TaggedThinking, TaggedThoughts, thoughts_in

OPENAI: Final = "openai"

_OPENING: Final = Message("user", (TextBlock(text=OPENING_TEXT),))

_TEXT_TYPES = (None, "text", "input_text", "output_text")

_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Fields of a message; where there are more they say the same, so the first counts."""

_FIELDS: dict[str, type] = {"role": str, "content": object}
_USER_FIELDS: dict[str, type] = {**_FIELDS, "name": str, "images": list}
_RESULT_FIELDS: dict[str, type] = {**_FIELDS, "tool_call_id": str, "name": str, "tool_name": str}
_ANSWER_FIELDS: dict[str, type] = {
    **dict.fromkeys(_THOUGHTS, str),
    **_USER_FIELDS,
    "refusal": str,
    "tool_calls": object,
    "function_call": dict,
    "audio": dict,
    "annotations": list,
    "extra_content": dict,
    "reasoning_details": list,
}

_IMAGE_BEGINNINGS = {
    b"\x89PNG": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"RIFF": "image/webp",
}


def history_from_openai(given: WireMessages, *, thoughts_in_text: TaggedThinking | None = None) -> WireHistory:
    """Return a history of the Chat Completions API, or of Ollama's, as ours.

    Messages of the system or the developer at its beginning are the system prompt; later ones become a user's text that
    is marked, so that they are written as what they were. A result that names its tool and no call belongs to the open
    call of that tool.

    Args:
        given: the `messages`, or the body of a request, of which nothing else is read.
        thoughts_in_text: how the model marked thoughts within its text, as the setting of `OpenAIProvider`; None = it
            did not, so that what looks like a tag is text.

    Raises:
        ConfigError: it is no such history, or a result's call is not certain; names the message.
    """
    _, messages = messages_in(given)
    reader = _Reader(thoughts_in_text)
    for place, message in enumerate(messages):
        reader.read(message, place)
    return reader.history()


class _Reader:
    def __init__(self, thoughts_in_text: TaggedThinking | None) -> None:
        self._thoughts_in_text = thoughts_in_text
        self._system: list[str] = []
        self._messages: list[Message] = []
        self._left_out: list[str] = []
        self._book = CallBook()

    def history(self) -> WireHistory:
        self._book.settle()
        prompt = "\n\n".join(text for text in self._system if text)
        return WireHistory(messages=self._messages, system_prompt=prompt, left_out=self._left_out)

    def read(self, message: JsonObject, place: int) -> None:
        path = f"messages[{place}]"
        match message.get("role"):
            case "system" | "developer" if not any(message.content for message in self._messages):
                self._read_system(message, path)
            case "system" | "developer" | "user" as role:
                self._read_user(message, str(role), path)
            case "assistant":
                self._messages.append(Message("assistant", self._answer(message, place, path)))
            case "tool" | "function":
                self._read_result(message, path)
            case role:
                raise ConfigError(
                    f"{path} has the role {role!r:.40}; there are system, developer, user, assistant, tool"
                )

    def _read_system(self, message: JsonObject, path: str) -> None:
        parts = self._parts(message.get("content"), path)
        self._system.append("\n\n".join(part.text for part in parts if isinstance(part, TextBlock)))
        self._left_out += [f"{path}: {type(part).__name__}" for part in parts if not isinstance(part, TextBlock)]
        self._left_out += others(message, _FIELDS, path)

    def _read_user(self, message: JsonObject, role: str, path: str) -> None:
        mark: JsonObject = {} if role == "user" else {"role": role}
        if isinstance(name := message.get("name"), str) and name:
            mark["name"] = name
        blocks = self._parts(message.get("content"), path)
        blocks += self._images(message.get("images"), path)
        if mark and not any(isinstance(block, GivenContent) for block in blocks):
            self._left_out += [f"{path}.{field}" for field in mark]
        self._left_out += others(message, _USER_FIELDS, path)
        self._messages.append(Message("user", tuple(marked(block, mark) for block in blocks)))

    def _read_result(self, message: JsonObject, path: str) -> None:
        name = message.get("name") or message.get("tool_name")
        call = self._book.answered(message.get("tool_call_id"), name, path)
        shown: list[GivenContent] = []
        content = message.get("content")
        if is_json_object(content):  # Some keep what the tool returned.
            content = encoded(content).decode()
        for part in self._parts(content, path):
            # A result of ours is text, images and documents; what else there is, is kept as its JSON.
            shown.append(TextBlock(text=encoded(part.data).decode()) if isinstance(part, ProviderBlock) else part)
        self._left_out += others(message, _RESULT_FIELDS, path)
        self._messages.append(Message("user", (ToolResultBlock(tool_use_id=call, content=tuple(shown)),)))

    def _answer(self, message: JsonObject, place: int, path: str) -> tuple[Block, ...]:
        said = self._said(message, path)
        annotations, audio = message.get("annotations"), object_field(message, "audio")
        fields: JsonObject = {}
        extra: JsonObject = {}
        for vendor, value in object_field(message, "extra_content").items():
            kept = {key: item for key, item in value.items() if key != "thought"} if is_json_object(value) else value
            extra.update({vendor: kept} if kept else {})
        if extra:
            fields["extra_content"] = extra
        if name := text_field(message, "name"):
            fields["name"] = name
        if audio and isinstance(spoken := audio.get("transcript"), str) and spoken.strip():
            said.append(TextBlock(text=spoken, provider_data={OPENAI: {"audio": audio}}))
        elif audio:
            fields["audio"] = audio
        if is_json_array(annotations) and annotations:
            first = next((number for number, block in enumerate(said) if isinstance(block, TextBlock)), None)
            if first is None:
                fields["annotations"] = annotations
            else:
                data = {**data_of(said[first], OPENAI), "annotations": annotations}
                said[first] = _with_data(said[first], data)
        refusal = message.get("refusal")
        if isinstance(refusal, str) and refusal.strip():
            said.append(marked(TextBlock(text=refusal), {"refusal": True}))
        said += self._images(message.get("images"), path)
        calls = self._book.called(self._calls(message, path), place)
        further = [ProviderBlock(provider=OPENAI, data=fields)] if fields else []
        return (*self._thoughts(message, path), *further, *said, *calls)

    def _thoughts(self, message: JsonObject, path: str) -> list[Block]:
        given = [(field, text) for field in _THOUGHTS if (text := text_field(message, field))]
        text = given[0][1] if given else ""
        self._left_out += [f"{path}.{field}" for field, other in given if other != text]
        self._left_out += others(message, _ANSWER_FIELDS, path)
        details = message.get("reasoning_details")
        if not is_json_array(details) or not details:
            return [ThinkingBlock(thinking=text)] if text else []
        entries = [entry for entry in details if is_json_object(entry)]
        shown = text or "".join(text_field(entry, "text") or text_field(entry, "summary") for entry in entries)
        return [ThinkingBlock(thinking=shown, provider_data={OPENAI: {"reasoning_details": details}})]

    def _said(self, message: JsonObject, path: str) -> list[Block]:
        content = message.get("content")
        if not isinstance(content, str) or not content.strip():
            return [_thought_in(part) or part for part in self._parts(content, path)]
        vendors = object_field(message, "extra_content").values()
        tagged: TaggedThoughts | None = None
        if content.startswith("<thought>") and any(is_json_object(v) and v.get("thought") is True for v in vendors):
            tagged = TaggedThoughts("thought")  # Gemini's, which says so beside it.
        elif self._thoughts_in_text is not None:
            tagged = TaggedThoughts("think", begun=self._thoughts_in_text == "end_tag")
        if tagged is None:
            return [TextBlock(text=content)]
        thoughts, text = (first + rest for first, rest in zip(tagged.split(content), tagged.rest(), strict=True))
        if tagged.are_open and not message.get("tool_calls"):
            return [TextBlock(text=content)]  # An answer that is nothing but a thought without an end.
        blocks: list[Block] = [ThinkingBlock(thinking=thoughts)] if thoughts else []
        return [*blocks, TextBlock(text=text)] if text.strip() else blocks

    def _calls(self, message: JsonObject, path: str) -> list[ToolUseBlock]:
        given = message.get("tool_calls") or list[Json]()
        calls: list[Json] = [given] if is_json_object(given) else []
        if is_json_array(given):
            calls = given
        elif not calls:
            raise ConfigError(f"{path} has tool_calls that are no list")
        if legacy := object_field(message, "function_call"):
            self._left_out += [f"{path}.function_call"] if calls else []
            calls = calls or [{"function": legacy}]
        read: list[ToolUseBlock] = []
        for number, call in enumerate(calls):
            assembly = CallAssembly(OPENAI, ToolNames())
            assembly.add_whole([call])
            try:
                uses: list[ToolUse] = assembly.uses()
            except ProviderError as error:
                raise ConfigError(f"{path} cannot be understood: {error}") from None
            if not uses:
                raise ConfigError(f"{path}.tool_calls[{number}] calls nothing: it has neither a function nor an input")
            read.append(call_of(uses[0], f"{path}.tool_calls[{number}]", self._left_out))
        return read

    def _parts(self, content: object, path: str) -> list[GivenContent | ProviderBlock]:
        parts = enumerate(parts_in(content, path))
        return list(without_blanks(self._part(part, f"{path}.content[{number}]") for number, part in parts))

    def _part(self, part: Json, path: str) -> GivenContent | ProviderBlock:
        if isinstance(part, str):
            return TextBlock(text=part)
        if not is_json_object(part):
            raise ConfigError(f"{path} is neither a text nor an object")
        kind = part.get("type")
        if kind in _TEXT_TYPES and isinstance(text := part.get("text"), str):
            self._left_out += others(part, {"type": str, "text": str, "cache_control": object}, path)
            return TextBlock(text=text)
        if kind == "refusal" and isinstance(text := part.get("refusal"), str):
            return marked(TextBlock(text=text), {"refusal": True})
        known = all(field in ("type", "image_url", "file", "cache_control") for field in part)
        media = (_image(part.get("image_url")) or _document(part.get("file"))) if known else None
        return media or ProviderBlock(provider=OPENAI, data=part)

    def _images(self, images: Json, path: str) -> list[GivenContent | ProviderBlock]:
        """Return images that a message has beside its content: OpenRouter's as parts, Ollama's as base64."""
        blocks: list[GivenContent | ProviderBlock] = []
        for number, image in enumerate(images if is_json_array(images) else []):
            if is_json_object(image):
                blocks.append(self._part(image, f"{path}.images[{number}]"))
                continue
            content = bytes_of(image)
            kind = next((kind for begins, kind in _IMAGE_BEGINNINGS.items() if (content or b"").startswith(begins)), "")
            if content is None or not kind:
                self._left_out.append(f"{path}.images[{number}]: it is of no known kind")
            else:
                blocks.append(ImageBlock(media_type=kind, data=content))
        return blocks


def _thought_in(part: GivenContent | ProviderBlock) -> ThinkingBlock | None:
    """Return the thought that a part is, as Mistral has them within the content of an answer."""
    if not isinstance(part, ProviderBlock) or part.data.get("type") != "thinking":
        return None
    thoughts = thoughts_in(part.data.get("thinking"))
    return ThinkingBlock(thinking=thoughts) if thoughts else None


def _with_data(block: Block, data: JsonObject) -> Block:
    assert isinstance(block, TextBlock)
    return TextBlock(text=block.text, provider_data={**(block.provider_data or {}), OPENAI: data})


def _image(given: object) -> ImageBlock | None:
    fields: JsonObject = given if is_json_object(given) else {"url": given}
    url, own = fields.get("url"), {field: value for field, value in fields.items() if field != "url"}
    data: JsonObject | None = {OPENAI: own} if own else None
    if isinstance(url, str) and url.startswith(("https://", "http://")) and url.isascii() and url.isprintable():
        return ImageBlock(url=url, provider_data=data) if " " not in url else None
    media_type, content = _data_in(url)
    return ImageBlock(media_type=media_type, data=content, provider_data=data) if content is not None else None


def _document(given: object) -> DocumentBlock | None:
    if not is_json_object(given) or not all(field in ("file_data", "filename") for field in given):
        return None
    media_type, content = _data_in(given.get("file_data"))
    name = given.get("filename") or ""
    if content is None or not isinstance(name, str):
        return None
    data: JsonObject | None = {OPENAI: {"type": "file"}} if media_type.startswith("text/") else None
    return DocumentBlock(media_type=media_type, data=content, name=name, provider_data=data)


def _data_in(url: object) -> tuple[str, bytes | None]:
    """Return the media type of a `data:` address, and what it holds; None if it is no such address."""
    head, comma, data = str(url).partition(",")
    media_type = head.removeprefix("data:").removesuffix(";base64")
    if not comma or head != f"data:{media_type};base64" or not MEDIA_TYPE.fullmatch(media_type):
        return "", None
    return media_type, bytes_of(data)


def history_to_openai(
    messages: Sequence[Message],
    *,
    system_prompt: str = "",
    thoughts_in_text: bool = False,
    left_out: list[str] | None = None,
) -> JsonObject:
    """Return `messages` in the form of the Chat Completions API, the system prompt first, where there is one.

    They are the messages that were read, in their order, as a reader or a server is to have them; nothing is put in. A
    result that is an error begins with "Error: ", since this form has no other sign of it.

    Args:
        messages: as `Session.history` or `history_from_openai` give them.
        system_prompt: of the agent.
        thoughts_in_text: whether thoughts stand as `<think>…</think>` before the text, as models without a parser
            write them; else they are in `reasoning_content`.
        left_out: gets what this form cannot hold, in words, by its place.

    Raises:
        ConfigError: a part is where it cannot be, or was not loaded; names the message.
    """
    if messages and messages[0] == _OPENING:
        messages = messages[1:]  # Only providers that want a user's message first were in need of it.
    writer = _Writer(left_out if left_out is not None else [], thoughts_in_text=thoughts_in_text)
    for place, message in enumerate(messages):
        path = f"messages[{place}]"
        writer.check(message, path)
        if message.role == "user":
            writer.write_user(message.content, path)
        else:
            writer.write_answer(message.content, path)
    system: list[Json] = [{"role": "system", "content": system_prompt}] if system_prompt.strip() else []
    return {"messages": [*system, *writer.messages]}


class _Writer:
    def __init__(self, left_out: list[str], *, thoughts_in_text: bool) -> None:
        self.messages: list[Json] = []
        self._left_out = left_out
        self._thoughts_in_text = thoughts_in_text

    def check(self, message: Message, path: str) -> None:
        for number, block in enumerate(message.content):
            parts = block.content if isinstance(block, ToolResultBlock) else (block,)
            if any(isinstance(part, StoredBlock) for part in parts):
                raise ConfigError(f"{path}.content[{number}] is a stored block whose payload was not loaded")
            if message.role == "user" and isinstance(block, ToolUseBlock | ThinkingBlock):
                raise ConfigError(f"{path} is a user's and holds what only an assistant says")
            for part in parts:
                self._left_out += foreign(part, OPENAI, f"{path}.content[{number}]")
                if isinstance(part, ImageBlock) and part.url is None and not MEDIA_TYPE.fullmatch(part.media_type):
                    self._left_out.append(f"{path}.content[{number}]: an image of type {part.media_type!r:.80}")

    def write_user(self, content: Sequence[Block], path: str) -> None:
        shown: list[Json] = []
        for block in content:
            if isinstance(block, ToolResultBlock):
                shown += self._result(block)
        said = [block for block in content if not isinstance(block, ToolResultBlock)]
        for number, (mark, blocks) in enumerate(runs(said) if said else [({}, [])]):
            parts = [part for block in blocks if (part := _part(block)) is not None]
            self._write(mark, [*shown, *parts] if number == 0 else parts)

    def _write(self, mark: JsonObject, parts: list[Json]) -> None:
        if parts:
            name: JsonObject = {"name": mark["name"]} if "name" in mark else {}
            self.messages.append({"role": mark.get("role", "user"), **name, "content": _content(parts)})

    def _result(self, result: ToolResultBlock) -> list[Json]:
        """Write a result, and return what it shows besides text, which the form has in a user's message only."""
        texts = [block.text for block in result.content if isinstance(block, TextBlock) and block.text.strip()]
        shown = [_part(block) for block in result.content if not isinstance(block, TextBlock)]
        if result.is_error and not result.text.lower().startswith("error"):
            texts = [f"Error: {texts[0] if texts else ''}", *texts[1:]]
        parts: list[Json] = [{"type": "text", "text": text} for text in texts]
        content = _content(parts) if parts else ""
        self.messages.append({"role": "tool", "tool_call_id": result.tool_use_id, "content": content})
        return [{"type": "text", "text": f"Of the result of {result.tool_use_id}:"}, *shown] if shown else []

    def write_answer(self, content: Sequence[Block], path: str) -> None:
        message: JsonObject = {"role": "assistant"}
        parts: list[Json] = []
        images: list[Json] = []
        thoughts: list[str] = []
        details: list[Json] = []
        annotations: list[Json] = []
        fields: JsonObject = {}
        for block in content:
            own = data_of(block, OPENAI)
            annotations += found if is_json_array(found := own.get("annotations")) else []
            match block:
                case ThinkingBlock(thinking=thinking):
                    thoughts += [thinking] if thinking else []
                    details += found if is_json_array(found := own.get("reasoning_details")) else []
                case ProviderBlock(data=data) if "type" not in data:
                    fields.update(data if block.provider == OPENAI else {})
                case TextBlock() if "audio" in own:
                    fields["audio"] = own["audio"]
                case ImageBlock() | DocumentBlock():
                    images.append(_part(block))
                case _:
                    parts += [part] if (part := _part(block)) is not None else []
        calls = [_call(block) for block in content if isinstance(block, ToolUseBlock)]
        self._left_out += [f"{path}: the place of thoughts"] if _are_late(content) else []
        thought = "\n\n".join(thoughts)
        if thought and self._thoughts_in_text and all(_text_of(part) is not None for part in parts):
            text = "".join(str(_text_of(part)) for part in parts)
            text = f"<think>{thought}</think>" + (f"\n\n{text}" if text else "")
            parts[:], thought = [{"type": "text", "text": text}], ""
        if len(parts) == 1 and is_json_object(parts[0]) and parts[0].get("type") == "refusal":
            fields["refusal"], parts = parts[0]["refusal"], []
        message["content"] = _content(parts) if parts else None if calls or fields or images else ""
        further: JsonObject = {
            "reasoning_content": thought,
            "reasoning_details": details,
            "annotations": annotations,
            "images": images,
            "tool_calls": calls,
        }
        written: JsonObject = {**message, **{field: value for field, value in further.items() if value}, **fields}
        if parts or len(written) > 2:
            self.messages.append(written)
        for block in content:
            if isinstance(block, ToolResultBlock):
                self._write({}, self._result(block))


def _are_late(content: Sequence[Block]) -> bool:
    """Tell whether a thought stands behind what was said, where this form does not have it."""
    kinds = [isinstance(block, ThinkingBlock) for block in content if not isinstance(block, ProviderBlock)]
    return kinds != sorted(kinds, reverse=True)


def _text_of(part: Json) -> str | None:
    text = part.get("text") if is_json_object(part) else None
    return text if isinstance(text, str) else None


def _content(parts: list[Json]) -> Json:
    text = _text_of(parts[0])
    return text if len(parts) == 1 and text is not None else parts


def _part(block: Block) -> Json | None:
    """Return a part of a content, or None for a block that is none, and for blank text."""
    match block:
        case TextBlock(text=text):
            if not text.strip():
                return None
            refused = data_of(block, MARK).get("refusal") is True
            return {"type": "refusal", "refusal": text} if refused else {"type": "text", "text": text}
        case ImageBlock(media_type=media_type, url=None) if not MEDIA_TYPE.fullmatch(media_type):
            return {"type": "text", "text": f"(An image of type {media_type[:100]!r} that cannot be shown.)"}
        case DocumentBlock(media_type=media_type, data=data, url=None, name=name) if data:
            if media_type.startswith("text/") and is_utf8(data) and not data_of(block, OPENAI):
                return media_part(block, OPENAI)
            held = f"data:{media_type};base64,{base64.b64encode(data).decode()}"
            return {"type": "file", "file": {**({"filename": name} if name else {}), "file_data": held}}
        case ImageBlock() | DocumentBlock():
            return media_part(block, OPENAI)
        case ProviderBlock(data=data) if block.provider == OPENAI and "type" in data:
            return data
        case _:
            return None


def _call(call: ToolUseBlock) -> Json:
    own = data_of(call, OPENAI)
    return call_part(call, own, name=call.name, identifier=call.id, arguments=call.malformed_input)
