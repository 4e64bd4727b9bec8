"""Faults as data: what is to go wrong in a simulation, and where.

A fault that counts (`nth`) happens at the n-th operation of its kind since the simulation began, over all lives of the
process; one that tells a time (`at_s`) happens that many virtual seconds after it began. Each is independent of the
others, so that a plan can be shrunk to those that matter. What is listed and never comes to happen is reported as such.

What the numbers of a scenario may be: checked where one is made, in Python or from a file.

The rule: what cannot be played is refused here with the name of the field, and is never taken for a broken promise.
"""

import math
from collections.abc import Collection
from typing import Final, Literal, TypeAlias

import msgspec

from refold.events.core.errors import ConfigError, quoted

SECONDS_MAX: Final = 10_000_000.0
"""Nothing in a scenario takes longer or comes later: virtual seconds, about four months."""

COUNT_MAX: Final = 100_000_000
"""Nothing is done, or is as long, more often than this at one place of a scenario."""

DRAWN_MAX: Final = 10_000
"""A drawn scenario has at most so many acts, sessions and faults."""

COUNTS: Final = ("times", "capacity", "appends", "operations", "characters")
"""Fields that count something, from 1."""


def check_fields(struct: msgspec.Struct, *, backward: bool = False) -> None:
    """Check the seconds and counts of an act, a fault or a scenario.

    Fields whose names end in `_s`, and `seconds`, are virtual seconds; with `backward` they may be negative.
    """
    for name in struct.__struct_fields__:
        value: object = getattr(struct, name)
        if value is None or not isinstance(value, int | float) or isinstance(value, bool):
            continue
        if name.endswith("_s") or name == "seconds":
            least = -SECONDS_MAX if backward else 0.0
            if name == "calm_s" and value == math.inf:  # The caller that plays it says when faults are over.
                continue
            if not (math.isfinite(value) and least <= value <= SECONDS_MAX):
                raise ConfigError(
                    f"{type(struct).__name__}.{name} is from {least:,.0f} to {SECONDS_MAX:,.0f} seconds, and is {value}"
                )
        elif name in COUNTS and not 1 <= value <= COUNT_MAX:
            raise ConfigError(f"{type(struct).__name__}.{name} is from 1 to {COUNT_MAX:,}, and is {value}")


def check_choice(name: str, value: object, choices: Collection[object]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} is one of {', '.join(map(repr, choices))}, and not {quoted(value)}")


def check_whole(name: str, value: object, *, least: int, most: int) -> None:
    """Check that something is a whole number within bounds, both inclusive."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"{name} is a whole number from {least:,} to {most:,}, and not {quoted(value)}")


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all faults.

    Raises:
        ConfigError: it cannot happen: a number is out of bounds.
    """

    def __post_init__(self) -> None:
        check_fields(self, backward=isinstance(self, ClockJumps))


class CountedFault(Fault, frozen=True, kw_only=True):
    """Happens at one operation of its kind.

    Raises:
        ConfigError: there is no such operation.
    """

    nth: int
    """From 1."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.nth < 1:
            raise ConfigError(f"{type(self).__name__}.nth counts from 1, and is {self.nth}")


class TimedFault(Fault, frozen=True, kw_only=True):
    """Happens at a moment."""

    at_s: float
    """Virtual seconds after the simulation began."""


# The model's provider


class ProviderRefuses(CountedFault, frozen=True, kw_only=True, tag="provider_refuses"):
    """A model call fails at once."""

    kind: Literal["auth", "rate_limit", "overloaded", "server", "connection", "timeout", "malformed"] = "connection"
    retryable: bool = True
    retry_after_s: float | None = None


class ProviderDrops(CountedFault, frozen=True, kw_only=True, tag="provider_drops"):
    """A model call fails half-way: after some deltas where answers are streamed."""


class ProviderStalls(CountedFault, frozen=True, kw_only=True, tag="provider_stalls"):
    """A model call takes long."""

    seconds: float = 600.0


class ProviderBabbles(CountedFault, frozen=True, kw_only=True, tag="provider_babbles"):
    """An answer calls a tool that there is not, and one whose arguments are no object."""


# Tools


class ToolRaises(CountedFault, frozen=True, kw_only=True, tag="tool_raises"):
    """A tool's body raises after it has done its work."""


class ToolIsSlow(CountedFault, frozen=True, kw_only=True, tag="tool_is_slow"):
    """A tool's body takes long."""

    seconds: float = 60.0


class ToolHangs(CountedFault, frozen=True, kw_only=True, tag="tool_hangs"):
    """A tool's body takes long, an hour for instance, and ignores its cancellation."""

    seconds: float = 3_600.0


class ToolReturnsGarbage(CountedFault, frozen=True, kw_only=True, tag="tool_returns_garbage"):
    """A tool's body returns what no log can hold: numbers that are none, and half characters."""


# The store


class AppendFails(CountedFault, frozen=True, kw_only=True, tag="append_fails"):
    """An append is reported as failed."""

    committed: bool = False
    """Whether it is in the log although it failed."""
    appends: int = 1
    """So many in a row, as on a disk that is full."""


class AppendIsSlow(CountedFault, frozen=True, kw_only=True, tag="append_is_slow"):
    """An append takes long before it takes effect."""

    seconds: float = 5.0


class ReadFails(CountedFault, frozen=True, kw_only=True, tag="read_fails"):
    """Reading a stream fails."""


SnapshotFate = Literal["lost", "damaged", "crash"]


class SnapshotGoesWrong(CountedFault, frozen=True, kw_only=True, tag="snapshot_goes_wrong"):
    """A snapshot is not kept as it was made; it happens only where `Scenario.snapshot_every` asks for snapshots."""

    how: SnapshotFate = "damaged"
    """`lost`: it is not written, and nobody notices. `damaged`: half of it is, and the rest is other bytes. `crash`:
    the process is gone before it is written, and after the events that it is of."""


# The process


class CrashAtAppend(CountedFault, frozen=True, kw_only=True, tag="crash_at_append"):
    """The process is gone in the middle of an append."""

    committed: bool = False
    """Whether the append is in the log although it failed."""


class CrashAtStep(CountedFault, frozen=True, kw_only=True, tag="crash_at_step"):
    """The process is gone before a step of its event loop."""


class ActorFails(CountedFault, frozen=True, kw_only=True, tag="actor_fails"):
    """A session's actor raises what it should not, just before a reply reaches it, and is made anew from the log."""


class SessionFails(TimedFault, frozen=True, kw_only=True, tag="session_fails"):
    """A session's actor raises what it should not at a moment, and is made anew from the log."""

    session: str


class CrashInTool(CountedFault, frozen=True, kw_only=True, tag="crash_in_tool"):
    """The process is gone when a tool's body has done its work, and before its result is known."""


class Crash(TimedFault, frozen=True, kw_only=True, tag="crash"):
    """The process is gone at a moment."""


class Close(TimedFault, frozen=True, kw_only=True, tag="close"):
    """The process ends in order, as for a deploy, and the next one starts."""


# Time


class ClockJumps(TimedFault, frozen=True, kw_only=True, tag="clock_jumps"):
    """The wall clock is set forward, or back if negative; nothing else notices."""

    seconds: float


# What lasts, and what else a tool may return


class LastingFault(TimedFault, frozen=True, kw_only=True):
    """Happens to every operation of its kind within some time."""

    for_s: float
    """So many virtual seconds it lasts."""


class ProviderBrownOut(LastingFault, frozen=True, kw_only=True, tag="provider_brown_out"):
    """Model calls fail for a while: all of them, or a share."""

    share: float = 1.0
    """Of the calls, which ones is drawn from the scenario's seed."""
    kind: Literal["rate_limit", "overloaded", "server", "connection", "timeout"] = "overloaded"
    place: int | None = None
    """Of the provider in an agent's FallbackProvider, from 1; None = all of them."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 <= self.share <= 1:
            raise ConfigError(f"ProviderBrownOut.share is from 0 to 1, and is {self.share}")
        if self.place is not None and self.place < 1:
            raise ConfigError(f"ProviderBrownOut.place counts from 1, and is {self.place}")


class DiskIsFull(LastingFault, frozen=True, kw_only=True, tag="disk_is_full"):
    """Every append fails for a while, and leaves nothing."""


class LogIsGone(LastingFault, frozen=True, kw_only=True, tag="log_is_gone"):
    """Every append fails for a while, and every read, as on a file system that is out of reach."""

    committed: bool = False
    """Whether appends are in the log although they failed."""
    reads_only: bool = False


class ToolReturnsHuge(CountedFault, frozen=True, kw_only=True, tag="tool_returns_huge"):
    """A tool's body returns a long text."""

    characters: int = 3_000_000


class ToolReturnsOddText(CountedFault, frozen=True, kw_only=True, tag="tool_returns_odd_text"):
    """A tool's body returns text that is hard to keep: NUL, line ends, controls, text from right to left."""


class SecondRuntime(TimedFault, frozen=True, kw_only=True, tag="second_runtime"):
    """Another process takes the log over while the first one lives, as where its lock file was removed.

    Clients ask again at the second one. The first goes on, and its appends are refused.
    """


# The network, where model calls go over a simulated one


class HostRefuses(CountedFault, frozen=True, kw_only=True, tag="host_refuses"):
    """A connection to the provider's host is refused."""


class HostIsSilent(CountedFault, frozen=True, kw_only=True, tag="host_is_silent"):
    """The provider's host does not answer connection attempts."""


class HostIsFull(CountedFault, frozen=True, kw_only=True, tag="host_is_full"):
    """A request is answered with 429."""

    retry_after_s: int | None = 5
    """What its `Retry-After` says; None = there is none."""


class HostFails(CountedFault, frozen=True, kw_only=True, tag="host_fails"):
    """A request is answered with an error of the host, which need not speak the API."""

    status: int = 503
    """Of HTTP, from 400 to 599."""
    page: bool = False
    """Whether some machine on the way answers, with a page in HTML."""

    def __post_init__(self) -> None:
        CountedFault.__post_init__(self)
        if not 400 <= self.status <= 599:
            raise ConfigError(f"HostFails.status is from 400 to 599, and is {self.status}")


class ResponseStalls(CountedFault, frozen=True, kw_only=True, tag="response_stalls"):
    """Nothing comes of a response for a while."""

    seconds: float = 900.0
    begun: bool = True
    """Whether half of it has come before."""


class ResponseBreaks(CountedFault, frozen=True, kw_only=True, tag="response_breaks"):
    """The connection is gone in the middle of a response."""

    reset: bool = True
    """Whether it is reset; else it ends as if it were complete."""
    begun: bool = True
    """Whether half of the response has come before."""


class ResponseDrips(CountedFault, frozen=True, kw_only=True, tag="response_drips"):
    """A response comes byte by byte, characters in pieces."""


class ResponseIsNoText(CountedFault, frozen=True, kw_only=True, tag="response_is_no_text"):
    """There are bytes in a response that are no UTF-8."""


class ResponseIsNoJson(CountedFault, frozen=True, kw_only=True, tag="response_is_no_json"):
    """There is something in a response that is no JSON."""


class ResponseHasNoEnd(CountedFault, frozen=True, kw_only=True, tag="response_has_no_end"):
    """A response ends in order, and what would say that the answer is complete is missing."""

    marker_only: bool = False
    """Whether only the last marker of the stream is."""


class ResponseIsHuge(CountedFault, frozen=True, kw_only=True, tag="response_is_huge"):
    """There is a line in a response that is longer than the provider takes."""


class ArgumentsAreCut(CountedFault, frozen=True, kw_only=True, tag="arguments_are_cut"):
    """An answer that says it is complete calls a tool with half of the arguments."""


class CallsShareId(CountedFault, frozen=True, kw_only=True, tag="calls_share_id"):
    """An answer calls tools twice under one id."""


class CallsShareIndex(CountedFault, frozen=True, kw_only=True, tag="calls_share_index"):
    """An answer that is streamed calls tools twice, each call under the same index, as some servers have it."""


class ChunkIsLate(CountedFault, frozen=True, kw_only=True, tag="chunk_is_late"):
    """A piece of a response, of all that come, takes long."""

    seconds: float = 60.0


class ChunkIsLost(CountedFault, frozen=True, kw_only=True, tag="chunk_is_lost"):
    """The connection is reset before a piece of a response, of all that come."""


class NetworkSplit(TimedFault, frozen=True, kw_only=True, tag="network_split"):
    """Nothing gets through for a while: new and open connections wait, then go on."""

    seconds: float = 60.0


# Messages


class CancelAtStep(CountedFault, frozen=True, kw_only=True, tag="cancel_at_step"):
    """A client cancels what a session does just before a step of the process's event loop."""

    session: str


class DuplicateReply(CountedFault, frozen=True, kw_only=True, tag="duplicate_reply"):
    """What a model, a tool or a person has answered reaches the session twice."""

    after_s: float = 0.0
    """How much later the second time is, in virtual seconds."""


class LateReply(CountedFault, frozen=True, kw_only=True, tag="late_reply"):
    """What a model, a tool or a person has answered reaches the session late, also after the process has died."""

    seconds: float = 30.0


class DuplicateInput(CountedFault, frozen=True, kw_only=True, tag="duplicate_input"):
    """An input or a cancellation reaches the session again under the same key."""

    after_s: float = 1.0
    """How much later, in virtual seconds."""


# The disk under a log in an SQLite file


Damage: TypeAlias = Literal["dropped", "kept", "subset", "prefix", "torn", "garbage", "zeros"]
"""What becomes of what was written and not yet synchronised when the power goes: all of it is lost, or none; or any
writes are, or the last ones of each file; or any, and of one that is left a part is missing, is garbage, or zeros."""


class PowerCut(CountedFault, frozen=True, kw_only=True, tag="power_cut"):
    """The power goes at an operation of the disk: a write, truncation, synchronisation, opening or deletion of a file.

    The process is gone, and so is what the damage says.
    """

    damage: Damage = "dropped"


class DiskFails(LastingFault, frozen=True, kw_only=True, tag="disk_fails"):
    """Every operation of the disk that a `DiskError` may hit fails for a while."""

    kind: Literal["EIO", "ENOSPC"] = "EIO"
    syncs_only: bool = False
    """Whether writes succeed, and only what would bring them to the disk fails."""


class DiskError(CountedFault, frozen=True, kw_only=True, tag="disk_error"):
    """An operation of the disk fails. What was to be synchronised then is not on the disk unless it is written again.

    A process still sees it until the power goes: so it is where the system keeps failed pages in its cache.
    """

    kind: Literal["EIO", "ENOSPC"] = "EIO"
    """A broken disk, or a full one, which fails only what needs space."""
    operations: int = 1
    """So many in a row."""


AnyFault: TypeAlias = (
    ProviderRefuses
    | ProviderDrops
    | ProviderStalls
    | ProviderBabbles
    | ToolRaises
    | ToolIsSlow
    | ToolHangs
    | ToolReturnsGarbage
    | AppendFails
    | AppendIsSlow
    | ReadFails
    | SnapshotGoesWrong
    | CrashAtAppend
    | CrashAtStep
    | CrashInTool
    | ActorFails
    | SessionFails
    | Crash
    | Close
    | ClockJumps
    | ProviderBrownOut
    | DiskIsFull
    | LogIsGone
    | ToolReturnsHuge
    | ToolReturnsOddText
    | SecondRuntime
    | HostRefuses
    | HostIsSilent
    | HostIsFull
    | HostFails
    | ResponseStalls
    | ResponseBreaks
    | ResponseDrips
    | ResponseIsNoText
    | ResponseIsNoJson
    | ResponseHasNoEnd
    | ResponseIsHuge
    | ArgumentsAreCut
    | CallsShareId
    | CallsShareIndex
    | ChunkIsLate
    | ChunkIsLost
    | NetworkSplit
    | CancelAtStep
    | DuplicateReply
    | LateReply
    | DuplicateInput
    | PowerCut
    | DiskError
    | DiskFails
)
"""Any fault."""
