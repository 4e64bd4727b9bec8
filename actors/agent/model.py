"""The model actor: carries out the model calls of all sessions of one agent, beside each other.

Its address is `model/<agent>`. A call is built from the session's history, handed to the provider, and its answer is
checked call by call; the session gets what to record as the end of its effect. User code (the provider, the
validation of arguments) runs here and never in a session's handler: what it raises becomes a failed call.
"""

import asyncio
import functools
import logging
from collections.abc import AsyncIterable, Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar, cast

import msgspec

from refold.actors.agent.compaction import NotWanted, Summarising, compacted
from refold.actors.agent.guardrails import Guardrails, InputTripped
from refold.actors.agent.refusals import Refusals, with_refused_turn
from refold.actors.agent.tree_budget import TreeSpending
from refold.actors.calls.context import running_context
from refold.actors.calls.middleware import Hooks
from refold.actors.calls.policy import MESSAGE_CHARACTERS_MAX, AnswerRules, CheckOutput, CheckSchema, Offer, Policy
from refold.actors.calls.protocols import Provider, SessionObserver, ToolRunner
from refold.actors.calls.recall import Recalling
from refold.actors.calls.request import BuiltRequest, OutgoingRequest, RequestMaker, WantedRequest
from refold.actors.calls.results import lost_connection
from refold.actors.calls.streaming import PartialResponse, answer_stream, can_stream, close_stream
from refold.actors.calls.validation import checked_delta, checked_response
from refold.actors.kernel.actor import Actor
from refold.actors.kernel.errors import AskTimeout
from refold.actors.kernel.ref import ActorRef, Vital
from refold.actors.shell.effects import CANCEL_GRACE_S, CallUnderWay, call_under_way, once_log_allows, tell_end
from refold.actors.shell.messages import CancelEffect, Cause, EffectEnded, Envelope, teller
from refold.events.core.cleaning import error_words, is_finite
from refold.events.core.content import AnswerContent, Message
from refold.events.core.errors import PersistenceError, ProviderError
from refold.events.model.configuration import RecoveryFunction
from refold.events.model.context_window import ContextWindow
from refold.events.model.messages import NOTHING, Delta, ModelRequest, ModelResponse, Usage, UsageDelta
from refold.events.model.payloads import restored
from refold.events.model.redacted_stream import RedactedStream
from refold.events.model.run_context import PromptFunction
from refold.events.secrets.redaction import NOTHING_SECRET, Redaction
from refold.events.session.commands import RecordGuardrailTrip, RecordModelFailure, RecordModelResponse
from refold.events.session.events import ModelInterrupted, Verdict
from refold.events.session.normalise import recorded_answer
from refold.stores.event_store import EventStore

log = logging.getLogger("refold.model")

T = TypeVar("T")

MODEL_KIND = "model"
"""Kind of a model actor's address."""

IN_FLIGHT_S = 0.02
"""A call that takes longer has its request recorded before its end, if it does not follow from the log."""

DELTAS_PER_STEP = 50
"""After so many pieces of an answer that came without a wait, others get a turn."""


_FOLLOWS = nullcontext()
"""Around a call whose request follows from the log."""


class StartModelCall(Vital, frozen=True, kw_only=True):
    """Make the model call that a session's state asks for."""

    key: str
    reply_to: ActorRef
    wanted: WantedRequest
    cause: Cause | None = None
    """The event that wants it, and what that goes back to."""

    def __str__(self) -> str:
        return f"model call {self.key} of session {self.wanted.session}"


class _Calling:
    def __init__(self, message: StartModelCall) -> None:
        self.message = message
        self.outgoing: OutgoingRequest | None = None
        self.task: asyncio.Task[None] | None = None
        self.begun = False
        self.cancelled = False
        self.passed = asyncio.Event()
        """Set once the guardrails of input let pass: before, nothing of its answer is passed on."""
        self.usage: Usage | None = None
        """Tokens of the whole answer, once it is there, used or not."""
        self.held: list[Delta] = []
        """Pieces of its answer that wait for that."""
        self.is_shown = False
        """Whether a piece of its answer has been passed on."""
        self.paid = Usage()
        """Tokens of a summary that cannot be used."""
        self.call = CallUnderWay(message.reply_to.system, message.cause)

    @functools.cached_property
    def partial(self) -> PartialResponse:
        """What came of its answer in pieces."""
        return PartialResponse()


class ModelActor(Actor):
    """Carries out model calls."""

    def __init__(
        self,
        provider: Provider,
        tools: ToolRunner,
        store: EventStore,
        observer: SessionObserver,
        *,
        policy: Policy | None = None,
        prompt: PromptFunction | None = None,
        offer: Offer | None = None,
        output_check: CheckOutput | None = None,
        schema_check: CheckSchema | None = None,
        recovery: RecoveryFunction | None = None,
        recalling: Recalling | None = None,
        window: ContextWindow | None = None,
        hooks: Hooks | None = None,
        summariser: Provider | None = None,
        guardrails: Guardrails | None = None,
        trees: TreeSpending | None = None,
        redaction: Redaction = NOTHING_SECRET,
    ) -> None:
        self._redaction = redaction
        self._rules = AnswerRules(tools, policy, output_check, recovery, schema_check)
        self._window = window
        self._summariser = summariser or provider
        self._hooks = hooks
        self._guardrails = guardrails
        self._trees = trees
        self._requests = RequestMaker(
            store, prompt=prompt, offer=offer, recalling=recalling, window=window, hooks=hooks, redaction=redaction
        )
        self._provider = provider
        self._observer = observer
        self._calls: dict[tuple[str, str], _Calling] = {}

    def on_receive(self, message: StartModelCall | CancelEffect) -> None:
        match message:
            case StartModelCall():
                place = (message.reply_to.address, message.key)
                if place not in self._calls:
                    calling = self._calls[place] = _Calling(message)
                    unbegun = functools.partial(self._unbegun, calling)
                    calling.task = self.spawn(self._carry_out(calling), name=message.key, over=unbegun)
            case CancelEffect(asker=asker, key=key):
                running = self._calls.get((asker, key))
                if running is not None:
                    running.cancelled = True
                    if running.begun and running.task is not None:
                        running.task.cancel()

    def on_cancelled(self) -> None:
        for calling in self._calls.values():  # Their tasks end with this instance, and their sessions call again.
            tell_end(calling.message.reply_to, EffectEnded(key=calling.message.key))

    def _unbegun(self, calling: _Calling) -> None:
        """Have a call made again whose task other code has cancelled before its first step."""
        message = calling.message
        if (
            not calling.begun
            and self._calls.pop((message.reply_to.address, message.key), None) is not None
            and self.lives
        ):
            tell_end(message.reply_to, EffectEnded(key=message.key))

    async def _carry_out(self, calling: _Calling) -> None:
        message = calling.message
        ended = EffectEnded(key=message.key)
        calling.begun = True
        call_under_way.set(calling.call)
        running_context.set(message.wanted.where)
        try:
            if not calling.cancelled:
                ended = await self._call(calling)
        except asyncio.CancelledError:
            if not calling.cancelled:
                if not self.lives or not self.actor_ref.is_alive():
                    raise  # This actor stops, and the call stays open as after a crash.
                ended = self._failed(message, RuntimeError("the provider let out a CancelledError of its own"), None)
        finally:
            del self._calls[message.reply_to.address, message.key]
        if not isinstance(ended.command, RecordModelResponse):
            ended = self._with_evidence(ended, calling)
        if calling.paid != Usage():
            ended = _with_paid(ended, message, calling.paid)
        tell_end(message.reply_to, msgspec.structs.replace(ended, along=calling.call.end()))

    async def _call(self, calling: _Calling) -> EffectEnded:
        message = calling.message
        try:
            if self._trees is not None:
                asking = functools.partial(self._trees.overspent, message.wanted)
                spent = await once_log_allows(asking, self.system.clock, str(message), (PersistenceError, AskTimeout))
                if spent is not None:
                    return EffectEnded(key=message.key, command=_not_asked(message.wanted, spent))
            wanted, response, outgoing = await self._guarded(calling)
            where = wanted.where
            if self._hooks is not None:
                response, outgoing = await self._after_hooks(self._hooks, calling, response, outgoing)
            answer = await self._rules.answer(response, where, outgoing.tools, outgoing.request.tools)
            rejected = await self._rules.rejection(response, where, wanted.configuration)
            trip = None
            if not rejected and self._guardrails is not None:
                trip = await self._guardrails.on_output(response, where, wanted.configuration)
        except NotWanted:
            return EffectEnded(key=message.key)
        except InputTripped as tripped:
            run, turn, asked = message.wanted.run, message.wanted.turn, message.wanted.asked
            trip_told = RecordGuardrailTrip(run=run, turn=turn, asked=asked, trip=tripped.trip)
            return EffectEnded(key=message.key, command=trip_told)
        except ProviderError as error:
            return self._failed(message, error, calling.outgoing)
        except (asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as error:  # User code (a provider, a validator) fails its call, nothing else.
            log.warning("%s failed: %s", message, error_words(error), exc_info=error)
            return self._failed(message, error, calling.outgoing if calling.passed.is_set() else None)
        refused = outgoing.prepared.refused
        if response.stop_reason == "refusal":
            refused = with_refused_turn(refused, wanted, response, answer.content)
        command = RecordModelResponse(
            run=message.wanted.run,
            turn=message.wanted.turn,
            content=answer.content,
            stop_reason=response.stop_reason,
            usage=response.usage,
            request=outgoing.reference,
            asked=message.wanted.asked,
            model=response.model,
            verdicts=answer.verdicts,
            rejected=rejected,
            stop_details=response.stop_details,
            refused=refused,
            trip=trip,
        )
        return EffectEnded(key=message.key, command=command, payloads={**outgoing.payloads, **answer.payloads})

    async def _guarded(self, calling: _Calling) -> tuple[WantedRequest, ModelResponse, OutgoingRequest]:
        """Return the answer to what the guardrails of input let pass, what was wanted then, and the request."""
        wanted = calling.message.wanted

        async def answered() -> tuple[WantedRequest, ModelResponse, OutgoingRequest]:
            now = await self._compacted(calling, await self._requests.prompted(wanted))
            calling.paid = now.paid
            response, outgoing = await self._answered(calling, now)
            calling.usage = response.usage
            return now, response, outgoing

        def passed() -> None:
            calling.passed.set()
            for delta in calling.held:
                self._show(calling, delta)
            calling.held.clear()

        if self._guardrails is None or not self._guardrails.judge_inputs:
            passed()
            return await answered()
        messages, _ = await wanted.conversation.upto(wanted.source, wanted.length)
        return await self._guardrails.around(wanted.where, messages, wanted.answered, answered, passed)

    async def _answered(self, calling: _Calling, wanted: WantedRequest) -> tuple[ModelResponse, OutgoingRequest]:
        """Return the answer and its request, of which the more is left out, the more often the provider refuses it."""
        message, first = calling.message, wanted
        refusals: Refusals | None = None
        while True:
            again = functools.partial(self._requests.make, wanted)
            outgoing = await once_log_allows(again, self.system.clock, str(message))
            outgoing = outgoing.leaving_through(self._provider, streamed=wanted.configuration.streaming)
            calling.outgoing = outgoing
            try:
                changed = outgoing.prepared != NOTHING
                with self._in_flight(message, functools.partial(self._built, calling, wanted, outgoing), changed):
                    response = await self._answer(calling, outgoing.request)
                return response, calling.outgoing
            except ProviderError as error:
                if calling.partial.begun:
                    raise
                refusals = refusals or Refusals(self._requests, first)
                wanted = await refusals.less(error, wanted, outgoing)

    def _in_flight(
        self, message: StartModelCall, built: Callable[[], BuiltRequest], changed: bool = False
    ) -> AbstractContextManager[None]:
        """Have a request recorded that is not answered at once, and does not follow from the log; nobody waits."""
        return self._recorded(message, built) if changed or message.wanted.configuration.builds_requests else _FOLLOWS

    @contextmanager
    def _recorded(self, message: StartModelCall, built: Callable[[], BuiltRequest]) -> Generator[None, None, None]:
        def report() -> None:
            command, payloads = built()
            said = Envelope(command, payloads, vital=True, insist=True, cause=message.cause)
            teller(message.reply_to, said)()

        timer = self.system.clock.call_later(IN_FLIGHT_S, report)
        try:
            yield
        finally:
            timer.cancel()

    def _built(self, calling: _Calling, wanted: WantedRequest, outgoing: OutgoingRequest) -> BuiltRequest:
        calling.outgoing = outgoing = outgoing.in_flight()
        return wanted.built(outgoing.reference), outgoing.payloads

    async def _after_hooks(
        self, hooks: Hooks, calling: _Calling, response: ModelResponse, outgoing: OutgoingRequest
    ) -> tuple[ModelResponse, OutgoingRequest]:
        """Return an answer as middleware leaves it, and the request with the model's own where they differ."""
        changed = await hooks.post_llm(calling.message.wanted.where, response)
        if changed is response:
            return response, outgoing
        own = recorded_answer(response, lambda _, arguments: (arguments, Verdict()))
        whole = restored(Message("assistant", own.content), own.payloads).content
        return changed, outgoing.answered_with(cast("tuple[AnswerContent, ...]", whole))

    async def _compacted(self, calling: _Calling, wanted: WantedRequest) -> WantedRequest:
        if not isinstance(self._window, Summarising):
            return wanted
        message, clock = calling.message, self.system.clock
        make = functools.partial(
            compacted,
            self._window,
            self._requests,
            self._summariser,
            clock,
            message.reply_to,
            wanted,
            functools.partial(self._in_flight, message),
            self._redaction,
            calling.passed.wait,
        )
        return await once_log_allows(make, clock, str(message))

    async def _answer(self, calling: _Calling, request: ModelRequest) -> ModelResponse:
        try:
            return await self._answer_of_provider(calling, request)
        except Exception as error:
            lost = lost_connection(error)
            if lost is None:
                raise
            raise lost from error

    async def _answer_of_provider(self, calling: _Calling, request: ModelRequest) -> ModelResponse:
        if not calling.message.wanted.configuration.streaming or not can_stream(self._provider):
            return self._cleaned(checked_response(await self._provider.complete(request)))
        stream = answer_stream(self._provider, request)
        try:
            return await self._last_of(stream, calling)
        finally:
            await self._close(stream, calling)

    async def _last_of(self, stream: AsyncIterable[object], calling: _Calling) -> ModelResponse:
        """Return the complete response, which ends a stream, and pass on what comes before it."""
        count = 0
        pieces = RedactedStream(self._redaction)
        async for item in stream:
            count += 1
            if count % DELTAS_PER_STEP == 0:  # A stream that never waits would keep the loop, also from its reader.
                await asyncio.sleep(0)
            if isinstance(item, ModelResponse):
                response = self._cleaned(checked_response(item))
                self._pass_on(calling, pieces.rest())
                calling.partial.add(UsageDelta(response.usage))
                return response
            self._pass_on(calling, pieces.pieces([checked_delta(item)]))
        raise ProviderError("the stream ended without a complete answer", kind="malformed", retryable=True)

    def _cleaned(self, response: ModelResponse) -> ModelResponse:
        return response if self._redaction is NOTHING_SECRET else self._redaction.value(response)

    def _pass_on(self, calling: _Calling, deltas: Sequence[Delta]) -> None:
        """Keep pieces of an answer as evidence, and show them to those who follow the session, once they may see it."""
        for delta in deltas:
            calling.partial.add(delta)
            # The provider has swallowed a cancellation; what it sends now is evidence, and it is left.
            if calling.cancelled or (calling.task is not None and calling.task.cancelling()):
                raise asyncio.CancelledError
            if calling.passed.is_set():
                self._show(calling, delta)
            else:
                calling.held.append(delta)

    def _show(self, calling: _Calling, delta: Delta) -> None:
        wanted = calling.message.wanted
        try:
            self._observer.streamed(
                wanted.session, wanted.run, wanted.turn, delta, asked=wanted.asked, begins=not calling.is_shown
            )
        except Exception:
            log.exception("who watches session %s failed on a piece of an answer", wanted.session)
        calling.is_shown = True

    async def _close(self, stream: AsyncIterable[object], calling: _Calling) -> None:
        """Let a stream clean up behind itself; how that goes changes nothing about the answer."""
        task, over = asyncio.current_task(), False
        assert task is not None

        def give_up() -> None:
            nonlocal over
            over = True
            task.cancel()

        # In this very task: what the stream has opened may have to be closed by the task that opened it.
        timer = self.system.clock.call_later(CANCEL_GRACE_S, give_up)
        try:
            await close_stream(stream)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # User code.
            if over:
                task.uncancel()
            if calling.cancelled or task.cancelling():
                raise
            text = "the stream of %s could not be closed: %s"
            log.warning(text, calling.message, error_words(error), exc_info=error)
        finally:
            timer.cancel()

    def _with_evidence(self, ended: EffectEnded, calling: _Calling) -> EffectEnded:
        """Add what had been streamed of an answer that never came, or could not be used."""
        wanted = calling.message.wanted
        if calling.usage is not None:
            calling.partial.add(UsageDelta(calling.usage))
        evidence, payloads = calling.partial.interruption(wanted.turn, wanted.asked)
        return msgspec.structs.replace(ended, evidence=evidence, payloads={**ended.payloads, **payloads})

    def _failed(self, message: StartModelCall, error: BaseException, outgoing: OutgoingRequest | None) -> EffectEnded:
        provider = error if isinstance(error, ProviderError) else None
        command = RecordModelFailure(
            run=message.wanted.run,
            turn=message.wanted.turn,
            kind=provider.kind if provider is not None else "agent_loop",
            message=self._redaction.text(error_words(error))[:MESSAGE_CHARACTERS_MAX],
            status=provider.status if provider is not None else None,
            retryable=provider.retryable if provider is not None else False,
            retry_after_s=_finite(provider.retry_after_s) if provider is not None else None,
            request=outgoing.reference if outgoing is not None else None,
            asked=message.wanted.asked,
            keeps_content=provider is not None and provider.kind == "invalid_request",
        )
        payloads = outgoing.payloads if outgoing is not None else {}
        return EffectEnded(key=message.key, command=command, payloads=payloads)


def _not_asked(wanted: WantedRequest, spent: str) -> RecordModelFailure:
    return RecordModelFailure(
        run=wanted.run, turn=wanted.turn, asked=wanted.asked, kind="budget", message=spent, keeps_content=True
    )


def _with_paid(ended: EffectEnded, message: StartModelCall, paid: Usage) -> EffectEnded:
    evidence = ended.evidence
    if not isinstance(evidence, ModelInterrupted):
        evidence = ModelInterrupted(turn=message.wanted.turn, asked=message.wanted.asked)
    return msgspec.structs.replace(ended, evidence=msgspec.structs.replace(evidence, usage=evidence.usage + paid))


def _finite(seconds: object) -> float | None:
    if not is_finite(seconds):
        return None
    return float(seconds)
