"""What is logged: nothing goes wrong without a trace, and nothing that is right leaves one above INFO."""

import logging
import threading
from typing import Any

import pykka
import pytest

from tests.actors.contract.worlds import LONG_S, World


class Broken(pykka.Actor):
    """Fails in the hooks that it is made to fail in."""

    def __init__(self, broken: str) -> None:
        super().__init__()
        self.broken = broken

    def on_receive(self, message: Any) -> Any:
        if message == "fail":
            raise ValueError("on_receive is broken")
        return super().on_receive(message)

    def on_stop(self) -> None:
        if self.broken == "on_stop":
            raise RuntimeError("on_stop is broken")

    def on_failure(self, *args: Any) -> None:
        if self.broken == "on_failure":
            raise RuntimeError("on_failure is broken")


class Records(logging.Handler):
    """Keeps the records of a level and above, and lets a test wait for so many."""

    def __init__(self, level: int, expected: int) -> None:
        super().__init__(level)
        self.kept: list[logging.LogRecord] = []
        self._missing = threading.Semaphore(0)
        self._expected = expected

    def emit(self, record: logging.LogRecord) -> None:
        self.kept.append(record)
        self._missing.release()

    def wait(self) -> list[logging.LogRecord]:
        for _ in range(self._expected):
            assert self._missing.acquire(timeout=LONG_S)
        return self.kept


def recorded(request: pytest.FixtureRequest, level: int, expected: int) -> Records:
    records = Records(level, expected)
    root = logging.getLogger()
    root.addHandler(records)
    request.addfinalizer(lambda: root.removeHandler(records))
    return records


def test_a_message_that_nobody_handles_is_a_warning_that_names_the_actor(
    world: World, request: pytest.FixtureRequest
) -> None:
    records = recorded(request, logging.WARNING, 1)
    ref = world.start(Broken, "nothing")
    assert ref.ask({"no": "use"}) is None
    (record,) = records.wait()
    assert record.levelno == logging.WARNING
    assert ref.actor_urn in record.getMessage()


@pytest.mark.parametrize(
    ("broken", "errors"),
    [
        ("nothing", ["on_receive is broken"]),
        ("on_stop", ["on_stop is broken"]),
        ("on_failure", ["on_failure is broken", "on_receive is broken"]),
    ],
)
def test_an_error_in_a_hook_is_logged_with_its_traceback(
    world: World, request: pytest.FixtureRequest, broken: str, errors: list[str]
) -> None:
    records = recorded(request, logging.ERROR, len(errors))
    ref = world.start(Broken, broken)
    if broken == "on_stop":
        ref.stop()
    else:
        ref.tell("fail")
    kept = records.wait()
    assert all(ref.actor_urn in record.getMessage() for record in kept)
    assert sorted(str(record.exc_info[1]) for record in kept if record.exc_info is not None) == errors


def test_a_life_without_errors_logs_nothing_worth_a_look(world: World, request: pytest.FixtureRequest) -> None:
    records = recorded(request, logging.INFO, 0)

    class Fine(pykka.Actor):
        def on_receive(self, message: Any) -> Any:
            return message

    ref = world.start(Fine)
    ref.tell("told")
    ref.ask("asked")
    ref.stop()
    assert records.wait() == []
