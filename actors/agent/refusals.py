"""What becomes of a request that its provider refuses for what it holds: it is asked again with less, a few times.

Part of the model effect. Where a request is too long, the oldest messages go, as a window leaves them out; then the
largest new image or document. Where it is wrong, what may be why goes, part by part (`refold.events.model.refused`). A
refused request costs nothing but time, and the first that is answered decides what is set aside, so nothing is lost by
a guess. The rule: each refusal leaves fewer things to try, so that the asks are bounded, and in the end the refusal is
told as the provider said it.
"""

from collections.abc import Iterator

import msgspec

from refold.actors.calls.conversation import HistoryView
from refold.actors.calls.request import OutgoingRequest, RequestMaker, WantedRequest
from refold.actors.calls.verdicts import MESSAGE_CHARACTERS_MAX, error_words
from refold.events.core.errors import ProviderError
from refold.events.model.refused import Portion, RefusedParts, largest, names_setting, suspects

SHORTENED = (0.6, 0.6, 0.6, 0.6, 0.01)
"""What part of a request's tokens may stay each time that the provider finds it too long. The last one leaves what a
window never leaves out."""

NOT_FOUND = 404
"""What a server answers to a model or an address that it does not know: it says nothing of what the request holds."""


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
        """Return what is wanted instead of a request that was refused.

        Raises:
            ProviderError: nothing more can be left out, or it is not refused for what it holds.
        """
        too_long = error.kind == "context_too_long"
        about_content = error.kind == "invalid_request" and error.status != NOT_FOUND and not names_setting(error.field)
        if not (too_long or about_content):
            raise error
        self._first = self._first or error
        if too_long and (shorter := await self._shortened(wanted, sent)) is not None:
            return shorter
        place, latest = self._wanted.accepted, self._wanted.latest_input
        if self._portions is None:
            history = HistoryView(self._wanted.source, self._wanted.length)
            found = largest(history, place) if too_long else suspects(history, place, latest)
            self._portions = iter(found)
        if (parts := next(self._portions, None)) is None:
            raise self._in_vain(error, self._first)
        self._shortenings = iter(SHORTENED)
        refused = RefusedParts(parts=parts, reason=error_words(self._first)[:MESSAGE_CHARACTERS_MAX])
        return msgspec.structs.replace(self._wanted, refused=refused)

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
