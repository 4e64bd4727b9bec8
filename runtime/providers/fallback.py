"""Several providers for one agent: where one fails, the next is asked.

The order is that of the list, for every call anew. A call that failed because of what was asked would fail everywhere,
and is not asked again. What has been streamed of an answer cannot be taken back, so a failure after its first piece is
the call's failure; the agent's `RetryPolicy` says whether it is made again. Each provider has a circuit breaker: one
that failed often is not asked for a while, so that no call has to wait for its next failure.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from typing import TypeAlias, cast, get_args

import msgspec

from refold.actors.calls.protocols import Provider, StreamingProvider, StreamItem
from refold.actors.calls.request import sent_digest
from refold.actors.calls.results import lost_connection
from refold.actors.calls.streaming import answer_stream, close_behind
from refold.actors.calls.validation import checked_delta, checked_response
from refold.events.core.cleaning import text_of_error
from refold.events.core.content import Message, TextBlock
from refold.events.core.errors import CircuitOpen, ConfigError, ProviderError, ProviderErrorKind, unquoted
from refold.events.model.messages import ModelRequest, ModelResponse, UsageDelta
from refold.events.model.request import DIGEST_CHARACTERS
from refold.memory.stream_object import stream_objects_of
from refold.providers.function import ProviderFunction, as_provider
from refold.providers.http.secrets import redaction_of
from refold.resilience.breaker import CircuitBreaker

log = logging.getLogger("refold.model")

FALL_BACK_ON: tuple[ProviderErrorKind, ...] = tuple(
    kind for kind in get_args(ProviderErrorKind) if kind not in ("invalid_request", "context_too_long")
)
"""Kinds of errors after which the next provider is asked: all that are not the request's own fault."""

Alternative: TypeAlias = Provider | ProviderFunction | tuple[Provider | ProviderFunction, str]
"""A provider or a function that is one, or one and the model to ask there instead of the agent's own."""


class FallbackProvider(StreamingProvider):
    """Asks one provider after another until one answers; a stream that has begun to give one is not begun again.

    Where none answers, the error says what each of them said, and may be repeated if one of them may.

    Args:
        alternatives: in the order in which they are asked, at least one. A provider alone is asked for the agent's
            model; with a name beside it, for that one. An answer says which model gave it, which is what its price goes
            by.
        on: kinds of errors after which the next one is asked.
        breakers: one for each, in the same order, None for one without; None = each gets one of its own, which is named
            by the provider's class and its model, such as `breaker/OpenAIProvider/gpt-5.2`, and counts errors of the
            kinds in `on`. In a runtime they are on its log, and all of one name are one circuit.

    Raises:
        ConfigError: there is none, or something is not what it should be.

    Example:
        >>> FallbackProvider([anthropic, (openai, "gpt-5.2")])  # doctest: +SKIP
    """

    def __init__(
        self,
        alternatives: Sequence[Alternative],
        *,
        on: Collection[ProviderErrorKind] = FALL_BACK_ON,
        breakers: Sequence[CircuitBreaker | None] | None = None,
    ) -> None:
        self._alternatives = [_alternative(given) for given in alternatives]
        self._on = frozenset(on)
        self.redaction = redaction_of(*(provider for provider, _ in self._alternatives))
        unknown = self._on.difference(get_args(ProviderErrorKind))
        if not self._alternatives:
            raise ConfigError("a FallbackProvider needs at least one provider")
        if unknown:
            kinds = ", ".join(get_args(ProviderErrorKind))
            raise ConfigError(f"on= holds something that is no kind of ProviderError; the kinds are {kinds}")
        self._breakers = self._own_breakers() if breakers is None else list(breakers)
        if len(self._breakers) != len(self._alternatives):
            raise ConfigError(
                f"a FallbackProvider of {len(self._alternatives)} needs as many breakers, not {len(self._breakers)}; "
                "give None for a provider without one"
            )
        for breaker in self._breakers:
            if breaker is not None and not isinstance(breaker, CircuitBreaker):
                raise ConfigError(f"breakers are CircuitBreakers or None, not of type {type(breaker).__name__}")
        self.stream_objects = (
            *(breaker for breaker in self._breakers if breaker is not None),
            *stream_objects_of(*(provider for provider, _ in self._alternatives)),
        )

    def _own_breakers(self) -> list[CircuitBreaker | None]:
        names = [f"{type(provider).__name__}/{model}" if model else type(provider).__name__
                 for provider, model in self._alternatives]  # fmt: skip
        seen: Counter[str] = Counter()
        breakers: list[CircuitBreaker | None] = []
        for name in names:
            seen[name] += 1
            named = name if seen[name] == 1 else f"{name} {seen[name]}"
            breakers.append(CircuitBreaker(named, counts=self._counts))
        return breakers

    def _counts(self, error: Exception) -> bool:
        failure = error if isinstance(error, ProviderError) else lost_connection(error)
        return failure is None or failure.kind in self._on

    def with_providers(self, make: Callable[[int], Provider]) -> "FallbackProvider":
        """Return the same with other providers, behind the same breakers and asked for the same models.

        Args:
            make: given a provider's place, from 1, returns what takes it.
        """
        alternatives: list[Alternative] = []
        for place, (_, model) in enumerate(self._alternatives, start=1):
            alternatives.append((make(place), model) if model else make(place))
        return FallbackProvider(alternatives, on=self._on, breakers=self._breakers)

    async def aclose(self) -> None:
        """Close what its providers keep open, of those that can be closed."""
        async with AsyncExitStack() as stack:
            for provider, _ in self._alternatives:
                close = getattr(provider, "aclose", None)
                if close is not None:
                    stack.push_async_callback(close)

    def sent_digest(self, request: ModelRequest, *, streamed: bool) -> str:
        """Return the digest of what the first provider would be sent, and of how the others would be asked a word."""
        word = msgspec.structs.replace(request, messages=(Message("user", (TextBlock(text="?"),)),))
        told: list[str] = []
        for place, (provider, model) in enumerate(self._alternatives):
            asked = _for_model(word if place else request, model)
            told.append(sent_digest(provider, asked, streamed=streamed))
        return f"fallback:{hashlib.sha256(' '.join(told).encode()).hexdigest()[:DIGEST_CHARACTERS]}" if told[0] else ""

    async def complete(self, request: ModelRequest) -> ModelResponse:
        (answer,) = [item async for item in self._items(request, _whole)]
        assert isinstance(answer, ModelResponse)
        return answer

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        return self._items(request, answer_stream)

    async def _items(
        self, request: ModelRequest, ask: Callable[[Provider, ModelRequest], AsyncIterable[object]]
    ) -> AsyncIterator[StreamItem]:
        """Yield what one provider gives, once `ask` has it begin."""
        failures: list[ProviderError] = []
        for (provider, model), breaker in zip(self._alternatives, self._breakers, strict=True):
            begun = False
            stream: AsyncIterable[object] | None = None
            try:
                async with _guarded(breaker):
                    stream = ask(provider, _for_model(request, model))
                    async for item in stream:
                        if isinstance(item, ModelResponse):
                            response = _named(checked_response(item), model)
                            break
                        delta = checked_delta(item)
                        begun = begun or not isinstance(delta, UsageDelta)
                        yield delta
                    else:
                        raise ProviderError(
                            "the stream ended without a complete answer", kind="malformed", retryable=True
                        )
                yield response
                return
            except CircuitOpen as refusal:
                if begun:
                    raise
                failures.append(_not_asked(refusal))
            except Exception as error:  # The border to a provider.
                if begun:
                    raise
                self._note(failures, error)
            finally:
                if stream is not None:
                    await close_behind(stream)
        raise _none_answered(failures)

    def _note(self, failures: list[ProviderError], error: Exception) -> None:
        """Keep a failure after which the next provider is asked; raise any other."""
        failure = error if isinstance(error, ProviderError) else lost_connection(error)
        if failure is None or failure.kind not in self._on:
            raise error
        failures.append(failure)
        if len(failures) < len(self._alternatives):
            said = text_of_error(error)
            log.warning("provider %d of %d failed, the next is asked: %s", len(failures), len(self._alternatives), said)


async def _whole(provider: Provider, request: ModelRequest) -> AsyncIterator[object]:
    yield checked_response(await provider.complete(request))


def _guarded(breaker: CircuitBreaker | None) -> AbstractAsyncContextManager[object]:
    return nullcontext() if breaker is None else breaker.guard()


def _not_asked(refusal: CircuitOpen) -> ProviderError:
    log.info("a provider is not asked: %s", refusal)
    return ProviderError(
        f"it was not asked, since {refusal}", kind="overloaded", retryable=True, retry_after_s=refusal.retry_after_s
    )


def _alternative(given: Alternative) -> tuple[Provider, str | None]:
    if not isinstance(given, tuple):
        return as_provider(given), None
    provider, model = cast("tuple[Provider | ProviderFunction, str | None]", given)
    if model is not None and not (isinstance(model, str) and model):
        raise ConfigError(f"a model beside a provider is its name, not {unquoted(model)}")
    return as_provider(provider), model


def _for_model(request: ModelRequest, model: str | None) -> ModelRequest:
    return request if model is None else msgspec.structs.replace(request, model=model)


def _named(response: ModelResponse, model: str | None) -> ModelResponse:
    return response if model is None or response.model else msgspec.structs.replace(response, model=model)


def _none_answered(failures: Sequence[ProviderError]) -> ProviderError:
    if len(failures) == 1:
        return failures[0]
    waits = [failure.retry_after_s for failure in failures if failure.retryable and failure.retry_after_s is not None]
    said = "; ".join(f"{number}: {failure}" for number, failure in enumerate(failures, 1))
    return ProviderError(
        f"none of {len(failures)} providers answered. {said}",
        kind=failures[-1].kind,
        status=failures[-1].status,
        retryable=any(failure.retryable for failure in failures),
        retry_after_s=min(waits) if waits and len(waits) == sum(failure.retryable for failure in failures) else None,
    )
