"""Level `decide` of a replay: a dry run of today's agent on what a session recorded.

Each recorded stimulus that user code had a hand in is done again by the very functions that did it: an input goes
through middleware, a request is built of the recorded history with today's configuration, tools, offer, window and
middleware, the model's own answer is judged by today's checks and policy, a tool's own result goes through middleware
again, and the session's core decides under today's configuration. What comes out is compared with what is recorded.

The rules: every comparison begins at the recorded state, so that one difference does not bring on all those after it,
but for the core's decisions, which build on each other and are compared up to the first one that differs. Nothing is
called but what decides (see `refold.tools.dry_run`), and what could not be done again is said.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

import msgspec

from refold.actors.agent.compaction import Summarising
from refold.actors.agent.subsession import ancestors_of
from refold.actors.calls.context import HookContext, SessionContext, hook_context, running_context, session_context
from refold.actors.calls.conversation import Conversation
from refold.actors.calls.protocols import Provider
from refold.actors.calls.recall import Remembered
from refold.actors.calls.request import WantedRequest, sent_digest
from refold.events.core.content import Json, Message
from refold.events.core.difference import NOTHING, Difference, json_of
from refold.events.core.errors import LogFormatError
from refold.events.core.ids import PayloadHash, RunId, SessionId, StreamName, kind_and_identifier
from refold.events.core.pure_core import evolve_all
from refold.events.core.records import StoredEvent, event_ref
from refold.events.model.configuration import AgentConfiguration, ToolSpec, configured_for
from refold.events.model.messages import ModelRequest, ModelResponse, Prepared, RequestReference, SystemAddition
from refold.events.model.refused import GuardrailTrip
from refold.events.model.request import applied, form_of, plain_request, prepared_of
from refold.events.session import events as ev
from refold.events.session.core import SESSION_CODEC, SESSION_CORE
from refold.events.session.state import find_call
from refold.replay.answers.asked import PATH, SUMMARIES, Unanswered
from refold.replay.answers.memories import PastRecalling, require_remembering
from refold.replay.answers.never_answered import AskedFor, Built, NeverAnswered
from refold.replay.comparing import (
    CODE_ERRORS,
    FAULTS,
    TAKEN_OUT,
    Comparison,
    Mismatch,
    changed_configuration,
    is_of_taken_out,
    is_redacted,
)
from refold.replay.core_replay import EFFECTS_DIGEST, admitted_otherwise, caught_up, with_effects_then
from refold.replay.current_agent import (
    AgentsReplay,
    BodyRan,
    CurrentAgent,
    CurrentDecisions,
    RecordedResult,
    RequestPair,
    answer_now,
    answers_beside,
    body_now,
    input_now,
    is_of_the_body,
    result_now,
)
from refold.replay.findings import AFTER_A_DIFFERENCE, AFTER_MEANT, PARTED_MAX, Divergence, What
from refold.replay.summaries import SummaryNow, in_summary, planned, summaries_beside, summarised
from refold.tools.dry_run import ActedInDryRun, FailedInDryRun, NotComparable

T = TypeVar("T")

Beside: TypeAlias = Callable[[ModelResponse], Awaitable[tuple[object, object, Iterable[Difference]]]]
"""Returns what a model answered then, what it answers today, and how that differs."""

MEMORY_FAILED = ("nothing was recalled", "the working memory was left out")
"""How the notes begin that say that a memory could not be asked."""

NOT_SUMMARISED = "the history was not summarised"
OF_THE_LOG = "log"


class AgentReplay:
    """Takes the batches of one session, oldest first."""

    def __init__(self, stream: StreamName, current: CurrentAgent, agents: AgentsReplay) -> None:
        store = agents.store
        self._agents = agents
        self._stream = stream
        self._session = SessionId(kind_and_identifier(stream)[1])
        self._current = self._first = current
        self._gone = ""
        """Why nothing is done again any more."""
        self._store = store
        self._dry_run = agents.dry_run
        self._findings = agents.findings
        self._comparison = agents.comparison
        self._is_redacted = agents.is_redacted
        self._changed: set[str] = set()
        """Paths of its configuration that are known to be others today."""
        self._state = SESSION_CORE.initial()
        self._conversation = Conversation(store.read_payloads)
        self._recalling = PastRecalling(store, current.agent)
        self._decisions: CurrentDecisions | None = self._deciding()
        self._configured: dict[int, AgentConfiguration] = {}
        self._places: list[tuple[int, int]] = [(0, 0)]
        """Position and time of each version."""
        self._ancestors: tuple[SessionId, ...] = ()
        self._parted = 0
        """So often a decision was another one, and that was meant."""
        self._never_answered = NeverAnswered()
        self._found: set[str] = set()
        self._failed: list[Divergence] = []
        """Where today's code raises in this batch, and did not when it was recorded."""
        self.core_version: int | None = None

    def _deciding(self) -> CurrentDecisions:
        return CurrentDecisions(self._stream, self._first, self._agents.current, self._comparison.accepts)

    async def take(self, batch: Sequence[StoredEvent], *, compared: bool = True) -> list[Divergence]:
        """Do one batch again; return what differs in it, of each kind of comparison the first of the session.

        Args:
            compared: False = it is only folded.
        """
        events = SESSION_CODEC.decode_all(batch)
        stimulus = events[0]
        if isinstance(stimulus, ev.SessionOpened):
            self._ancestors = await ancestors_of(self._store, self._session, batch[0])
        if self._gone:
            self._findings.miss("decision", event_ref(self._stream, batch[0].version), self._gone)
            return []
        self._failed = []
        found: list[Divergence] = []
        decided: Divergence | None = None
        if batch[0].stream == self._stream and compared:
            admitted = admitted_otherwise(SESSION_CORE, self._state, stimulus, self._comparison)
            found = self._compared("admit", batch, admitted)
            if (left := self._never_answered.left_by(batch, events)) is not None:
                found += await self._built(left)
            found += await self._user_code(batch, stimulus)
            found += self._failed
            decided = await self._decided(batch)
        elif self._decisions is not None:  # A fork's prefix is compared where it lies.
            self._decisions.fold(batch)
        if decided is not None:
            found.append(decided)
        try:
            self._state = evolve_all(SESSION_CORE, events, self._state)
        except CODE_ERRORS:
            if decided is None and self._decisions is not None:
                raise
            self._gone = "today's code cannot fold what is before it"
            return found
        if decided is not None and decided.difference.path == EFFECTS_DIGEST:
            found[-1] = with_effects_then(decided, SESSION_CORE.pending(self._state))
        self._places += [(stored.position, stored.at) for stored in batch]
        for version, event in enumerate(events, batch[0].version):
            if isinstance(event, ev.AgentConfigured):
                self._configured[version] = event.configuration
                self.core_version = event.configuration.code.core
                await self._configuration(event.configuration, event_ref(self._stream, version))
            elif isinstance(event, ev.HandedOff):
                self._hand_over(event.agent)
        return found

    async def finish(self) -> list[Divergence]:
        """Return what differs in what the session left open."""
        left, self._failed = self._never_answered.left(), []
        if left is None or self._gone:
            return []
        return await self._built(left) + self._failed

    async def _built(self, built: Built) -> list[Divergence]:
        if built.event.summary:
            return await self._summary(built.batch, built.event, built.event.request)
        return await self._turn(built.batch, built.event, built.event.request)

    def _hand_over(self, agent: str) -> None:
        current = self._agents.current(agent)
        if current is None:
            self._gone = f"the session was handed to the agent {agent!r}, which is none of today's"
            return
        self._current, self._changed = current, set()
        self._recalling = PastRecalling(self._store, current.agent)

    async def _configuration(self, recorded: AgentConfiguration, place: str) -> None:
        """Note how today's configuration differs from a recorded one."""
        current = self._agents.current(recorded.agent) or self._current
        try:
            then, now = await current.parts_of(recorded), await current.parts_of(current.configuration)
        except LogFormatError:  # The log lacks a part of it, which each request that needs it says.
            return
        found = changed_configuration((recorded, *then), (current.configuration, *now))
        self._findings.changed(current.agent.name, place, found, self._changed)

    async def _decided(self, batch: Sequence[StoredEvent]) -> Divergence | None:
        if self._decisions is None:
            why = AFTER_MEANT if self._parted > PARTED_MAX else AFTER_A_DIFFERENCE
            self._findings.miss("decision", event_ref(self._stream, batch[0].version), why)
            return None
        divergence = self._decisions.decide(batch)
        self._findings.compared("decision", differs=divergence is not None)
        if divergence is not None:
            self._decisions = None
        elif self._decisions.parted:
            self._decisions = self._deciding()
            self._parted += 1
            if self._parted > PARTED_MAX or not await caught_up(self._decisions, self._store, batch[-1]):
                self._decisions = None
        return divergence

    async def _user_code(self, batch: Sequence[StoredEvent], stimulus: ev.SessionEvent) -> list[Divergence]:
        match stimulus:
            case ev.InputQueued(scheduled=0) | ev.TimerSet():
                return await self._input(batch, stimulus)
            case ev.ModelResponded(request=reference) | ev.ModelFailed(request=reference) if reference is not None:
                return await self._turn(batch, stimulus, reference)
            case ev.GuardrailTripped():
                return await self._input_guardrails(batch, stimulus.turn, stimulus.trip)
            case ev.ContextPrepared(request=reference) if reference is not None:
                return await self._summary(batch, stimulus, reference)
            case ev.ToolCallCompleted() | ev.ToolAttemptFailed() | ev.ToolCallFailed():
                return await self._result(batch, stimulus)
            case _:
                return []

    async def _done_again(
        self,
        what: What,
        batch: Sequence[StoredEvent],
        work: Callable[[], Awaitable[T]],
        part: str = "",
        *,
        failed_then: str = "",
    ) -> T | None:
        """Return what `work` does in a dry run; None where it raised or could not be done again, which is counted.

        Code that raises differs from what is recorded, but where the same is recorded.

        Args:
            part: which part of it, where that is not the agent's code; `OF_THE_LOG` needs no dry run.
            failed_then: why it failed when it was recorded; empty = it did not.
        """
        run = self._state.run
        where = self._where(run.id, run.turns) if run is not None else self._where()

        async def working() -> T:
            running_context.set(where)
            return await work()

        try:
            name = f"{self._current.agent.name} {what} {part}"
            return await (work() if part == OF_THE_LOG else self._dry_run.answer(name, working))
        except (NotComparable, LogFormatError) as error:
            if isinstance(error, ActedInDryRun):
                self._findings.refused(what, event_ref(self._stream, batch[0].version), error.acts)
            self._findings.miss(what, event_ref(self._stream, batch[0].version), str(error))
        except (FailedInDryRun, *FAULTS) as error:
            now = str(error)
            then: Json = failed_then or NOTHING
            difference = Difference(path=f"{what}.failure", left=then, right=now)
            other = now != then and not self._comparison.accepts(difference)
            self._failed += self._compared(what, batch, Mismatch(difference, then, now) if other else None)
        return None

    def _where(self, run: RunId | None = None, turn: int = 0) -> HookContext:
        """Return for whom functions of the application are called here."""
        of = session_context(self._session, self._ancestors, self._state)
        return hook_context(of, deps=self._current.deps, run=run, turn=turn)

    def _compared(
        self, what: What, batch: Sequence[StoredEvent], found: Mismatch | None, judged: Sequence[Message] = ()
    ) -> list[Divergence]:
        """Count a comparison, and return the first difference of its kind; for `judged` see `is_of_taken_out`."""
        if found is not None and self._is_redacted and is_of_taken_out(found, judged):
            self._findings.miss(what, event_ref(self._stream, batch[0].version), TAKEN_OUT)
            return []
        self._findings.compared(what, differs=found is not None)
        if found is None:
            return []
        kind = ".".join(found.difference.path.split(".")[:2]) if what == "model" else what
        if kind in self._found or what == "decision":
            return []
        self._found.add(kind)
        return [
            Divergence(
                stream=self._stream,
                version=batch[0].version,
                batch=batch[0].version,
                position=batch[0].position,
                differs=what,
                difference=found.difference,
                recorded=found.recorded,
                now=found.now,
                core_version=self.core_version,
            )
        ]

    def _in_events(
        self, what: What, batch: Sequence[StoredEvent], recorded: ev.SessionEvent, now: ev.SessionEvent
    ) -> list[Divergence]:
        msgspec.structs.force_setattr(now, "at", recorded.at)
        return self._compared(what, batch, self._comparison.mismatch(recorded, now, what))

    async def _input(self, batch: Sequence[StoredEvent], event: ev.InputQueued | ev.TimerSet) -> list[Divergence]:
        if self._ancestors:
            return []  # A call's task, which goes through no middleware.
        current = self._current
        now = await self._done_again("input", batch, lambda: input_now(event, current, self._where(), self._store))
        return self._in_events("input", batch, event, now) if now is not None else []

    async def _turn(
        self, batch: Sequence[StoredEvent], event: AskedFor, reference: RequestReference
    ) -> list[Divergence]:
        pair = await self._done_again(
            "request", batch, lambda: self._pair(event.run, event.turn, reference), OF_THE_LOG
        )
        if pair is None:
            return []
        found = await self._input_guardrails(batch, event.turn, None)
        found += await self._recall(batch, pair)
        found += await self._no_summary(batch, pair)
        then = event.message if isinstance(event, ev.ModelFailed) and event.kind == "agent_loop" else ""
        made = await self._done_again("request", batch, lambda: self._requests_now(pair), failed_then=then)
        if made is not None:
            now, redacted = made
            if Comparison().requests(pair.request, redacted, "request") is None:
                different = await self._in_sent("request", batch, reference.sent, now)
            else:
                different = self._comparison.requests(pair.request, redacted, "request")
            found += self._compared("request", batch, different)
        if isinstance(event, ev.ModelResponded):
            offered = made[0].tools if made is not None else pair.request.tools
            found += await self._answer(batch, event, pair, offered)
            beside = partial(answers_beside, event, pair.prepared.answer, self._current, self._store)
            found += await self._asked_again(batch, made[0] if made is not None else None, beside)
        return found

    async def _asked_again(
        self, batch: Sequence[StoredEvent], request: ModelRequest | None, beside: Beside, *, summary: bool = False
    ) -> list[Divergence]:
        """Compare what a model answers today to the request of today, where models are asked."""
        if (ask := self._agents.ask) is None:
            return []
        place = event_ref(self._stream, batch[0].version)
        if request is None:
            self._findings.miss("model", place, "the request could not be made again")
            return []
        answer = await ask(self._current.agent.name + (SUMMARIES if summary else ""), request)
        if isinstance(answer, Unanswered):
            if answer.refused:
                refused = Difference(path=f"{PATH}.failure", right=answer.why)
                meant = self._comparison.accepts(refused)
                found = None if meant else Mismatch(refused, NOTHING, answer.why)
                return self._compared("model", batch, found, request.messages)
            self._findings.miss("model", place, answer.why)
            return []
        done = await self._done_again("model", batch, lambda: beside(answer))
        if done is None:
            return []
        then, now, differences = done
        difference = next((each for each in differences if not self._comparison.accepts(each)), None)
        found = Mismatch(difference, json_of(then), json_of(now)) if difference is not None else None
        return self._compared("model", batch, found, request.messages)

    async def _input_guardrails(
        self, batch: Sequence[StoredEvent], turn: int, then: GuardrailTrip | None
    ) -> list[Divergence]:
        """Compare which guardrail trips on what users had said before a model was asked."""
        state, run = self._state, self._state.run
        if run is None or not (then or self._current.agent.input_guardrails):
            return []

        async def judged() -> tuple[GuardrailTrip | None, Sequence[Message]]:
            whole, _ = await self._conversation.upto(state.messages, len(state.messages))
            where, new = self._where(run.id, turn), state.accepted
            return await self._current.guardrails.on_input(where, whole, new), whole[new:]

        now = await self._done_again("guardrail", batch, judged)
        if now is None:
            return []
        return self._compared("guardrail", batch, self._comparison.mismatch(then, now[0], "guardrail"), now[1])

    async def _pair(self, run: RunId, turn: int, reference: RequestReference) -> RequestPair:
        """Return the recorded request, and what is known of the one that is made today."""
        configuration = self._configured.get(reference.configured)
        state = self._state
        if configuration is None or state.run is None:
            raise NotComparable("the log does not say which configuration was in force")
        messages, digest = await self._conversation.upto(state.messages, min(reference.messages, len(state.messages)))
        if len(messages) < reference.messages or (reference.digest and digest != reference.digest):
            raise NotComparable("the history is not the one that was sent; `refold check` says what is wrong")
        prepared = await self._prepared(reference)
        prompt, tools = await self._current.parts_of(configuration)
        if configuration.output_schema is None:  # Recorded before it was; the prompt tells the same.
            schema = self._current.configuration.output_schema
            configuration = msgspec.structs.replace(configuration, output_schema=schema)
        options = state.run.options
        configuration = configured_for(configuration, options)
        plain = plain_request(configuration, prompt, tools, messages, reference.offered)
        wanted = WantedRequest(
            context=session_context(self._session, self._ancestors, state),
            run=run,
            turn=turn,
            asked=state.run.asked,
            summarised=state.summarised,
            configured=reference.configured,
            configuration=configured_for(self._current.configuration, options),
            source=state.messages,
            length=reference.messages,
            latest_input=state.run.latest_input,
            conversation=self._conversation,
            deps=self._current.deps,
            counted=state.counted,
            fits=reference.fits,
            refused=prepared.refused,
            unsummarised=reference.unsummarised,
        )
        return RequestPair(request=applied(plain, prepared), reference=reference, prepared=prepared, wanted=wanted)

    async def _prepared(self, reference: RequestReference) -> Prepared:
        name: PayloadHash | None = reference.prepared_payload
        return prepared_of(reference, await self._store.read_payloads([name]) if name is not None else {})

    async def _recall(self, batch: Sequence[StoredEvent], pair: RequestPair) -> list[Divergence]:
        recorded = Remembered(added=pair.prepared.added, recalled=pair.reference.recalled)
        if not self._current.remembers and recorded == Remembered():
            return []

        async def remembered(position: int, at: int) -> Remembered | None:
            require_remembering(self._recalling)
            if any(note.startswith(MEMORY_FAILED) for note in pair.prepared.notes):
                raise NotComparable("a memory could not be asked when it was recorded")
            context = pair.wanted.context
            if not await self._recalling.go(position, at, context) and position != asked[0]:
                return None
            query = pair.wanted.source[pair.wanted.latest_input]
            whole = (await self._conversation.upto(pair.wanted.source, pair.wanted.length))[0]
            now = await self._recalling.remembered(
                self._current.configuration, whole[pair.wanted.latest_input].text if query.content else "", context
            )
            if now.notes:
                raise NotComparable(now.notes[0])
            return now

        asked = self._places[pair.wanted.asked]
        now = await self._done_again("recall", batch, lambda: remembered(*asked))
        if now is None:
            return []
        if Comparison().recall(recorded, now) is not None and (lacks := await self._recalling.lacks()) is not None:
            self._findings.miss("recall", event_ref(self._stream, batch[0].version), lacks)
            return []
        if Comparison().recall(recorded, now) is not None:
            # A memory may have changed between the decision to ask and the question.
            before_answer = (batch[0].position - 1, batch[0].at)
            later = await self._done_again("recall", batch, lambda: remembered(*before_answer))
            now = later if later is not None else now
        return self._compared("recall", batch, self._comparison.recall(recorded, now))

    async def _requests_now(self, pair: RequestPair) -> tuple[ModelRequest, ModelRequest]:
        """Return the request of today, and that without what was taken out of the bundle."""
        self._current.given.recorded = Remembered(added=pair.prepared.added, recalled=pair.reference.recalled)
        request = (await self._current.requests.make(pair.wanted)).request
        return request, self._current.redaction.value(request)

    async def _in_sent(
        self, what: What, batch: Sequence[StoredEvent], recorded: str, now: ModelRequest, by: Provider | None = None
    ) -> Mismatch | None:
        """Compare what leaves for a request that is the recorded one: the protocol and the provider make that of it.

        Args:
            recorded: the digest of what left; empty = it is not known.
            by: makes summaries; None = it is the agent's provider, which streams where the configuration says so.
        """
        if not recorded:
            return None
        provider = by or self._current.provider
        streamed = by is None and self._current.configuration.streaming

        async def leaving() -> str:
            sent = sent_digest(provider, now, streamed=streamed)
            if sent and form_of(sent) != form_of(recorded):
                name = type(by or self._current.agent.provider).__name__
                raise NotComparable(f"it left as {form_of(recorded)}, and {name} makes another form of it")
            return sent

        sent = await self._done_again(what, batch, leaving, "as it leaves")
        return self._comparison.mismatch(recorded, sent, f"{what}.sent") if sent is not None else None

    async def _no_summary(self, batch: Sequence[StoredEvent], pair: RequestPair) -> list[Divergence]:
        """Compare where a history was sent without being summarised first."""
        window = self._current.agent.context
        made = pair.wanted.summarised > pair.wanted.asked
        failed = any(note.startswith(NOT_SUMMARISED) for note in pair.prepared.notes)
        if not isinstance(window, Summarising) or made or failed:
            return []

        # Before requests were recorded with their tokens, what memories add was not counted.
        added = pair.prepared.added if pair.reference.estimated else ()
        now = await self._planned(batch, pair, added)
        return self._compared("summary", batch, summarised(self._comparison, None, now[0])) if now is not None else []

    async def _planned(
        self, batch: Sequence[StoredEvent], pair: RequestPair, added: Sequence[SystemAddition]
    ) -> tuple[SummaryNow | None] | None:
        """Return the summary that today's window wants in place of a recorded one or of none; None = not known."""

        async def work() -> tuple[SummaryNow | None]:
            return (await planned(self._current, pair, added, self._state.fits),)

        return await self._done_again("summary", batch, work)

    async def _summary(
        self, batch: Sequence[StoredEvent], event: ev.ContextPrepared | ev.RequestBuilt, reference: RequestReference
    ) -> list[Divergence]:
        turn = self._state.run.turns if self._state.run is not None else 0
        pair = await self._done_again("summary", batch, lambda: self._pair(event.run, turn, reference), OF_THE_LOG)
        if pair is None or (done := await self._planned(batch, pair, pair.prepared.added)) is None:
            return []
        (now,) = done
        request = self._current.redaction.value(now.request) if now is not None else None
        found = in_summary(self._comparison, event, pair.request, now, request)
        same = request is not None and Comparison().requests(pair.request, request, "summary.request") is None
        if found is None and same and now is not None:
            found = await self._in_sent("summary", batch, reference.sent, now.request, now.provider)
        differs = self._compared("summary", batch, found)
        if isinstance(event, ev.ContextPrepared) and now is not None:
            beside = partial(summaries_beside, event, now.plan, self._current, self._store)
            differs += await self._asked_again(batch, now.request, beside, summary=True)
        return differs

    async def _answer(
        self, batch: Sequence[StoredEvent], event: ev.ModelResponded, pair: RequestPair, offered: Sequence[ToolSpec]
    ) -> list[Divergence]:
        where = self._where(event.run, event.turn)
        own = pair.prepared.answer
        work = partial(answer_now, event, own, self._state, where, self._current, offered, self._store)
        now = await self._done_again("answer", batch, work)
        return self._in_events("answer", batch, event, now) if now is not None else []

    async def _body(self, batch: Sequence[StoredEvent], event: RecordedResult, of: SessionContext) -> BodyRan | None:
        """Return what today's body of a pure tool gives; None = none ran, and what is recorded is given to hooks."""
        current, call = self._current, find_call(self._state, event.call)
        denied = not isinstance(event, ev.ToolCallCompleted) and event.kind == "denied"
        if call is None or denied or not is_of_the_body(event, call, current):
            return None
        known, tool = current.tools.get(call.name), current.tools.pure(call.name)
        ran: BodyRan | None = None
        if tool is not None and self._is_redacted and is_redacted(call.input):
            self._findings.miss("result", event_ref(self._stream, batch[0].version), TAKEN_OUT)
        elif tool is not None:
            work = partial(body_now, call, tool, current, of, self._state.at)
            ran = await self._done_again("result", batch, work, f"of {call.name}")
        self._findings.gave(call.name, known.spec.effect if known is not None else None, today=ran is not None)
        return ran

    async def _result(self, batch: Sequence[StoredEvent], event: RecordedResult) -> list[Divergence]:
        of = session_context(self._session, self._ancestors, self._state)
        ran = await self._body(batch, event, of) if self._agents.answers.tools else None
        again = result_now(event, self._state, of, self._current, self._store, ran)
        if again is None:
            return []
        now = await self._done_again("call", batch, again)
        if now is None:
            return []
        left, right = now.refused_then, now.refused
        sides: tuple[Json, Json] = (NOTHING if left is None else left, NOTHING if right is None else right)
        found = self._comparison.whole(*sides, "call.refused")
        if found is not None:
            found = Mismatch(found.difference, {**now.call, "refused": left}, {**now.call, "refused": right})
        divergences = self._compared("call", batch, found)
        if now.missed is not None:
            self._findings.miss("result", event_ref(self._stream, batch[0].version), now.missed)
        elif now.event is not None:
            divergences += self._in_events("result", batch, event, now.event)
        return divergences
