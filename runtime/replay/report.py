"""What a shadow replay compared, what differed, and what could not be compared and why."""

from typing import Literal

import msgspec

What = Literal["input", "recall", "request", "summary", "answer", "call", "result", "decision"]
"""Whether today's agent does the same with what was recorded.

`input`: of what was sent, after `on_user_message`. `recall`: what of the memories enters a request. `request`: what a
model is asked, after offer, window and `on_pre_llm`. `summary`: when a history is summarised, and what is asked for it.
`answer`: what becomes of a model's answer by `on_post_llm`, argument checks, policy and output type. `call`: whether
`on_tool_call` lets a body run. `result`: of what a tool gave, after `on_tool_result` and the limit of results.
`decision`: what the session's core decides under today's configuration.
"""

ORDER: tuple[What, ...] = ("input", "recall", "request", "summary", "answer", "call", "result", "decision")

REASONS_MAX = 50
"""Of each kind of comparison at most so many reasons are told apart."""

OTHER_REASONS = "other reasons"


class NotCompared(msgspec.Struct, frozen=True, kw_only=True):
    """Why some comparisons could not be made."""

    why: str
    times: int
    first: str
    """The first place, such as `session/alice@12`."""


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """How often one thing was compared."""

    what: What
    compared: int = 0
    """How often it could be done again."""
    differ: int = 0
    """How often it then was not as recorded."""
    not_compared: tuple[NotCompared, ...] = ()
    """The reasons why it could not be, in the order in which they came up."""


class Tally:
    """Counts comparisons."""

    def __init__(self) -> None:
        self._compared: dict[What, int] = {}
        self._differ: dict[What, int] = {}
        self._missed: dict[What, dict[str, tuple[int, str]]] = {}

    def add(self, what: What, *, differs: bool) -> None:
        """Count a comparison."""
        self._compared[what] = self._compared.get(what, 0) + 1
        self._differ[what] = self._differ.get(what, 0) + differs

    def miss(self, what: What, place: str, why: str) -> None:
        """Count one that could not be made."""
        reasons = self._missed.setdefault(what, {})
        if why not in reasons and len(reasons) >= REASONS_MAX:
            why = OTHER_REASONS
        times, first = reasons.get(why, (0, place))
        reasons[why] = (times + 1, first)

    def report(self) -> tuple[Compared, ...]:
        """Return what was counted, in a fixed order; what never came up is left out."""
        return tuple(
            Compared(
                what=what,
                compared=self._compared.get(what, 0),
                differ=self._differ.get(what, 0),
                not_compared=tuple(
                    NotCompared(why=why, times=times, first=first)
                    for why, (times, first) in self._missed.get(what, {}).items()
                ),
            )
            for what in ORDER
            if what in self._compared or what in self._missed
        )
