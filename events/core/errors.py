"""Every error that Refold raises, under one root.

    RefoldError
    ├── ConfigError               a setting or a name is wrong; correct it before running
    ├── CommandRejected           the command may not happen now; nothing was recorded
    │   ├── AgentMemoryError      a memory store refused a value or a query
    │   ├── GraphError            a graph operation has no meaning
    │   ├── QueueFull             too many inputs wait in a session; also a BackpressureShed
    │   └── StreamDeleted         the stream was deleted; its name is not used again
    ├── BackpressureShed          too many inputs are waiting; try again later
    ├── CircuitOpen               a service failed too often and is not called for now
    ├── ProviderError             the model's provider failed; `retryable` says whether to try again
    ├── ToolError                 raise it in a tool to choose the kind of its failure
    │   └── ModelRetry            raise it in an output validator to have the model asked again
    ├── AgentLoopError            the loop of turns cannot go on
    ├── PipelineError             a stage of a pipeline failed
    ├── PersistenceError          the log, or a persistence backend, could not be read or written
    │   ├── WrongExpectedVersion  the stream moved on; fold again and retry
    │   ├── LogFormatError        the file is not a log, is damaged, or comes from a newer Refold
    │   └── LogInUse              another runtime owns the log
    ├── CoreFailed                the code of an event-sourced actor failed on a message; nothing was recorded
    └── DivergenceError           today's code decides differently from the log

`RunResult.output` adds RunNotCompleted, an AgentLoopError (`refold.sessions.outcome`).

The actor kernel adds ActorStopped, AskTimeout, AskCycle and WouldDeadlock (`refold.actors.kernel.errors`), which derive
from RefoldError and from pykka's errors.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Literal, cast

ProviderErrorKind = Literal[
    "auth",
    "rate_limit",
    "overloaded",
    "invalid_request",
    "context_too_long",
    "server",
    "connection",
    "timeout",
    "malformed",
    "unknown",
]
"""What went wrong between us and a model's provider."""


class RefoldError(Exception):
    """Root of all errors that Refold raises on purpose."""


class ConfigError(RefoldError):
    """A configuration, name or argument cannot work; nothing was started or recorded."""


def quoted(value: object, most: int = 80) -> str:
    """Return what an error says of a value that was given, in at most so many characters.

    Where its own `__repr__` fails, its type is said, so that one error is not lost to another.
    """
    try:
        return repr(value)[:most]
    except Exception as error:  # noqa: BLE001 - `__repr__` is user code, also that of a number of too many digits.
        return f"{type(value).__name__}, whose __repr__ raises {type(error).__name__}"


def unquoted(value: object) -> str:
    """Return what an error says of an option that cannot work, and that may be a secret at the wrong place.

    Numbers, True, False and None are shown; of a function or a class its name is, of a mapping its names are, and of
    all else its type.
    """
    kind = type(value).__name__
    if value is None or isinstance(value, bool | int | float):
        return quoted(value)
    if isinstance(value, type | FunctionType | MethodType | BuiltinFunctionType):
        return f"{'class' if isinstance(value, type) else 'function'} {value.__name__:.80}"
    if isinstance(value, Mapping):
        names = [name for name in cast("Mapping[object, object]", value) if isinstance(name, str)]
        return f"{kind} with {', '.join(names) or 'nothing':.80}"
    return kind


@contextmanager
def needed_by(what: str, *, extra: str) -> Generator[None, None, None]:
    """Have an import that fails in its block say which of Refold's extras to install; `what` is in the plural."""
    try:
        yield
    except ImportError as error:
        package = (error.name or extra).partition(".")[0]
        raise ConfigError(f"{what} need the package {package}: pip install 'refold[{extra}]'") from error


class CommandRejected(RefoldError):
    """A command may not happen in the present state; nothing was recorded, and it may be corrected and resent."""

    def name_item(self, item: str) -> None:
        """Have the error say first which one of several commands it is about."""
        self.args = (f"{item}: {self}",)


class GraphError(CommandRejected):
    """A graph operation has no meaning: it names what the graph does not have, or a weight that is none."""


class StreamDeleted(CommandRejected):
    """The stream was deleted, a session's for instance, and its name is not used again; nothing was recorded.

    Attributes:
        stream: the stream's name.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(f"{stream} was deleted, and a deleted name is not used again; begin under another name")
        self.stream = stream


class BackpressureShed(RefoldError):
    """A message was turned away because too many are waiting; nothing was done, and it may be sent again later.

    Attributes:
        depth: how many were waiting (or at work, where those count) at that moment.
        capacity: most that are accepted.
    """

    def __init__(self, depth: int, capacity: int, *, of: str = "this") -> None:
        super().__init__(f"{of} has no room: {depth} are waiting and the capacity is {capacity}; send again later")
        self.depth = depth
        self.capacity = capacity


class QueueFull(CommandRejected, BackpressureShed):
    """As many inputs wait in a session as may; nothing was recorded, and the input may be sent again later."""


class CircuitOpen(RefoldError):
    """A service failed too often, so it is not called until its breaker lets a probe through.

    Attributes:
        service: the breaker's name.
        retry_after_s: in so many seconds a call may be let through; None = that is not known.
        opened: the event that opened the circuit, such as `breaker/weather@7`; None = the breaker is on no log.
    """

    def __init__(self, service: str, *, retry_after_s: float | None = None, opened: str | None = None) -> None:
        when = "later" if retry_after_s is None else f"in {max(retry_after_s, 0.001):.3g} s"
        since = "" if opened is None else f", since {opened}"
        super().__init__(f"the circuit of {service!r} is open after repeated failures{since}; call again {when}")
        self.service = service
        self.retry_after_s = retry_after_s
        self.opened = opened


class ProviderError(RefoldError):
    """A model call failed.

    Attributes:
        kind: class of the failure.
        status: HTTP status, or None where there was no response.
        retryable: whether the same request may succeed later.
        retry_after_s: seconds the provider asked us to wait, or None.
        field: what of the request the provider finds wrong, in its words, such as `temperature` or
            `messages[3].content`; None = it does not say. Where it is a setting, nothing is set aside.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: ProviderErrorKind = "unknown",
        status: int | None = None,
        retryable: bool = False,
        retry_after_s: float | None = None,
        field: str | None = None,
    ) -> None:
        super().__init__(message)
        self.field = field
        self.kind: ProviderErrorKind = kind
        self.status = status
        self.retryable = retryable
        self.retry_after_s = retry_after_s


class ToolError(RefoldError):
    """A tool failed; raise it inside a tool to say whether trying again can help.

    Attributes:
        kind: `"transient"` (the same call may succeed later) or `"permanent"`.
    """

    def __init__(self, message: str, *, kind: Literal["transient", "permanent"] = "permanent") -> None:
        super().__init__(message)
        self.kind: Literal["transient", "permanent"] = kind


class ModelRetry(ToolError):
    """The model is to try again, knowing why: raised by an output validator, or in a tool, whose call fails with it."""


class AgentLoopError(RefoldError):
    """The loop of turns cannot go on: limits reached, or answers that mean nothing."""


class PipelineError(RefoldError):
    """A stage of a pipeline failed; its `__cause__` is what the stage raised, where it raised something.

    Attributes:
        stage: the stage's name.
    """

    def __init__(self, stage: str, problem: str) -> None:
        super().__init__(f"the stage {stage!r} of the pipeline {problem}")
        self.stage = stage


class AgentMemoryError(CommandRejected):
    """A memory store refused a value or a query; nothing was recorded."""


class PersistenceError(RefoldError):
    """The log, or a persistence backend, could not be read or written.

    Attributes:
        outcome_unknown: True where a write may or may not be in it; read it again before retrying.
    """

    def __init__(self, message: str, *, outcome_unknown: bool = False) -> None:
        super().__init__(message)
        self.outcome_unknown = outcome_unknown


class WrongExpectedVersion(PersistenceError):
    """Another writer appended to the stream; nothing was written.

    Attributes:
        stream: the stream's name.
        expected: version the writer had folded up to; 0 = no such stream.
        actual: version found.
    """

    def __init__(self, stream: str, expected: int, actual: int) -> None:
        super().__init__(
            f"stream {stream!r} is at version {actual}, not {expected} as expected; read it again and retry"
        )
        self.stream = stream
        self.expected = expected
        self.actual = actual


class LogFormatError(PersistenceError):
    """A file is not a Refold log, is damaged, or was written by a newer Refold; it was left untouched."""


class LogInUse(PersistenceError):
    """Another runtime owns the log.

    Attributes:
        pid: process id of the owner, or None if it cannot be told.
        host: host name of the owner, or None if it cannot be told.
        by: both, in words.
    """

    def __init__(self, path: str, *, pid: int | None, host: str | None) -> None:
        self.by = f"process {pid or '(unknown)'} on host {host or '(unknown)'}"
        super().__init__(f"the log {path} is in use by {self.by}; stop that runtime, or use another log")
        self.path = path
        self.pid = pid
        self.host = host


class CoreFailed(RefoldError):
    """A function of a user's core raised, or returned what cannot be; its `__cause__` is what it raised.

    Nothing was recorded of the message, and the actor's state is as its log says.
    """


class DivergenceError(RefoldError):
    """Re-executing a log gave another decision than the recorded one."""
