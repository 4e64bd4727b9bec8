"""Summaries of long histories: what today's window asks for one beside what was asked, and what a model answers to it.

Read `refold.actors.agent.compaction` first. The rule: the history goes on with the recorded summary.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from refold.actors.agent.compaction import Summarising, Unusable, summary_text
from refold.actors.calls.protocols import Provider
from refold.actors.calls.request import context_of
from refold.events.core.content import Json, Message, TextBlock
from refold.events.core.difference import NOTHING, Difference, json_of
from refold.events.model.context_window import SummaryPlan, summary_messages
from refold.events.model.messages import ModelRequest, ModelResponse, Prepared, SystemAddition
from refold.events.model.payloads import restored, stored_hashes
from refold.events.session import events as ev
from refold.replay.answers.asked import PATH
from refold.replay.comparing import Comparison, Mismatch
from refold.replay.current_agent import CurrentAgent, RequestPair
from refold.stores.event_store import EventStore


class SummaryNow(NamedTuple):
    """The summary that today's window wants."""

    plan: SummaryPlan
    request: ModelRequest
    provider: Provider
    """That is asked for it."""


async def planned(
    current: CurrentAgent, pair: RequestPair, added: Sequence[SystemAddition], fits: int | None
) -> SummaryNow | None:
    """Return what today's window wants of a history; None = no summary.

    Args:
        fits: how many tokens a provider is known to take, as it was known before the request.
    """
    window = current.agent.context
    if not isinstance(window, Summarising):
        return None
    plain, _ = await current.requests.plain(pair.wanted)
    wanted = msgspec.structs.replace(pair.wanted, fits=fits)
    plan = window.plan(context_of(plain, wanted, Prepared(prompt=pair.prepared.prompt, added=tuple(added))))
    if plan is None:
        return None
    return SummaryNow(plan, window.request(plain, plan), window.provider or current.agent.provider)


def summarised(comparison: Comparison, recorded: int | None, now: SummaryNow | None) -> Mismatch | None:
    """Return whether a summary stands for another number of messages; None = none was made."""
    left: Json = NOTHING if recorded is None else recorded
    return comparison.whole(left, NOTHING if now is None else now.plan.replaced, "summary.replaced")


def in_summary(
    comparison: Comparison,
    event: ev.ContextPrepared | ev.RequestBuilt,
    asked: ModelRequest,
    now: SummaryNow | None,
    request: ModelRequest | None,
) -> Mismatch | None:
    """Return where a summary differs from today's.

    Args:
        event: what came of asking for it; or that it was asked for, where nothing did.
        request: the request in it, without what is secret.
    """
    if isinstance(event, ev.RequestBuilt):
        if request is None:
            return comparison.whole(json_of(asked), NOTHING, "summary.request")
        return comparison.requests(asked, request, "summary.request")
    found = summarised(comparison, event.replaced, now)
    if found is None and request is not None and now is not None and now.plan.replaced == event.replaced:
        found = comparison.requests(asked, request, "summary.request")
    return found or comparison.mismatch(event.summary, _told(event), "summary.messages")


def _told(event: ev.ContextPrepared) -> tuple[Message, ...]:
    """Return what would stand today for the messages of which a model made the recorded summary."""
    said = event.summary[0].content[0] if event.summary else None
    if not isinstance(said, TextBlock):  # Kept apart, since it is long.
        return event.summary
    return summary_messages(_words(said.text), event.summary[1] if len(event.summary) > 1 else None)


def _words(told: str) -> str:
    return told.partition("\n\n")[2]


async def summaries_beside(
    event: ev.ContextPrepared, plan: SummaryPlan, current: CurrentAgent, store: EventStore, answer: ModelResponse
) -> tuple[str, str, Iterator[Difference]]:
    message = event.summary[0]
    then = _words(restored(message, await store.read_payloads(stored_hashes([message]))).text)
    try:
        now = summary_text(current.redaction.value(answer), plan)
    except Unusable as error:
        return then, str(error), iter((Difference(path=f"{PATH}.failure", right=str(error)),))
    found = [Difference(path=f"{PATH}.summary", left=then, right=now)] if then != now else []
    return then, now, iter(found)
