"""Each test runs in each world that it asks for, and leaves nothing alive there."""

import threading
from collections.abc import Iterator

import pytest

from tests.actors.contract.worlds import PykkaWorld, RefoldWorld, World


@pytest.fixture(params=["pykka", "refold"])
def world(request: pytest.FixtureRequest) -> World:
    """The world in which the test runs: once pykka's, once ours."""
    made: World = request.getfixturevalue(f"{request.param}_world")
    return made


@pytest.fixture
def pykka_world() -> Iterator[PykkaWorld]:
    made = PykkaWorld()
    yield made
    made.stop_all()


@pytest.fixture
def refold_world() -> Iterator[RefoldWorld]:
    made = RefoldWorld()
    yield made
    made.end()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What handlers wait for; open when the test is over."""
    event = threading.Event()
    yield event
    event.set()
