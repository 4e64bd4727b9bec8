"""Every rule that a session is checked against in `tests.selfcheck.exhaustive`, and what each one says.

INV0 to INV4 are judged by `refold.events.session.invariants`; INV7 and the rules in words by `properties`; INV6, TOTAL
and LIVE by the exploration itself.
"""

from typing import Literal, NamedTuple, TypeAlias

from refold.events.model.history_rules import Invariant

Rule: TypeAlias = (
    Invariant
    | Literal["INV5", "INV6", "INV7"]
    | Literal["HISTORY", "TIERS", "APPROVAL", "ONCE", "KINDS", "OUTCOME", "FINISH", "RECOVERY", "BUDGET", "TURNS"]
    | Literal["STEPS", "RETRY", "ANSWERS", "PARKED", "SCHEDULE", "KEYS", "TOTAL", "LIVE"]
)
"""The name of a rule."""

RULES: dict[Rule, str] = {
    "INV0": "every prefix shows a history that providers accept",
    "INV1": "every call is answered by exactly one result",
    "INV2": "a run has one terminal event, its last; a cancelled run is not completed",
    "INV3": "inputs become runs one after another, in the order accepted",
    "INV4": "nothing of another session is taken for this one's",
    "INV5": "what was acknowledged is in the log after any crash: promised by stores, not by the core",
    "INV6": "folding the log gives the live state; re-executing it gives the same events and pending effects",
    "INV7": "what is pending is exactly what the open run has begun and not finished",
    "HISTORY": "a batch adds to the history what it says: inputs that are shown, answers, results, and nothing else",
    "TIERS": "calls start in order; only observing calls run beside each other",
    "APPROVAL": "what needs approval runs only after one, as was decided; what is denied or refused never",
    "ANSWERS": "each question is answered once; the call then starts again, or has its result",
    "ONCE": "no `once` call runs again without a new approval; other calls only where their tool exists",
    "KINDS": "a result that we make up has the kind and the words of what happened",
    "OUTCOME": "a run ends as what ended it says: answer, failure, timeout, cancel",
    "FINISH": "a run that a tool has ended begins nothing more and completes when what runs has returned",
    "RECOVERY": "a run fails when carrying out its calls breaks too often in a row, and not before",
    "BUDGET": "a run that has spent its budget asks no model, starts no call and fails for it; no other does",
    "TURNS": "turns count from 1 without gaps, up to max_turns",
    "STEPS": "a run that goes step by step takes no turn that was not allowed",
    "RETRY": "a failed model call or attempt is made again where the policy says so, after its pause, not more often",
    "PARKED": "a run parks after so many fruitless resumes, and then does nothing by itself",
    "SCHEDULE": "a scheduled input is queued when its time has come, once, as it was given",
    "KEYS": "a command with a key has one outcome",
    "TOTAL": "a command is refused and changes nothing, or gives a batch; what must happen is not refused",
    "LIVE": "from every state, ordinary results and decisions lead to a session at rest",
}
"""What each rule says. Of INV7 only the core's half is meant: what `pending` asks for."""


class Finding(NamedTuple):
    """A rule that does not hold."""

    rule: Rule
    message: str
