"""Every setting of a runtime is checked before anything is opened."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from refold import AgentConfig, AgentRuntime, ConfigError, ScriptedProvider
from refold.actors import ManualClock
from refold.options import checked_options
from refold.stores import InMemoryStore


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log", None),
        ("log", 5),
        ("log", b"events.db"),
        ("log", []),
        ("durability", "none"),
        ("durability", None),
        ("wait_for_log_s", -1),
        ("wait_for_log_s", float("nan")),
        ("append_timeout_s", 0),
        ("append_timeout_s", float("inf")),
        ("inbox_poll_s", -0.1),
        ("inbox_poll_s", "often"),
        ("auto_resume", "no"),
        ("auto_resume", 0),
        ("app_version", 3),
        ("app_version", "\ud800"),
        ("cancel_grace_s", "5"),
        ("cancel_grace_s", True),
        ("close_grace_s", -0.1),
        ("ask_timeout_s", 0),
        ("tool_threads", 0),
        ("tool_threads", 1.5),
        ("tool_threads", True),
        ("restarts_max", -1),
        ("restart_window_s", None),
        ("clock", 5),
        ("session_ids", "uuid"),
        ("on_failure", "log"),
        ("session_ids", asyncio.sleep),
        ("on_failure", asyncio.sleep),
    ],
)
def test_an_option_that_cannot_work_is_refused_by_name_at_construction(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name):
        AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([]), **{name: value})


def test_an_option_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigError, match=r"no option 'logs'.*\blog\b"):
        checked_options({"logs": "x"})  # type: ignore[typeddict-unknown-key]


@pytest.mark.parametrize("log", ["events.db", Path("events.db"), ":memory:", InMemoryStore()])
def test_a_log_is_a_path_or_a_store(log: Any) -> None:
    assert checked_options({"log": log}).log is log


def test_options_that_are_not_given_have_their_documented_defaults() -> None:
    options = checked_options({"clock": ManualClock(), "cancel_grace_s": 0, "restarts_max": 0})
    assert (options.cancel_grace_s, options.restarts_max) == (0, 0)
    assert (options.log, options.durability, options.auto_resume, options.app_version) == (
        ":memory:",
        "full",
        True,
        None,
    )
    assert options.inbox_poll_s == 0.2
    assert (options.close_grace_s, options.ask_timeout_s, options.append_timeout_s) == (5, 30, 30)
    assert (options.tool_threads, options.restart_window_s, options.wait_for_log_s) == (32, 60, 30)


async def test_an_empty_path_names_no_log() -> None:
    runtime = AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([]), log="")
    with pytest.raises(ConfigError, match="names no file"):
        await runtime.__aenter__()
