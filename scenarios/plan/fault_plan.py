"""Which faults of a scenario happen now: counts operations over all lives of the simulated process."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Literal, TypeAlias

from refold.scenarios import faults
from refold.scenarios.faults import AnyFault, CountedFault, LastingFault

Operation: TypeAlias = Literal[
    "model", "tool", "append", "read", "step", "snapshot", "connect", "request", "chunk", "reply", "input", "disk"
]
"""What is counted: calls of the model, bodies of tools, appends, reads of a stream, snapshots, steps of the loop; on
a network connections, requests and pieces of responses; replies to sessions, and what is said to them from outside; and
what changes the files of a log, or opens them."""

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
    faults.SnapshotGoesWrong: "snapshot",
    faults.CrashAtStep: "step",
    faults.CancelAtStep: "step",
    faults.ToolReturnsHuge: "tool",
    faults.ToolReturnsOddText: "tool",
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
    faults.CallsShareIndex: "request",
    faults.ChunkIsLate: "chunk",
    faults.ChunkIsLost: "chunk",
    faults.ActorFails: "reply",
    faults.DuplicateReply: "reply",
    faults.LateReply: "reply",
    faults.DuplicateInput: "input",
    faults.PowerCut: "disk",
    faults.DiskError: "disk",
}
"""What each counted fault happens at."""

LASTING: dict[type[LastingFault], tuple[Operation, ...]] = {
    faults.ProviderBrownOut: ("model",),
    faults.DiskIsFull: ("append",),
    faults.LogIsGone: ("append", "read"),
    faults.DiskFails: ("disk",),
}
"""What each fault happens to that lasts."""

LOG_FAILS = faults.AppendFails | faults.DiskIsFull | faults.LogIsGone | faults.DiskError | faults.DiskFails
"""What puts the log out of order."""

Timed: TypeAlias = (
    faults.Crash | faults.Close | faults.ClockJumps | faults.SecondRuntime | faults.NetworkSplit | faults.SessionFails
)
"""What waits for its moment."""


class FaultPlan:
    """The faults of one simulation."""

    def __init__(
        self, planned: Sequence[AnyFault], is_calm: Callable[[], bool], now_s: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._planned = tuple(planned)
        self._is_calm = is_calm
        self._now_s = now_s
        self._lasting = [fault for fault in planned if isinstance(fault, LastingFault)]
        self._times: Counter[str] = Counter()
        self._counts: Counter[Operation] = Counter()
        self._counted: dict[tuple[Operation, int], list[AnyFault]] = {}
        for fault in planned:
            if isinstance(fault, CountedFault):
                self.count_down(fault)
        self._happened: dict[int, AnyFault] = {}
        self.log_failed_s: list[float] = []
        """When the log was out of order, each time that something was tried with it."""
        self.noticed: Callable[[AnyFault, Collection[str] | None], object] = _unnoticed
        """Told of each fault as it happens, and of the sessions whose operation it hits; None = that is not known."""

    def count_down(self, fault: AnyFault) -> None:
        """Let a counted fault happen, its operations counted from now on."""
        assert isinstance(fault, CountedFault)
        operation = OPERATIONS[type(fault)]
        first = self._counts[operation] + fault.nth
        for number in range(first, first + _length(fault)):
            self._counted.setdefault((operation, number), []).append(fault)

    def count(self, operation: Operation, sessions: Collection[str] | None = None) -> list[AnyFault]:
        """Count an operation that begins, and return the faults that happen to it.

        None as its sessions: it is of the whole process, or that is not known.
        """
        self._counts[operation] += 1
        due = self._counted.get((operation, self._counts[operation]))
        if due is None or self._is_calm():
            return []
        for fault in due:
            self.note(fault, sessions)
        return due

    def note(self, fault: AnyFault, sessions: Collection[str] | None = None) -> None:
        """Note that a fault has happened, once more where it lasts; see `count`."""
        self._happened[id(fault)] = fault
        self._times[type(fault).__name__] += 1
        if isinstance(fault, LOG_FAILS):
            self.log_failed_s.append(self._now_s())
        self.noticed(fault, sessions)

    def lasting(self, operation: Operation) -> list[AnyFault]:
        """Return the faults that go on now, to operations of a kind; the caller that lets one happen notes it."""
        now_s = self._now_s()
        if not self._lasting or self._is_calm():
            return []
        return [
            fault
            for fault in self._lasting
            if operation in LASTING[type(fault)] and fault.at_s <= now_s < fault.at_s + fault.for_s
        ]

    def timed(self) -> list[Timed]:
        return [fault for fault in self._planned if isinstance(fault, Timed) and not self.has_happened(fault)]

    def has_happened(self, fault: AnyFault) -> bool:
        return id(fault) in self._happened

    def times(self) -> dict[str, int]:
        return dict(sorted(self._times.items()))

    def happened(self) -> tuple[AnyFault, ...]:
        return tuple(fault for fault in self._planned if id(fault) in self._happened)

    def operations(self) -> dict[str, int]:
        return dict(sorted(self._counts.items()))


def _unnoticed(fault: AnyFault, sessions: Collection[str] | None) -> None:
    """Take no notice."""


def _length(fault: CountedFault) -> int:
    """Return at how many operations in a row a fault happens."""
    match fault:
        case faults.AppendFails(appends=length) | faults.DiskError(operations=length):
            return length
        case _:
            return 1
