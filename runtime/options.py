"""Every setting of a runtime, with its default, in one place; `AgentRuntime` describes them."""

import inspect
import os
from collections.abc import Callable
from typing import TypedDict

import msgspec

from refold.actors.calls.results import RESULT_BYTES_MAX
from refold.actors.kernel.clock import Clock
from refold.actors.kernel.supervision import ActorFailure
from refold.actors.shell.snapshots import SNAPSHOT_EVERY
from refold.events.core.cleaning import clean_text
from refold.events.core.errors import ConfigError, quoted
from refold.events.session.commands import QUEUE_MAX
from refold.resilience.backpressure import BackpressureGuard
from refold.stores.event_store import EventStore
from refold.stores.sqlite.file import Durability
from refold.stores.values.backend import PersistenceBackend

Log = str | os.PathLike[str] | EventStore
"""A path, `":memory:"`, or an open event store, which its owner closes."""


class RuntimeOptions(TypedDict, total=False):
    """Settings that `AgentRuntime` takes by keyword; its docstring describes each."""

    log: Log
    durability: Durability
    wait_for_log_s: float
    append_timeout_s: float
    allow_shared_folder: bool
    share: bool
    inbox_poll_s: float
    auto_resume: bool
    app_version: str | None
    deps: object
    cancel_grace_s: float
    close_grace_s: float
    ask_timeout_s: float
    mailbox_capacity: int
    queue_max: int | None
    input_bytes_max: int | None
    result_bytes_max: int | None
    passivate_after_s: float | None
    live_max: int | None
    snapshot_every: int | None
    tool_threads: int
    subagent_depth_max: int
    restarts_max: int
    restart_window_s: float
    clock: Clock | None
    session_ids: Callable[[], str] | None
    on_failure: Callable[[ActorFailure], object] | None
    step_snapshots: PersistenceBackend | None
    backpressure: BackpressureGuard | None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All of `RuntimeOptions`, those not given with their defaults."""

    log: Log = ":memory:"
    durability: Durability = "full"
    wait_for_log_s: float = 30.0
    append_timeout_s: float = 30.0
    allow_shared_folder: bool = False
    share: bool = False
    inbox_poll_s: float = 0.2
    auto_resume: bool = True
    app_version: str | None = None
    deps: object = None
    cancel_grace_s: float = 5.0
    close_grace_s: float = 5.0
    ask_timeout_s: float = 30.0
    mailbox_capacity: int = 10_000
    queue_max: int | None = QUEUE_MAX
    input_bytes_max: int | None = 32 * 1024 * 1024
    result_bytes_max: int | None = RESULT_BYTES_MAX
    passivate_after_s: float | None = 60.0
    live_max: int | None = 10_000
    snapshot_every: int | None = SNAPSHOT_EVERY
    tool_threads: int = 32
    subagent_depth_max: int = 5
    restarts_max: int = 5
    restart_window_s: float = 60.0
    clock: Clock | None = None
    session_ids: Callable[[], str] | None = None
    on_failure: Callable[[ActorFailure], object] | None = None
    step_snapshots: PersistenceBackend | None = None
    backpressure: BackpressureGuard | None = None


MAY_BE_NONE = ("passivate_after_s", "live_max", "snapshot_every", "queue_max", "input_bytes_max", "result_bytes_max")
"""Options that None switches off."""


def checked_options(given: RuntimeOptions) -> Settings:
    """Return all options, those not given with their defaults."""
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
            raise ConfigError(f"{name} must be a number of seconds of at least {least:g}, not {quoted(value, 60)}")
    for name, count, least_count in (
        ("tool_threads", options.tool_threads, 1),
        ("subagent_depth_max", options.subagent_depth_max, 0),
        ("restarts_max", options.restarts_max, 0),
        ("mailbox_capacity", options.mailbox_capacity, 1),
        ("live_max", options.live_max, 1),
        ("queue_max", options.queue_max, 1),
        ("input_bytes_max", options.input_bytes_max, 1),
        ("result_bytes_max", options.result_bytes_max, 1),
        ("snapshot_every", options.snapshot_every, 1),
    ):
        if count is None and name in MAY_BE_NONE:
            continue
        if isinstance(count, bool) or not isinstance(count, int) or count < least_count:
            raise ConfigError(f"{name} must be a whole number of at least {least_count}, not {quoted(count, 60)}")
    return options


def _check_kinds(options: Settings) -> None:
    app_version, snapshots, guard = options.app_version, options.step_snapshots, options.backpressure
    shared = options.allow_shared_folder
    kinds: tuple[tuple[str, object, bool, str], ...] = (
        ("log", options.log, _is_log(options.log), 'a path, ":memory:" or an event store'),
        ("durability", options.durability, options.durability in ("full", "normal"), '"full" or "normal"'),
        ("auto_resume", options.auto_resume, isinstance(options.auto_resume, bool), "True or False"),
        ("allow_shared_folder", shared, isinstance(shared, bool), "True or False"),
        ("share", options.share, isinstance(options.share, bool), "True or False"),
        ("app_version", app_version, app_version is None or _is_valid_text(app_version), "valid text"),
        ("clock", options.clock, _has(options.clock, "call_later"), "a Clock"),
        ("session_ids", options.session_ids, _is_plain(options.session_ids), "a plain function"),
        ("on_failure", options.on_failure, _is_plain(options.on_failure), "a plain function"),
        ("step_snapshots", snapshots, isinstance(snapshots, PersistenceBackend | None), "a PersistenceBackend"),
        ("backpressure", guard, isinstance(guard, BackpressureGuard | None), "a BackpressureGuard"),
    )
    for name, value, good, wanted in kinds:
        if not good:
            raise ConfigError(f"{name} must be {wanted}, not {quoted(value, 60)}")
    if options.share and (log_path(options) is None or not options.inbox_poll_s):
        raise ConfigError(
            "share=True is for a log that other processes can reach: give `log` the path of a file, and leave "
            "inbox_poll_s above 0"
        )


def log_path(options: Settings) -> str | os.PathLike[str] | None:
    """Return the path of a runtime's log; None where it is no file."""
    log = options.log
    return log if isinstance(log, str | os.PathLike) and log != ":memory:" else None


def _is_log(value: object) -> bool:
    return isinstance(value, str | os.PathLike) or callable(getattr(value, "read_stream", None))


def _is_valid_text(value: object) -> bool:
    return isinstance(value, str) and clean_text(value) == value


def _is_plain(value: object) -> bool:
    return value is None or (callable(value) and not inspect.iscoroutinefunction(value))


def _has(value: object, method: str) -> bool:
    return value is None or callable(getattr(value, method, None))
