"""Level `decide` of a replay: a dry run of today's agent on what a session recorded.

Each recorded stimulus that user code had a hand in is done again by the very functions that did it: an input goes
through middleware, a request is built of the recorded history with today's configuration, tools, offer, window and
middleware, the model's own answer is judged by today's checks and policy, a tool's own result goes through middleware
again, and the session's core decides under today's configuration. What comes out is compared with what is recorded.

The rules: every comparison begins at the recorded state, so that one difference does not bring on all those after it,
but for the core's decisions, which build on each other and are compared up to the first one that differs. Nothing is
called but what decides (see `refold.tools.dry_run`), and what could not be done again is said.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from refold.actors.agent.compaction import Summarising
from refold.actors.agent.subsession import ancestors_of
from refold.actors.calls.conversation import Conversation
from refold.actors.calls.middleware import HookContext, hook_context
from refold.actors.calls.recall import Remembered
from refold.actors.calls.request import WantedRequest, context_of, sent_digest
from refold.actors.calls.tool_context import running_context, session_context
from refold.agents.agent import AnyAgent, with_subagents
from refold.events.core.content import Json, Message
from refold.events.core.difference import NOTHING, Difference, first_difference, json_of
from refold.events.core.errors import LogFormatError
from refold.events.core.ids import PayloadHash, RunId, SessionId, StreamName, event_ref, kind_and_identifier
from refold.events.core.pure_core import evolve_all
from refold.events.core.records import StoredEvent
from refold.events.model.configuration import AgentConfiguration, ToolSpec, configured_for
from refold.events.model.context_window import Context
from refold.events.model.messages import (
    ModelRequest,
    Prepared,
    RequestReference,
    SystemAddition,
)
from refold.events.model.refused import GuardrailTrip
from refold.events.model.request import applied, form_of, plain_request, prepared_of
from refold.events.secrets.redaction import NOTHING_SECRET
from refold.events.session import events as ev
from refold.events.session.core import SESSION_CODEC, SESSION_CORE
from refold.replay.admitting import admitted_otherwise
from refold.replay.comparing import Accepts, Comparison, Mismatch, is_of_taken_out
from refold.replay.core_replay import (
    AFTER_A_DIFFERENCE,
    AFTER_MEANT,
    EFFECTS_DIGEST,
    PARTED_MAX,
    Divergence,
    Tally,
    What,
    caught_up,
)
from refold.replay.current_agent import (
    CurrentAgent,
    CurrentDecisions,
    PastRecalling,
    RecordedResult,
    RequestPair,
    answer_now,
    input_now,
    replayed_deps,
    require_remembering,
    result_now,
    summary_now,
)
from refold.replay.kinds_of_difference import ConfigurationChanges, changed_configuration
from refold.replay.manifest import BundleManifest
from refold.stores.event_store import EventStore
from refold.tools.dry_run import ActedInDryRun, DryRun, FailedInDryRun, NotComparable

T = TypeVar("T")

MEMORY_FAILED = ("nothing was recalled", "the working memory was left out")
"""How the notes begin that say that a memory could not be asked."""

NOT_SUMMARISED = "the history was not summarised"

TAKING_OUT = "patterns of the bundle"
TAKEN_OUT = "what it is about was taken out when the bundle was made"


class AgentsReplay:
    """An agent and its subagents, as a replay at level `decide` needs them.

    Args:
        store: the log.
        agent: today's.
        answer_s: how many seconds a piece of its code may take, > 0.
        deps: what the agent depends on, opened; None = nothing is opened for it.
        told: is called with the name of a piece of code before it runs, and with none after it.
        bundle: that the log is of; None = it is no bundle.
    """

    def __init__(
        self,
        store: EventStore,
        agent: AnyAgent,
        answer_s: float,
        deps: object,
        told: Callable[[str], None],
        bundle: BundleManifest | None = None,
    ) -> None:
        self.is_redacted = bundle is not None and bundle.redacted
        taken_out = bundle.redaction if bundle is not None else NOTHING_SECRET
        self.tally = Tally()
        self.changes = ConfigurationChanges()
        self.comparison = Comparison()
        told(TAKING_OUT if taken_out else "")  # Those of a foreign bundle may be made to take for ever.
        self._agents = {
            each.name: CurrentAgent(each, store, replayed_deps(each, agent, deps), taken_out)
            for each in with_subagents(agent)
        }
        told("")
        self.store = store
        self.dry_run = DryRun(answer_s, told)

    def begin(self, tally: Tally, changes: ConfigurationChanges, accepts: Accepts, gone: dict[str, str]) -> None:
        """Set what the sessions that come are counted in.

        Args:
            tally: counts comparisons.
            changes: counts what of configurations is another one today.
            accepts: says of a difference whether it is meant.
            gone: pieces of code that are not run again, and why; those that give no answer are added to it.
        """
        self.tally, self.changes, self.comparison = tally, changes, Comparison(accepts)
        self.dry_run.gone = gone

    def session(self, stream: StreamName, agent: str) -> "AgentReplay | None":
        """Return what does a session again; None where its agent is not one of these."""
        current = self.current(agent)
        return AgentReplay(stream, current, self) if current is not None else None

    def current(self, agent: str | None) -> CurrentAgent | None:
        """Return one of the agents, by its name; None = it is none of these."""
        return self._agents.get(agent or "")


class AgentReplay:
    """Takes the batches of one session, oldest first.

    Args:
        stream: of the session.
        current: its agent, until it is handed to another one.
        agents: all of them; counts the comparisons.
    """

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
        self._tally = agents.tally
        self._comparison = agents.comparison
        self._is_redacted = agents.is_redacted
        self._changes = agents.changes
        self._changed: set[str] = set()
        """Paths of its configuration that are known to be others today."""
        self._state = SESSION_CORE.initial()
        self._conversation = Conversation(store.read_payloads)
        self._recalling = PastRecalling(store, current.agent)
        self._decisions: CurrentDecisions | None = CurrentDecisions(
            stream, current, agents.current, agents.comparison.accepts
        )
        self._configured: dict[int, AgentConfiguration] = {}
        self._places: list[tuple[int, int]] = [(0, 0)]
        """Position and time of each version."""
        self._ancestors: tuple[SessionId, ...] = ()
        self._parted = 0
        """So often a decision was another one, and that was meant."""
        self._found: set[What] = set()
        self._failed: list[Divergence] = []
        """Where today's code raises in this batch, and did not when it was recorded."""
        self.core_version: int | None = None

    def _deciding(self) -> CurrentDecisions:
        return CurrentDecisions(self._stream, self._first, self._agents.current, self._comparison.accepts)

    async def take(self, batch: Sequence[StoredEvent], *, compared: bool = True) -> list[Divergence]:
        """Do one batch again; return what differs in it, of each kind of comparison the first of the session.

        Args:
            batch: the next one.
            compared: False = it is only folded.

        Raises:
            LogFormatError: an event cannot be decoded, or contradicts those before it.
            PersistenceError: the log cannot be read.
        """
        events = SESSION_CODEC.decode_all(batch)
        stimulus = events[0]
        if isinstance(stimulus, ev.SessionOpened):
            self._ancestors = await ancestors_of(self._store, self._session, batch[0])
        if self._gone:
            self._tally.miss("decision", event_ref(self._stream, batch[0].version), self._gone)
            return []
        self._failed = []
        found: list[Divergence] = []
        decided: Divergence | None = None
        if batch[0].stream == self._stream and compared:
            admitted = admitted_otherwise(self._state, stimulus, batch[0].data, self._comparison)
            found = self._compared("admit", batch, admitted)
            found += await self._user_code(batch, stimulus)
            found += self._failed
            decided = await self._decided(batch)
        elif self._decisions is not None:  # A fork's prefix is compared where it lies.
            self._decisions.fold(batch)
        if decided is not None:
            found.append(decided)
        self._state = evolve_all(SESSION_CORE, events, self._state)
        if decided is not None and decided.difference.path == EFFECTS_DIGEST:
            found[-1] = self._with_effects_then(decided)
        self._places += [(stored.position, stored.at) for stored in batch]
        for version, event in enumerate(events, batch[0].version):
            if isinstance(event, ev.AgentConfigured):
                self._configured[version] = event.configuration
                self.core_version = event.configuration.code.core
                await self._configuration(event.configuration, event_ref(self._stream, version))
            elif isinstance(event, ev.HandedOff):
                self._hand_over(event.agent)
        return found

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
        self._changes.add(current.agent.name, place, found, self._changed)

    async def _decided(self, batch: Sequence[StoredEvent]) -> Divergence | None:
        if self._decisions is None:
            why = AFTER_MEANT if self._parted > PARTED_MAX else AFTER_A_DIFFERENCE
            self._tally.miss("decision", event_ref(self._stream, batch[0].version), why)
            return None
        divergence = self._decisions.decide(batch)
        self._tally.add("decision", differs=divergence is not None)
        if divergence is not None:
            self._decisions = None
        elif self._decisions.parted:
            self._decisions = CurrentDecisions(
                self._stream, self._first, self._agents.current, self._comparison.accepts
            )
            self._parted += 1
            if self._parted > PARTED_MAX or not await caught_up(self._decisions, self._store, batch[-1]):
                self._decisions = None
        return divergence

    def _with_effects_then(self, decided: Divergence) -> Divergence:
        """Return a divergence of effects under the same keys, of which the log has a digest, with where they differ."""
        then = json_of(SESSION_CORE.pending(self._state))
        difference = first_difference(then, decided.now, "pending")
        if difference is None:
            return decided
        return msgspec.structs.replace(decided, difference=difference, recorded=then)

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
            what: it is for.
            batch: that it is about.
            work: done again.
            part: which part of it, where that is not the agent's code.
            failed_then: why it failed when it was recorded; empty = it did not.
        """
        run = self._state.run
        where = self._where(run.id, run.turns) if run is not None else self._where()

        async def working() -> T:
            running_context.set(where)
            return await work()

        try:
            return await self._dry_run.answer(f"{self._current.agent.name} {what} {part}", working)
        except NotComparable as error:
            if isinstance(error, ActedInDryRun):
                self._tally.refused(what, event_ref(self._stream, batch[0].version), error.acts)
            self._tally.miss(what, event_ref(self._stream, batch[0].version), str(error))
        except FailedInDryRun as error:
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
            self._tally.miss(what, event_ref(self._stream, batch[0].version), TAKEN_OUT)
            return []
        self._tally.add(what, differs=found is not None)
        if found is None or what in self._found or what == "decision":
            return []
        self._found.add(what)
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
        self, batch: Sequence[StoredEvent], event: ev.ModelResponded | ev.ModelFailed, reference: RequestReference
    ) -> list[Divergence]:
        pair = await self._done_again("request", batch, lambda: self._pair(event.run, event.turn, reference), "log")
        if pair is None:
            return []
        found = await self._input_guardrails(batch, event.turn, None)
        found += await self._recall(batch, pair)
        found += await self._no_summary(batch, pair)
        then = event.message if isinstance(event, ev.ModelFailed) and event.kind == "agent_loop" else ""
        made = await self._done_again("request", batch, lambda: self._requests_now(pair), failed_then=then)
        if made is not None:
            now, redacted = made
            different = self._comparison.requests(pair.request, redacted, "request")
            if Comparison().requests(pair.request, redacted, "request") is None:
                different = await self._in_sent(batch, reference.sent, now)
            found += self._compared("request", batch, different)
        if isinstance(event, ev.ModelResponded):
            offered = made[0].tools if made is not None else pair.request.tools
            found += await self._answer(batch, event, pair, offered)
        return found

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
            self._tally.miss("recall", event_ref(self._stream, batch[0].version), lacks)
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

    async def _in_sent(self, batch: Sequence[StoredEvent], recorded: str, now: ModelRequest) -> Mismatch | None:
        """Compare what leaves for a request that is the recorded one: the protocol and the provider make that of it."""
        if not recorded:
            return None
        provider = self._current.provider

        async def leaving() -> str:
            sent = sent_digest(provider, now, streamed=self._current.configuration.streaming)
            if sent and form_of(sent) != form_of(recorded):
                name = type(self._current.agent.provider).__name__
                raise NotComparable(f"it left as {form_of(recorded)}, and {name} makes another form of it")
            return sent

        sent = await self._done_again("request", batch, leaving, "as it leaves")
        return self._comparison.mismatch(recorded, sent, "request.sent") if sent is not None else None

    async def _context(self, pair: RequestPair, added: Sequence[SystemAddition]) -> tuple[ModelRequest, Context]:
        plain, _ = await self._current.requests.plain(pair.wanted)
        wanted = msgspec.structs.replace(pair.wanted, fits=self._state.fits)  # As it was known before the request.
        return plain, context_of(plain, wanted, Prepared(prompt=pair.prepared.prompt, added=tuple(added)))

    async def _no_summary(self, batch: Sequence[StoredEvent], pair: RequestPair) -> list[Divergence]:
        """Compare where a history was sent without being summarised first."""
        window = self._current.agent.context
        summarised = pair.wanted.summarised > pair.wanted.asked
        failed = any(note.startswith(NOT_SUMMARISED) for note in pair.prepared.notes)
        if not isinstance(window, Summarising) or summarised or failed:
            return []

        async def planned() -> tuple[int | None]:
            # Before requests were recorded with their tokens, what memories add was not counted.
            added = pair.prepared.added if pair.reference.estimated else ()
            plan = window.plan((await self._context(pair, added))[1])
            return (plan.replaced if plan is not None else None,)

        now = await self._done_again("summary", batch, planned)
        return self._compared("summary", batch, self._summarised(None, now[0])) if now is not None else []

    def _summarised(self, recorded: int | None, now: int | None) -> Mismatch | None:
        """Return whether a summary stands for another number of messages; None = none was made."""
        left, right = (NOTHING if replaced is None else replaced for replaced in (recorded, now))
        return self._comparison.whole(left, right, "summary.replaced")

    async def _summary(
        self, batch: Sequence[StoredEvent], event: ev.ContextPrepared, reference: RequestReference
    ) -> list[Divergence]:
        window = self._current.agent.context
        turn = self._state.run.turns if self._state.run is not None else 0
        pair = await self._done_again("summary", batch, lambda: self._pair(event.run, turn, reference), "log")
        if pair is None:
            return []

        async def asked() -> tuple[int | None, ModelRequest | None]:
            if not isinstance(window, Summarising):
                return None, None
            plain, context = await self._context(pair, pair.prepared.added)
            plan = window.plan(context)
            return (plan.replaced, window.request(plain, plan)) if plan is not None else (None, None)

        now = await self._done_again("summary", batch, asked)
        if now is None:
            return []
        replaced, request = now
        difference = self._summarised(event.replaced, replaced)
        if difference is None and request is not None and event.replaced == replaced:
            difference = self._comparison.requests(pair.request, request, "summary.request")
        if difference is None:
            difference = self._comparison.mismatch(event.summary, summary_now(event), "summary.messages")
        return self._compared("summary", batch, difference)

    async def _answer(
        self, batch: Sequence[StoredEvent], event: ev.ModelResponded, pair: RequestPair, offered: Sequence[ToolSpec]
    ) -> list[Divergence]:
        where = self._where(event.run, event.turn)

        async def judged() -> ev.SessionEvent:
            return await answer_now(
                event, pair.prepared.answer, self._state, where, self._current, offered, self._store
            )

        now = await self._done_again("answer", batch, judged)
        return self._in_events("answer", batch, event, now) if now is not None else []

    async def _result(self, batch: Sequence[StoredEvent], event: RecordedResult) -> list[Divergence]:
        of = session_context(self._session, self._ancestors, self._state)
        again = result_now(event, self._state, of, self._current, self._store)
        if again is None:
            return []
        now = await self._done_again("call", batch, again)
        if now is None:
            return []
        left, right = now.refused_then, now.refused
        found: Mismatch | None = None
        if left != right:
            sides: tuple[Json, Json] = (NOTHING if left is None else left, NOTHING if right is None else right)
            found = self._comparison.whole(*sides, "call.refused")
            if found is not None:
                found = Mismatch(found.difference, {**now.call, "refused": left}, {**now.call, "refused": right})
        divergences = self._compared("call", batch, found)
        if now.missed is not None:
            self._tally.miss("result", event_ref(self._stream, batch[0].version), now.missed)
        elif now.event is not None:
            divergences += self._in_events("result", batch, event, now.event)
        return divergences
