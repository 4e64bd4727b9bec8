"""What sessions promise, by rows of the features and by faults that were reported of others; read `cases` first.

`runs`: how runs begin, go, wait, are tried again and end. `cancelling`: every way to cancel them, wherever they are.
`people`: who decides about calls and answers, and whose a session is. `agents`: subagents, handoffs, and what agents
depend on. `requests`: what a model is shown, and what is kept of it. `recovery`: crashes, logs that fail, other code
and replays. `programs`: processes, threads and examples. `killed_process` is the program that is killed again and
again.

The fixtures here are logs that are checked and replayed when the test that used them is over.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from refold.stores import EventStore, InMemoryStore

pytest.register_assert_rewrite("tests.conformance.cases", "tests.conformance.steps", "tests.conformance.sessions")

from tests.conformance.sessions import assert_sound, checked_log  # noqa: E402 - After it is said how they are read.


@pytest.fixture(params=["memory", pytest.param("file", marks=pytest.mark.slow)])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStore]:
    """A log that is checked and replayed when the test is over; a replay has no handler and no policy."""
    async with checked_log(request.param, tmp_path) as store:
        yield store


@pytest.fixture
async def memory() -> AsyncIterator[InMemoryStore]:
    """A log in memory, for tests in which a `ManualClock` says how time goes; checked and replayed likewise."""
    store = InMemoryStore()
    yield store
    await assert_sound(store)
