"""An answer as a stream, whatever the provider: one that cannot stream gives its whole answer as the only item.

The rule protected here: who consumes a stream closes it, also one that was left early, and a provider that gives
something else than a stream fails the call in words and leaves no coroutine behind.
"""

import inspect
import logging
from collections.abc import AsyncIterable, AsyncIterator
from typing import TypeGuard

from refold.actors.protocols import Provider, StreamingProvider
from refold.events.errors import ProviderError
from refold.events.model import ModelRequest

log = logging.getLogger("refold.model")


def can_stream(provider: Provider) -> TypeGuard[StreamingProvider]:
    """Return whether a provider has a stream of its own."""
    return callable(getattr(provider, "stream", None))


def answer_stream(provider: Provider, request: ModelRequest) -> AsyncIterable[object]:
    """Return the stream of a provider's answer; `close_stream` it.

    Raises:
        ProviderError: what it gives is no stream; of kind `malformed`.
    """
    if not can_stream(provider):
        return _whole(provider, request)
    stream: object = provider.stream(request)
    if isinstance(stream, AsyncIterable):
        return stream
    if inspect.iscoroutine(stream):
        stream.close()
    raise ProviderError(
        f"stream() of {type(provider).__name__} gave {type(stream).__name__}, not an async iterator", kind="malformed"
    )


async def close_stream(stream: AsyncIterable[object]) -> None:
    """Let a stream clean up behind itself, if it can.

    Raises:
        BaseException: whatever its cleaning up raises.
    """
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()


async def close_behind(stream: AsyncIterable[object]) -> None:
    """Let a stream clean up behind what it has given; how that goes changes nothing about it, and is only logged."""
    try:
        await close_stream(stream)
    except Exception:
        log.exception("the stream of a model call could not be closed")


async def _whole(provider: Provider, request: ModelRequest) -> AsyncIterator[object]:
    yield await provider.complete(request)
