"""Every setting of a runtime, with its default, in one place."""

import os
from collections.abc import Callable
from typing import TypedDict

import msgspec

from refold.actors.kernel.clock import Clock
from refold.actors.kernel.supervision import ActorFailure
from refold.events.core.cleaning import clean_text
from refold.events.core.errors import ConfigError
from refold.stores.event_store import EventStore
from refold.stores.sqlite.file import Durability
from refold.stores.values.backend import PersistenceBackend

Log = str | os.PathLike[str] | EventStore
"""A path, `":memory:"`, or an open event store, which its owner closes."""


class RuntimeOptions(TypedDict, total=False):
    """Settings that `AgentRuntime` takes by keyword; times are in seconds."""

    log: Log
    """Where events go; default `":memory:"`, which ends with the runtime."""
    durability: Durability
    """`full` (default): what was acknowledged survives power loss. `normal`: it survives a crash of the process."""
    wait_for_log_s: float
    """How long to wait for another runtime to release the log; default 30."""
    append_timeout_s: float
    """After how long an append counts as hanging; default 30."""
    inbox_poll_s: float
    """How often a runtime whose log is a file looks for commands of other processes; default 0.2, 0 = never."""
    auto_resume: bool
    """Whether runs that an earlier process left open go on by themselves; default True, else `Session.resume`."""
    app_version: str | None
    """The application's own version, recorded with each run; default None."""
    deps: object
    """Given to tools as `ToolContext.deps`; default None."""
    cancel_grace_s: float
    """How long a cancelled effect may take to end before it is abandoned; default 5."""
    close_grace_s: float
    """How long `close` waits for running effects to reach the log; default 5."""
    ask_timeout_s: float
    """After how long an unanswered ask fails; default 30."""
    mailbox_capacity: int
    """Most messages that may wait for one actor, such as a session; what comes then is shed; default 10,000."""
    passivate_after_s: float | None
    """How long a session is idle before memory lets go of it, to be read from the log again by its next message;
    default 60, None = it stays."""
    live_max: int | None
    """Most actors in memory before idle sessions are let go, longest idle first; default 10,000, None = any number."""
    tool_threads: int
    """Most synchronous tools that run at once; default 32."""
    subagent_depth_max: int
    """Most levels of subagents below a session, whose calls begin children of children; default 5, 0 = none."""
    restarts_max: int
    """Restarts of a failing actor within `restart_window_s` before it is stopped; default 5."""
    restart_window_s: float
    """Default 60."""
    clock: Clock | None
    """Where time comes from; default None, the machine's."""
    session_ids: Callable[[], str] | None
    """Makes the ids of sessions that are opened without one; default None, random UUIDs."""
    on_failure: Callable[[ActorFailure], object] | None
    """Called with each failure of an actor; default None."""
    step_snapshots: PersistenceBackend | None
    """Where a checkpoint goes after every turn (`refold.sessions.turn_checkpoints`); default None, nowhere."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All of `RuntimeOptions`, those not given with their defaults."""

    log: Log = ":memory:"
    durability: Durability = "full"
    wait_for_log_s: float = 30.0
    append_timeout_s: float = 30.0
    inbox_poll_s: float = 0.2
    auto_resume: bool = True
    app_version: str | None = None
    deps: object = None
    cancel_grace_s: float = 5.0
    close_grace_s: float = 5.0
    ask_timeout_s: float = 30.0
    mailbox_capacity: int = 10_000
    passivate_after_s: float | None = 60.0
    live_max: int | None = 10_000
    tool_threads: int = 32
    subagent_depth_max: int = 5
    restarts_max: int = 5
    restart_window_s: float = 60.0
    clock: Clock | None = None
    session_ids: Callable[[], str] | None = None
    on_failure: Callable[[ActorFailure], object] | None = None
    step_snapshots: PersistenceBackend | None = None


MAY_BE_NONE = ("passivate_after_s", "live_max")
"""Options that None switches off."""


def checked_options(given: RuntimeOptions) -> Settings:
    """Return all options, those not given with their defaults.

    Raises:
        ConfigError: an option is unknown or cannot work.
    """
    known = Settings.__struct_fields__
    unknown = sorted(set(given).difference(known))
    if unknown:
        raise ConfigError(f"AgentRuntime has no option {unknown[0]!r}; it has {', '.join(sorted(known))}")
    options = Settings(**given)
    _check_kinds(options)
    times: tuple[tuple[str, float | None, float], ...] = (
        ("wait_for_log_s", options.wait_for_log_s, 0),
        ("cancel_grace_s", options.cancel_grace_s, 0),
        ("close_grace_s", options.close_grace_s, 0),
        ("append_timeout_s", options.append_timeout_s, 1e-3),
        ("inbox_poll_s", options.inbox_poll_s, 0),
        ("ask_timeout_s", options.ask_timeout_s, 1e-3),
        ("restart_window_s", options.restart_window_s, 1e-3),
        ("passivate_after_s", options.passivate_after_s, 0),
    )
    for name, value, least in times:
        if value is None and name in MAY_BE_NONE:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < 1e9:
            raise ConfigError(f"{name} must be a number of seconds of at least {least:g}, not {value!r:.60}")
    for name, count, least_count in (
        ("tool_threads", options.tool_threads, 1),
        ("subagent_depth_max", options.subagent_depth_max, 0),
        ("restarts_max", options.restarts_max, 0),
        ("mailbox_capacity", options.mailbox_capacity, 1),
        ("live_max", options.live_max, 1),
    ):
        if count is None and name in MAY_BE_NONE:
            continue
        if isinstance(count, bool) or not isinstance(count, int) or count < least_count:
            raise ConfigError(f"{name} must be a whole number of at least {least_count}, not {count!r:.60}")
    return options


def _check_kinds(options: Settings) -> None:
    app_version = options.app_version
    kinds: tuple[tuple[str, object, bool, str], ...] = (
        ("log", options.log, _is_log(options.log), 'a path, ":memory:" or an event store'),
        ("durability", options.durability, options.durability in ("full", "normal"), '"full" or "normal"'),
        ("auto_resume", options.auto_resume, isinstance(options.auto_resume, bool), "True or False"),
        ("app_version", app_version, app_version is None or _is_valid_text(app_version), "valid text"),
        ("clock", options.clock, _has(options.clock, "call_later"), "a Clock"),
        ("session_ids", options.session_ids, _has(options.session_ids, "__call__"), "a function"),
        ("on_failure", options.on_failure, _has(options.on_failure, "__call__"), "a function"),
        ("step_snapshots", options.step_snapshots, _has(options.step_snapshots, "save"), "a PersistenceBackend"),
    )
    for name, value, good, wanted in kinds:
        if not good:
            raise ConfigError(f"{name} must be {wanted}, not {value!r:.60}")


def _is_log(value: object) -> bool:
    return isinstance(value, str | os.PathLike) or callable(getattr(value, "read_stream", None))


def _is_valid_text(value: object) -> bool:
    return isinstance(value, str) and clean_text(value) == value


def _has(value: object, method: str) -> bool:
    return value is None or callable(getattr(value, method, None))
