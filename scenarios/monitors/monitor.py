"""Observes a simulation from outside and notes each rule that is broken.

After each commit every event is checked as the next of its stream (INV0 to INV3). When a client is told an outcome, the
log must have it (INV5) and no body of that run may go on (INV7). What a model is shown must be of one session (INV4).
When a process starts on a file, everything that was acknowledged must be there, and each stream whole from its first
event on (DURABLE). At the end no tool may have run twice that must not (ONCE); INV6 and the whole log are checked by
`refold.scenarios.simulator`.

`FaultCoverage` counts which faults met which sessions, doing what. A fault of one session's model call, tool or append
meets that session; one of the whole process, such as a crash, meets every session. What a session was doing is told
from its log alone, as it was just before.

The rule: a rule that nothing was checked for does not hold. It is *not exercised*, and the report says so.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Literal, TypeAlias, get_args

import msgspec

from refold.actors.shell.effects import CANCEL_GRACE_S
from refold.events.core.content import TextBlock
from refold.events.core.errors import PersistenceError, ProviderError
from refold.events.core.ids import kind_and_identifier, stream_name
from refold.events.core.records import Appended, EncodedBatch, StoredEvent, stored_events
from refold.events.model.messages import ModelRequest, ModelResponse
from refold.events.secrets.redaction import NOTHING_SECRET
from refold.events.session import events as ev
from refold.events.session.core import SESSION_CODEC, SESSION_KIND
from refold.events.session.invariants import SessionChecker
from refold.events.session.state import SessionState
from refold.scenarios import faults
from refold.scenarios.faults import AnyFault
from refold.scenarios.monitors.durability import DurabilityCheck
from refold.scenarios.monitors.effects import EffectsMonitor
from refold.scenarios.monitors.reader import Keyed, SessionReader
from refold.scenarios.monitors.results import AT_ONCE_S
from refold.scenarios.plan.world import World
from refold.sessions.outcome import Cancelled, RunResult

Situation: TypeAlias = Literal[
    "idle",
    "model call open",
    "tool running",
    "awaiting approval",
    "awaiting answer",
    "retry pending",
    "queued input",
    "recovering",
    "parked",
    "otherwise",
]
"""What a session is doing.

`recovering`: work was in flight when the process was gone, and the next one has not recorded anything of the session
yet. `otherwise`: between two of the others, such as a run that waits until its next turn is allowed.
"""

SITUATIONS: tuple[Situation, ...] = get_args(Situation)
"""All of them, in the order in which they are shown."""


class FaultCount(msgspec.Struct, frozen=True, order=True):
    """A kind of fault that met sessions in one situation."""

    fault: str
    """Name of the fault's class."""
    situation: Situation
    times: int


class FaultCoverage:
    """Counts which faults met which situations."""

    def __init__(self) -> None:
        self._times: Counter[tuple[str, Situation]] = Counter()

    def add(self, fault: AnyFault, situations: Iterable[Situation]) -> None:
        for situation in situations:
            self._times[type(fault).__name__, situation] += 1

    def counted(self) -> tuple[FaultCount, ...]:
        return tuple(FaultCount(fault, situation, times) for (fault, situation), times in sorted(self._times.items()))


def situations_of(state: SessionState, *, recovering: bool) -> list[Situation]:
    """Return what a session is doing: one thing or several."""
    found: list[Situation] = []
    run, turn = state.run, state.turn
    if recovering and run is not None and not run.parked:
        found.append("recovering")
    elif run is None:
        found.append("idle")
    elif run.parked:
        found.append("parked")
    elif run.phase == "model":
        found.append("model call open")
    elif run.phase == "waiting":
        found.append("retry pending")
    elif turn is not None and (turn.awaiting or turn.asking or turn.running or turn.pausing):
        found.extend(["retry pending"] if turn.pausing else [])
        found.extend(["awaiting approval"] if turn.awaiting else [])
        found.extend(["awaiting answer"] if turn.asking else [])
        found.extend(["tool running"] if turn.running else [])
    else:
        found.append("otherwise")
    if state.queue:
        found.append("queued input")
    return found


DELAYING = (
    faults.ReadFails
    | faults.DiskIsFull
    | faults.DiskError
    | faults.DiskFails
    | faults.LogIsGone
    | faults.SecondRuntime
    | faults.ActorFails
    | faults.SessionFails
)
"""What may keep a client from being told for some time."""

OF_THE_PROCESS = (faults.CrashAtAppend, faults.CrashAtStep, faults.CrashInTool)
"""What happens at one session's operation and meets them all."""


class Broken(msgspec.Struct, frozen=True):
    """A promise that was broken."""

    rule: str
    """One of `refold.scenarios.monitors.monitor`."""
    stream: str
    at_s: float
    """Virtual seconds after the simulation began."""
    message: str

    def __str__(self) -> str:
        return f"{self.rule} {self.stream} at {self.at_s:.3f} s: {self.message}"


class Monitor:
    """Observes one simulation."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._checkers: dict[str, SessionChecker] = {}
        self._log = SessionReader(world)
        self._durability = DurabilityCheck()
        self.broken: list[Broken] = []
        self.exercised: set[str] = set()
        """The rules that something was checked for."""
        self.fault_coverage = FaultCoverage()
        self._lives: dict[str, int] = {}
        """In which life of the process each session's last event was recorded."""
        self.effects = EffectsMonitor(world, self._log, self.note, self.exercised)
        self.secrets = NOTHING_SECRET
        """What the agent says must not be recorded."""
        self.shows_all = False
        """Whether models are shown whole histories, as they are."""
        self.summary_prompt: str | None = None
        """What a model is told that is to summarise, which is asked beside the one that answers."""

    def note(self, rule: str, stream: str, message: str) -> None:
        self.broken.append(Broken(rule, stream, self._world.now_s(), message))

    async def committed(self, batches: Sequence[EncodedBatch], appended: Sequence[Appended]) -> None:
        self._durability.acknowledged(appended)
        for batch, place in zip(batches, appended, strict=True):
            stream = batch.stream
            if kind_and_identifier(stream)[0] != SESSION_KIND:
                continue
            if batch.expected_version == self._log.versions.get(stream, 0):
                self._observe(stream, stored_events(batch, place.position, place.chain))
            else:
                await self._catch_up(stream)
            self._lives[stream] = self._world.life

    async def _catch_up(self, stream: str) -> None:
        """Look at what is in the log although the process was told that its append had failed."""
        with suppress(PersistenceError):  # Then it is seen after the next commit.
            after = self._log.versions.get(stream, 0)
            self._observe(stream, await self._world.disk.read_stream(stream, after_version=after))

    def seen(self, stored: Sequence[StoredEvent]) -> None:
        """Look at what the process reads of a stream, of which it may not have been told when it appended it."""
        if stored and kind_and_identifier(stored[0].stream)[0] == SESSION_KIND:
            next_version = self._log.versions.get(stored[0].stream, 0) + 1
            new = [item for item in stored if item.version >= next_version]
            if new and new[0].version == next_version:
                self._observe(new[0].stream, new)

    async def opened(self) -> None:
        """Check the log that a process has just opened, and read what no append has told of."""
        events = await self._world.disk.read_all(limit=10**9)
        self.exercised.add("DURABLE")
        for stream, message in self._durability.missing(events):
            self.note("DURABLE", stream, message)
        for stream in dict.fromkeys(event.stream for event in events):
            if kind_and_identifier(stream)[0] == SESSION_KIND:
                after = self._log.versions.get(stream, 0)
                self._observe(stream, [event for event in events if event.stream == stream and event.version > after])

    def _observe(self, stream: str, stored: Sequence[StoredEvent]) -> None:
        self.exercised.update(("INV0", "INV1", "INV2", "INV3"))
        identifier = kind_and_identifier(stream)[1]
        checker = self._checkers.setdefault(stream, SessionChecker(stream))
        for item in stored:
            event = SESSION_CODEC.decode(item)
            for violation in checker.observe(event):
                self.note(violation.invariant, stream, f"version {item.version}: {violation.message}")
            self._log.read(identifier, item, event)
            if isinstance(event, ev.InputQueued):
                self._check_order(stream, identifier, event.key)
            self.effects.observe(identifier, item.version, event)
            if isinstance(event, Keyed) and self._log.taken[stream, type(event).__name__, event.key] > 1:
                self.note("ONCE", stream, f"what was said under the key {event.key!r} was taken twice")
            self._lives.setdefault(stream, self._world.life - 1)

    def met(self, fault: AnyFault, sessions: Collection[str] | None) -> None:
        """Count what the sessions were doing that a fault has just met."""
        if isinstance(fault, faults.CancelAtStep):
            sessions = (fault.session,)
        everywhere = sessions is None or isinstance(fault, OF_THE_PROCESS)
        for stream, checker in self._checkers.items():
            if checker.state is not None and (everywhere or stream.partition("/")[2] in (sessions or ())):
                recovering = self._lives[stream] < self._world.life
                self.fault_coverage.add(fault, situations_of(checker.state, recovering=recovering))

    def changed(self) -> list[str]:
        """Return the sessions in which something has happened, those of subagents too."""
        return [stream.partition("/")[2] for stream in self._lives]

    async def cleared(self, session: str, key: str) -> None:
        """Check that the log has what a client is told, that a conversation begins anew."""
        stream = stream_name(SESSION_KIND, session)
        self.exercised.add("INV5")
        place = (stream, ev.HistoryCleared.__name__, key)
        if not self._log.taken[place]:
            await self._catch_up(stream)
        if not self._log.taken[place]:
            told = f"the conversation was told as cleared under {key!r}"
            self.note("INV5", stream, f"{told} and the log has no sign of it")

    def questions(self) -> list[tuple[str, str]]:
        """Return what calls wait to be told, each by its session and its id there."""
        return [(session, question) for (session, _), question in self._log.asking.items()]

    async def answered_question(self, session: str, question: str) -> None:
        """Check that the log has what a person is told was taken as an answer."""
        stream = stream_name(SESSION_KIND, session)
        self.exercised.add("INV5")
        if (session, question) not in self._log.told:
            await self._catch_up(stream)
        if (session, question) not in self._log.told:
            self.note("INV5", stream, f"an answer to {question} was taken and the log has no sign of it")

    def state_of(self, session: str) -> SessionState | None:
        """Return what a session's log adds up to; None = that is not known here."""
        checker = self._checkers.get(stream_name(SESSION_KIND, session))
        return checker.state if checker is not None else None

    async def look_for(self, session: str, result: RunResult) -> None:
        """See the end of a run that is in the log although the process was told that its append had failed."""
        if (session, result.run) not in self._log.ends:
            await self._catch_up(stream_name(SESSION_KIND, session))

    def told(
        self, session: str, result: RunResult, life: int, *, key: str | None = None, since_s: float | None = None
    ) -> None:
        """Check an outcome that a client is told by the process of some life.

        `since_s` is when it began to wait, in virtual seconds; None = whether it is told in time is not asked.
        """
        stream = stream_name(SESSION_KIND, session)
        self.exercised.update(("INV5", "INV7"))
        if key is not None and self._log.runs.get((session, key)) != result.run:
            self.note("ONCE", stream, f"{result.run} was told, and the log has another run, or none, for {key!r}")
        self.effects.told(session, result)
        end = self._log.ends.get((session, result.run))
        if end is None and (session, result.run) in self._log.cancelled and isinstance(result.outcome, Cancelled):
            # Its turn is still to come, and the client need not wait for that.
            self._durability.told(stream, self._log.cancelled[session, result.run])
            return
        if end is None:
            self.note("INV5", stream, f"{result.run} was told as {result.outcome} and the log has no end of it")
            return
        self._durability.told(stream, end.version)
        if since_s is not None and life == self._world.life:
            self._check_in_time(stream, session, result, max(since_s, end.at_s))
        # A subagent ends once its own session has recorded that, for which nobody waits longer than the time of grace.
        graced = self._log_is_slow() and self._world.now_s() >= end.at_s + CANCEL_GRACE_S - AT_ONCE_S
        # Who has lost the log tells what it reads there, and knows nothing of another process.
        for body in self._world.running_bodies(session) if life == self._world.life else ():
            excused = body.ignores_cancellation or (body.is_subagent and graced)
            if version_of_call(body.call) <= end.version and not excused:
                going_on = f"{body.tool.name} of {body.call} goes on"
                self.note("INV7", stream, f"{result.run} was told as over while {going_on}")

    def sending(self, session: str, key: str) -> None:
        if (session, key) not in self._log.runs:
            self._log.sent.setdefault(session, {})[key] = self._world.now_s()

    def not_sending(self, session: str, key: str) -> None:
        """See that a client does not wait for the acceptance of an input any more."""
        self._log.sent.get(session, {}).pop(key, None)

    def _check_order(self, stream: str, session: str, key: str | None) -> None:
        """Check that no input that was sent before the one that is recorded now is still to be recorded."""
        waiting = self._log.sent.get(session, {})
        sent_s = waiting.pop(key, None) if key is not None else None
        if sent_s is None or not self.shows_all:  # Hooks may take their time with one of them.
            return
        for other, other_s in waiting.items():
            if other_s < sent_s - AT_ONCE_S:
                self.note("INV3", stream, f"what was said under {other!r} was sent before {key!r} and comes after it")

    def still_asked(self, session: str, call: str) -> None:
        """See that a person is still asked about a call."""
        answered_s = self._log.answered_s.get((session, call))
        slow = any(isinstance(fault, faults.LateReply) for fault in self._world.plan.happened())
        if answered_s is not None and not slow and self._world.now_s() > answered_s + AT_ONCE_S:
            self.note(
                "EFFECTS", stream_name(SESSION_KIND, session), f"a person is still asked about {call}, which is over"
            )

    def _log_is_slow(self) -> bool:
        """Return whether something may have kept a session from recording what it was told."""
        slow = DELAYING | faults.AppendIsSlow | faults.LateReply
        return bool(self._world.plan.log_failed_s) or any(isinstance(one, slow) for one in self._world.plan.happened())

    def _check_in_time(self, stream: str, session: str, result: RunResult, known_s: float) -> None:
        """Check that a client is told at once when its run is over, and not before what was cancelled had its grace."""
        now_s, happened = self._world.now_s(), self._world.plan.happened()
        ends_late = [
            body
            for body in self._world.bodies
            if body.session == session and (body.ignores_cancellation or body.is_subagent)
        ]
        late_s = sum(fault.seconds for fault in happened if isinstance(fault, faults.AppendIsSlow | faults.LateReply))
        grace_s = CANCEL_GRACE_S if ends_late or late_s else 0.0
        self._check_not_too_early(stream, session, result)
        if self._world.plan.log_failed_s or any(isinstance(fault, DELAYING) for fault in happened):
            return
        self.exercised.add("PROMPT")
        if now_s > known_s + grace_s + late_s + AT_ONCE_S:
            self.note("PROMPT", stream, f"{result.run} is told {now_s - known_s:,.1f} s after it was over")

    def _check_not_too_early(self, stream: str, session: str, result: RunResult) -> None:
        end = self._log.ends[session, result.run]
        if not isinstance(result.outcome, Cancelled) or self._world.now_s() >= end.at_s + CANCEL_GRACE_S - AT_ONCE_S:
            return
        of_run = range(self._log.begun.get((session, result.run), end.version), end.version + 1)
        for body in self._world.running_bodies(session):
            # A call whose time was up before the run was cancelled has its result, and its body was given up then.
            is_open = self._log.answered_s.get((session, body.call), end.at_s) >= end.at_s
            if body.ignores_cancellation and is_open and version_of_call(body.call) in of_run:
                self.note("INV7", stream, f"{result.run} was told as over before {body.call} has had its time to end")

    def over(self) -> None:
        """Check, once all is over, that no body ran more often than its tool says that it may, and people allowed."""
        self.effects.over()
        begun: Counter[tuple[str, str]] = Counter()
        for body in self._world.bodies:
            if body.tool.effect == "once":
                self.exercised.add("ONCE")
                begun[body.session, body.call] += 1
        for (session, call), times in begun.items():
            if times > 1 + self._log.allowed_again[session, call]:
                self.note("ONCE", stream_name(SESSION_KIND, session), f"the body of {call} has begun {times} times")

    def asked(self, request: ModelRequest) -> list[str]:
        """Check what a model is shown, and return whose inputs it shows."""
        sessions = sessions_of(request)
        if sessions:
            self.exercised.add("INV4")
        if len(sessions) > 1:
            self.note("INV4", "", f"one request shows what was said in the sessions {', '.join(sessions)}")
        return sessions

    def asking(self, request: ModelRequest, life: int, place: int) -> None:
        """See that a model is asked, the agent's first one or another, in some life of the process."""
        if request.system_prompt == self.summary_prompt:
            return
        for session in sessions_of(request):
            is_wanted, state = self.effects.asked(session, life, place), self.state_of(session)
            if not (is_wanted and self.shows_all) or state is None or state.run is None or state.run.phase != "model":
                continue
            self.exercised.add("INV6")
            shown, history = [message.role for message in request.messages], state.messages
            if shown != [message.role for message in history]:
                stream = stream_name(SESSION_KIND, session)
                self.note("INV6", stream, f"a model is shown {len(shown)} messages, and the log has {len(history)}")

    def said(self, request: ModelRequest, answer: ModelResponse) -> None:
        for session in sessions_of(request):
            self.effects.results.said(session, answer)

    def answered(
        self, request: ModelRequest, life: int, said: ModelResponse | ProviderError | None, begun: bool
    ) -> None:
        if request.system_prompt == self.summary_prompt:
            return
        self.effects.model_ended(sessions_of(request), life, said, begun=begun)


def sessions_of(request: ModelRequest) -> list[str]:
    return sorted({mark for message in request.messages for mark in marks_in(message.content)})


def marked(session: str, text: str) -> str:
    """Return an input's text with a mark that says whose it is; an empty one, which is refused, stays empty."""
    return f"{text} [said in {session}]" if text else ""


def marks_in(content: Sequence[object]) -> list[str]:
    """Return the sessions whose marks stand at the ends of texts."""
    texts = [block.text for block in content if isinstance(block, TextBlock)]
    return [text[:-1].rpartition("[said in ")[2] for text in texts if text.endswith("]") and "[said in " in text]


def version_of_call(call: str) -> int:
    return int(call.split("_")[1])


RuleVerdict: TypeAlias = Literal["hold", "violated", "not exercised"]

PROMISES: dict[str, str] = {
    "INV0": "every prefix of a session's log shows a history that providers accept",
    "INV1": "every call is answered by exactly one result",
    "INV2": "a run has one terminal event, its last; a cancelled run is not completed",
    "INV3": "inputs become runs one after another, in the order accepted",
    "INV4": "nothing of one session is visible in another",
    "INV5": "what was acknowledged is in the log after any crash",
    "DURABLE": "a process that starts finds all that was acknowledged, and nothing missing before it",
    "INV6": "folding the log gives the live state, and deciding it again gives what it holds",
    "INV7": "once an outcome is told, nothing of that run goes on",
    "EFFECTS": "nothing begins before the log has the decision, nor beside itself, nor goes on when it is cancelled",
    "EVIDENCE": "what models, tools and people brought is in the log, and nothing else",
    "APPROVAL": "what needs a person's word begins after that word, with the arguments that they gave",
    "CANCEL": "a run whose only caller has given up ends as cancelled",
    "PROMPT": "a caller is told at once when its run is over",
    "ONCE": "no body of a tool runs twice that must not",
    "FOLLOW": "who follows a session sees every event once and in order, and is told how much it missed",
    "LIVENESS": "all that was accepted comes to an end once faults are over",
    "SECRET": "the log holds neither the provider's key, where there is a wire, nor a value that the agent redacts",
    "TYPED": "a failed model call is told by its kind, whichever bytes came over the wire",
    "CHECK": "the whole log passes `refold check`",
    "ERROR": "the simulated process raises nothing that it should not",
}
"""Each promise and what it says, in the order in which they are shown."""


def verdicts_on(broken: Collection[str], exercised: Collection[str]) -> dict[str, RuleVerdict]:
    """Return the verdict on each promise, in their order, and on rules that are none."""
    others = sorted({*broken, *exercised} - PROMISES.keys())
    return {
        rule: "violated" if rule in broken else "hold" if rule in exercised else "not exercised"
        for rule in (*PROMISES, *others)
    }
