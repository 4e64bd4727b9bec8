"""Looks at when work begins and ends in a simulation, and at what those outside are told of it.

Read `refold.scenarios.monitors.monitor` first, which passes on what it sees. The rules:

- EFFECTS: nothing begins before the log has the decision that asks for it. A model is asked while the log names a model
  call as pending, and under one key once in a life of the process; a tool's body begins after the `ToolCallStarted` of
  its attempt, never beside itself, never for a call that has its result, and not in more attempts than its tool allows;
  and when a run is cancelled, its bodies end at once, unless they ignore it.
- INV5, of those outside: what is published is in the log, each event once and in order, and an outcome that is told is
  the one that the log has.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from refold.events.core.errors import ProviderError
from refold.events.core.ids import kind_and_identifier, stream_name
from refold.events.model.messages import ModelResponse
from refold.events.session import events as ev
from refold.events.session.core import SESSION_KIND
from refold.publishing.notifications import RecordedSessionEvent
from refold.scenarios.faults import LateReply
from refold.scenarios.monitors.reader import SessionReader
from refold.scenarios.monitors.results import AT_ONCE_S, ResultsMonitor
from refold.scenarios.plan.world import Body, World
from refold.sessions.outcome import RunResult


class EffectsMonitor:
    """Watches one simulation."""

    def __init__(
        self, world: World, log: SessionReader, note: Callable[[str, str, str], object], exercised: set[str]
    ) -> None:
        self._world = world
        self._log = log
        self._note = note
        self._exercised = exercised
        self._asked: Counter[tuple[int, int, str, str]] = Counter()
        self._published: dict[tuple[int, str], int] = {}
        self._cancelled: list[tuple[Body, float]] = []
        self._asking: dict[tuple[int, str], float | None] = {}
        """The sessions of which a model is being asked something, and when their runs were cancelled."""
        self.results = ResultsMonitor(world, log, self._wrong, exercised)

    def observe(self, session: str, version: int, event: ev.SessionEvent) -> None:
        self.results.observe(session, version, event)
        if isinstance(event, ev.RunCancelled):
            now_s = self._world.now_s()
            self._cancelled += [(body, now_s) for body in self._world.running_bodies(session)]
            if (self._world.life, session) in self._asking:
                self._asking[self._world.life, session] = now_s
        elif isinstance(event, ev.ModelResponded | ev.ModelFailed) and self._may_come_from_earlier_life():
            # It overtakes what the model is asked again; that answer is recorded when it comes, and ends nothing.
            self._asking.pop((self._world.life, session), None)

    def _may_come_from_earlier_life(self) -> bool:
        return self._world.life > 1 and any(isinstance(fault, LateReply) for fault in self._world.plan.happened())

    def asked(self, session: str, life: int, place: int) -> bool:
        """See that a model is asked something for a session, and return whether the log wants that still."""
        self._exercised.add("EFFECTS")
        wanted = self._wanted_calls(stream_name(SESSION_KIND, session))
        if not wanted:
            self._wrong("EFFECTS", session, "a model is asked and the log has no decision to ask it")
            return False
        # A call that is cancelled as it begins may be made after its key is gone, and before the next one's.
        key = next((key for key in wanted if not self._asked[life, place, session, key]), wanted[-1])
        self._asked[life, place, session, key] += 1
        if self._asked[life, place, session, key] > 1:
            self._wrong("EFFECTS", session, f"a model is asked for the second time under the key {key!r}")
        if (life, session) in self._asking:
            self._wrong("EFFECTS", session, "a model is asked while it still answers")
        self._asking[life, session] = None
        return key in self._log.pending[stream_name(SESSION_KIND, session)]

    def _wanted_calls(self, stream: str) -> list[str]:
        """Return the keys of the model calls that are wanted, or were a moment ago: a cancellation takes its time."""
        now = [key for key in self._log.pending.get(stream, ()) if key.startswith("model:")]
        since_s = self._world.now_s() - AT_ONCE_S
        gone = [
            key
            for (of, key), at_s in self._log.withdrawn_s.items()
            if of == stream and at_s >= since_s and key.startswith("model:")
        ]
        return [*gone, *now]

    def begun(self, body: Body) -> None:
        self.results.begun(body)
        self._exercised.add("EFFECTS")
        call = (body.session, body.call)
        if call not in self._log.started:
            self._wrong("EFFECTS", body.session, f"the body of {body.call} begins and the log does not have its start")
        elif call in self._log.asking and body.life == self._world.life:
            self._wrong("EFFECTS", body.session, f"the body of {body.call} begins while it waits for an answer")
        elif self._world.now_s() > self._log.answered_s.get(call, float("inf")) + AT_ONCE_S:
            self._wrong("EFFECTS", body.session, f"the body of {body.call} begins, which has its result")
        retries = body.tool.retries or None
        most = retries.attempts_max if retries is not None and body.tool.effect != "once" else 1
        if self._log.attempts[call] > most:
            self._wrong("EFFECTS", body.session, f"attempt {self._log.attempts[call]} at {body.call} begins, of {most}")
        others = [other for other in self._world.running_bodies(body.session) if other.call == body.call]
        if any(other is not body and not other.ignores_cancellation for other in others):
            self._wrong("EFFECTS", body.session, f"the body of {body.call} begins a second time beside itself")
        # A limit is one process's: where another one takes the log over, bodies of the one before may still end.
        of_tool = [
            other
            for other in self._world.bodies
            if other.running and (other.agent, other.tool.name, other.life) == (body.agent, body.tool.name, body.life)
        ]
        counted = [other for other in of_tool if not body.limited_per_session or other.session == body.session]
        within = sum(not other.ignores_cancellation for other in counted)
        if body.concurrency is not None and within > body.concurrency:
            self._wrong("EFFECTS", body.session, f"{within} bodies of {body.tool.name} run at once")

    def published(self, life: int, recorded: RecordedSessionEvent) -> None:
        kind, session = kind_and_identifier(recorded.stream)
        if kind != SESSION_KIND:
            return
        self._exercised.add("INV5")
        place = (life, session)
        before = self._published.get(place)
        # Who has lost the log does not see everything any more, and may still take an equal event for its own.
        has_log = life == self._world.life
        if before is not None and (recorded.version <= before or (has_log and recorded.version > before + 1)):
            self._wrong("INV5", session, f"version {recorded.version} is published after version {before}")
        durable = self._log.places.get((session, recorded.version))
        if durable is None:
            self._wrong("INV5", session, f"version {recorded.version} is published and is not in the log")
        elif durable != (recorded.position, recorded.time):
            at = f"at position {recorded.position} and time {recorded.time}"
            self._wrong("INV5", session, f"version {recorded.version} is published as {at}, and the log says {durable}")
        self._published[place] = recorded.version

    def told(self, session: str, result: RunResult) -> None:
        outcome, end = type(result.outcome).__name__, self._log.ends.get((session, result.run))
        if end is not None and outcome != end.outcome:
            self._wrong("INV5", session, f"{result.run} was told as {outcome} and the log says {end.outcome}")

    def model_ended(
        self, sessions: Sequence[str], life: int, said: ModelResponse | ProviderError | None, *, begun: bool
    ) -> None:
        for session in sessions:
            cancelled_s = self._asking.pop((life, session), None)
            if cancelled_s is not None and self._world.now_s() > cancelled_s + AT_ONCE_S:
                self._wrong("EFFECTS", session, "a model goes on answering though the run was cancelled")
        self.results.model_ended(sessions, life, said, begun=begun)

    def life_over(self, life: int) -> None:
        self._asking.clear()
        self.results.life_over(life)

    def over(self) -> None:
        self.results.over()
        for body, cancelled_s in self._cancelled:
            ended_s = body.ended_s
            if body.ignores_cancellation or body.is_subagent or ended_s is None:
                continue  # Where it has no end, the process was gone before.
            if any(cancelled_s - AT_ONCE_S <= at_s <= ended_s for at_s in self._world.plan.log_failed_s):
                continue  # The log has the cancellation, and the process was told that it has not.
            self._exercised.add("EFFECTS")
            if ended_s > cancelled_s + AT_ONCE_S:
                after = f"{ended_s - cancelled_s:.1f} s after"
                self._wrong("EFFECTS", body.session, f"the body of {body.call} ends {after} its run was cancelled")

    def _wrong(self, rule: str, session: str, message: str) -> None:
        self._note(rule, stream_name(SESSION_KIND, session), message)
