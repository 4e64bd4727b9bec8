"""Which faults of a scenario happen now: counts operations over all lives of the simulated process."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Literal, TypeAlias

from refold.scenarios import faults
from refold.scenarios.faults import AnyFault, CountedFault

Operation: TypeAlias = Literal[
    "model", "tool", "append", "read", "step", "connect", "request", "chunk", "reply", "input"
]
"""What is counted: calls of the model, bodies of tools, appends, reads of a stream, and steps of the loop; on a network
connections, requests and pieces of responses; replies to sessions, and what is said to them from outside."""

OPERATIONS: dict[type[CountedFault], Operation] = {
    faults.ProviderRefuses: "model",
    faults.ProviderDrops: "model",
    faults.ProviderStalls: "model",
    faults.ProviderBabbles: "model",
    faults.ToolRaises: "tool",
    faults.ToolIsSlow: "tool",
    faults.ToolHangs: "tool",
    faults.ToolReturnsGarbage: "tool",
    faults.CrashInTool: "tool",
    faults.AppendFails: "append",
    faults.AppendIsSlow: "append",
    faults.CrashAtAppend: "append",
    faults.ReadFails: "read",
    faults.CrashAtStep: "step",
    faults.HostRefuses: "connect",
    faults.HostIsSilent: "connect",
    faults.HostIsFull: "request",
    faults.HostFails: "request",
    faults.ResponseStalls: "request",
    faults.ResponseBreaks: "request",
    faults.ResponseDrips: "request",
    faults.ResponseIsNoText: "request",
    faults.ResponseIsNoJson: "request",
    faults.ResponseHasNoEnd: "request",
    faults.ResponseIsHuge: "request",
    faults.ArgumentsAreCut: "request",
    faults.CallsShareId: "request",
    faults.ChunkIsLate: "chunk",
    faults.ChunkIsLost: "chunk",
    faults.DuplicateReply: "reply",
    faults.LateReply: "reply",
    faults.DuplicateInput: "input",
}
"""What each counted fault happens at."""


class FaultPlan:
    """The faults of one simulation.

    Args:
        planned: in any order.
        is_calm: tells whether no fault is to happen any more.
    """

    def __init__(self, planned: Sequence[AnyFault], is_calm: Callable[[], bool]) -> None:
        self._planned = tuple(planned)
        self._is_calm = is_calm
        self._counts: Counter[Operation] = Counter()
        self._counted: dict[tuple[Operation, int], list[AnyFault]] = {}
        for fault in planned:
            if isinstance(fault, CountedFault):
                operation = OPERATIONS[type(fault)]
                length = fault.appends if isinstance(fault, faults.AppendFails) else 1
                for number in range(fault.nth, fault.nth + length):
                    self._counted.setdefault((operation, number), []).append(fault)
        self._happened: dict[int, AnyFault] = {}
        self.noticed: Callable[[AnyFault, Collection[str] | None], object] = _unnoticed
        """Told of each fault as it happens, and of the sessions whose operation it hits; None = that is not known."""

    def count(self, operation: Operation, sessions: Collection[str] | None = None) -> list[AnyFault]:
        """Count an operation that begins, and return the faults that happen to it.

        Args:
            operation: what begins.
            sessions: whose it is; None = of the whole process, or not known.
        """
        self._counts[operation] += 1
        due = self._counted.get((operation, self._counts[operation]))
        if due is None or self._is_calm():
            return []
        for fault in due:
            self.note(fault, sessions)
        return due

    def note(self, fault: AnyFault, sessions: Collection[str] | None = None) -> None:
        """Note that a fault has happened; see `count`."""
        self._happened[id(fault)] = fault
        self.noticed(fault, sessions)

    def timed(self) -> list[faults.Crash | faults.Close | faults.ClockJumps | faults.NetworkSplit]:
        """Return the faults that wait for their moment."""
        return [
            fault
            for fault in self._planned
            if isinstance(fault, faults.Crash | faults.Close | faults.ClockJumps | faults.NetworkSplit)
            and id(fault) not in self._happened
        ]

    def happened(self) -> tuple[AnyFault, ...]:
        """Return the faults that have happened, in the order of the plan."""
        return tuple(fault for fault in self._planned if id(fault) in self._happened)

    def operations(self) -> dict[str, int]:
        """Return how many operations of each kind there were."""
        return dict(sorted(self._counts.items()))


def _unnoticed(fault: AnyFault, sessions: Collection[str] | None) -> None:
    """Take no notice."""
