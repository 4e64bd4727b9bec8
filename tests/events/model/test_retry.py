"""A model call that failed is made again: when, how often, and what else may happen meanwhile.

What `tests/conformance/runs/test_retries.py` says through sessions is not said again.
"""

import math
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.events import AgentConfig, Recorded, WaitUntil
from refold.events.core.errors import ConfigError
from refold.events.model.configuration import RETRY_AFTER_S_MAX, RetryPolicy, retry_delay_us
from refold.events.session.commands import RecordModelFailure
from refold.events.session.events import RetryScheduled
from tests.events.conftest import Session, configuration, names, response, say

EVEN = RetryPolicy(attempts_max=3, base_s=1.0, max_s=60.0, jitter=0.0)


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
        "from refold.events.model.configuration import *\n"
        "print([retry_delay_us(RetryPolicy(jitter=1.0), n, None, s) for n in (3, 4) for s in 'abc'])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(pauses)


# The run


def test_the_pause_is_that_of_the_policy_or_the_longer_one_that_the_provider_asks_for() -> None:
    session = Session(configuration(AgentConfig(model="test-model", retry=EVEN)))
    for retry_after_s, pause_us in ((None, 1_000_000), (30, 30_000_000)):
        session.send()
        scheduled = session.fail_model(retryable=True, retry_after_s=retry_after_s)[1]
        assert isinstance(scheduled, RetryScheduled)
        assert (scheduled.turn, scheduled.attempt, scheduled.due_at) == (1, 1, session.now + pause_us)
        wait, run = session.pending[0], session.run
        assert wait == WaitUntil(
            key=f"retry:{session.state.version - 2}",
            causation=session.state.version - 2,
            correlation=int(run.removeprefix("run_")),
            due_at=scheduled.due_at,
            pause=True,
        )
        session.cancel()


def test_what_comes_of_the_failed_call_is_not_taken_for_the_one_that_is_made_again() -> None:
    session = Session(configuration(AgentConfig(model="test-model", retry=EVEN)))
    session.send()
    session.fail_model(retryable=True)
    session.fire("retry:5")
    run = session.run
    late = msgspec.structs.replace(response(run, 1, [say("late")]), asked=5)
    assert names(session.tell(late)) == ["ModelInterrupted"]
    failure = RecordModelFailure(run=run, turn=1, kind="server", message="again", retryable=True, asked=5)
    assert session.tell_or_recorded(failure) == Recorded(0)
    session.crash()
    assert names(session.tell(msgspec.structs.replace(late, asked=8))) == ["ModelResponded", "RunCompleted"]
