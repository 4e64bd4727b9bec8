"""Long random lives of sessions, judged after every step by all that the exhaustive check judges by.

    python -m tests.events.life [STEPS [SEED]]        100,000 steps; prints the verdict on each rule

The exhaustive check (`tests.selfcheck.exhaustive.exploration`) sees everything that can happen in short lives; this
sees some of what can happen in long ones: many runs, calls, keys, crashes and imports of broken histories, and time
that passes. Nothing is needed but the package.
"""

import random
import sys
import time
from collections import Counter, defaultdict
from typing import Literal, TextIO, get_args

import msgspec

from refold.events import SESSION_CORE, CommandRejected, SessionState, fold
from refold.events.core.content import (
    AnswerContent,
    Block,
    ErrorKind,
    ImageBlock,
    Message,
    ResultContent,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from refold.events.core.ids import ToolCallId
from refold.events.core.pure_core import PureCore, Recorded, WaitUntil, plan, replan
from refold.events.model.configuration import AgentConfiguration
from refold.events.model.messages import RequestReference, StopReason, Usage
from refold.events.model.refused import Part, RefusedParts
from refold.events.session import commands
from refold.events.session.events import RunCancelled, RunCompleted, RunFailed, RunStarted, SessionEvent, Verdict
from refold.events.session.invariants import SessionChecker, check_state
from tests.selfcheck.exhaustive.enabled_commands import TOOL_NAMES, EnabledCommands, Move
from tests.selfcheck.exhaustive.log_reader import ObservedSession
from tests.selfcheck.exhaustive.properties import Properties
from tests.selfcheck.exhaustive.rules import RULES, Rule
from tests.selfcheck.exhaustive.scope import STREAM, UNHEARD_OF, Scope
from tests.selfcheck.exhaustive.trial import ordinary_command, through_the_log

BEGAN_AT = 1_700_000_000_000_000
RUN_TIMEOUT_US = 60_000_000

LIFE_STEPS = 1_000
"""After so many steps the next life begins."""

UNFINISHED_MAX = 6
"""With so many inputs that have not ended none is sent."""

STEPS_TO_REST = 500
"""With ordinary work a session comes to rest within so many steps."""

WEIGHTS: dict[str, int] = {
    "RecordModelResponse": 8,
    "RecordToolResult": 8,
    "DecideApproval": 4,
    "SendInput": 3,
    "AllowTurn": 3,
    "TimerFired": 3,
    "RecordModelFailure": 2,
    "CancelRun": 1,
    "ResumeRun": 1,
    "ClearHistory": 1,
    "RewindHistory": 1,
    "SetContentAside": 1,
    "TakeContentBack": 1,
    "ImportHistory": 1,
    "ModelInterrupted": 1,
    "RecordContext": 1,
    "RequestBuilt": 1,
    "ToolCallWaiting": 1,
    "OpenSession": 1,
    "Configure": 1,
    "DescribeSession": 1,
}
"""How often each kind of command is tried, where there is one."""

IMAGE = ImageBlock(media_type="image/png", data=b"\x89PNG")

VERDICTS: tuple[Literal["allow", "ask", "deny", "invalid_arguments", "not_found"], ...] = (
    "allow",
    "allow",
    "allow",
    "ask",
    "deny",
    "invalid_arguments",
    "not_found",
)
"""What is found about the calls of a long answer; an answer of the moves may break too."""

_encode = msgspec.msgpack.Encoder().encode


class Violated(AssertionError):
    """A rule does not hold.

    Args:
        rule: which.
        message: what is wrong, and how to come to it again.
    """

    def __init__(self, rule: Rule, message: str) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule = rule


class Life:
    """One session that is told random things; a seed leads to the same things each time.

    Args:
        seed: where the choices come from.
        core: the four functions.
    """

    def __init__(
        self, seed: int, core: PureCore[SessionState, commands.SessionCommand, SessionEvent] = SESSION_CORE
    ) -> None:
        self.seed = seed
        self.steps = 0
        self.log: list[SessionEvent] = []
        self.batches: list[tuple[SessionEvent, ...]] = []
        self.pending: list[list[str]] = []
        """Keys of the work that is pending after each batch."""
        self.met: Counter[Rule] = Counter()
        self._random = random.Random(seed)
        self._core = core
        self._state = core.initial()
        scope = _scope(self._random)
        self._moves = EnabledCommands(scope)
        self._promises = Properties(self._moves.configuration)
        self._observed, self._checker = ObservedSession(), SessionChecker(STREAM)
        self._now = BEGAN_AT
        self._begun_at, self._waited_us = 0, 0
        self._waiting_since: int | None = None
        self._keys = [f"key{number}" for number in range(12)]
        for command in self._moves.prelude:
            self._tell(Move(command, must_happen=True))

    @property
    def configuration(self) -> AgentConfiguration:
        """What is in force."""
        return self._moves.configuration

    def go(self, steps: int) -> None:
        """Do so many steps, do what is left until the session is at rest, and read the whole log again.

        Raises:
            Violated: a rule does not hold.
        """
        for _ in range(steps):
            self.step()
        self._come_to_rest()
        self._read_again()

    def step(self) -> None:
        """Tell the session something, or lose its process.

        Raises:
            Violated: a rule does not hold.
        """
        self.steps += 1
        self._now += self._random.choice((0, 1, 1_000, 1_000_000, 20_000_000))
        if self._random.random() < 0.03:
            self._crash()
        self._tell(self._choose())
        if self.steps % 50 == 0:
            self._expect("INV0", not (found := check_state(self._state, STREAM)), f"{found}")

    def verdicts(self) -> Counter[Rule]:
        """Return how often each rule had something to judge."""
        met = self.met.copy()
        met.update(self._promises.met)
        return met

    def _expect(self, rule: Rule, kept: bool, message: str) -> None:
        self.met[rule] += 1
        if not kept:
            raise Violated(rule, f"{message} (seed {self.seed}, step {self.steps}, version {len(self.log)})")

    def _choose(self) -> Move:
        if self._random.random() < 0.15:
            return Move(self._invented())
        kinds: defaultdict[str, list[Move]] = defaultdict(list)
        full = len(self._observed.runs) + len(self._observed.scheduled) >= UNFINISHED_MAX
        for move in self._moves.after(self._observed):
            if not (full and type(move.command) is commands.SendInput and move.must_happen):
                kinds[type(move.command).__name__].append(move)
        moves = kinds[self._random.choices(list(kinds), [WEIGHTS[kind] for kind in kinds])[0]]
        certain = [move for move in moves if move.must_happen]
        return self._random.choice(certain if certain and self._random.random() < 0.9 else moves)

    def _invented(self) -> commands.SessionCommand:
        """Return a command that no scope knows: keys in plenty, long answers, odd results, broken histories."""
        draw, observed = self._random, self._observed
        key = draw.choice(self._keys)
        match draw.randrange(9):
            case 0 if len(observed.runs) + len(observed.scheduled) < UNFINISHED_MAX:
                content = draw.sample((TextBlock(text="Hello"), TextBlock(text=" "), TextBlock(text="\0é😀")), 2)
                later = self._now + draw.randrange(100) if draw.random() < 0.3 else None
                now, stepwise = later is None and draw.random() < 0.5, draw.random() < 0.1
                return commands.SendInput(content=tuple(content), key=key, now=now, stepwise=stepwise, due_at=later)
            case 1:
                return commands.CancelRun(run=draw.choice([*observed.runs, None]), key=key)
            case 2 if observed.calls:
                always = draw.random() < 0.3
                allowed = always or draw.random() < 0.5
                return commands.DecideApproval(
                    call=draw.choice(list(observed.calls)), allowed=allowed, always=always, key=key
                )
            case 3:
                return commands.ImportHistory(messages=_broken_history(draw), key=draw.choice((key, None)))
            case 4 if observed.calls:
                call, kind = draw.choice(list(observed.calls)), draw.choice((None, *get_args(ErrorKind)))
                results: tuple[ResultContent, ...] = draw.choice(((TextBlock(text=" "),), (IMAGE,), ()))
                return commands.RecordToolResult(call=call, content=results, kind=kind, ends_run=draw.random() < 0.2)
            case 5 if observed.open_run is not None:
                turn, wait_s = draw.choice((1, observed.runs[observed.open_run].turn)), draw.choice((None, 1.5, 1e9))
                return commands.RecordModelFailure(
                    run=observed.open_run,
                    turn=turn,
                    kind=draw.choice(("server", "agent_loop", "invalid_request")),
                    message="",
                    retryable=draw.random() < 0.7,
                    retry_after_s=wait_s,
                )
            case 6 if history := self._state.messages:
                place = draw.randrange(len(history))
                part = Part(place, draw.randrange(len(history[place].content)))
                named, at = (self._state.version, None, None), self._state.version
                return commands.SetContentAside(named=named, parts=(part,), at=at, key=draw.choice((key, None)))
            case 7 if observed.asides:
                aside = draw.choice(observed.asides).version
                return commands.TakeContentBack(aside=aside, key=draw.choice((key, None)))
            case _:
                return self._long_answer()

    def _long_answer(self) -> commands.SessionCommand:
        draw = self._random
        run = self._observed.open_run
        if run is None:
            return commands.ResumeRun(tools=TOOL_NAMES)
        content: list[AnswerContent] = []
        for _ in range(draw.randrange(8)):
            name = draw.choice((*TOOL_NAMES, UNHEARD_OF))
            content.append(draw.choice((TextBlock(text="x"), TextBlock(text=" "), ThinkingBlock(thinking="hm"))))
            content.append(ToolUseBlock(id=ToolCallId(""), name=name, input={"n": draw.randrange(9)}))
        stops: tuple[StopReason, ...] = ("tool_use", "tool_use", "tool_use", *get_args(StopReason))
        return commands.RecordModelResponse(
            run=run,
            turn=self._observed.runs[run].turn,
            content=tuple(content),
            stop_reason=draw.choice(stops),
            usage=Usage(input_tokens=1),
            request=RequestReference(configured=2, messages=1),
            refused=RefusedParts(parts=(Part(0, 0),), reason="no") if draw.random() < 0.1 else None,
            verdicts=tuple(
                Verdict(verdict=draw.choice(VERDICTS), action=draw.choice(("", "all")))
                for block in content
                if type(block) is ToolUseBlock
            ),
        )

    def _tell(self, move: Move) -> None:
        before = _encode(self._state) if self.steps % 20 == 0 else None
        shown = len(self._state.messages)
        self.met["TOTAL"] += 1
        self.met["INV4"] += move.foreign
        answer: object
        try:
            planned = answer = plan(self._core, self._state, move.command, self._now)
        except CommandRejected as refusal:
            planned, answer = Recorded(0), refusal
        if isinstance(planned, Recorded):
            self._expect("TOTAL", not move.must_happen, f"{move.command} gives {answer!r}")
            self._expect("TOTAL", before in (None, _encode(self._state)), f"{move.command} changes the state")
            return
        self._expect("RETRY", not move.known, f"what is known of an attempt is recorded again: {planned.events}")
        self._state = planned.state
        batch = through_the_log(planned.events, len(self.log) + 1)
        self.log.extend(batch)
        self.batches.append(batch)
        self._judge(batch, shown)

    def _judge(self, batch: tuple[SessionEvent, ...], shown: int) -> None:
        for event in batch:
            for violation in self._checker.observe(event):
                raise Violated(violation.invariant, f"{violation} (seed {self.seed}, step {self.steps})")
        effects = self._core.pending(self._state)
        self.pending.append([effect.key for effect in effects])
        for rule, message in (
            *self._promises.read(self._observed, batch),
            *self._promises.judge_history(shown, self._state.messages),
            *self._promises.judge_work(self._observed, effects),
        ):
            raise Violated(rule, f"{message} (seed {self.seed}, step {self.steps}, version {len(self.log)})")
        self.met["INV0"] += 1
        self.met["INV1"] += bool(self._observed.calls)
        self.met["INV2"] += any(isinstance(event, RunCompleted | RunFailed | RunCancelled) for event in batch)
        self.met["INV3"] += any(type(event) is RunStarted for event in batch)
        self._judge_deadline(batch, {effect.key: effect for effect in effects if isinstance(effect, WaitUntil)})

    def _judge_deadline(self, batch: tuple[SessionEvent, ...], waits: dict[str, WaitUntil]) -> None:
        """Judge until when the run under way may go on, by a clock that stops while it waits for a person."""
        at = batch[-1].at
        if any(type(event) is RunStarted for event in batch):
            self._begun_at, self._waited_us, self._waiting_since = at, 0, None
        if self._waiting_since is not None and not self._observed.awaits_person:
            self._waited_us += at - self._waiting_since
            self._waiting_since = None
        if self._waiting_since is None and self._observed.awaits_person:
            self._waiting_since = at
        if (wait := waits.get(f"deadline:{self._observed.open_run}")) is not None:
            due_at = self._begun_at + self._waited_us + RUN_TIMEOUT_US
            self._expect("INV7", wait.due_at == due_at, f"{wait} is to be due at {due_at}")

    def _crash(self) -> None:
        """Lose the process: what goes on is the fold of the log."""
        refolded = fold(self.log)
        self._expect("INV6", _encode(refolded) == _encode(self._state), "the folded log gives another state")
        self._state = refolded
        self._tell(Move(commands.ResumeRun(tools=tuple(name for name in TOOL_NAMES if self._random.random() < 0.7))))

    def _come_to_rest(self) -> None:
        for _ in range(STEPS_TO_REST):
            command = ordinary_command(self._state)
            if command is None:
                break
            self._tell(Move(command, must_happen=True))
        state = self._state
        at_rest = not (state.run or state.queue or state.turn or state.scheduled)
        self._expect("LIVE", at_rest, "the session does not come to rest")

    def _read_again(self) -> None:
        """Fold the log, and re-execute every stimulus of it: both must come to where the session is."""
        self._expect("INV6", _encode(fold(self.log)) == _encode(self._state), "the folded log gives another state")
        state = self._core.initial()
        for batch, keys in zip(self.batches, self.pending, strict=True):
            planned = replan(self._core, state, msgspec.structs.replace(batch[0], at=0), batch[0].at)
            state = planned.state
            again = [effect.key for effect in self._core.pending(state)]
            self._expect("INV6", (planned.events, again) == (batch, keys), f"{batch} is decided as {planned.events}")


def _scope(draw: random.Random) -> Scope:
    """Return a scope in which everything may happen."""
    return Scope(
        name="life",
        inputs=1_000_000,
        turns=draw.choice((2, 4, 8)),
        calls=1,
        asks=True,
        keyed=("send", "cancel", "decide", "clear"),
        imports=True,
        resumes_max=draw.choice((0, 1, 3)),
        now=True,
        stepwise=True,
        scheduled=True,
        clears=True,
        finishes=True,
        attempts_max=draw.choice((1, 2, 2, 3)),
        breaks=draw.choice(("stop", "retry")),
        always=True,
        expires=draw.random() < 0.7,
        interrupts=True,
        waits=True,
        refuses=True,
        summaries=draw.choice((0, 3)),
        tool_attempts_max=draw.choice((1, 2, 3)),
    )


def _broken_history(draw: random.Random) -> tuple[Message, ...]:
    """Return messages as a careless system keeps them: orphaned calls, repeated ids, results that nobody asked for."""
    messages: list[Message] = []
    for _ in range(draw.randrange(1, 7)):
        blocks: list[Block] = []
        role: Literal["user", "assistant"] = draw.choice(("user", "assistant"))
        for _ in range(draw.randrange(3)):
            given = ToolCallId(draw.choice(("a", "b", "call_3_0")))
            if role == "assistant":
                blocks.append(draw.choice((TextBlock(text="Hi"), ToolUseBlock(id=given, name="look", input={}))))
            else:
                result = ToolResultBlock(tool_use_id=given, content=(TextBlock(text="seen"),))
                blocks.append(draw.choice((TextBlock(text="Hi"), TextBlock(text=""), result)))
        messages.append(Message(role, tuple(blocks)))
    return tuple(messages)


def main(steps: int, seed: int, out: TextIO) -> int:
    """Live until so many steps are done, print what was judged, and return the exit code."""
    began_s, done, events, lives = time.monotonic(), 0, 0, 0
    met: Counter[Rule] = Counter()
    violated: Violated | None = None
    while done < steps and violated is None:
        life = Life(seed + lives)
        lives += 1
        try:
            life.go(min(LIFE_STEPS, steps - done))
        except Violated as violation:
            violated = violation
        done += life.steps
        events += len(life.log)
        met.update(life.verdicts())
    seconds = time.monotonic() - began_s
    lines = [f"{done:,} steps in {lives:,} lives, {events:,} events, {seconds:.1f} seconds", ""]
    for rule, text in RULES.items():
        broken = violated is not None and violated.rule == rule
        verdict = "violated" if broken else "hold" if met[rule] else "not exercised"
        lines.append(f"{rule:<10}{verdict:<15}{met[rule]:>11,}  {text}")
    if violated is not None:
        lines += ["", str(violated)]
    out.write("\n".join(lines) + "\n")
    return int(violated is not None)


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:]]
    sys.exit(main(numbers[0] if numbers else 100_000, numbers[1] if len(numbers) > 1 else 1, sys.stdout))
