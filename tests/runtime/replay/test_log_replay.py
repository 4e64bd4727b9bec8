"""Replay: what was recorded is decided again, and a change of the code is found where it first matters.

What replay says of edited logs is in the transcripts.
"""

import asyncio
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refold.events import SESSION_CODEC, SessionState
from refold.events.core.errors import ConfigError, DivergenceError, LogFormatError
from refold.events.core.ids import RunId, StreamName
from refold.events.session import core as session_core
from refold.events.session import react as session_decisions
from refold.events.session.events import ModelRequested, RunCompleted, SessionEvent, TimerSet
from refold.replay import Level, ReplayReport, replay
from refold.replay.findings import Divergence
from refold.stores import SQLiteStore
from tests.runtime.log_builder import LogBuilder

CLOSED = b'{"type":"runtime.closed.v1","open_runs":0}'
TIMER = TimerSet(timer="evening", due_at=1)

Core = dict[str, Callable[..., Any]]
"""What takes the place of functions of the session's core."""


def only(report: ReplayReport) -> Divergence:
    assert report.diverged == len(report.divergences) == 1
    assert report.divergence is not None
    return report.divergence


def deciding(change: Callable[[SessionEvent], Sequence[SessionEvent]]) -> Core:
    """Return a core whose `react` changes each event that today's decides into those that `change` gives."""

    def changed(state: SessionState, event: SessionEvent) -> Sequence[SessionEvent]:
        return [other for decided in session_decisions.react(state, event) for other in change(decided)]

    return {"react": changed}


def later(event: SessionEvent) -> list[SessionEvent]:
    is_second = isinstance(event, ModelRequested) and event.turn == 2
    return [msgspec.structs.replace(event, turn=3) if is_second else event]


def fail(state: SessionState, event: SessionEvent) -> Sequence[SessionEvent]:
    raise KeyError("no such tool")


def fail_in_the_library(state: SessionState, event: SessionEvent) -> Sequence[SessionEvent]:
    raise AssertionError(statistics.mean([]))


def line_of(function: Callable[..., Any]) -> str:
    return f"(test_log_replay.py:{function.__code__.co_firstlineno + 1})"


CHANGES: dict[str, tuple[Core, str]] = {
    "a changed field": (deciding(later), "session/alice@9: consequences[0].turn: 2 -> 3"),
    "an event that is not decided any more": (
        deciding(lambda event: [] if isinstance(event, RunCompleted) else [event]),
        'session/alice@11: missing: consequences[0]: {"type":"session.run_completed.v1","at":1780000006000000,'
        '"run":"run_3","totals":{"turns":2,"tool_calls":1,"usage":{"input_tokens":20,"output_tokens":10},',
    ),
    "an event that was not decided then": (
        deciding(lambda event: [event, TIMER] if isinstance(event, RunCompleted) else [event]),
        'session/alice@12: extra: consequences[1]: (nothing) -> {"type":"session.timer_set.v1","at":1780000006000000,'
        '"timer":"evening","due_at":1}',
    ),
    "other effects in flight": ({"pending": lambda state: []}, 'session/alice@5: pending[0]: "model:5" -> (nothing)'),
    "code that fails": ({"react": fail}, f"session/alice@1: failure: KeyError: 'no such tool' {line_of(fail)}"),
    "code that fails in Python's library": (
        {"react": fail_in_the_library},
        "session/alice@1: failure: StatisticsError: mean requires at least one data point "
        f"{line_of(fail_in_the_library)}",
    ),
    "consequences that do not end": ({"react": lambda state, event: [TIMER]}, "circling"),
}


@pytest.mark.parametrize(("core", "said"), CHANGES.values(), ids=CHANGES)
async def test_a_change_of_the_code_is_a_divergence_at_its_version_with_both_sides(
    builder: LogBuilder, monkeypatch: pytest.MonkeyPatch, core: Core, said: str
) -> None:
    await builder.weather_session("alice")
    for name, function in core.items():
        monkeypatch.setattr(session_core.SESSION_CORE, name, function)
    divergence = only(await replay(builder.store))
    assert said in str(divergence)
    match divergence.differs:
        case "consequence":
            assert (divergence.batch, divergence.recorded, divergence.now) == (
                8,
                {"type": "session.model_requested.v1", "at": 1_780_000_005_000_000, "run": "run_3", "turn": 2},
                {"type": "session.model_requested.v1", "at": 1_780_000_005_000_000, "run": "run_3", "turn": 3},
            )
        case "missing":
            assert divergence.now is msgspec.UNSET
        case "extra":
            assert divergence.recorded is msgspec.UNSET
        case "pending":
            assert (divergence.recorded, divergence.now) == (["model:5"], [])
        case "failure":
            assert f": {divergence.now}" in str(divergence)


async def test_each_stream_shows_its_first_divergence_in_order_of_position(
    builder: LogBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for session in ("zoe", "alice", "mia"):
        await builder.weather_session(session)
    silent = deciding(lambda event: [] if isinstance(event, RunCompleted) else [event])
    monkeypatch.setattr(session_core.SESSION_CORE, "react", silent["react"])
    report = await replay(builder.store)
    assert [divergence.stream for divergence in report.divergences] == ["session/zoe", "session/alice", "session/mia"]
    assert report.diverged == 3
    with pytest.raises(DivergenceError, match=r":memory: diverges at session/zoe@11: missing: .*2 more streams"):
        report.raise_for_divergence()


async def test_a_hundred_divergences_are_kept_and_all_are_counted(
    builder: LogBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(205):
        await builder.open(f"session {number}")
    monkeypatch.setattr(session_core.SESSION_CORE, "react", lambda state, event: [TIMER] if state.version == 1 else [])
    report = await replay(builder.store)
    assert report.diverged == 205
    assert [divergence.stream for divergence in report.divergences] == [f"session/session {n}" for n in range(100)]


async def test_a_divergence_says_which_core_version_recorded_it(
    builder: LogBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await builder.open("alice", core=7)
    await builder.send("alice", "hi")
    monkeypatch.setattr(session_core.SESSION_CORE, "pending", lambda state: [])
    assert only(await replay(builder.store)).core_version == 7


async def test_streams_of_tools_and_of_the_runtime_are_replayed(builder: LogBuilder) -> None:
    await builder.append(StreamName("tool/weather"), [b'{"type":"tool.call_abandoned.v1","started":"session/alice@7"}'])
    await builder.append(StreamName("runtime/log"), [CLOSED])
    report = await replay(builder.store)
    assert (report.streams, report.events, report.not_replayed, report.divergence) == (2, 2, (), None)


async def test_a_consequence_in_a_stream_of_facts_is_a_divergence(builder: LogBuilder) -> None:
    await builder.append(StreamName("runtime/log"), [CLOSED, CLOSED])
    assert only(await replay(builder.store)).differs == "missing"


@pytest.mark.parametrize("level", ["fold", "core"])
async def test_events_that_contradict_each_other_are_a_divergence_and_raise_nothing(
    builder: LogBuilder, level: Level
) -> None:
    await builder.open("alice")
    orphan = SESSION_CODEC.encode(RunCompleted(run=RunId("run_9")))
    await builder.append(StreamName("session/alice"), [orphan])
    divergence = only(await replay(builder.store, level=level))
    assert (divergence.version, divergence.differs) == (3, "failure" if level == "fold" else "admit")


async def test_the_fold_names_the_event_that_it_fails_on(builder: LogBuilder) -> None:
    await builder.open("alice")
    orphan = RunCompleted(run=RunId("run_9"))
    await builder.append(StreamName("session/alice"), [SESSION_CODEC.encode(event) for event in (TIMER, orphan)])
    divergence = only(await replay(builder.store, level="fold"))
    assert (divergence.version, divergence.difference.path) == (4, "consequences[0]")


async def test_a_damaged_event_is_an_error_that_names_it(builder: LogBuilder) -> None:
    await builder.append(StreamName("session/alice"), [b'{"type":"session.opened.v1","session":7}'])
    with pytest.raises(LogFormatError, match="session/alice@1"):
        await replay(builder.store)


async def test_streams_longer_than_a_page_are_replayed_whole(builder: LogBuilder) -> None:
    await builder.open("alice")
    for number in range(250):
        await builder.send("alice", f"input {number}")
    report = await replay(builder.store)
    assert report.divergence is None
    assert report.batches == 252
    assert report.events == 2 + 250 + 2


async def test_a_batch_longer_than_a_page_is_one_batch(builder: LogBuilder) -> None:
    await builder.append(StreamName("runtime/log"), [CLOSED] * 1_700)
    report = await replay(builder.store, level="fold")
    assert (report.batches, report.events) == (1, 1_700)


async def test_an_unknown_level_is_refused(builder: LogBuilder) -> None:
    with pytest.raises(ConfigError, match="no replay level"):
        await replay(builder.store, level="everything")  # type: ignore[arg-type]


def test_a_file_is_replayed_by_its_path_and_left_as_it_is(log_file: Path) -> None:
    before = log_file.read_bytes()
    report = asyncio.run(replay(log_file))
    assert (report.divergence, report.streams, report.log) == (None, 3, str(log_file))
    assert log_file.read_bytes() == before
    assert [path.name for path in log_file.parent.iterdir()] == ["events.db"]


async def test_a_log_in_use_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "live.db"
    async with await SQLiteStore.open(path) as store:
        live = LogBuilder(store)
        await live.weather_session("alice")
        assert (await replay(path)).events == 11
        await live.send("alice", "More?")
        assert (await replay(path)).events == 14


def test_the_report_is_json_and_comes_back_equal(tampered: Callable[..., Path]) -> None:
    path = tampered("UPDATE events SET pending = 'model:4' WHERE pending = 'model:9'")
    report = asyncio.run(replay(path))
    assert msgspec.json.decode(msgspec.json.encode(report), type=ReplayReport) == report
