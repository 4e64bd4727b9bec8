"""Replay: what was recorded is decided again, and a change of the code is found where it first matters."""

import asyncio
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from refold.events.core.errors import ConfigError, DivergenceError, LogFormatError, PersistenceError
from refold.events.core.ids import RunId, StreamName
from refold.events.model.configuration import CORE_VERSION
from refold.events.session import core as session_core
from refold.events.session import react as session_decisions
from refold.events.session.core import SESSION_CODEC
from refold.events.session.events import ModelRequested, RunCompleted, SessionEvent, TimerSet
from refold.events.session.state import SessionState
from refold.replay import Level, NotReplayed, ReplayReport, replay, replay_sync
from refold.replay.core_replay import Divergence
from refold.stores import InMemoryStore, SQLiteStore
from tests.runtime.conftest import LogBuilder

React = Callable[[SessionState, SessionEvent], Sequence[SessionEvent]]


def plant(monkeypatch: pytest.MonkeyPatch, change: Callable[[SessionEvent], Sequence[SessionEvent]]) -> None:
    """Have today's `react` change each event that it decides into those that `change` gives."""

    def changed(state: SessionState, event: SessionEvent) -> Sequence[SessionEvent]:
        return [other for decided in session_decisions.react(state, event) for other in change(decided)]

    monkeypatch.setattr(session_core.SESSION_CORE, "react", changed)


def only(report: ReplayReport) -> Divergence:
    assert report.diverged == len(report.divergences) == 1
    assert report.divergence is not None
    return report.divergence


@pytest.mark.parametrize("level", ["fold", "core"])
async def test_a_log_replays_at_both_levels_and_the_report_counts_what_was_done(
    builder: LogBuilder, level: Level
) -> None:
    await builder.weather_session("alice")
    await builder.cancelled_session("bob")
    await builder.open_session("carol")
    report = await replay(builder.store, level=level)
    assert report.divergence is None
    report.raise_for_divergence()
    assert (report.level, report.streams, report.batches, report.events) == (level, 3, 15, 28)
    assert report.log == ":memory:"
    assert report.other_core_versions == ()


async def test_one_session_alone_is_replayed(builder: LogBuilder) -> None:
    await builder.weather_session("alice")
    await builder.cancelled_session("bob")
    report = await replay(builder.store, session="bob")
    assert (report.streams, report.events) == (1, 10)


async def test_a_changed_field_is_found_at_its_version_with_both_sides(
    builder: LogBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await builder.weather_session("alice")

    def next_turn_is_one_more(event: SessionEvent) -> list[SessionEvent]:
        later = isinstance(event, ModelRequested) and event.turn == 2
        return [msgspec.structs.replace(event, turn=3) if later else event]

    plant(monkeypatch, next_turn_is_one_more)
    divergence = only(await replay(builder.store))
    assert (divergence.stream, divergence.version, divergence.batch) == ("session/alice", 9, 8)
    assert divergence.differs == "consequence"
    assert str(divergence.difference) == "consequences[0].turn: 2 -> 3"
    recorded, now = divergence.recorded, divergence.now
    assert isinstance(recorded, dict)
    assert isinstance(now, dict)
    assert (recorded["turn"], now["turn"]) == (2, 3)
    assert recorded["type"] == now["type"] == "session.model_requested.v1"


async def test_an_event_that_is_not_decided_any_more_is_missing(
    builder: LogBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await builder.weather_session("alice")
    plant(monkeypatch, lambda event: [] if isinstance(event, RunCompleted) else [event])
    divergence = only(await replay(builder.store))
    assert (divergence.version, divergence.differs, divergence.difference.path) == (11, "missing", "consequences[0]")
    assert divergence.now is msgspec.UNSET


async def test_an_event_that_was_not_decided_then_is_extra(
    builder: LogBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await builder.weather_session("alice")
    timer = TimerSet(timer="evening", due_at=1)
    plant(monkeypatch, lambda event: [event, timer] if isinstance(event, RunCompleted) else [event])
    divergence = only(await replay(builder.store))
    assert (divergence.version, divergence.differs, divergence.difference.path) == (12, "extra", "consequences[1]")
    assert divergence.recorded is msgspec.UNSET


async def test_other_effects_in_flight_are_a_divergence(builder: LogBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    await builder.weather_session("alice")
    monkeypatch.setattr(session_core.SESSION_CORE, "pending", lambda state: [])
    divergence = only(await replay(builder.store))
    assert (divergence.version, divergence.differs) == (5, "pending")
    assert str(divergence.difference) == 'pending[0]: "model:5" -> (nothing)'
    assert (divergence.recorded, divergence.now) == (["model:5"], [])


async def test_code_that_fails_on_a_batch_is_a_divergence_with_its_error(
    builder: LogBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await builder.weather_session("alice")

    def fail(state: SessionState, event: SessionEvent) -> Sequence[SessionEvent]:
        raise KeyError("no such tool")

    monkeypatch.setattr(session_core.SESSION_CORE, "react", fail)
    divergence = only(await replay(builder.store))
    line = fail.__code__.co_firstlineno + 1
    words = f"KeyError: 'no such tool' ({Path(__file__).name}:{line})"
    assert (divergence.version, divergence.differs, divergence.now) == (1, "failure", words)
    assert str(divergence) == f"session/alice@1: failure: {words}"


async def test_a_failure_names_the_line_of_ours_that_called_into_pythons_library(
    builder: LogBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await builder.weather_session("alice")

    def fail(state: SessionState, event: SessionEvent) -> Sequence[SessionEvent]:
        raise AssertionError(statistics.mean([]))

    monkeypatch.setattr(session_core.SESSION_CORE, "react", fail)
    divergence = only(await replay(builder.store))
    assert str(divergence.now).startswith("StatisticsError: ")
    assert str(divergence.now).endswith(f" (test_log_replay.py:{fail.__code__.co_firstlineno + 1})")


async def test_code_whose_consequences_do_not_end_is_a_divergence(
    builder: LogBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await builder.weather_session("alice")
    monkeypatch.setattr(session_core.SESSION_CORE, "react", lambda state, event: [TimerSet(timer="again", due_at=1)])
    divergence = only(await replay(builder.store))
    assert divergence.differs == "failure"
    assert "circling" in str(divergence)


async def test_each_stream_shows_its_first_divergence_in_order_of_position(
    builder: LogBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for session in ("zoe", "alice", "mia"):
        await builder.weather_session(session)
    plant(monkeypatch, lambda event: [] if isinstance(event, RunCompleted) else [event])
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
    timer = TimerSet(timer="t", due_at=1)
    monkeypatch.setattr(session_core.SESSION_CORE, "react", lambda state, event: [timer] if state.version == 1 else [])
    report = await replay(builder.store)
    assert report.diverged == 205
    assert [divergence.stream for divergence in report.divergences] == [f"session/session {n}" for n in range(100)]


async def test_a_log_of_another_core_version_is_said_to_be_one(builder: LogBuilder) -> None:
    await builder.open("alice", core=7)
    report = await replay(builder.store)
    assert (report.core_version, report.other_core_versions) == (CORE_VERSION, (7,))


async def test_a_divergence_says_which_core_version_recorded_it(
    builder: LogBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await builder.open("alice", core=7)
    await builder.send("alice", "hi")
    monkeypatch.setattr(session_core.SESSION_CORE, "pending", lambda state: [])
    assert only(await replay(builder.store)).core_version == 7


async def test_streams_of_unknown_kinds_are_named(builder: LogBuilder) -> None:
    await builder.append(StreamName("order/1"), [b'{"type":"order.placed.v1"}'])
    await builder.append(StreamName("order/2"), [b'{"type":"order.placed.v1"}'])
    await builder.append(StreamName("no kind"), [b'{"type":"x.v1"}'])
    report = await replay(builder.store)
    assert report.not_replayed == (NotReplayed(kind="no kind", streams=1), NotReplayed(kind="order", streams=2))
    assert report.streams == 0
    assert report.nothing_replayed


async def test_an_empty_log_is_not_one_of_which_nothing_was_replayed() -> None:
    assert not (await replay(InMemoryStore())).nothing_replayed


async def test_streams_of_tools_and_of_the_runtime_are_replayed(builder: LogBuilder) -> None:
    await builder.append(StreamName("tool/weather"), [b'{"type":"tool.call_abandoned.v1","started":"session/alice@7"}'])
    await builder.append(StreamName("runtime/log"), [b'{"type":"runtime.closed.v1","open_runs":0}'])
    report = await replay(builder.store)
    assert (report.streams, report.events, report.not_replayed, report.divergence) == (2, 2, (), None)


async def test_a_consequence_in_a_stream_of_facts_is_a_divergence(builder: LogBuilder) -> None:
    closed = b'{"type":"runtime.closed.v1","open_runs":0}'
    await builder.append(StreamName("runtime/log"), [closed, closed])
    assert only(await replay(builder.store)).differs == "missing"


@pytest.mark.parametrize("level", ["fold", "core"])
async def test_events_that_contradict_each_other_are_a_divergence_and_raise_nothing(
    builder: LogBuilder, level: Level
) -> None:
    await builder.open("alice")
    orphan = SESSION_CODEC.encode(RunCompleted(run=RunId("run_9")))
    await builder.append(StreamName("session/alice"), [orphan])
    divergence = only(await replay(builder.store, level=level))
    assert (divergence.version, divergence.differs) == (3, "failure")


async def test_the_fold_names_the_event_that_it_fails_on(builder: LogBuilder) -> None:
    await builder.open("alice")
    timer = SESSION_CODEC.encode(TimerSet(timer="t", due_at=1))
    orphan = SESSION_CODEC.encode(RunCompleted(run=RunId("run_9")))
    await builder.append(StreamName("session/alice"), [timer, orphan])
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
    closed = b'{"type":"runtime.closed.v1","open_runs":0}'
    await builder.append(StreamName("runtime/log"), [closed] * 1_700)
    report = await replay(builder.store, level="fold")
    assert (report.batches, report.events) == (1, 1_700)


async def test_an_unknown_session_is_refused_with_those_of_a_similar_name(builder: LogBuilder) -> None:
    await builder.open("alice")
    with pytest.raises(ConfigError, match=r"no session 'alcie' .* did you mean 'alice'\?"):
        await replay(builder.store, session="alcie")
    with pytest.raises(ConfigError, match="no session"):
        await replay(builder.store, session="\udcff")


async def test_an_unknown_level_is_refused(builder: LogBuilder) -> None:
    with pytest.raises(ConfigError, match="no replay level"):
        await replay(builder.store, level="everything")  # type: ignore[arg-type]


def test_a_file_is_replayed_by_its_path_and_left_as_it_is(log_file: Path) -> None:
    before = log_file.read_bytes()
    report = replay_sync(log_file)
    assert (report.divergence, report.streams, report.log) == (None, 3, str(log_file))
    assert log_file.read_bytes() == before
    assert [path.name for path in log_file.parent.iterdir()] == ["events.db"]


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PersistenceError, match="does not exist"):
        replay_sync(tmp_path / "nothing.db")


def test_an_edited_consequence_is_found_with_the_recorded_and_the_decided_event(tampered: Callable[..., Path]) -> None:
    path = tampered("""UPDATE events SET data = replace(data, '"turn":2', '"turn":1') WHERE data LIKE '%"turn":2%'
        AND data LIKE '%model_requested%'""")
    divergence = only(replay_sync(path))
    assert str(divergence) == "session/alice@9: consequences[0].turn: 1 -> 2"


def test_edited_pending_keys_are_found(tampered: Callable[..., Path]) -> None:
    path = tampered("UPDATE events SET pending = 'model:4' WHERE pending = 'model:9'")
    assert str(only(replay_sync(path))) == 'session/alice@9: pending[0]: "model:4" -> "model:9"'


def test_an_edited_time_of_a_consequence_is_found(tampered: Callable[..., Path]) -> None:
    path = tampered("UPDATE events SET at = at + 1 WHERE version = 5 AND stream = 1")
    assert only(replay_sync(path)).difference.path == "consequences[1].at"


def test_a_lost_consequence_is_extra(tampered: Callable[..., Path]) -> None:
    path = tampered("DELETE FROM events WHERE data LIKE '%run_cancelled%'")
    divergence = only(replay_sync(path))
    assert (divergence.stream, divergence.version, divergence.differs) == ("session/bob", 10, "extra")


def test_a_batch_without_its_stimulus_is_an_error_that_names_it(tampered: Callable[..., Path]) -> None:
    path = tampered("DELETE FROM events WHERE version = 6 AND stream = 1")
    with pytest.raises(LogFormatError, match=r"session/alice@7 belongs to the batch of version 6.*refold check"):
        replay_sync(path)


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
