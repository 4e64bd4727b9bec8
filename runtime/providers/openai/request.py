"""A model request as the body of a Chat Completions request.

Sources: `openai.types.chat.completion_create_params` and the message params beside it (openai 3.57), and what
compatible servers refuse of it. The rules:

- Text alone goes as one string and not as an array of parts, which DeepSeek and others refuse (cline/cline#230); an
  assistant message that only calls tools has the content null.
- Tool messages follow their calls at once, in the order of the calls; they take text only, so images of results come
  in the user message behind them.
- Calls go out under our own ids, and names and ids in the form that is accepted. Names are `[a-zA-Z0-9_-]{1,64}`
  (`openai.types.shared_params.FunctionDefinition.name`). Ids have exactly nine letters and digits: that is what
  Mistral's API and its tokenizer take ("Tool call id was … but must be a-z, A-Z, 0-9, with a length of 9"), and all
  other servers take them as well.
- The first message is a user's, and where a server wants it, an assistant's message stands between results and what a
  user says next ("Unexpected role 'user' after role 'tool'", Mistral).
- A result is moved to its call; a result without a call and what is blank is left out (`http.history`).
"""

import base64
import hashlib
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias, get_args

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
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    is_json_object,
    tool_uses,
    without_blanks,
)
from refold.events.model.configuration import ToolSpec
from refold.events.model.messages import ModelRequest
from refold.providers.http.closed_schema import closed_schema
from refold.providers.http.history import ASSISTANT_IMAGE_TEXT, check_messages, joined, refused, results_of
from refold.providers.http.settings import check_fields
from refold.providers.http.wire import encoded, object_field
from refold.providers.openai.thoughts import TaggedThinking

EMPTY_RESULT_TEXT = "(no output)"
"""The text of a result without any, which some servers refuse."""

HOST = "the Chat Completions API"

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
_FIXED_FIELDS = frozenset(("model", "messages", "stream", "n"))
"""Without these an answer could not be read any more."""
_OWN_FIELDS = ("role", "content", "tool_calls", "annotations")


class OpenAISettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a server of the Chat Completions API wants to be asked; the arguments of `OpenAIProvider` say what.

    Raises:
        ConfigError: a setting is one that cannot work.
    """

    name: str = "openai"
    max_tokens_field: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    """OpenAI's reasoning models refuse the second; most compatible servers know only the second."""
    include_usage: bool = True
    """A few older servers refuse to be asked for it."""
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    return_reasoning: ReturnedReasoning | None = None
    """OpenAI never wants it."""
    answer_after_tools: bool | None = None
    """None = where the model is one of Mistral's."""
    structured_output: StructuredOutput = "prompt"
    thoughts_in_text: TaggedThinking | None = None
    stop_sequences_max: int | None = STOP_SEQUENCES_MAX
    """Most accepted stop sequences; None = any number, as vLLM and llama.cpp take them."""
    description_characters_max: int | None = DESCRIPTION_CHARACTERS_MAX
    """Most characters of a tool's description; a longer one goes out, and the log of the program has a line on it."""
    request_bytes_max: int | None = None
    """Largest body that the server takes, which is not sent if it is larger; None = not known."""
    extra_body: JsonObject = msgspec.field(default_factory=dict[str, Json])

    def __post_init__(self) -> None:
        returned, effort = self.return_reasoning, self.reasoning_effort
        fixed = is_json_object(self.extra_body) and not self.extra_body.keys() & _FIXED_FIELDS
        check_fields(
            "OpenAIProvider",
            self,
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
            ("extra_body", fixed, f"an object without {', '.join(sorted(_FIXED_FIELDS))}"),
        )


def tool_forms(request: ModelRequest) -> dict[str, str]:
    """Return the names on the wire of all tools that a request offers or that its history calls, by their own."""
    offered = [spec.name for spec in request.tools]
    if len(set(offered)) < len(offered):
        raise refused(HOST, "two of the tools have the same name")
    called = [call.name for message in request.messages for call in tool_uses(message.content)]
    return name_forms([*offered, *called])


def request_body(
    request: ModelRequest, settings: OpenAISettings, forms: Mapping[str, str], *, stream: bool
) -> JsonObject:
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
        raise refused(HOST, f"it has {len(given)} stop sequences and the API takes {most}; give fewer of them")
    return list[Json](given)


def _tool(spec: ToolSpec, form: str) -> Json:
    function: JsonObject = {"name": form, "parameters": spec.input_schema}
    if spec.description.strip():
        function["description"] = spec.description
    return {"type": "function", "function": function}


def chat_messages(request: ModelRequest, settings: OpenAISettings, forms: Mapping[str, str]) -> list[Json]:
    check_messages(request.messages, HOST)
    groups = joined(Message(message.role, _kept(message, settings.name)) for message in request.messages)
    between = settings.answer_after_tools
    if between is None:
        between = _OF_MISTRAL.search(request.model) is not None
    results = results_of(groups, HOST)
    writer = _MessageWriter(settings, forms, call_id_forms(call for _, call in results), answer_after_tools=between)
    for place, group in enumerate(groups):
        if group.role == "user":
            writer.write_user(group.content)
        else:
            calls = tool_uses(group.content)
            writer.write_assistant(group.content, [(call, results[place, call.id]) for call in calls])
    writer.close()
    if not writer.messages:
        raise refused(HOST, "no message holds anything that can be sent")
    first = writer.messages[0]
    if is_json_object(first) and first["role"] == "assistant":
        writer.messages.insert(0, {"role": "user", "content": OPENING_TEXT})
    system: list[Json] = []
    if request.system_prompt.strip():
        system.append({"role": "system", "content": request.system_prompt})
    return [*system, *writer.messages]


def _kept(message: Message, provider: str) -> tuple[Block, ...]:
    kept: list[Block] = []
    for block in without_blanks(message.content):
        if message.role == "assistant" and isinstance(block, ImageBlock | DocumentBlock):
            kept.append(TextBlock(text=ASSISTANT_IMAGE_TEXT))
        elif not isinstance(block, ProviderBlock) or (
            block.provider == provider and (message.role == "assistant" or "type" in block.data)
        ):
            kept.append(block)
    if all(isinstance(block, ThinkingBlock | ToolResultBlock) for block in kept):
        return tuple(block for block in kept if isinstance(block, ToolResultBlock))  # Only thoughts: no answer.
    return tuple(kept)


class _MessageWriter:
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
        self, content: Sequence[Block], answers: Sequence[tuple[ToolUseBlock, ToolResultBlock]]
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

    def _write_result(self, call: str, result: ToolResultBlock) -> None:
        text = "\n\n".join(block.text for block in without_blanks(result.content) if isinstance(block, TextBlock))
        shown = [block for block in result.content if isinstance(block, ImageBlock | DocumentBlock)]
        images: list[Json] = [media_part(block, self._settings.name) for block in shown]
        if images:
            self._images.extend([{"type": "text", "text": f"Of the result of {call}:"}, *images])
            text = text or "(The image follows.)"
        text = text or EMPTY_RESULT_TEXT
        if result.is_error and not text.lower().startswith("error"):
            text = f"Error: {text}"
        self.messages.append({"role": "tool", "tool_call_id": call, "content": text})


def call_part(call: ToolUseBlock, own: JsonObject, *, name: str, identifier: str, arguments: str | None = None) -> Json:
    """Return a call as it goes over the wire, with what of its `provider_data` is the provider's `own`."""
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
        raise refused(HOST, f"{block.media_type!r:.100} is no media type of an image")
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


NAME_CHARACTERS_MAX = 64
CALL_ID_CHARACTERS = 9

_DIGITS = 12
_NAME = re.compile(f"[a-zA-Z0-9_-]{{1,{NAME_CHARACTERS_MAX}}}")
_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")
_CALL_ID = re.compile(f"[a-zA-Z0-9]{{{CALL_ID_CHARACTERS}}}")
_CALL_ID_LETTERS = string.ascii_letters + string.digits


def name_forms(names: Iterable[str]) -> dict[str, str]:
    """Return the form on the wire of each tool's name: itself if it is accepted, else one made from it and its hash.

    The same names always give the same forms, and different names different ones.
    """
    return _fitted(names, _NAME, _made_name)


def call_id_forms(ids: Iterable[str]) -> dict[str, str]:
    """Return the form on the wire of each call's id, by the same rule; an id has the same one in every request."""
    return _fitted(ids, _CALL_ID, _made_call_id)


def _fitted(given: Iterable[str], accepted: re.Pattern[str], made: Callable[[str, int], str]) -> dict[str, str]:
    wanted = dict.fromkeys(given)
    forms = {name: name for name in wanted if accepted.fullmatch(name)}
    taken = set(forms)
    for name in wanted:
        if name in forms:
            continue
        attempt = 0
        while (form := made(name, attempt)) in taken:
            attempt += 1
        forms[name] = form
        taken.add(form)
    return forms


def _digest(name: str, attempt: int) -> bytes:
    return hashlib.sha256(f"{attempt}:{name}".encode(errors="surrogatepass")).digest()


def _made_name(name: str, attempt: int) -> str:
    kept = NAME_CHARACTERS_MAX - _DIGITS - 1
    return f"{_FOREIGN.sub('_', name)[:kept]}_{_digest(name, attempt).hex()[:_DIGITS]}"


def _made_call_id(name: str, attempt: int) -> str:
    number = int.from_bytes(_digest(name, attempt))
    letters: list[str] = []
    for _ in range(CALL_ID_CHARACTERS):
        number, place = divmod(number, len(_CALL_ID_LETTERS))
        letters.append(_CALL_ID_LETTERS[place])
    return "".join(letters)
