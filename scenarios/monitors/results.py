"""Looks at what work brings in a simulation, and whether the log has it; at what people decide and give up, too.

Read `refold.scenarios.monitors.effects` first, which passes on what it sees. The rules:

- EVIDENCE: nothing that work has brought is lost, and the log has nothing that no work has brought. What a body brought
  is its call's result, a late one or that of an attempt; an answer is what the model said, with what it cost; a failure
  is the one that happened; of an answer that was cut off in the middle the log has a sign. A process that ends soon may
  owe all that.
  What a person answers a call is what the log says that they answered.
- APPROVAL: a body that needs a person's word begins after that word, with the arguments that the person gave.
- CANCEL: a run whose only caller has given up ends as cancelled.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise

from refold.events.core.content import TextBlock
from refold.events.core.errors import ProviderError
from refold.events.core.ids import stream_name
from refold.events.model.messages import ModelResponse, Usage
from refold.events.session import events as ev
from refold.events.session.core import SESSION_KIND
from refold.events.session.state import question_id
from refold.scenarios.faults import AppendIsSlow, DuplicateInput, LateReply
from refold.scenarios.monitors.reader import How, SessionReader, plain_text
from refold.scenarios.plan.world import Body, World

RECORDED_S = 120.0
"""A process that lives for so many more virtual seconds has recorded what its work has brought."""

AT_ONCE_S = 0.5
"""Within so many virtual seconds ends what is cancelled."""

CANCELLED_S = 30.0
"""Within so many virtual seconds a run ends without a caller."""

_Answer = tuple[str, str, tuple[str, ...], Usage, str]
"""What is compared of an answer: whose it is, its text, the tools that it calls, what it cost, and why it ended."""


class ResultsMonitor:
    """Watches one simulation."""

    def __init__(
        self, world: World, log: SessionReader, wrong: Callable[[str, str, str], object], exercised: set[str]
    ) -> None:
        self._world = world
        self._log = log
        self._wrong = wrong
        self._exercised = exercised
        self.one_model = True
        """Whether an agent has one model, so that no other one is asked where it fails."""
        self.as_said = True
        """Whether answers are recorded as they came: no middleware changes them, and calls do not stand in text."""
        self.results_as_brought = True
        """Whether what bodies bring is recorded, since no middleware stands between that may fail."""
        self.fails_by_itself = False
        """Whether a model call fails only where its model does, since no code of the agent's own stands around it."""
        self._lives_ended_s: dict[int, float] = {}
        self._bodies: list[Body] = []
        self._answers: set[_Answer] = set()
        self._heard: set[str] = set()
        """The sessions whose answers are heard: those of subagents are not."""
        self._given: list[tuple[_Answer, float, int]] = []
        self._recorded: Counter[_Answer] = Counter()
        self._failures: list[tuple[str, float, int, str, bool]] = []
        self._cut: list[tuple[str, float, int]] = []
        self._said: dict[tuple[str, str], bool] = {}
        """What a person has said of a call, as far as it was heard here."""
        self._changed: defaultdict[tuple[str, str], list[object]] = defaultdict(list)
        """The arguments that a person gave a call."""
        self._told: defaultdict[tuple[str, str], list[object]] = defaultdict(list)
        """What a person said that a call asked, or why there is no answer, by the question's id."""
        self._given_up: list[tuple[str, str, float, int]] = []

    def observe(self, session: str, version: int, event: ev.SessionEvent) -> None:
        if version <= self._world.recorded.get(stream_name(SESSION_KIND, session), 0):
            return
        match event:
            case ev.ToolApprovalDecided(input=dict(given)) if not self._may_be(
                given, self._changed[session, event.call]
            ):
                self._wrong("APPROVAL", session, f"version {version} has arguments that nobody gave {event.call}")
            case ev.QuestionAnswered(call=call, number=number) if not event.expired:
                self._exercised.add("EVIDENCE")
                said = event.answer if event.error is None else event.error
                if not self._may_be(said, self._told[session, question_id(call, number)]):
                    self._wrong("EVIDENCE", session, f"version {version} is an answer that nobody gave {call}")
            case ev.ToolApprovalDecided() if event.allowed and not self._said.get((session, event.call), True):
                self._wrong("APPROVAL", session, f"version {version} allows {event.call}, which was denied")
            case ev.ModelFailed(kind="agent_loop") if self.fails_by_itself:
                self._wrong("EVIDENCE", session, f"version {version} is a failure of no model: {event.message:.80}")
            case ev.ModelResponded():
                self._check_answer(session, version, event)
            case _:
                return

    def _may_be(self, recorded: object, given: list[object]) -> bool:
        """Tell whether a person gave what is recorded; where that is redacted, whether anything was given."""
        return recorded in given if self.as_said else bool(given)

    def begun(self, body: Body) -> None:
        self._bodies.append(body)
        for name, value in self._log.changed.get((body.session, body.call), {}).items():
            begun = body.arguments.get(name)
            if self.as_said and type(value) is type(begun) and value != begun:
                self._wrong("APPROVAL", body.session, f"{body.call} begins with another {name} than a person gave it")
        if body.tool.tier != "confirm" or stream_name(SESSION_KIND, body.session) in self._world.recorded:
            return  # What was allowed before the simulation began is not known here.
        self._exercised.add("APPROVAL")
        if not self._log.allowed & {(body.session, body.call), (body.session, body.tool.name)}:
            self._wrong("APPROVAL", body.session, f"{body.tool.name} of {body.call} begins, which was not allowed")

    def gives(self, session: str, question: str, said: object) -> None:
        """See that a person is about to answer a question, or to say why there is no answer."""
        self._told[session, question].append(said)

    def decided(self, session: str, call: str, *, allowed: bool, arguments: object = None) -> None:
        self._changed[session, call] += [arguments] if arguments is not None else []
        self._said[session, call] = allowed or self._said.get((session, call), False)

    def given_up(self, session: str, key: str) -> None:
        """See that the only caller who waited for an input's run has given up."""
        self._given_up.append((session, key, self._world.now_s(), self._world.life))

    def said(self, session: str, answer: ModelResponse) -> None:
        self._heard.add(session)
        self._answers.add(_answer(session, answer))

    def model_ended(
        self, sessions: Sequence[str], life: int, said: ModelResponse | ProviderError | None, *, begun: bool
    ) -> None:
        """See what came of a model call of the process of some life; None = it was cancelled."""
        place = (self._world.now_s(), life)
        for session in sessions:
            if isinstance(said, ModelResponse) and self.as_said:
                self._given.append((_answer(session, said), *place))
            if isinstance(said, ProviderError) and self.one_model:
                self._failures.append((session, *place, said.kind, said.retryable))
            if begun and self.one_model and not isinstance(said, ModelResponse):
                self._cut.append((session, *place))

    def life_over(self, life: int) -> None:
        self._lives_ended_s[life] = self._world.now_s()

    def over(self) -> None:
        brought = Counter(
            (body.session, str(body.call))
            for body in (self._bodies if self.results_as_brought else ())
            if body.returned and body.ended_s is not None and self._had_time(body.life, body.ended_s)
        )
        for (of, call), times in brought.items():
            self._exercised.add("EVIDENCE")
            if self._log.brought[of, call] < times:
                self._wrong("EVIDENCE", of, f"what the body of {call} brought is not in the log")
        self._check_failures()
        self._check_given()
        twice = any(isinstance(fault, DuplicateInput) for fault in self._world.plan.happened())
        for session, key, given_up_s, life in () if twice else self._given_up:  # Then there is another caller.
            run = self._log.runs.get((session, key))
            if run is None or not self._had_time(life, given_up_s):
                continue  # It was refused, or the process was gone.
            self._exercised.add("CANCEL")
            end = self._log.ends.get((session, run))
            ended_s = end.at_s if end is not None else float("inf")
            # What was done while the log failed may have been recorded first.
            since_s = max([given_up_s, *(at_s for at_s in self._world.plan.log_failed_s if at_s <= ended_s)])
            if (end is None or end.how != "cancelled") and ended_s > since_s + CANCELLED_S + self._late_s():
                self._wrong("CANCEL", session, f"the caller of {run} has given up, and it is not cancelled")

    def _had_time(self, life: int, since_s: float) -> bool:
        """Return whether a process lived on for long enough, and its log was in order for as long in one go."""
        end_s = self._lives_ended_s.get(life, 0.0)
        moments = [since_s, *(at_s for at_s in self._world.plan.log_failed_s if since_s < at_s < end_s), end_s]
        return max(after - before for before, after in pairwise(moments)) > RECORDED_S + self._late_s()

    def _late_s(self) -> float:
        """Return for how long what work brings may have been under way to where it is recorded, at most."""
        happened = self._world.plan.happened()
        return sum(fault.seconds for fault in happened if isinstance(fault, LateReply | AppendIsSlow))

    def _ended_at(self, session: str, at_s: float, *how: How) -> bool:
        """Return whether a run's end may have met or overtaken what came at a time, which is then no longer wanted."""
        ends = (end for (of, _), end in self._log.ends.items() if of == session)
        recorded_s = max([at_s, *(failed_s + RECORDED_S for failed_s in self._world.plan.log_failed_s)])
        known_s = recorded_s + self._late_s() + AT_ONCE_S
        return any(end.how in how and at_s - AT_ONCE_S <= end.at_s <= known_s for end in ends)

    def _check_answer(self, session: str, version: int, event: ev.ModelResponded) -> None:
        if session not in self._heard or not self.as_said:
            return
        self._exercised.add("EVIDENCE")
        self._recorded[_answer(session, event)] += 1
        if _answer(session, event) not in self._answers:
            self._wrong("EVIDENCE", session, f"version {version} is an answer that no model gave")

    def _check_given(self) -> None:
        given = Counter(
            answer
            for answer, given_s, life in self._given
            if self._had_time(life, given_s) and not self._ended_at(answer[0], given_s, "cancelled", "too late")
        )
        for answer, times in given.items():
            self._exercised.add("EVIDENCE")
            if self._recorded[answer] < times and answer[:2] not in self._log.overtaken:
                self._wrong("EVIDENCE", answer[0], f"an answer of a model is not in the log: {answer[1]!r:.80}")

    def _check_failures(self) -> None:
        happened = Counter(
            (session, kind, retryable)
            for session, failed_s, life, kind, retryable in self._failures
            if self._had_time(life, failed_s) and not self._ended_at(session, failed_s, "cancelled")
        )
        for (session, kind, retryable), times in happened.items():
            self._exercised.add("EVIDENCE")
            if self._log.failed[session, kind, retryable] < times:
                word = "retryable" if retryable else "final"
                self._wrong("EVIDENCE", session, f"the log lacks one of {times} {word} failures of the kind {kind!r}")
        cuts = Counter(session for session, cut_s, life in self._cut if self._had_time(life, cut_s))
        for session, times in cuts.items():
            self._exercised.add("EVIDENCE")
            if self._log.interrupted[session] < times:
                signs = f"the log has signs of {self._log.interrupted[session]}"
                self._wrong("EVIDENCE", session, f"{times} answers were cut off after their first piece, and {signs}")


def _answer(session: str, answer: ModelResponse | ev.ModelResponded) -> _Answer:
    names = tuple(str(getattr(block, "name", "")) for block in answer.content if not isinstance(block, TextBlock))
    return session, plain_text(answer.content), names, answer.usage, answer.stop_reason
