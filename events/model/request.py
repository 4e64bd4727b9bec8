"""A request, built out of what the log has: the configuration, the history, and what was done to it.

`refold.actors.agent.model` builds the requests that it sends with these functions, and `refold.inspection.request_view`
builds them again, so that what is shown of a log is what was sent, field by field. Read `refold.events.model.messages`
first.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from refold.events.core.cleaning import Unrecordable
from refold.events.core.content import Message
from refold.events.core.errors import LogFormatError
from refold.events.core.ids import PayloadHash
from refold.events.model.configuration import AgentConfiguration, ToolSpec, payload_hash
from refold.events.model.messages import (
    NOTHING,
    ModelRequest,
    Prepared,
    RequestReference,
    Rewritten,
    Sampling,
    Splice,
)
from refold.events.model.payloads import INLINE_BYTES_MAX, PAYLOAD_BYTES_MAX
from refold.events.model.refused import without

AS_IT_STANDS = "request"
"""Form of a request whose provider does not say what it makes of it."""

PROMPT_BYTES_MAX = 256
"""What was done to a request is a payload where it has a system prompt and more bytes than these."""

DIGEST_CHARACTERS = 32
"""So many hexadecimal digits of a SHA-256 are recorded of a request as it left."""

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Prepared)
_tools_decoder = msgspec.json.Decoder(tuple[ToolSpec, ...])


def plain_request(
    configuration: AgentConfiguration,
    prompt: str,
    tools: Sequence[ToolSpec],
    messages: Sequence[Message],
    offered: Sequence[str] | None = None,
) -> ModelRequest:
    """Return a request to which nothing was done; its tools are in name order, and None of `offered` offers all."""
    names = None if offered is None else set(offered)
    return ModelRequest(
        model=configuration.model,
        system_prompt=with_instruction(prompt, configuration),
        messages=messages,
        tools=tuple(spec for spec in tools if names is None or spec.name in names),
        max_tokens=configuration.max_tokens,
        temperature=configuration.temperature,
        stop_sequences=configuration.stop_sequences,
        output_schema=configuration.output_schema,
    )


def with_instruction(prompt: str, configuration: AgentConfiguration) -> str:
    return "\n\n".join(filter(None, (prompt, configuration.output_instruction)))


def applied(request: ModelRequest, prepared: Prepared) -> ModelRequest:
    """Return what a plain request became by what was done to it."""
    if prepared.refused is not None:
        request = msgspec.structs.replace(request, messages=without(request.messages, prepared.refused.parts))
    if prepared.kept is not None:
        request = msgspec.structs.replace(request, messages=kept_messages(request.messages, prepared.kept))
    if prepared.prompt is not None or prepared.added:
        texts = (prepared.prompt, request.system_prompt, *(addition.text for addition in prepared.added))
        request = msgspec.structs.replace(request, system_prompt="\n\n".join(filter(None, texts)))
    return rewritten(request, prepared.rewritten) if prepared.rewritten is not None else request


def kept_messages(messages: Sequence[Message], kept: Sequence[tuple[int, int]]) -> tuple[Message, ...]:
    return tuple(message for first, end in kept for message in messages[first:end])


def rewritten(request: ModelRequest, changes: Rewritten) -> ModelRequest:
    """The inverse of `difference`."""
    splice, sampling = changes.messages, changes.sampling
    messages = request.messages
    if splice is not None:
        messages = (*messages[: splice.first], *splice.messages, *messages[splice.first + splice.removed :])
    return ModelRequest(
        model=request.model if changes.model is None else changes.model,
        system_prompt=request.system_prompt if changes.system_prompt is None else changes.system_prompt,
        messages=messages,
        tools=request.tools if changes.tools is None else changes.tools,
        max_tokens=request.max_tokens if sampling is None else sampling.max_tokens,
        temperature=request.temperature if sampling is None else sampling.temperature,
        stop_sequences=request.stop_sequences if sampling is None else sampling.stop_sequences,
        output_schema=request.output_schema,
    )


def difference(before: ModelRequest, after: ModelRequest) -> Rewritten | None:
    """Return what has to be rewritten in `before` so that it is `after`; None = nothing.

    Of the messages one stretch is recorded, from the first that differs to the last.
    """
    same_sampling = (before.max_tokens, before.temperature, before.stop_sequences) == (
        after.max_tokens,
        after.temperature,
        after.stop_sequences,
    )
    changes = Rewritten(
        model=after.model if after.model != before.model else None,
        system_prompt=after.system_prompt if after.system_prompt != before.system_prompt else None,
        messages=_splice(before.messages, after.messages),
        tools=after.tools if after.tools != before.tools else None,
        sampling=None
        if same_sampling
        else Sampling(
            max_tokens=after.max_tokens, temperature=after.temperature, stop_sequences=tuple(after.stop_sequences)
        ),
    )
    return changes if changes != Rewritten() else None


def _splice(before: Sequence[Message], after: Sequence[Message]) -> Splice | None:
    if before is after:
        return None
    shorter = min(len(before), len(after))
    first = 0
    while first < shorter and before[first] == after[first]:
        first += 1
    if first == len(before) == len(after):
        return None
    last = 0
    while last < shorter - first and before[-1 - last] == after[-1 - last]:
        last += 1
    return Splice(first=first, removed=len(before) - first - last, messages=tuple(after[first : len(after) - last]))


def messages_digest(messages: Iterable[Message]) -> str:
    digest = hashlib.sha256()
    for message in messages:
        digest.update(_encode(message))
    return digest.hexdigest()


def request_digest(request: ModelRequest, history: str | None = None) -> str:
    """Return the digest of a request that is sent as it stands: of all that a model is told, and how it is to answer.

    `history` is the `messages_digest` of its messages, where that is known, so that they are not walked.
    """
    told = (
        request.model,
        request.system_prompt,
        messages_digest(request.messages) if history is None else history,
        [(spec.name, spec.description, spec.input_schema) for spec in request.tools],
        request.max_tokens,
        request.temperature,
        tuple(request.stop_sequences),
    )
    return f"{AS_IT_STANDS}:{hashlib.sha256(_encode(told)).hexdigest()[:DIGEST_CHARACTERS]}"


def form_of(digest: str) -> str:
    return digest.rpartition(":")[0]


def recordable(prepared: Prepared) -> tuple[Prepared, bytes]:
    """Return what was done as the log will give it back, and its JSON."""
    try:
        data = _encode(prepared)
        again = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, TypeError, ValueError, RecursionError) as error:
        raise Unrecordable("$", f"is no request that can be recorded: {error!s:.200}") from None
    if len(data) > PAYLOAD_BYTES_MAX:
        raise Unrecordable("$", f"has {len(data):,} bytes as JSON; {PAYLOAD_BYTES_MAX:,} are accepted")
    return again, data


def with_prepared(
    reference: RequestReference, prepared: Prepared, inline_bytes_max: int = INLINE_BYTES_MAX
) -> tuple[RequestReference, dict[PayloadHash, bytes]]:
    """Return a reference with what was done to its request, as a payload where that is larger than so many bytes.

    A system prompt that a function gave is likely to be the same in each request: a payload is kept once.
    """
    if prepared == NOTHING:
        return reference, {}
    again, data = recordable(prepared)
    if len(data) <= (inline_bytes_max if prepared.prompt is None else PROMPT_BYTES_MAX):
        return msgspec.structs.replace(reference, prepared=again), {}
    name = payload_hash(data)
    return msgspec.structs.replace(reference, prepared_payload=name), {name: data}


def prompt_and_tools(
    configuration: AgentConfiguration, payloads: Mapping[PayloadHash, bytes], log: str
) -> tuple[str, tuple[ToolSpec, ...]]:
    """Return the system prompt and the tools, in name order, of a configuration; errors call the log `log`."""
    for name in (configuration.system_prompt, configuration.tool_schemas):
        if name not in payloads:
            raise LogFormatError(f"payload {name} is missing from {log}")
    try:
        prompt = payloads[configuration.system_prompt].decode()
    except UnicodeDecodeError as error:
        raise LogFormatError(f"payload {configuration.system_prompt} of {log} is damaged: {error}") from None
    try:
        return prompt, _tools_decoder.decode(payloads[configuration.tool_schemas])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise LogFormatError(f"payload {configuration.tool_schemas} of {log} is damaged: {error}") from None


def prepared_of(reference: RequestReference, payloads: dict[PayloadHash, bytes]) -> Prepared:
    if reference.prepared_payload is None:
        return reference.prepared or NOTHING
    data = payloads.get(reference.prepared_payload)
    if data is None:
        raise LogFormatError(f"payload {reference.prepared_payload} is missing from the log")
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise LogFormatError(f"payload {reference.prepared_payload} is damaged: {error}") from None
