"""Systems of actors in which most tests of one run."""

from collections.abc import AsyncIterator

import pytest

from refold.actors import ActorSystem, ManualClock


@pytest.fixture
async def system() -> AsyncIterator[ActorSystem]:
    """A system that restarts what fails without a pause; closed at the end."""
    async with ActorSystem(restart_backoff_s=0) as made:
        yield made


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def timed(clock: ManualClock) -> AsyncIterator[ActorSystem]:
    """A system in which time passes only on the test's clock."""
    async with ActorSystem(clock=clock) as made:
        yield made
