"""Metrics as a projection: independent counts agree, any split gives the same, and nothing unknown gets in the way."""

import math
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.events import Event, fold
from refold.events.core.content import tool_uses
from refold.events.core.ids import AgentId, SessionId, StreamName
from refold.events.core.records import StoredEvent
from refold.events.model.messages import RequestReference, Usage
from refold.events.session import events as ev
from refold.events.views.metrics import DAMAGED, UNKNOWN_MODEL, MetricsState, count, count_all, evolve, snapshot
from refold.events.views.metrics_snapshot import (
    DERIVED,
    GAUGES,
    NOT_FOUND,
    AgentCounts,
    LiveCounts,
    MetricsSnapshot,
    ModelCounts,
    ToolCounts,
)
from tests.events.run_events import GOLDEN, answered, call, events_of, failed, returned, sessions_of

ALICE, BOB = StreamName("session/alice"), StreamName("session/bob")


logs = st.sampled_from(GOLDEN).map(events_of)


def after(events: "tuple[StoredEvent, ...] | list[StoredEvent]") -> MetricsSnapshot:
    return snapshot(count_all(MetricsState(), events))


def stored(stream: str, data: bytes, position: int = 1) -> StoredEvent:
    return StoredEvent(position=position, stream=StreamName(stream), version=1, batch=1, at=5, data=data)


def of(*events: tuple[StreamName, Event]) -> MetricsSnapshot:
    state = MetricsState()
    for stream, event in events:
        evolve(state, stream, event)
    return snapshot(state)


def answer(*tools: str, **more: Any) -> ev.ModelResponded:
    return answered(*(call(name, number) for number, name in enumerate(tools)), **more)


def opened(stream: StreamName, agent: str = "agent") -> tuple[StreamName, ev.SessionOpened]:
    return stream, ev.SessionOpened(session=SessionId(stream), agent=AgentId(agent))


# What the figures are


WHOLE = [golden for golden in GOLDEN if not golden.stem.endswith("forks")]
"""Logs whose streams begin with their own first events, so that each can be folded and counted by itself."""


@pytest.mark.parametrize("golden", WHOLE, ids=lambda path: path.stem)
def test_the_figures_are_those_of_an_independent_count(golden: Path) -> None:
    found = after(events_of(golden))
    sessions = sessions_of(golden)
    decoded = [(stream, event) for stream, events in sessions.items() for event in events]
    kinds = Counter(type(event) for _, event in decoded)
    assert found.sessions == len(sessions) == kinds[ev.SessionOpened]
    assert (found.runs_started, found.runs_completed, found.runs_failed, found.runs_cancelled) == (
        kinds[ev.RunStarted],
        kinds[ev.RunCompleted],
        kinds[ev.RunFailed],
        kinds[ev.RunCancelled],
    )
    assert found.active_sessions == found.runs_started - sum(
        kinds[end] for end in (ev.RunCompleted, ev.RunFailed, ev.RunCancelled)
    )
    assert found.steps == kinds[ev.ModelResponded]
    assert sum(found.events.values()) == len(events_of(golden))
    paid = [
        event.usage
        for _, event in decoded
        if isinstance(event, ev.ModelResponded | ev.ModelInterrupted | ev.ContextPrepared)
    ]
    assert found.usage == sum(paid, Usage())
    assert sum((counts.usage for counts in found.models.values()), Usage()) == found.usage
    folds = [fold(events) for events in sessions.values()]
    assert found.cost == pytest.approx(sum(state.cost for state in folds), abs=1e-9 * len(paid))
    assert (found.cost > 0) == any(state.cost for state in folds)
    calls = sum(kinds[kind] for kind in (ev.ModelResponded, ev.ModelFailed, ev.ContextPrepared))
    assert sum(counts.calls for counts in found.models.values()) == calls
    assert sum(counts.retries for counts in found.models.values()) == found.model_retries
    assert sum(counts.retries for counts in found.tools.values()) == found.tool_retries
    assert found.model_retries + found.tool_retries == kinds[ev.RetryScheduled]
    assert found.models.get(UNKNOWN_MODEL, ModelCounts()).calls == 0, "but evidence of calls that never were"

    tools: dict[tuple[str, str], str] = {}
    for stream, event in decoded:
        if isinstance(event, ev.ModelResponded):
            for use_, verdict in zip(tool_uses(event.content), event.verdicts, strict=True):
                tools[stream, use_.id] = NOT_FOUND if verdict.verdict == "not_found" else use_.name
        elif isinstance(event, ev.HistoryImported) and event.messages[-1].role == "assistant":
            tools.update({(stream, use_.id): use_.name for use_ in tool_uses(event.messages[-1].content)})
    successes = Counter(
        tools[stream, event.call] for stream, event in decoded if isinstance(event, ev.ToolCallCompleted)
    )
    failures = Counter(
        (tools[stream, event.call], event.kind) for stream, event in decoded if isinstance(event, ev.ToolCallFailed)
    )
    assert {name: counts.calls for name, counts in found.tools.items()} == Counter(tools.values())
    assert {name: counts.successes for name, counts in found.tools.items()} == {n: successes[n] for n in found.tools}
    assert {(n, kind): k for n, c in found.tools.items() for kind, k in c.failure_kinds.items()} == failures
    assert found.tool_calls == found.tool_successes + found.tool_failures, "every golden run has ended"
    assert found.tool_failures == failures.total()
    agent = sum(found.agents.values(), AgentCounts())
    assert set(found.agents) == {event.agent for _, event in decoded if isinstance(event, ev.SessionOpened)}
    assert (agent.sessions, agent.runs_started, agent.tool_calls, agent.tool_failures, agent.output_tokens) == (
        found.sessions,
        found.runs_started,
        found.tool_calls,
        found.tool_failures,
        found.output_tokens,
    )


def test_a_call_counts_for_its_tool_from_the_answer_to_the_result() -> None:
    begun = of(opened(ALICE), (ALICE, answer("pay", "look")))
    assert begun.tools == {"look": ToolCounts(calls=1), "pay": ToolCounts(calls=1)}
    assert begun.tools["pay"].failure_ratio is begun.tool_failure_rate is None
    ended = of(opened(ALICE), (ALICE, answer("pay", "look")), (ALICE, failed("shed")), (ALICE, returned(number=1)))
    assert ended.tools["pay"] == ToolCounts(calls=1, failures=1, failure_kinds={"shed": 1})
    assert ended.tools["look"] == ToolCounts(calls=1, successes=1)
    assert (ended.refused_calls, ended.tool_failure_rate) == (1, 0.5)


def test_calls_of_two_sessions_with_the_same_id_are_told_apart() -> None:
    found = of((ALICE, answer("pay")), (BOB, answer("look")), (ALICE, failed("timeout")), (BOB, returned()))
    assert (found.tools["pay"].failures, found.tools["look"].successes) == (1, 1)


def test_tools_that_do_not_exist_are_counted_as_one_and_compared_with_none() -> None:
    unknown = ev.Verdict(verdict="not_found")
    found = of(
        (ALICE, answer("a", "b", "pay", verdicts=(unknown, unknown, ev.Verdict()))),
        *((ALICE, failed("not_found", number=number)) for number in (0, 1)),
    )
    assert found.tools[NOT_FOUND] == ToolCounts(calls=2, failures=2, failure_kinds={"not_found": 2})
    assert (found.most_called_tool, found.tools_with_failures, found.tool_entropy) == ("pay", (), 0.0)
    assert (found.tool_calls, found.tool_failures) == (3, 2)


def test_sessions_are_counted_for_their_agents_in_whatever_order_agents_appear() -> None:
    lives = [opened(ALICE, "writer"), opened(BOB, "critic"), (ALICE, answer("look")), (BOB, answer()), (BOB, answer())]
    for order in (lives, [lives[1], lives[0], *lives[2:]]):
        assert of(*order).agents == {
            "critic": AgentCounts(sessions=1, steps=2),
            "writer": AgentCounts(sessions=1, steps=1, tool_calls=1),
        }


def test_memories_that_entered_a_request_are_recalls() -> None:
    request = RequestReference(configured=2, messages=1, recalled=("m1", "m2"))
    assert of((ALICE, answer(request=request)), (ALICE, answer())).recalls == 2


def test_a_session_is_active_while_a_run_is_open() -> None:
    golden = events_of(GOLDEN[-1])
    seen = {after(golden[:number]).active_sessions for number in range(0, len(golden), 20)}
    assert max(seen) > 0 == after(golden).active_sessions


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_nothing_is_remembered_of_sessions_in_which_nothing_goes_on(golden: Path) -> None:
    state = count_all(MetricsState(), events_of(golden))
    assert state.open_sessions == {}
    assert set(state.other_agents.values()) == {agent for agent in state.agents if agent != state.first_agent}


# Splits, orders, sums and differences


@pytest.mark.in_full
@given(logs, st.data())
def test_a_fold_may_stop_anywhere_be_written_down_and_go_on(log: tuple[StoredEvent, ...], data: st.DataObject) -> None:
    split = data.draw(st.integers(0, len(log)))
    kept = msgspec.json.encode(count_all(MetricsState(), log[:split]))
    assert snapshot(count_all(msgspec.json.decode(kept, type=MetricsState), log[split:])) == after(log)


@pytest.mark.in_full
@given(logs, st.randoms(use_true_random=False))
def test_the_order_in_which_streams_follow_one_another_makes_no_difference(
    log: tuple[StoredEvent, ...], random: Random
) -> None:
    order = [item.stream for item in log]
    random.shuffle(order)
    queues = {stream: iter([item for item in log if item.stream == stream]) for stream in order}
    mixed = after([next(queues[stream]) for stream in order])
    assert msgspec.structs.replace(mixed, position=0, at=0) == msgspec.structs.replace(after(log), position=0, at=0)


@pytest.mark.in_full
@given(logs, st.data())
def test_what_was_and_what_came_is_what_is(log: tuple[StoredEvent, ...], data: st.DataObject) -> None:
    split = data.draw(st.integers(0, len(log)))
    earlier, later = after(log[:split]), after(log)
    came = later.delta(earlier)
    assert (came.position, came.active_sessions) == (later.position, later.active_sessions)
    whole = earlier + came
    same = {name: getattr(later, name) for name in GAUGES}
    assert msgspec.structs.replace(whole, **same) == later
    assert all(number > 0 for number in came.events.values())


@pytest.mark.in_full
@given(logs, st.data())
def test_a_difference_the_wrong_way_round_is_nothing(log: tuple[StoredEvent, ...], data: st.DataObject) -> None:
    earlier = after(log[: data.draw(st.integers(0, len(log)))])
    nothing = earlier.delta(after(log))
    kept = {name: getattr(earlier, name) for name in GAUGES}
    assert nothing == MetricsSnapshot(**kept)


def test_sums_are_those_of_several_logs() -> None:
    snapshots = [after(events_of(golden)) for golden in GOLDEN]
    total = sum(snapshots, MetricsSnapshot())
    assert total.tool_calls == sum(one.tool_calls for one in snapshots)
    assert sum(each.steps for each in total.agents.values()) == total.steps == sum(one.steps for one in snapshots)
    assert (total.position, total.at) == (0, max(one.at for one in snapshots))


def test_live_counts_take_part_where_they_are_there() -> None:
    live = MetricsSnapshot(live=LiveCounts(commits=5, failed_appends=1))
    assert (live + MetricsSnapshot()).live == (MetricsSnapshot() + live).live == live.live
    assert (live + live).live == LiveCounts(commits=10, failed_appends=2)
    assert live.delta(MetricsSnapshot(live=LiveCounts(commits=2, failed_appends=3))).live == LiveCounts(commits=3)
    assert live.recorded() == MetricsSnapshot()


# What is not known


def test_events_of_kinds_of_ones_own_are_counted_by_their_type() -> None:
    found = after(
        [stored("book/ACME", b'{"type":"book.placed.v1"}'), stored("book/ACME", b"not json"), stored("x", b"{}")]
    )
    assert found.events == {DAMAGED: 2, "book.placed.v1": 1}
    assert found.unreadable_events == {}


def test_events_that_this_version_cannot_read_are_counted_apart_and_hinder_nothing() -> None:
    log = [
        stored("session/alice", b'{"type":"session.dreamt.v9","of":"sheep"}'),
        stored("session/alice", b'{"type":"session.run_started.v1","run":7}'),
        stored("tool/pay", b"\xff"),
        *events_of(GOLDEN[0]),
    ]
    found = after(log)
    assert found.unreadable_events == {DAMAGED: 1, "session.dreamt.v9": 1, "session.run_started.v1": 1}
    assert found.runs_started == after(events_of(GOLDEN[0])).runs_started


@given(st.binary(), st.sampled_from(["session/a", "tool/t", "runtime/log", "book/b", "no slash", "/", "session/"]))
def test_no_event_whatever_stops_the_count(data: bytes, stream: str) -> None:
    assert sum(snapshot(count(MetricsState(), stored(stream, data))).events.values()) == 1


def test_results_of_calls_that_the_log_does_not_hold_are_counted_all_the_same() -> None:
    found = of((ALICE, returned(number=9)), (ALICE, failed("timeout", number=8)))
    assert (found.tool_successes, found.tool_failures) == (1, 1)


# Figures that follow from others


def with_tools(**calls: int) -> MetricsSnapshot:
    return MetricsSnapshot(tools={name: ToolCounts(calls=number) for name, number in calls.items()})


def test_where_there_is_nothing_there_is_no_rate() -> None:
    derived = MetricsSnapshot().derived()
    assert {name: value for name, value in derived.items() if value is not None} == {
        "tool_calls": 0,
        "tool_retries": 0,
        "tool_successes": 0,
        "tool_failures": 0,
        "tools_with_failures": (),
        "tool_diversity": 0,
        "refused_calls": 0,
        "model_calls": 0,
        "cost": 0,
        "failure_ratios": {},
    }


@pytest.mark.parametrize(
    ("calls", "bits"),
    [
        ({"a": 7}, 0.0),
        ({"a": 1, "b": 1}, 1.0),
        ({"a": 2, "b": 2, "c": 2, "d": 2}, 2.0),
        ({"a": 2, "b": 1, "c": 1}, 1.5),  # Shannon's own example: 1/2 * 1 + 1/4 * 2 + 1/4 * 2.
        ({"a": 1, "b": 0}, 0.0),
    ],
)
def test_diversity_counts_the_tools_that_were_called_and_entropy_says_how_evenly(
    calls: dict[str, int], bits: float
) -> None:
    found = with_tools(**calls)
    assert (found.tool_diversity, found.tool_entropy) == (len([name for name in calls if calls[name]]), bits)


@given(st.dictionaries(st.text(max_size=3), st.integers(1, 1000), min_size=1, max_size=20))
def test_entropy_is_at_most_that_of_tools_that_are_called_alike(calls: dict[str, int]) -> None:
    found = with_tools(**calls).tool_entropy
    assert found is not None
    assert 0 <= found <= math.log2(len(calls)) + 1e-9


def test_rates_and_ranks_by_example() -> None:
    found = MetricsSnapshot(
        sessions=4,
        inputs=9,
        steps=10,
        model_failures=2,
        runs_started=9,
        runs_completed=6,
        runs_failed=2,
        tools={
            "b": ToolCounts(calls=4, successes=3, failures=1, failure_kinds={"shed": 1}),
            "a": ToolCounts(calls=4, successes=2, failures=1, failure_kinds={"timeout": 1}),
            "c": ToolCounts(calls=0),
        },
        agents={
            "idle": AgentCounts(sessions=9),
            "many runs": AgentCounts(runs_started=9, steps=9, tool_calls=2),
            "quick": AgentCounts(runs_started=4, steps=4, tool_calls=3),
            "slow": AgentCounts(runs_started=4, steps=6, tool_calls=3),
        },
        live=LiveCounts(sheds=3),
    )
    assert found.most_called_tool == "a"
    assert found.tools_with_failures == ("a", "b")
    assert found.tools["b"].failure_ratio == 0.25
    assert (found.tool_failure_rate, found.tool_success_rate) == (2 / 7, 5 / 7)
    assert (found.failures_per_session, found.steps_per_tool_call, found.shed_rate) == (0.5, 1.25, 0.25)
    assert (found.refused_calls, found.tool_diversity, found.recorded().shed_rate) == (1, 2, None)
    assert (found.model_calls, found.busiest_agent) == (12, "slow")
    assert MetricsSnapshot(agents={"idle": AgentCounts(sessions=1)}).busiest_agent is None


def test_the_json_has_every_figure_and_the_derived_ones() -> None:
    found = after(events_of(GOLDEN[-1]))
    document = msgspec.json.decode(found.to_json())
    derived = document.pop("derived")
    assert msgspec.convert(document, MetricsSnapshot) == found
    assert set(derived) == {*DERIVED, "failure_ratios"}
    assert derived["tool_calls"] == found.tool_calls
    assert derived["failure_ratios"]["pay"] == found.tools["pay"].failure_ratio
