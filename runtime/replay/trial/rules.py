"""Rules by which a trial fails, in a small language: `charge called more`, `cost above 120%`.

    TOOL called more | less | never | at all | with other arguments
    any tool called …                the same, of any tool
    outcome differs                  a run ended otherwise, such as failed
    answer differs                   a final text is another one, word by word
    calls differ                     other tools were called, or in another order
    cost above 120%                  of what it was then, all sessions that ended together
    cost above 0.5                   in one session; both also of `tokens` and `turns`
    session stopped                  the log did not say how it goes on
    … in more than 3 sessions        it holds where more sessions than that meet it, or `in more than 10% of sessions`

The rule of these rules: what is not known does not count. A session that was stopped may have called a tool `more` and
have `other arguments`, and is never said to have called one `less`, or to have ended otherwise.
"""

import difflib
import re
from collections.abc import Callable, Collection, Sequence
from typing import Final, Literal, TypeAlias, cast

import msgspec

from refold.events.core.errors import ConfigError
from refold.events.model.spending import total_tokens
from refold.replay.trial.report import JudgedRule, TriedSession, TriedSide

CalledHow: TypeAlias = Literal["more", "less", "never", "at all", "with other arguments"]
Figure: TypeAlias = Literal["cost", "tokens", "turns"]

ANY_TOOL: Final = "any tool"

FORMS: Final = (
    "'TOOL called more|less|never|at all|with other arguments', 'outcome differs', 'answer differs', 'calls differ', "
    "'cost|tokens|turns above N% or N', 'session stopped', each of them also with 'in more than N sessions' or "
    "'in more than N% of sessions'"
)

_CALLED: Final = re.compile(r"(any tool|[a-zA-Z0-9_-]{1,64}) called (more|less|never|at all|with other arguments)")
_ABOVE: Final = re.compile(r"(cost|tokens|turns) above (\d+(?:\.\d+)?)(%?)")
_OF_SESSIONS: Final = re.compile(r" in more than (\d+(?:\.\d+)?)(%?) (?:of )?sessions?$")
_PLAIN: Final[dict[str, Callable[[TriedSession], bool]]] = {
    "outcome differs": lambda tried: tried.outcome_differs,
    "answer differs": lambda tried: tried.answer_differs,
    "calls differ": lambda tried: tried.calls_differ,
    "session stopped": lambda tried: tried.status != "ended",
}


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule by which a trial fails; made by `rule_of`."""

    text: str
    """As it was written."""
    plain: str = ""
    """`outcome differs` and the like; empty = it is about calls, or a figure."""
    tool: str = ""
    how: CalledHow = "more"
    figure: Figure | None = None
    limit: float = 0.0
    percent: bool = False
    """Whether the limit is one of what it was then."""
    sessions: float = 0.0
    """In more sessions than that it must be met."""
    share: bool = False
    """Whether that is a share of them in percent."""


def rule_of(text: str) -> Rule:
    """Return the rule that a text says.

    Raises:
        ConfigError: it says none; names the forms that there are.
    """
    said = " ".join(text.split())
    sessions, share = 0.0, False
    if (ending := _OF_SESSIONS.search(said)) is not None:
        sessions, share, said = float(ending[1]), bool(ending[2]), said[: ending.start()]
        if share and sessions >= 100:
            raise ConfigError(f"the rule {text!r:.200} never holds: there are no more than 100% of sessions")
    if said in _PLAIN:
        return Rule(text=text, plain=said, sessions=sessions, share=share)
    if (called := _CALLED.fullmatch(said)) is not None:
        how = cast("CalledHow", called[2])
        return Rule(text=text, tool=called[1], how=how, sessions=sessions, share=share)
    if (above := _ABOVE.fullmatch(said)) is not None:
        figure = cast("Figure", above[1])
        return Rule(
            text=text, figure=figure, limit=float(above[2]), percent=bool(above[3]), sessions=sessions, share=share
        )
    raise ConfigError(f"{text!r:.200} is no rule; a rule is {FORMS}")


def require_tools(rules: Sequence[Rule], known: Collection[str]) -> None:
    """Return if all tools that rules name are known.

    Raises:
        ConfigError: one is neither a tool of the agent nor one that a session called.
    """
    for rule in rules:
        if rule.tool and rule.tool != ANY_TOOL and rule.tool not in known:
            close = difflib.get_close_matches(rule.tool, known, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(known)) or 'no tools'}"
            raise ConfigError(f"the rule {rule.text!r:.200} names {rule.tool}, which is no tool of the agent; {hint}")


def judged(rule: Rule, tried: Sequence[TriedSession]) -> JudgedRule:
    if rule.figure is not None and rule.percent and not rule.sessions:
        return _together(rule, tried)
    met = [each for each in tried if _meets(rule, each)]
    needed = rule.sessions * len(tried) / 100 if rule.share else rule.sessions
    return JudgedRule(
        rule=rule.text,
        holds=len(met) > needed,
        sessions=tuple(each.session for each in met),
        words=f"met in {len(met)} of {len(tried)} sessions",
    )


def _together(rule: Rule, tried: Sequence[TriedSession]) -> JudgedRule:
    """Judge a figure of all sessions that ended, beside what it was then."""
    assert rule.figure is not None
    ended = [each for each in tried if each.status == "ended"]
    then, now = (sum(_figure(rule.figure, side) for side in sides) for sides in _sides(ended))
    above = now > then * rule.limit / 100
    return JudgedRule(
        rule=rule.text,
        holds=above,
        sessions=tuple(each.session for each in ended if _meets(rule, each)) if above else (),
        words=f"{then:,.6g} then, {now:,.6g} now" + (f" ({now / then:.0%})" if then else ""),
    )


def _sides(tried: Sequence[TriedSession]) -> tuple[list[TriedSide], list[TriedSide]]:
    return [each.then for each in tried], [each.now for each in tried]


def _figure(figure: Figure, side: TriedSide) -> float:
    match figure:
        case "cost":
            return side.cost
        case "tokens":
            return total_tokens(side.usage)
        case "turns":
            return side.turns


def _meets(rule: Rule, tried: TriedSession) -> bool:
    if rule.plain:
        return _PLAIN[rule.plain](tried)
    if rule.figure is not None:
        now = _figure(rule.figure, tried.now)
        if not rule.percent:
            return now > rule.limit
        return tried.status == "ended" and now > _figure(rule.figure, tried.then) * rule.limit / 100
    names = {call.tool for side in (tried.then, tried.now) for call in side.calls}
    return any(_called(rule.how, name, tried) for name in names if rule.tool in (name, ANY_TOOL))


def _called(how: CalledHow, tool: str, tried: TriedSession) -> bool:
    then = [call.arguments for call in tried.then.calls if call.tool == tool]
    now = [call.arguments for call in tried.now.calls if call.tool == tool]
    match how:
        case "more":
            return len(now) > len(then)
        case "at all":
            return bool(now)
        case "with other arguments":
            return any(mine != other for mine, other in zip(then, now, strict=False))
        case "less":
            return tried.status == "ended" and len(now) < len(then)
        case "never":
            return tried.status == "ended" and bool(then) and not now
