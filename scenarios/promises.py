"""What a simulation checks, in words, and the verdict on each promise after one scenario or many.

The rule: a promise that nothing was checked for has not been kept. It is *not exercised*, and the report says so.
"""

from collections.abc import Collection
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["hold", "violated", "not exercised"]

PROMISES: dict[str, str] = {
    "INV0": "every prefix of a session's log shows a history that providers accept",
    "INV1": "every call is answered by exactly one result",
    "INV2": "a run has one terminal event, its last; a cancelled run is not completed",
    "INV3": "inputs become runs one after another, in the order accepted",
    "INV4": "nothing of one session is visible in another",
    "INV5": "what was acknowledged is in the log after any crash",
    "DURABLE": "a process that starts finds all that was acknowledged, and nothing missing before it",
    "INV6": "folding the log gives the live state, and deciding it again gives what it holds",
    "INV7": "once somebody is told, nothing of that run goes on",
    "EFFECTS": "nothing begins before the log has the decision, nor beside itself, nor goes on when it is cancelled",
    "EVIDENCE": "what models and tools brought is in the log, and nothing else",
    "APPROVAL": "what needs a person's word begins after that word",
    "CANCEL": "a run whose only caller has given up ends as cancelled",
    "ONCE": "no body of a tool runs twice that must not",
    "FOLLOW": "who follows a session sees every event once and in order, and is told how much it missed",
    "LIVENESS": "all that was accepted comes to an end once faults are over",
    "SECRET": "no event holds the provider's key; where there is a wire",
    "TYPED": "a failed model call is told by its kind, whatever came over the wire",
    "CHECK": "the whole log passes `refold check`",
    "ERROR": "the simulated process raises nothing that it should not",
}
"""Each promise and what it says, in the order in which they are shown."""


def verdict_on(rule: str, *, broken: Collection[str], exercised: Collection[str]) -> Verdict:
    """Return what is to be said about a promise.

    Args:
        rule: its name.
        broken: the names of those that were broken.
        exercised: the names of those that something was checked for.
    """
    if rule in broken:
        return "violated"
    return "hold" if rule in exercised else "not exercised"
