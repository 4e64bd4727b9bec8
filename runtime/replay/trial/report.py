"""What came of sessions that were tried again: each beside what it was then, and all of them together."""

from typing import Literal, TypeAlias

import msgspec

from refold.events.core.content import JsonObject
from refold.events.core.ids import SessionId
from refold.events.model.messages import Usage
from refold.lineage.session_diff import DiffPart

TriedStatus: TypeAlias = Literal["ended", "stopped", "not begun"]
"""`ended`: all that was recorded was done again. `stopped`: up to a place where the log does not say how it goes on.
`not begun`: nothing of it was."""

PARTS_KEPT = 50
"""So many differences of a session are told; the others are counted."""


class CallMade(msgspec.Struct, frozen=True):
    """A call that a model asked for."""

    tool: str
    arguments: JsonObject


class TriedSide(msgspec.Struct, frozen=True, kw_only=True):
    """What a session did from its first difference on, then or now."""

    outcomes: tuple[str, ...]
    """How its runs ended, such as `completed` or `failed (budget)`."""
    answers: tuple[str, ...]
    """The final texts of those runs; of one without any, an empty text."""
    calls: tuple[CallMade, ...]
    turns: int
    """Answers of models."""
    usage: Usage
    cost: float
    """In the currency of the prices that were in force; 0 where there are none."""


class TriedSession(msgspec.Struct, frozen=True, kw_only=True):
    """One session that was tried again."""

    session: SessionId
    path: int
    """The number of its kind of path."""
    like: int
    """How many sessions have that path."""
    words: str
    """The path, in words."""
    first: str
    """Where it first differs, and in what."""
    at: int
    """The version of the last event that then and now share."""
    status: TriedStatus
    why: str = ""
    """Why it did not go on to its end."""
    then: TriedSide
    """What was recorded; of one that was stopped, up to the end of the run in which that was."""
    now: TriedSide
    guessed: int = 0
    """So many calls were given the result of a call with other arguments, at the same place."""
    parts: tuple[DiffPart, ...] = ()
    """Where both differ, in order; at most `PARTS_KEPT`."""
    found: int = 0
    """How many such places there are."""
    acts: tuple[str, ...] = ()
    """What the agent's code tried to do outside, which was refused."""

    @property
    def outcome_differs(self) -> bool:
        """Whether a run ended otherwise than then; False where it was stopped."""
        return self.status == "ended" and self.then.outcomes != self.now.outcomes

    @property
    def answer_differs(self) -> bool:
        """Whether a final answer is not word by word that of then; False where it was stopped."""
        return self.status == "ended" and self.then.answers != self.now.answers

    @property
    def calls_differ(self) -> bool:
        """Whether other tools were called, or in another order; of one that was stopped, as far as it went."""
        then, now = [call.tool for call in self.then.calls], [call.tool for call in self.now.calls]
        return (then if self.status == "ended" else then[: len(now)]) != now

    @property
    def arguments_differ(self) -> bool:
        """Whether the calls of one tool had other arguments, those that both have compared one by one."""
        return any(
            mine.arguments != other.arguments
            for name in {call.tool for call in self.now.calls}
            for mine, other in zip(
                [call for call in self.then.calls if call.tool == name],
                [call for call in self.now.calls if call.tool == name],
                strict=False,
            )
        )


class JudgedRule(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a rule."""

    rule: str
    """As it was written."""
    holds: bool
    """Whether the trial fails by it."""
    sessions: tuple[SessionId, ...]
    """In which it was met."""
    words: str
    """The figures, in words."""


class TrialReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came of all sessions that were tried again."""

    log: str
    agent: str
    wanted: int
    """So many sessions were asked for."""
    sessions: int
    """Of the agent and its subagents in the log, without forks."""
    paths: int
    """How many kinds of paths they have."""
    forks: int
    """Sessions that were left out, since they are forks."""
    unchanged: int
    """Of those that were looked at, the ones in which nothing differs, so that no model was asked."""
    not_compared: tuple[str, ...] = ()
    """The others of which it is not known, with the reason."""
    tried: tuple[TriedSession, ...] = ()
    """In the order in which they were chosen."""
    limits: str
    """What might be spent, in words."""
    calls: int = 0
    """Model calls that were made."""
    usage: Usage = Usage()
    """What they took, over all sessions."""
    cost: float = 0.0
    ended: Literal["", "budget", "interrupted"] = ""
    """Why not all of it was done; empty = it was."""
    rules: tuple[JudgedRule, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether one of the rules holds."""
        return any(rule.holds for rule in self.rules)

    def missing(self) -> list[str]:
        """Return what was not tried to its end, a line of text each."""
        lines = [f"{each.session}: {each.status}: {each.why}" for each in self.tried if each.status != "ended"]
        lines += list(self.not_compared)
        if self.ended == "interrupted":
            lines.append("interrupted: the sessions that follow were not tried")
        return lines
