"""The tree of errors, and what each of them says."""

import pickle

import pytest

from refold.events.core import errors
from refold.events.core.errors import (
    AgentLoopError,
    AgentMemoryError,
    BackpressureShed,
    CircuitOpen,
    CommandRejected,
    ConfigError,
    DivergenceError,
    GraphError,
    LogFormatError,
    LogInUse,
    PersistenceError,
    ProviderError,
    RefoldError,
    ToolError,
    WrongExpectedVersion,
)

EVERY_ERROR = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, BaseException)]


def test_every_error_has_the_one_root_and_stands_in_the_drawn_tree() -> None:
    assert errors.__doc__ is not None
    for error in EVERY_ERROR:
        assert issubclass(error, RefoldError)
        assert error.__name__ in errors.__doc__
    assert RefoldError.__base__ is Exception


def test_what_concerns_the_log_is_a_persistence_error_and_what_a_graph_refuses_a_rejected_command() -> None:
    assert issubclass(GraphError, CommandRejected)
    kinds = {error for error in EVERY_ERROR if issubclass(error, PersistenceError)}
    assert kinds == {PersistenceError, WrongExpectedVersion, LogFormatError, LogInUse}


@pytest.mark.parametrize(
    ("error", "fields", "text"),
    [
        (
            BackpressureShed(5, 4, of="session/alice"),
            {"depth": 5, "capacity": 4},
            "session/alice has no room: 5 are waiting and the capacity is 4; send again later",
        ),
        (
            CircuitOpen("openai"),
            {"service": "openai"},
            "the circuit of 'openai' is open after repeated failures; call again later",
        ),
        (
            WrongExpectedVersion("session/alice", 3, 5),
            {"stream": "session/alice", "expected": 3, "actual": 5, "outcome_unknown": False},
            "stream 'session/alice' is at version 5, not 3 as expected; read it again and retry",
        ),
        (
            LogInUse("events.db", pid=7, host="here"),
            {"pid": 7, "host": "here", "path": "events.db"},
            "the log events.db is in use by process 7 on host here; stop that runtime, or use another log",
        ),
        (
            LogInUse("events.db", pid=None, host=None),
            {"pid": None, "host": None},
            "the log events.db is in use by process (unknown) on host (unknown); stop that runtime, or use another log",
        ),
        (
            ProviderError("slow down", kind="rate_limit", status=429, retryable=True, retry_after_s=1.5),
            {"kind": "rate_limit", "status": 429, "retryable": True, "retry_after_s": 1.5},
            "slow down",
        ),
        (
            ProviderError("what?"),
            {"kind": "unknown", "status": None, "retryable": False, "retry_after_s": None},
            "what?",
        ),
        (ToolError("no"), {"kind": "permanent"}, "no"),
        (ToolError("later", kind="transient"), {"kind": "transient"}, "later"),
        (PersistenceError("who knows", outcome_unknown=True), {"outcome_unknown": True}, "who knows"),
    ],
)
def test_an_error_says_what_failed_and_carries_its_fields(
    error: RefoldError, fields: dict[str, object], text: str
) -> None:
    assert str(error) == text
    assert {name: getattr(error, name) for name in fields} == fields


@pytest.mark.parametrize(
    "kind",
    [AgentLoopError, AgentMemoryError, CommandRejected, ConfigError, DivergenceError, GraphError, LogFormatError],
)
def test_plain_errors_take_a_message_and_survive_pickling(kind: type[RefoldError]) -> None:
    error = pickle.loads(pickle.dumps(kind("what failed, and what to do")))
    assert type(error) is kind
    assert str(error) == "what failed, and what to do"
