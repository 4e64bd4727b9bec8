"""The request of a model call, made ready: what it is, what was done to it, and how the log refers to it.

Part of the model effect (`refold.actors.agent.model`), so that user code may run here: the system prompt where it is a
function, the offer of tools, a window on the history, what is recalled, middleware. All that it does is in the
reference, and the request that is sent is built from that by `refold.events.model.request`, as a reader of the log
builds it again. Where user code fails, the call does.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, Self, TypeAlias

import msgspec

from refold.actors.calls.context import HookContext, SessionContext, hook_context
from refold.actors.calls.conversation import Conversation, HistoryView
from refold.actors.calls.middleware import Hooks
from refold.actors.calls.policy import Offer, offered_tools
from refold.actors.calls.protocols import Provider
from refold.actors.calls.recall import Recalling, Remembered
from refold.actors.calls.results import answer_of_user_code
from refold.actors.calls.streaming import can_stream
from refold.events.core.cleaning import Unrecordable, clean_text, error_words, text_of_error
from refold.events.core.content import AnswerContent, Message
from refold.events.core.errors import AgentLoopError, ProviderError
from refold.events.core.ids import PayloadHash, RunId, SessionId
from refold.events.model.configuration import AgentConfiguration, ToolSpec
from refold.events.model.context_window import (
    Context,
    ContextWindow,
    CountTokens,
    Range,
    message_tokens,
    narrowed,
    request_tokens,
)
from refold.events.model.history_rules import HistoryRules
from refold.events.model.messages import NOTHING, ModelRequest, Prepared, RequestReference
from refold.events.model.payloads import INLINE_BYTES_MAX
from refold.events.model.refused import RefusedParts
from refold.events.model.request import (
    applied,
    difference,
    plain_request,
    prepared_of,
    prompt_and_tools,
    recordable,
    request_digest,
    with_instruction,
    with_prepared,
)
from refold.events.model.run_context import PromptFunction
from refold.events.model.spending import Usage
from refold.events.secrets.redaction import NOTHING_SECRET, Redaction
from refold.events.session.events import RequestBuilt

log = logging.getLogger("refold.model")

SENT_CHARACTERS_MAX = 200
"""What a provider gives as the digest of a request is cut after so many characters."""

TWICE_BYTES_MAX = 256
"""What was done to a request in flight is a payload where it has more bytes: its answer refers to that once more."""


class PartsReader(Protocol):
    """Where prompts and schemas are: a log, as far as a request needs it."""

    @property
    def name(self) -> str: ...

    async def read_payloads(self, hashes: Iterable[PayloadHash]) -> dict[PayloadHash, bytes]:
        """Return those payloads that there are."""
        ...


class WantedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a session says of the request that it wants."""

    context: SessionContext
    """Of the session."""
    run: RunId
    turn: int
    asked: int
    """Version of the event that wants the model call."""
    summarised: int = 0
    """Version of the last summary of the history."""
    configured: int
    """Version of the AgentConfigured in force."""
    configuration: AgentConfiguration
    """The run's."""
    source: Sequence[Message]
    """The session's history, which only grows at its end."""
    length: int
    """How many of its messages belong to the request."""
    latest_input: int
    """Place of the latest input among them."""
    conversation: Conversation
    counted: float = 1.0
    """How many tokens the provider counts for one of the window's."""
    fits: int = 0
    """Tokens, counted by the window, that the provider did not find too long; 0 = it has found nothing too long."""
    accepted: int = 0
    """How many of the messages the model has taken already."""
    answered: int = 0
    """How many of them were in a request that a model answered, whichever it was, or are its answer."""
    refused: RefusedParts | None = None
    """What it is without, since the provider refused it."""
    unsummarised: int = 0
    """See `Context`."""
    deps: object = None
    """What the application depends on, for its functions."""
    ancestors: tuple[SessionId, ...] = ()
    """The sessions whose calls it is made for, nearest first."""
    prompt: str | None = None
    """What the agent's function gave as the system prompt, where it was asked already."""
    remembered: Remembered | None = None
    """What memories add, where they were asked already."""
    notes: tuple[str, ...] = ()
    """What could not be done to it, in words."""
    paid: Usage = Usage()
    """Tokens that were paid for that."""

    @property
    def where(self) -> HookContext:
        return hook_context(self.context, deps=self.deps, run=self.run, turn=self.turn)

    @property
    def session(self) -> SessionId:
        return self.context.session

    def built(self, reference: RequestReference, *, summary: bool = False) -> RequestBuilt:
        """Return the command that records a request of this; `summary` says that it asks for one of the history."""
        return RequestBuilt(run=self.run, turn=self.turn, asked=self.asked, request=reference, summary=summary)


BuiltRequest: TypeAlias = tuple[RequestBuilt, Mapping[PayloadHash, bytes]]
"""The command that records a request, and the payloads that it refers to."""


class OutgoingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is ready to be sent."""

    request: ModelRequest
    reference: RequestReference
    payloads: dict[PayloadHash, bytes] = {}
    """That the reference names and the log may not have."""
    prepared: Prepared = NOTHING
    """What was done to it, wherever the reference has that."""
    tools: tuple[ToolSpec, ...] = ()
    """All that are configured, in name order."""

    def leaving_through(self, provider: Provider, *, streamed: bool) -> Self:
        sent = sent_digest(provider, self.request, streamed=streamed)
        return msgspec.structs.replace(self, reference=msgspec.structs.replace(self.reference, sent=sent))

    def in_flight(self) -> Self:
        """Return this as two events refer to it, so that the log has what was done to the request once."""
        return self._referring(self.prepared, TWICE_BYTES_MAX)

    def answered_with(self, answer: tuple[AnswerContent, ...]) -> Self:
        """Return this with the model's own answer, which middleware changed."""
        return self._referring(msgspec.structs.replace(self.prepared, answer=answer), INLINE_BYTES_MAX)

    def _referring(self, prepared: Prepared, inline_bytes_max: int) -> Self:
        plain = msgspec.structs.replace(self.reference, prepared=None, prepared_payload=None)
        reference, payloads = with_prepared(plain, prepared, inline_bytes_max)
        return msgspec.structs.replace(self, reference=reference, payloads=payloads, prepared=prepared)


def sent_digest(provider: Provider, request: ModelRequest, *, streamed: bool) -> str:
    """Return the digest of a request as it leaves through a provider; empty where that is not known, or none leaves."""
    try:
        if (ask := getattr(provider, "sent_digest", None)) is not None:
            said = ask(request, streamed=streamed and can_stream(provider))
            if not isinstance(said, str):
                raise TypeError(f"sent_digest gave {type(said).__name__} instead of a text")
            return clean_text(said[:SENT_CHARACTERS_MAX])
        history = request.messages.digest if isinstance(request.messages, HistoryView) else None
        return request_digest(request, history)
    except ProviderError:
        return ""
    except Exception as error:  # The border to a provider, which may be the user's own.
        log.warning("what %s sends is not known: %s", type(provider).__name__, text_of_error(error), exc_info=error)
        return ""


class RequestMaker:
    """Makes the requests of one agent ready."""

    def __init__(
        self,
        store: PartsReader,
        *,
        prompt: PromptFunction | None = None,
        offer: Offer | None = None,
        recalling: Recalling | None = None,
        window: ContextWindow | None = None,
        hooks: Hooks | None = None,
        redaction: Redaction = NOTHING_SECRET,
    ) -> None:
        self._store = store
        self._prompt = prompt
        self._redaction = redaction
        self._hooks = hooks
        self._offer = offer
        self._recalling = recalling
        self._window = window
        self._parts: dict[tuple[PayloadHash, PayloadHash], tuple[str, tuple[ToolSpec, ...]]] = {}

    async def make(self, wanted: WantedRequest) -> OutgoingRequest:
        """Return the request of a call; raise AgentLoopError where user code fails on it."""
        wanted = await self.prompted(wanted)
        plain, reference = await self.plain(wanted)
        remembered = wanted.remembered or await self.remembered(wanted, plain)
        notes = wanted.notes + remembered.notes
        prepared = Prepared(refused=wanted.refused, prompt=wanted.prompt, added=remembered.added, notes=notes)
        reference = msgspec.structs.replace(reference, recalled=remembered.recalled)
        prepared, tokens = self._trimmed(plain, wanted, prepared)
        reference = msgspec.structs.replace(
            reference, estimated=tokens, fits=wanted.fits, unsummarised=wanted.unsummarised
        )
        if self._hooks is not None:
            prepared = await self._rewritten(self._hooks, wanted, applied(plain, prepared), prepared)
        referring, payloads = with_prepared(reference, prepared)
        return OutgoingRequest(
            request=applied(plain, prepared_of(referring, payloads)),
            reference=referring,
            payloads=payloads,
            prepared=prepared,
            tools=(await self.prompt_and_tools(wanted.configuration))[1],
        )

    async def prompted(self, wanted: WantedRequest) -> WantedRequest:
        """Return what is wanted with what the agent's function gives as the system prompt, if it has one."""
        if self._prompt is None or wanted.prompt is not None:
            return wanted
        what = "the function that makes the system prompt"
        said = await answer_of_user_code(what, self._prompt, wanted.where)
        if not isinstance(said, str):
            raise AgentLoopError(f"{what} gave {type(said).__name__}, not a text")
        prompt = with_instruction(self._redaction.text(clean_text(said)), wanted.configuration)
        return msgspec.structs.replace(wanted, prompt=prompt)

    async def remembered(self, wanted: WantedRequest, plain: ModelRequest) -> Remembered:
        if self._recalling is None:
            return Remembered()
        query = plain.messages[wanted.latest_input].text
        return await self._recalling.remembered(wanted.configuration, query, wanted.context)

    async def plain(self, wanted: WantedRequest) -> tuple[ModelRequest, RequestReference]:
        """Return the request to which nothing was done yet, and the reference to it."""
        messages, digest = await wanted.conversation.upto(wanted.source, wanted.length)
        prompt, tools = await self.prompt_and_tools(wanted.configuration)
        named = {policy.name for policy in wanted.configuration.tools}
        had = tuple(spec for spec in tools if spec.name in named)
        offered = offered_tools(self._offer, wanted.session, had)
        names = tuple(spec.name for spec in offered) if len(offered) < len(tools) else None
        reference = RequestReference(configured=wanted.configured, messages=wanted.length, digest=digest, offered=names)
        return plain_request(wanted.configuration, prompt, tools, messages, names), reference

    async def _rewritten(
        self, hooks: Hooks, wanted: WantedRequest, request: ModelRequest, prepared: Prepared
    ) -> Prepared:
        changed = await hooks.pre_llm(wanted.where, request)
        if changed is request:
            return prepared
        changes = difference(request, changed)
        if changes is None:
            return prepared
        try:
            again, _ = recordable(msgspec.structs.replace(prepared, rewritten=changes))
        except Unrecordable as error:
            raise AgentLoopError(f"the request that middleware made cannot be recorded: {error}") from error
        if changes.messages is not None:
            require_acceptable(changed.messages, "what middleware made of the messages")
        return again

    def shortened(
        self, plain: ModelRequest, wanted: WantedRequest, sent: Prepared, part: float
    ) -> WantedRequest | None:
        """Return what is wanted of a request that the provider found too long; None = nothing more can be left out.

        So much of the tokens of what was `sent` may stay; what a window never leaves out stays at any cost.
        """
        context = context_of(plain, wanted, sent)
        now = request_tokens(context, sent.kept, self._count)
        kept = narrowed(context, sent.kept, max(1, int(now * part)), self._count)
        if kept == sent.kept:
            return None
        note = f"the provider found a request of about {now:,} tokens too long"
        fits = request_tokens(context, kept, self._count)
        return msgspec.structs.replace(wanted, fits=fits, notes=(*wanted.notes, note))

    @property
    def _count(self) -> CountTokens:
        count: CountTokens = getattr(self._window, "count", message_tokens)
        return count

    def _trimmed(self, plain: ModelRequest, wanted: WantedRequest, prepared: Prepared) -> tuple[Prepared, int]:
        """Return what is done to a request with what the window leaves out, and about how many tokens are left."""
        if self._window is None and not wanted.fits:
            return prepared, 0
        context = context_of(plain, wanted, prepared)
        kept = kept_ranges(self._window, context) if self._window is not None else None
        if wanted.fits:
            kept = narrowed(context, kept, wanted.fits, self._count)
        tokens = self._tokens(context, kept)
        return (prepared if kept is None else msgspec.structs.replace(prepared, kept=kept)), tokens

    def _tokens(self, context: Context, kept: Sequence[Range] | None) -> int:
        try:
            return int(request_tokens(context, kept, self._count))
        except Exception as error:  # The border to a user's count, which its window need not have asked.
            raise AgentLoopError(f"the count of tokens failed: {error_words(error)}") from error

    async def prompt_and_tools(self, configuration: AgentConfiguration) -> tuple[str, tuple[ToolSpec, ...]]:
        place = (configuration.system_prompt, configuration.tool_schemas)
        if place not in self._parts:
            payloads = await self._store.read_payloads(place)
            self._parts[place] = prompt_and_tools(configuration, payloads, self._store.name)
        return self._parts[place]


def context_of(plain: ModelRequest, wanted: WantedRequest, prepared: Prepared) -> Context:
    """Return a request as a window sees it, with what memories add."""
    request = applied(plain, msgspec.structs.replace(prepared, kept=None))
    return Context(
        system_prompt=request.system_prompt,
        messages=request.messages,
        tools=request.tools,
        latest_input=wanted.latest_input,
        scale=wanted.counted,
        fits=wanted.fits,
        unsummarised=wanted.unsummarised,
    )


def kept_ranges(window: ContextWindow, context: Context) -> tuple[Range, ...] | None:
    """Return what a window keeps of a history, or None for all of it."""
    try:
        said = window.kept(context)
        kept = None if said is None else tuple((int(first), int(end)) for first, end in said)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # The border to user code, which awaits nothing: a CancelledError is its own.
        raise AgentLoopError(f"the context window failed: {error_words(error)}") from error
    if kept is None or kept == ((0, len(context.messages)),):
        return None
    place = 0
    for first, end in kept:
        if not place <= first < end <= len(context.messages):
            raise AgentLoopError(
                f"the context window keeps {kept} of {len(context.messages)} messages; give ranges in order"
            )
        place = end
    left = [message for first, end in kept for message in context.messages[first:end]]
    require_acceptable(left, "what the context window keeps")
    return kept


def require_acceptable(messages: Sequence[Message], what: str) -> None:
    """Raise AgentLoopError, which names the first fault, where no provider accepts messages as a history."""
    rules = HistoryRules()
    findings = [finding for message in messages for finding in rules.add(message)]
    findings.extend(rules.unanswered())
    if not messages:
        raise AgentLoopError(f"{what} is no history: it has no message")
    if findings:
        raise AgentLoopError(f"{what} is no history that providers accept: {findings[0].message}")
