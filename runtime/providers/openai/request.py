"""A model request as the body of a Chat Completions request.

Sources: `openai.types.chat.completion_create_params` and the message params beside it (openai 3.57), and what
compatible servers refuse of it. The rules:

- Text alone goes as one string and not as an array of parts, which DeepSeek and others refuse (cline/cline#230); an
  assistant message that only calls tools has the content null.
- Tool messages follow their calls at once, in the order of the calls; they take text only, so images of results come
  in the user message behind them.
- Calls go out under our own ids, names and ids in the form that is accepted (`names`).
- The first message is a user's, and where a server wants it, an assistant's message stands between results and what a
  user says next ("Unexpected role 'user' after role 'tool'", Mistral).
- Histories of Refold are balanced already. Of any other, neighbours of one role are joined, a result is moved to its
  call, a call without a result gets one that says so, a result without a call and what is blank is left out. Two calls
  with one id in one answer are refused: which result is whose cannot be told.
"""

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NoReturn, TypeAlias, get_args

import msgspec

from refold.events.core.content import (
    OPENING_TEXT,
    Block,
    DocumentBlock,
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
    is_json_object,
    tool_uses,
    without_blanks,
)
from refold.events.core.errors import ConfigError, ProviderError
from refold.events.model.configuration import ToolSpec
from refold.events.model.messages import ModelRequest
from refold.providers.http.closed_schema import closed_schema
from refold.providers.http.wire import encoded, object_field
from refold.providers.openai.names import call_id_forms, name_forms
from refold.providers.openai.thoughts import TaggedThinking

NO_RESULT_TEXT = "No result of this call is known; it may or may not have run."
"""The result of a call that has none in the history."""

EMPTY_RESULT_TEXT = "(no output)"
"""The text of a result without any, which some servers refuse."""

ASSISTANT_IMAGE_TEXT = "(The assistant gave an image.)"
"""Stands for an image in an assistant's message, which the API does not take back."""

BETWEEN_TEXT = "(The results are in.)"
"""What an assistant says between results and the next input, where a server takes no user's message behind results."""

STOP_SEQUENCES_MAX = 4

DESCRIPTION_CHARACTERS_MAX = 1024
"""Of a tool; OpenAI's error says "Expected a string with maximum length 1024" (getsentry/sentry-mcp#106)."""

_OF_MISTRAL = re.compile(r"(mi|mini|magi|dev|code|math)stral|(mix|pix|vox)tral", re.IGNORECASE)
"""Models whose chat templates want an assistant's message there, on any server, such as `mistralai/Ministral-8B`."""

ReturnedReasoning: TypeAlias = Literal["reasoning_content", "reasoning", "reasoning_details"]
"""The field in which a server wants earlier reasoning back.

`reasoning_content`: DeepSeek's thinking mode, Kimi and others, which want it on every assistant message. `reasoning`:
vLLM since 0.16, gpt-oss. `reasoning_details`: OpenRouter's signed or encrypted pieces, verbatim.
"""

StructuredOutput: TypeAlias = Literal["json_schema", "json_object", "prompt"]
"""How a server holds its model to the schema of an answer that is data.

`json_schema`: by `response_format`, in the closed form that OpenAI's strict mode takes; a schema without one is told in
the prompt only. `json_object`: any JSON object, the prompt says which. `prompt`: not at all. The answer is checked in
each case.
"""

MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+", re.ASCII)
_MAX_TOKENS_FIELDS = ("max_completion_tokens", "max_tokens")
_FIXED_FIELDS = ("model", "messages", "stream", "n")
"""Without these an answer could not be read any more."""
_OWN_FIELDS = ("role", "content", "tool_calls", "annotations")


class OpenAISettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a server of the Chat Completions API wants to be asked.

    Raises:
        ConfigError: a setting is one that cannot work.
    """

    name: str = "openai"
    """The provider's name: whose `ProviderBlock`s and `provider_data` go back to it."""
    max_tokens_field: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    """OpenAI's reasoning models refuse the second; most compatible servers know only the second."""
    include_usage: bool = True
    """Whether a stream is asked for the tokens that it cost; a few older servers refuse the field."""
    parallel_tool_calls: bool | None = None
    """Whether an answer may call several tools; None = the server's default. Sent only together with tools."""
    reasoning_effort: str | None = None
    """As the model knows it, such as `low`; None = not sent."""
    return_reasoning: ReturnedReasoning | None = None
    """None = reasoning is never sent back, as OpenAI wants it."""
    answer_after_tools: bool | None = None
    """Whether an assistant's message stands between results of tools and what a user says next; None = where the model
    is one of Mistral's."""
    structured_output: StructuredOutput = "prompt"
    """How the model is held to the schema of an answer that is data."""
    thoughts_in_text: TaggedThinking | None = None
    """How the model marks thoughts within its text, where the server does not tell them apart; None = it does."""
    stop_sequences_max: int | None = STOP_SEQUENCES_MAX
    """Most accepted stop sequences; None = any number, as vLLM and llama.cpp take them."""
    description_characters_max: int | None = DESCRIPTION_CHARACTERS_MAX
    """Most characters of a tool's description; a longer one goes out, and the log of the program has a line on it."""
    request_bytes_max: int | None = None
    """Largest body that the server takes, which is not sent if it is larger; None = not known."""
    extra_body: JsonObject = msgspec.field(default_factory=dict[str, Json])
    """Further fields of the body, over those that are written here."""

    def __post_init__(self) -> None:
        returned, effort = self.return_reasoning, self.reasoning_effort
        bounds: tuple[tuple[str, bool, str], ...] = (
            ("name", isinstance(self.name, str) and bool(self.name), "a name"),
            ("max_tokens_field", self.max_tokens_field in _MAX_TOKENS_FIELDS, " or ".join(_MAX_TOKENS_FIELDS)),
            ("include_usage", isinstance(self.include_usage, bool), "True or False"),
            ("parallel_tool_calls", self.parallel_tool_calls in (None, True, False), "None, True or False"),
            ("answer_after_tools", self.answer_after_tools in (None, True, False), "None, True or False"),
            (
                "structured_output",
                self.structured_output in get_args(StructuredOutput),
                "json_schema, json_object or prompt",
            ),
            ("thoughts_in_text", self.thoughts_in_text in (None, "tags", "end_tag"), "None, tags or end_tag"),
            ("reasoning_effort", effort is None or (isinstance(effort, str) and bool(effort)), "None or a word"),
            (
                "return_reasoning",
                returned is None or returned in get_args(ReturnedReasoning),
                f"None or one of {', '.join(get_args(ReturnedReasoning))}",
            ),
        )
        for field, good, wanted in bounds:
            if not good:
                raise ConfigError(f"OpenAIProvider: {field} must be {wanted}, not {getattr(self, field)!r:.80}")
        if not is_json_object(self.extra_body):
            raise ConfigError("OpenAIProvider: extra_body must be an object")
        fixed = [field for field in _FIXED_FIELDS if field in self.extra_body]
        if fixed:
            raise ConfigError(f"extra_body may not set {', '.join(fixed)}: Refold writes that itself")


def tool_forms(request: ModelRequest) -> dict[str, str]:
    """Return the names on the wire of all tools that a request offers or that its history calls, by their own names.

    Raises:
        ProviderError: two different tools have one name; of kind `invalid_request`.
    """
    offered = [spec.name for spec in request.tools]
    if len(set(offered)) < len(offered):
        refuse("two of the tools have the same name")
    called = [call.name for message in request.messages for call in tool_uses(message.content)]
    return name_forms([*offered, *called])


def request_body(
    request: ModelRequest, settings: OpenAISettings, forms: Mapping[str, str], *, stream: bool
) -> JsonObject:
    """Return the body of a request.

    Args:
        settings: how the server wants to be asked.
        forms: names of tools on the wire, by their own names.
        stream: whether the answer is to be streamed.

    Raises:
        ProviderError: the request cannot be expressed; of kind `invalid_request`.
    """
    body: JsonObject = {"model": request.model, "messages": chat_messages(request, settings, forms)}
    if request.tools:
        body["tools"] = [_tool(spec, forms[spec.name]) for spec in sorted(request.tools, key=lambda spec: spec.name)]
        if settings.parallel_tool_calls is not None:
            body["parallel_tool_calls"] = settings.parallel_tool_calls
    if request.max_tokens is not None:
        body[settings.max_tokens_field] = request.max_tokens
    if request.temperature is not None:
        body["temperature"] = request.temperature
    if request.stop_sequences:
        body["stop"] = _stop(request.stop_sequences, settings.stop_sequences_max)
    if settings.reasoning_effort is not None:
        body["reasoning_effort"] = settings.reasoning_effort
    if request.output_schema is not None and (form := _response_format(request.output_schema, settings)):
        body["response_format"] = form
    if stream:
        body["stream"] = True
        if settings.include_usage:
            body["stream_options"] = {"include_usage": True}
    return {**body, **settings.extra_body}


def _response_format(schema: JsonObject, settings: OpenAISettings) -> JsonObject | None:
    """Return what holds the model to a schema, None where the prompt alone does."""
    if settings.structured_output == "json_object":
        return {"type": "json_object"}
    closed = closed_schema(schema) if settings.structured_output == "json_schema" else None
    if closed is None:
        return None
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": closed, "strict": True}}


def _stop(sequences: Sequence[str], most: int | None) -> list[Json]:
    given = list(dict.fromkeys(sequences))
    if most is not None and len(given) > most:
        refuse(f"it has {len(given)} stop sequences and the API takes {most}; give fewer of them")
    return list[Json](given)


def _tool(spec: ToolSpec, form: str) -> Json:
    function: JsonObject = {"name": form, "parameters": spec.input_schema}
    if spec.description.strip():
        function["description"] = spec.description
    return {"type": "function", "function": function}


def chat_messages(request: ModelRequest, settings: OpenAISettings, forms: Mapping[str, str]) -> list[Json]:
    """Return the messages of a request.

    Raises:
        ProviderError: nothing is left to send, or the meaning is not certain; of kind `invalid_request`.
    """
    groups = _grouped(
        Message(message.role, _kept(message, place, settings.name)) for place, message in enumerate(request.messages)
    )
    between = settings.answer_after_tools
    if between is None:
        between = _OF_MISTRAL.search(request.model) is not None
    ids = _call_ids(groups)
    writer = _MessageWriter(settings, forms, call_id_forms(ids), answer_after_tools=between)
    results = _paired(groups)
    for place, group in enumerate(groups):
        if group.role == "user":
            writer.write_user(group.content)
        else:
            calls = tool_uses(group.content)
            writer.write_assistant(group.content, [(call, results.get((place, call.id))) for call in calls])
    writer.close()
    if not writer.messages:
        refuse("no message holds anything that can be sent")
    first = writer.messages[0]
    if is_json_object(first) and first["role"] == "assistant":
        writer.messages.insert(0, {"role": "user", "content": OPENING_TEXT})
    system: list[Json] = []
    if request.system_prompt.strip():
        system.append({"role": "system", "content": request.system_prompt})
    return [*system, *writer.messages]


def refuse(reason: str) -> NoReturn:
    raise ProviderError(f"the request cannot be sent to the Chat Completions API: {reason}", kind="invalid_request")


def _kept(message: Message, place: int, provider: str) -> tuple[Block, ...]:
    kept: list[Block] = []
    for block in without_blanks(message.content):
        if isinstance(block, StoredBlock):
            refuse(f"message {place} holds a stored block whose payload was not loaded")
        if message.role == "user" and isinstance(block, ToolUseBlock):
            refuse(f"message {place} is a user's and holds a tool call")
        if message.role == "assistant" and isinstance(block, ImageBlock | DocumentBlock):
            kept.append(TextBlock(text=ASSISTANT_IMAGE_TEXT))
        elif not isinstance(block, ProviderBlock) or (
            block.provider == provider and (message.role == "assistant" or "type" in block.data)
        ):
            kept.append(block)
    if all(isinstance(block, ThinkingBlock | ToolResultBlock) for block in kept):
        return tuple(block for block in kept if isinstance(block, ToolResultBlock))  # Only thoughts: no answer.
    return tuple(kept)


def _grouped(messages: Iterable[Message]) -> list[Message]:
    """Return `messages` without the empty ones, neighbours of one role joined.

    An answer that holds nothing but results says nothing, so it joins what stands before it and is no message itself.
    """
    groups: list[tuple[Literal["user", "assistant"], list[Block]]] = []
    for message in messages:
        only_results = message.role == "assistant" and all(isinstance(b, ToolResultBlock) for b in message.content)
        if only_results and not groups:
            continue
        if groups and (groups[-1][0] == message.role or only_results):
            groups[-1][1].extend(message.content)
        elif message.content:
            groups.append((message.role, list(message.content)))
    return [Message(role, tuple(content)) for role, content in groups]


def _call_ids(groups: Sequence[Message]) -> dict[str, str]:
    for group in groups:
        calls = [call.id for call in tool_uses(group.content)]
        if len(set(calls)) < len(calls):
            refuse("two calls of one answer share an id")
    return {call.id: call.id for group in groups for call in tool_uses(group.content)}


def _paired(groups: Sequence[Message]) -> dict[tuple[int, str], ToolResultBlock]:
    """Return the result of each call, by the place of its group and its id: the first behind it, wherever that is."""
    called: dict[str, int] = {}
    paired: dict[tuple[int, str], ToolResultBlock] = {}
    for place, group in enumerate(groups):
        called.update((call.id, place) for call in tool_uses(group.content))
        for block in group.content:
            if isinstance(block, ToolResultBlock) and block.tool_use_id in called:
                paired.setdefault((called[block.tool_use_id], block.tool_use_id), block)
    return paired


class _MessageWriter:
    """Writes groups of blocks as messages, in order."""

    def __init__(
        self,
        settings: OpenAISettings,
        forms: Mapping[str, str],
        ids: Mapping[str, str],
        *,
        answer_after_tools: bool,
    ) -> None:
        self.messages: list[Json] = []
        self._settings = settings
        self._forms = forms
        self._ids = ids
        self._answer_after_tools = answer_after_tools
        self._behind_tools = False
        """Whether the last message is a result."""
        self._images: list[Json] = []
        """Of results, for the user message behind them."""

    def write_user(self, content: Sequence[Block]) -> None:
        parts: list[Json] = [*self._images]
        texts: list[str] = []
        for block in content:
            if isinstance(block, TextBlock):
                texts.append(block.text)
                parts.append({"type": "text", "text": block.text})
            elif isinstance(block, ImageBlock | DocumentBlock):
                parts.append(media_part(block, self._settings.name))
            elif isinstance(block, ProviderBlock):  # A part that only this API has, such as a sound or a file.
                parts.append(block.data)
        self._images = []
        if not parts:
            return
        if self._behind_tools and self._answer_after_tools:
            self.messages.append({"role": "assistant", "content": BETWEEN_TEXT})
        self._behind_tools = False
        said: Json = "\n\n".join(texts) if len(texts) == len(parts) else parts
        self.messages.append({"role": "user", "content": said})

    def write_assistant(
        self, content: Sequence[Block], answers: Sequence[tuple[ToolUseBlock, ToolResultBlock | None]]
    ) -> None:
        message: JsonObject = {"role": "assistant", "content": _assistant_content(content)}
        calls: list[Json] = [self._call(call) for call, _ in answers]
        if calls:
            message["tool_calls"] = calls
        elif message["content"] is None:
            message["content"] = ""
        self.messages.append({**message, **self._further_fields(content)})
        for call, result in answers:
            self._write_result(self._ids[call.id], result)
        self._behind_tools = bool(answers)

    def close(self) -> None:
        """Write what waits for a user message that does not come."""
        self.write_user(())

    def _further_fields(self, content: Sequence[Block]) -> JsonObject:
        name, wanted = self._settings.name, self._settings.return_reasoning
        fields: JsonObject = {}
        thoughts: list[str] = []
        for block in content:
            if isinstance(block, ProviderBlock) and "type" not in block.data:
                fields.update({key: value for key, value in block.data.items() if key not in _OWN_FIELDS})
                if is_json_object(audio := fields.pop("audio", None)) and "id" in audio and "transcript" not in audio:
                    fields["audio"] = {"id": audio["id"]}  # All that is taken back; what it says goes back as text.
            elif isinstance(block, ThinkingBlock) and block.signature is None:  # A signed one is another provider's.
                thoughts.append(block.thinking)
                details = object_field(block.provider_data or {}, name).get("reasoning_details")
                if wanted == "reasoning_details" and details is not None:
                    fields["reasoning_details"] = details
        if wanted == "reasoning_content" or (wanted == "reasoning" and thoughts):
            fields[wanted] = "\n\n".join(thoughts)
        return fields

    def _call(self, call: ToolUseBlock) -> Json:
        own = object_field(call.provider_data or {}, self._settings.name)
        return call_part(call, own, name=self._forms[call.name], identifier=self._ids[call.id])

    def _write_result(self, call: str, result: ToolResultBlock | None) -> None:
        texts: list[str] = []
        images: list[Json] = []
        for block in result.content if result is not None else (TextBlock(text=NO_RESULT_TEXT),):
            if isinstance(block, TextBlock):
                texts.append(block.text)
            elif isinstance(block, ImageBlock | DocumentBlock):
                images.append(media_part(block, self._settings.name))
            else:
                refuse(f"the result of {call} holds a stored block whose payload was not loaded")
        text = "\n\n".join(text for text in texts if text.strip())
        if images:
            self._images.extend([{"type": "text", "text": f"Of the result of {call}:"}, *images])
            text = text or "(The image follows.)"
        text = text or EMPTY_RESULT_TEXT
        if (result is None or result.is_error) and not text.lower().startswith("error"):
            text = f"Error: {text}"
        self.messages.append({"role": "tool", "tool_call_id": call, "content": text})


def call_part(call: ToolUseBlock, own: JsonObject, *, name: str, identifier: str, arguments: str | None = None) -> Json:
    """Return a call as it goes over the wire.

    Args:
        own: what of its `provider_data` is the provider's.
        arguments: their text; None = their JSON.
    """
    inner = object_field(own, "function")
    if own.get("type") == "custom" and isinstance(text := call.input.get("input"), str):
        further = {field: value for field, value in own.items() if field != "function"}
        return {**further, "id": identifier, "custom": {**inner, "name": name, "input": text}}
    arguments = encoded(call.input).decode() if arguments is None else arguments
    function: JsonObject = {**inner, "name": name, "arguments": arguments}
    return {**own, "id": identifier, "type": "function", "function": function}


def _assistant_content(content: Sequence[Block]) -> Json:
    texts: list[str] = []
    parts: list[Json] = []
    for block in content:
        if isinstance(block, TextBlock):
            texts.append(block.text)
            parts.append({"type": "text", "text": block.text})
        elif isinstance(block, ProviderBlock) and "type" in block.data:
            parts.append(block.data)
    if len(parts) > len(texts):
        return parts
    return "".join(texts) if texts else None


def media_part(block: ImageBlock | DocumentBlock, provider: str) -> Json:
    """Return an image or a document as it goes over the wire, with what is the provider's own, such as `detail`."""
    own = object_field(block.provider_data or {}, provider)
    if isinstance(block, DocumentBlock):
        return _document(block)
    if block.url is not None:
        return {"type": "image_url", "image_url": {**own, "url": block.url}}
    if not MEDIA_TYPE.fullmatch(block.media_type):
        refuse(f"{block.media_type!r:.100} is no media type of an image")
    url = f"data:{block.media_type};base64,{base64.b64encode(block.data).decode()}"
    return {"type": "image_url", "image_url": {**own, "url": url}}


def _document(block: DocumentBlock) -> Json:
    """Return a PDF as a file, a text as text, and of any other what it is: the API takes no addresses of files."""
    kind = block.media_type.partition(";")[0].strip().lower()
    name = block.name.strip() or "document.pdf"
    if block.url is None and block.data and kind == "application/pdf":
        data = f"data:{kind};base64,{base64.b64encode(block.data).decode()}"
        return {"type": "file", "file": {"filename": name, "file_data": data}}
    if block.url is None and kind.startswith("text/") and (text := block.data.decode(errors="replace")).strip():
        return {"type": "text", "text": f"{block.name.strip()}:\n{text}" if block.name.strip() else text}
    where = f" at {block.url}" if block.url is not None else ""
    return {"type": "text", "text": f"(A document of type {block.media_type[:100]!r}{where} that cannot be shown.)"}
