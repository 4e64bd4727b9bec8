"""`refold show LOG breaker/NAME`: when a breaker opened, and why."""

import asyncio
import json
from pathlib import Path

import pytest

from refold import say
from refold.actors import ManualClock
from refold.resilience import CircuitBreaker
from tests.resilience.conftest import fail, runtime_of
from tests.runtime.commands.test_cli import error_of, run


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "events.db"

    async def build() -> None:
        clock = ManualClock()
        breaker = CircuitBreaker("weather", threshold=2, recovery_s=10)
        async with runtime_of(path, clock, breaker, script=[say("hello")]) as runtime:
            fail(breaker, 1)
            await breaker.call(lambda: 1)
            fail(breaker, 2)
            await clock.advance(10)
            await breaker.call(lambda: 1)
            await (await runtime.session("breaker/alice")).send("hi")

    asyncio.run(build())
    return path


def test_it_tells_when_and_why_it_opened(log: Path) -> None:
    lines = run("show", log, "breaker/weather", columns=160).stdout.splitlines()
    assert lines[0].split() == ["VERSION", "TIME", "TYPE", "SUMMARY"]
    names = ["configured", "failure_counted", "failures_cleared", "failure_counted", "opened", "probe_begun", "closed"]
    assert [line.split()[3] for line in lines[1:]] == [f"{name}.v1" for name in names]
    assert "opens after 2 failures in a row, for 10 s; a probe has 60 s" in lines[1]
    assert "1 failure in a row: OSError: no route" in lines[2]
    assert "a call succeeded" in lines[3]
    assert "2025-06-15" in lines[5]
    assert "after 2 failures in a row: OSError: no route" in lines[5]
    assert len(run("show", log, "breaker/weather", "--events", "--at", "2").stdout.splitlines()) == 3
    then = run("show", log, "breaker/weather", "--at", "5", "--json").stdout
    assert '{"name":"phase","words":"\\"open\\""}' in then


def test_its_events_as_json(log: Path) -> None:
    document = json.loads(run("show", log, "breaker/weather", "--json", "--events", "--at", "3").stdout)
    assert (document["stream"], document["version"], document["last_version"]) == ("breaker/weather", 3, 7)
    assert document["events"][1]["event"]["error"] == "OSError: no route"


def test_a_session_of_such_a_name_is_meant_first_and_what_there_is_not_is_said(log: Path) -> None:
    assert "hello" in run("show", log, "breaker/alice").stdout
    assert "breaker/weather@2" in run("tail", log, "--no-follow", "--stream", "breaker/weather").stdout
    assert "no session 'breaker/rain'" in error_of(run("show", log, "breaker/rain"))
    assert "has no version 9; its versions are 1 to 7" in error_of(run("show", log, "breaker/weather", "--at", "9"))
