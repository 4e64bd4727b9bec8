"""Compaction: a model's summary stands for the beginning of a history that has grown too long.

Part of the model effect. Where a request would be too long, the effect first has a summary made by a model call of its
own, and has the session record it (`ContextPrepared`, in a batch of its own); then it goes on with the history of
now. So the summary goes through the session's actor like everything else, and a crash between the two repeats no more
than the model call. The rule: a summary that fails fails no run; the history is trimmed as by a `TokenWindow`, or sent
whole, and the log of the program and the record of the request say so.
"""

import functools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import msgspec

from refold.actors.calls.protocols import Provider
from refold.actors.calls.request import (
    TWICE_BYTES_MAX,
    BuiltRequest,
    RequestMaker,
    WantedRequest,
    context_of,
    sent_digest,
)
from refold.actors.calls.results import passes
from refold.actors.calls.validation import checked_response
from refold.actors.kernel.clock import Clock
from refold.actors.kernel.errors import AskTimeout
from refold.actors.kernel.ref import ActorRef
from refold.actors.shell.effects import once_log_allows
from refold.actors.shell.messages import Envelope
from refold.events.core.cleaning import clean_text, text_of_error
from refold.events.core.content import Message, TextBlock
from refold.events.core.errors import CommandRejected, ConfigError, PersistenceError, ProviderError, quoted
from refold.events.core.ids import PayloadHash
from refold.events.model.context_window import (
    SUMMARY_PROMPT,
    Context,
    CountTokens,
    Range,
    SummaryPlan,
    TokenWindow,
    about_tokens,
    middle_left_out,
    summary_messages,
    summary_plan,
    transcript_text,
)
from refold.events.model.messages import ModelRequest, ModelResponse, Prepared, RequestReference
from refold.events.model.request import applied, difference, with_prepared
from refold.events.model.spending import Usage
from refold.events.secrets.redaction import Redaction
from refold.events.session.commands import RecordContext

log = logging.getLogger("refold.model")

SUMMARY_TOKENS = 1_000
"""A summary may have so many tokens, if nothing else is said."""


class Summarising:
    """A context window that has the beginning of a long history summarised; where that fails, it trims.

    Args:
        max_tokens: a request of more tokens, counted about, has its history summarised first; >= 1.
        keep_tokens: so many tokens of the last messages stay as they are; None = half of what `max_tokens` is.
        summary_tokens: most tokens of a summary, >= 1.
        prompt: what the model is told to do.
        model: that makes summaries; None = the agent's.
        provider: that is asked for them; None = the agent's.
        count: returns about how many tokens a message has; None = an estimate by its scripts (`about_tokens`).

    Raises:
        ConfigError: a number is not an integer of at least 1, or something is no text or no function that must be one.
    """

    def __init__(
        self,
        max_tokens: int,
        *,
        keep_tokens: int | None = None,
        summary_tokens: int = SUMMARY_TOKENS,
        prompt: str = SUMMARY_PROMPT,
        model: str | None = None,
        provider: Provider | None = None,
        count: CountTokens | None = None,
    ) -> None:
        self._window = TokenWindow(max_tokens, count)
        for name, number in (("keep_tokens", keep_tokens), ("summary_tokens", summary_tokens)):
            if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
                raise ConfigError(f"Summarising.{name} must be an integer of at least 1, not {quoted(number)}")
        for name, text in (("prompt", prompt), ("model", model)):
            if text is not None and not (isinstance(text, str) and text.strip() and clean_text(text) == text):
                raise ConfigError(f"Summarising.{name} must be a text of valid Unicode that says something")
        self.max_tokens = max_tokens
        self.keep_tokens = keep_tokens if keep_tokens is not None else max(1, max_tokens // 2)
        self.summary_tokens = summary_tokens
        self.prompt = prompt
        self.model = model
        self.provider = provider

    def __repr__(self) -> str:
        return f"Summarising({self.max_tokens})"

    def kept(self, context: Context) -> Sequence[Range] | None:
        """Return what stays where the history is too long nevertheless, as a `TokenWindow` does."""
        return self._window.kept(context)

    @property
    def count(self) -> CountTokens:
        """What counts the tokens of a message."""
        return self._window.count

    def plan(self, context: Context) -> SummaryPlan | None:
        """Return what a summary should stand for; None = there is no need of one."""
        return summary_plan(context, self.max_tokens, self.keep_tokens, self.count)

    def request(self, plain: ModelRequest, plan: SummaryPlan) -> ModelRequest:
        """Return the request for a summary of what `plan` replaces; `plain` is the request that is too long."""
        text = middle_left_out(transcript_text(plain.messages[: plan.replaced]), plan.shown)
        return msgspec.structs.replace(
            plain,
            model=self.model or plain.model,
            system_prompt=self.prompt,
            messages=(Message("user", (TextBlock(text=text),)),),
            tools=(),
            max_tokens=self.summary_tokens,
            stop_sequences=(),
        )


class NotWanted(Exception):
    """The run has ended while its history was summarised, so that its model call is wanted no more."""


class Unusable(Exception):
    """A summary that cannot be used, and what was paid for it."""

    def __init__(self, why: str, usage: Usage) -> None:
        super().__init__(why)
        self.usage = usage


async def compacted(
    policy: Summarising,
    requests: RequestMaker,
    provider: Provider,
    clock: Clock,
    session: ActorRef,
    wanted: WantedRequest,
    in_flight: Callable[[Callable[[], BuiltRequest]], AbstractContextManager[None]],
    redaction: Redaction,
    allowed: Callable[[], Awaitable[object]],
) -> WantedRequest:
    """Return what is wanted of a history after it was summarised, if that was needed and did not fail.

    The summary is made by `provider`, unless the policy names one, once `allowed` has returned; `in_flight` has its
    request recorded meanwhile.
    """
    plain, reference = await requests.plain(wanted)
    remembered = await requests.remembered(wanted, plain)
    wanted = msgspec.structs.replace(wanted, remembered=remembered)
    counted = Prepared(prompt=wanted.prompt, added=remembered.added)
    asked, refused = policy.provider or provider, None
    try:
        while True:
            plan = policy.plan(context_of(plain, wanted, counted))
            if plan is None:
                return wanted if refused is None else _without(wanted, refused)
            await allowed()
            request = policy.request(plain, plan)
            digest = sent_digest(asked, request, streamed=False)
            sent = msgspec.structs.replace(reference, sent=digest, unsummarised=wanted.unsummarised)
            changes = msgspec.structs.replace(counted, rewritten=difference(applied(plain, counted), request))
            refers, payloads = with_prepared(sent, changes, TWICE_BYTES_MAX)
            try:
                with in_flight(functools.partial(_built, wanted, refers, payloads)):
                    response = redaction.value(checked_response(await asked.complete(request)))
                text = summary_text(response, plan)
                break
            except ProviderError as error:
                if error.kind != "context_too_long":
                    raise
                refused, wanted = error, msgspec.structs.replace(wanted, unsummarised=plan.size)
        kept = wanted.source[wanted.latest_input] if plan.keeps_input else None
        command = RecordContext(
            run=wanted.run,
            turn=wanted.turn,
            asked=wanted.asked,
            after=wanted.summarised,
            replaced=plan.replaced,
            summary=summary_messages(text, kept),
            usage=response.usage,
            model=response.model,
            request=refers,
        )
    except BaseException as error:  # User code (a provider, a count); a summary is not worth a run.
        if passes(error):
            raise
        return _without(wanted, error)
    envelope = Envelope(command, payloads, vital=True)
    try:
        now_wanted: WantedRequest | None = await once_log_allows(
            lambda: session.ask(envelope, block=False),
            clock,
            f"a summary of {session.address}",
            (PersistenceError, AskTimeout),
        )
    except CommandRejected as error:
        return _without(wanted, Unusable(str(error), response.usage))
    if now_wanted is None:
        raise NotWanted
    return msgspec.structs.replace(now_wanted, prompt=wanted.prompt, remembered=remembered)


def _built(wanted: WantedRequest, reference: RequestReference, payloads: Mapping[PayloadHash, bytes]) -> BuiltRequest:
    return wanted.built(reference, summary=True), payloads


def summary_text(response: ModelResponse, plan: SummaryPlan) -> str:
    text = clean_text("\n".join(block.text for block in response.content if isinstance(block, TextBlock))).strip()
    if not text:
        raise Unusable("the summary says nothing", response.usage)
    if about_tokens(text) >= plan.tokens:
        raise Unusable("the summary is no shorter than what it is of", response.usage)
    return text


def _without(wanted: WantedRequest, error: BaseException) -> WantedRequest:
    said = text_of_error(error) or type(error).__name__
    expected = isinstance(error, ProviderError | Unusable)
    said = said if expected else f"{type(error).__name__}: {said}"
    log.warning(
        "session %s: the history is not summarised: %s", wanted.session, said, exc_info=None if expected else error
    )
    paid = error.usage if isinstance(error, Unusable) else Usage()
    return msgspec.structs.replace(wanted, notes=(f"the history was not summarised ({said[:2_000]})",), paid=paid)
