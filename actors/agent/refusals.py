"""What becomes of a request that its provider refuses for what it holds: it is asked again with less, a few times.

Part of the model effect. Where a request is too long, the oldest messages go, as a window leaves them out; then the
largest new image or document; where it has too many bytes, old images and documents go first. Where it is wrong, what
may be why goes, part by part (`refold.events.model.refused`). A refused request costs nothing but time, and the first
that is answered decides what is set aside, so nothing is lost by a guess. Where a server only fails, that may pass: it
is asked the same again first. The rule: each refusal leaves fewer things to try, so that the asks are bounded, and in
the end the refusal is told as the provider said it.

An answer may be a refusal, too: `with_refused_turn` says what is set aside then.
"""

from collections.abc import Iterator, Sequence

import msgspec

from refold.actors.calls.conversation import HistoryView
from refold.actors.calls.policy import MESSAGE_CHARACTERS_MAX
from refold.actors.calls.request import OutgoingRequest, RequestMaker, WantedRequest
from refold.events.core.cleaning import error_words
from refold.events.core.content import AnswerContent, Message, tool_uses
from refold.events.core.errors import ProviderError
from refold.events.model.messages import ModelResponse
from refold.events.model.refused import (
    Portion,
    RefusedParts,
    doubtful,
    finds_too_many,
    largest,
    more_than_text,
    names_setting,
    oldest,
    one_by_one,
    refused_turn,
    speaks_of_content,
    suspects,
)
from refold.events.session.state import refusal_words, says_something

SHORTENED = (0.6, 0.6, 0.6, 0.6, 0.01)
"""What part of a request's tokens may stay each time that the provider finds it too long. The last one leaves what a
window never leaves out."""

NOT_FOUND = 404
"""What a server answers to a model or an address that it does not know; also where it cannot fetch an image."""

TOO_LARGE = 413
"""What a server answers to a request of too many bytes, however few tokens it has."""

PERHAPS_CONTENT = ("invalid_request", "server", "malformed", "unknown")
"""Kinds of failures of which what a request holds may be the reason."""

NOTHING_LEFT_OUT: Portion = ()

FILTERS = ("content_filter", "safety")
"""Reasons for which an answer is cut while it is said, which tell nothing of what it answers."""


class Refusals:
    """The refusals of one model call.

    Args:
        requests: makes its requests.
        wanted: the call, of which nothing is left out yet.
    """

    def __init__(self, requests: RequestMaker, wanted: WantedRequest) -> None:
        self._requests = requests
        self._wanted = wanted
        self._shortenings = iter(SHORTENED)
        self._portions: Iterator[Portion] | None = None
        self._first: ProviderError | None = None

    async def less(self, error: ProviderError, wanted: WantedRequest, sent: OutgoingRequest) -> WantedRequest:
        too_long = error.kind == "context_too_long"
        if not too_long and (error.kind not in PERHAPS_CONTENT or names_setting(error.field)):
            raise error
        self._first = self._first or error
        tokens = too_long and error.status != TOO_LARGE
        if tokens and (shorter := await self._shortened(wanted, sent)) is not None:
            return shorter
        if self._portions is None:
            self._portions = iter(self._suspected(error))
        if (parts := next(self._portions, None)) is None:
            if too_long and not tokens and (shorter := await self._shortened(wanted, sent)) is not None:
                return shorter
            raise self._in_vain(error, self._first)
        self._shortenings = iter(SHORTENED)
        reason = error_words(self._first)[:MESSAGE_CHARACTERS_MAX]
        refused = RefusedParts(parts=parts, reason=reason) if parts else None
        return msgspec.structs.replace(self._wanted, refused=refused)

    def _suspected(self, error: ProviderError) -> Sequence[Portion]:
        history = HistoryView(self._wanted.source, self._wanted.length)
        place, latest = self._wanted.accepted, self._wanted.latest_input
        if error.kind == "context_too_long":
            found = largest(history, place)
            return [*oldest(history, place), *found] if error.status == TOO_LARGE else found
        failed, told = error.kind != "invalid_request", speaks_of_content(str(error))
        if not told and (failed or error.status == NOT_FOUND):
            found = doubtful(history, place, latest)
        elif failed:
            found = one_by_one(more_than_text(history, place))
        else:
            found = suspects(history, place, latest)
            return [*oldest(history, place), *found] if finds_too_many(str(error)) else found
        return [NOTHING_LEFT_OUT, *found] if failed and found else found

    async def _shortened(self, wanted: WantedRequest, sent: OutgoingRequest) -> WantedRequest | None:
        if (part := next(self._shortenings, None)) is None:
            return None
        plain, _ = await self._requests.plain(wanted)
        return self._requests.shortened(plain, wanted, sent.prepared, part)

    def _in_vain(self, error: ProviderError, first: ProviderError) -> ProviderError:
        if error.kind == "context_too_long":
            words = (
                "nothing more of the conversation can be left out: what is new is too long, or the system prompt and "
                "the tools are"
            )
        elif first is error:
            return error
        else:
            words = "without what may be why, it was refused, too"
        return ProviderError(f"{first}; {words}", kind=first.kind, status=first.status, field=first.field)


def with_refused_turn(
    refused: RefusedParts | None, wanted: WantedRequest, response: ModelResponse, said: tuple[AnswerContent, ...]
) -> RefusedParts | None:
    """Return what is set aside after an answer: what its request was without, and what it refuses to answer.

    A model that refuses without a word would do so again while it is shown the same, so that the turn which it
    refused has to go (Anthropic, "Handling stop reasons": reset the context after a refusal). An answer in words that a
    filter has cut is one, and stays.

    Args:
        said: the recorded answer.
    """
    details = response.stop_details or {}
    if response.stop_reason != "refusal" or details.get("type") != "refusal" or tool_uses(said):
        return refused
    words = says_something(said)
    if words and not response.rejected and details.get("category") in FILTERS:
        return refused
    answer = Message("assistant", said) if words else None
    parts = refused_turn(HistoryView(wanted.source, wanted.length), answer)
    before = refused.parts if refused is not None else ()
    return RefusedParts(parts=tuple(dict.fromkeys((*before, *parts))), reason=refusal_words(details))
