"""A model call that failed is made again: when, how often, and what else may happen meanwhile."""

import math
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.events.core.contract import Recorded, WaitUntil
from refold.events.core.errors import ConfigError
from refold.events.model.configuration import AgentConfig
from refold.events.model.retry import RETRY_AFTER_S_MAX, RetryPolicy, retry_delay_us
from refold.events.session.commands import RecordModelFailure
from refold.events.session.events import RetryScheduled, RunFailed
from refold.events.session.react import CallModel
from tests.events.conftest import Session, configuration, names, response, say, use

EVEN = RetryPolicy(attempts_max=3, base_s=1.0, max_s=60.0, jitter=0.0)


def at_model(policy: RetryPolicy | None = EVEN, run_timeout_s: float | None = None) -> Session:
    session = Session(configuration(AgentConfig(model="test-model", retry=policy, run_timeout_s=run_timeout_s)))
    session.send()
    return session


# The policy and the pause


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("attempts_max", [0, -1, 1.5, True, "3", None]),
        ("base_s", [0, -1, math.nan, math.inf, 3601, True, "1"]),
        ("max_s", [0.5, math.nan, math.inf, 86_401, True]),
        ("jitter", [-0.1, 1.1, math.nan, True, None]),
    ],
)
def test_a_value_outside_its_bounds_is_refused_at_once_by_its_name(field: str, values: list[object]) -> None:
    for value in values:
        arguments: dict[str, Any] = {field: value}
        with pytest.raises(ConfigError, match=f"RetryPolicy.{field} must be "):
            RetryPolicy(**arguments)


def test_a_whole_number_in_a_policy_is_the_same_setting_as_its_fraction() -> None:
    whole = AgentConfig(model="m", retry=RetryPolicy(base_s=1, max_s=60, jitter=0))
    assert configuration(whole) == configuration(AgentConfig(model="m", retry=EVEN))


def test_pauses_double_up_to_the_longest() -> None:
    policy = RetryPolicy(base_s=1.0, max_s=5.0, jitter=0.0)
    pauses = [retry_delay_us(policy, attempts, None, "") for attempts in (1, 2, 3, 4, 5000)]
    assert pauses == [1_000_000, 2_000_000, 4_000_000, 5_000_000, 5_000_000]


@given(
    attempts=st.integers(1, 10_000),
    base_s=st.floats(0.001, 3600),
    jitter=st.floats(0, 1),
    asked_s=st.none() | st.floats() | st.floats(0, 1e6),
    seed=st.text(max_size=20),
)
def test_a_pause_is_within_its_bounds_whatever_the_provider_asks_for(
    attempts: int, base_s: float, jitter: float, asked_s: float | None, seed: str
) -> None:
    policy = RetryPolicy(base_s=base_s, max_s=max(base_s, 60.0), jitter=jitter)
    pause_s = retry_delay_us(policy, attempts, asked_s, seed) / 1_000_000
    longest_s = min(base_s * 2.0 ** min(attempts - 1, 60), policy.max_s)
    assert longest_s * (1 - jitter) - 1e-6 <= pause_s <= max(longest_s, RETRY_AFTER_S_MAX) + 1e-6
    if asked_s is not None and 0 <= asked_s <= RETRY_AFTER_S_MAX:
        assert pause_s >= asked_s - 1e-6


def test_the_jitter_comes_from_the_seed_and_the_attempt_and_is_the_same_in_every_process() -> None:
    policy = RetryPolicy(jitter=1.0)
    pauses = [retry_delay_us(policy, attempts, None, seed) for attempts in (3, 4) for seed in ("a", "b", "c")]
    assert len(set(pauses)) == 6
    program = (
        "from refold.events.model.retry import *\n"
        "print([retry_delay_us(RetryPolicy(jitter=1.0), n, None, s) for n in (3, 4) for s in 'abc'])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(pauses)


# The run


def test_a_failure_that_may_be_repeated_waits_and_then_the_model_is_asked_again() -> None:
    session = at_model()
    events = session.fail_model(retryable=True)
    assert names(events) == ["ModelFailed", "RetryScheduled"]
    scheduled = events[1]
    assert isinstance(scheduled, RetryScheduled)
    assert (scheduled.turn, scheduled.attempt, scheduled.due_at) == (1, 1, session.now + 1_000_000)
    assert session.pending == [
        WaitUntil(key="retry:5", causation=5, correlation=3, due_at=scheduled.due_at, pause=True)
    ]
    assert names(session.fire("retry:5")) == ["TimerFired"]
    assert session.pending == [CallModel(key="model:8", causation=8, correlation=3, turn=1)]
    assert names(session.answer(say("Hi"))) == ["ModelResponded", "RunCompleted"]


def test_it_is_made_so_often_and_then_the_run_fails_as_the_provider_says() -> None:
    session = at_model()
    for _ in range(2):
        assert names(session.fail_model(retryable=True)) == ["ModelFailed", "RetryScheduled"]
        session.fire(session.pending_keys[0])
    events = session.fail_model("overloaded", "busy", retryable=True)
    assert names(events) == ["ModelFailed", "RunFailed"]
    failed = events[1]
    assert isinstance(failed, RunFailed)
    assert (failed.kind, failed.message) == ("provider", "busy")


def test_attempts_are_counted_anew_in_each_turn() -> None:
    session = at_model()
    session.fail_model(retryable=True)
    session.fire("retry:5")
    session.answer(use("look"))
    session.result(session.calls[0])
    scheduled = session.fail_model(retryable=True)[1]
    assert isinstance(scheduled, RetryScheduled)
    assert (scheduled.turn, scheduled.attempt) == (2, 1)


@pytest.mark.parametrize("policy", [None, RetryPolicy(attempts_max=1)])
def test_without_a_policy_or_with_one_attempt_nothing_is_repeated(policy: RetryPolicy | None) -> None:
    session = at_model(policy)
    assert names(session.fail_model(retryable=True)) == ["ModelFailed", "RunFailed"]


def test_what_may_not_be_repeated_fails_at_once() -> None:
    session = at_model()
    assert names(session.fail_model("authentication")) == ["ModelFailed", "RunFailed"]
    session.send()
    session.fail_model(retryable=True)
    session.fire(session.pending_keys[0])
    assert names(session.fail_model("authentication")) == ["ModelFailed", "RunFailed"]


def test_the_provider_may_ask_for_a_longer_pause() -> None:
    session = at_model()
    scheduled = session.fail_model(retryable=True, retry_after_s=30)[1]
    assert isinstance(scheduled, RetryScheduled)
    assert scheduled.due_at == session.now + 30_000_000


def test_two_runs_have_other_pauses_and_a_replay_the_same() -> None:
    session = at_model(RetryPolicy(jitter=1.0))
    pauses: list[int] = []
    for _ in range(2):
        scheduled = session.fail_model(retryable=True)[1]
        assert isinstance(scheduled, RetryScheduled)
        pauses.append(scheduled.due_at - scheduled.at)
        session.cancel()
        session.send()
    assert pauses[0] != pauses[1]
    session.replay()


def test_while_it_waits_a_cancel_ends_the_run_and_its_time_means_nothing_more() -> None:
    session = at_model()
    session.fail_model(retryable=True)
    assert names(session.cancel()) == ["CancelRequested", "RunCancelled"]
    assert session.fire("retry:5") == []
    assert session.pending == []


def test_while_it_waits_an_answer_of_the_failed_call_is_evidence() -> None:
    session = at_model()
    session.fail_model(retryable=True)
    assert names(session.answer(say("late"))) == ["ModelInterrupted"]
    assert session.pending_keys == ["retry:5"]


def test_what_comes_of_the_failed_call_is_not_taken_for_the_one_that_is_made_again() -> None:
    session = at_model()
    session.fail_model(retryable=True)
    session.fire("retry:5")
    run = session.run
    late = msgspec.structs.replace(response(run, 1, [say("late")]), asked=5)
    assert names(session.tell(late)) == ["ModelInterrupted"]
    failure = RecordModelFailure(run=run, turn=1, kind="server", message="again", retryable=True, asked=5)
    assert session.tell_or_recorded(failure) == Recorded(0)
    session.crash()
    assert names(session.tell(msgspec.structs.replace(late, asked=8))) == ["ModelResponded", "RunCompleted"]


def test_a_crash_while_it_waits_changes_nothing_and_counts_for_nothing() -> None:
    session = at_model()
    session.fail_model(retryable=True)
    before = session.pending
    for _ in range(10):
        assert names(session.crash()) == ["RunResumed"]
        assert session.pending == before
    session.fire("retry:5")
    assert [type(effect) for effect in session.pending] == [CallModel]


def test_a_run_that_is_out_of_time_fails_though_its_model_call_was_to_be_made_again() -> None:
    session = at_model(run_timeout_s=2.0)
    session.fail_model(retryable=True, retry_after_s=30)
    assert session.pending_keys == ["deadline:run_3", "retry:5"]
    assert names(session.fire("deadline:run_3")) == ["TimerFired", "RunFailed"]
    assert session.fire("retry:5") == []


def test_an_earlier_wait_does_not_end_a_later_one() -> None:
    session = at_model()
    session.fail_model(retryable=True)
    session.fire("retry:5")
    session.fail_model(retryable=True)
    assert session.fire("retry:5") == []
    assert session.pending_keys == ["retry:8"]


def test_a_parked_run_that_fails_waits_when_somebody_resumes_it() -> None:
    session = Session(configuration(AgentConfig(model="test-model", retry=EVEN, resumes_max=0)))
    session.send()
    session.crash()
    assert names(session.fail_model(retryable=True)) == ["ModelFailed", "RetryScheduled"]
    assert [effect.key for effect in session.pending] == ["resume:run_3"]
    session.crash(asked=True)
    assert session.pending_keys == ["retry:5"]
