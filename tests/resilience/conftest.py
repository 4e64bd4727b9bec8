"""One redis-server for all tests of a process that need one."""

from collections.abc import Generator

import pytest

from tests.resilience.redis_server import FOUND, REASON, redis_server


@pytest.fixture(scope="session")
def redis_url() -> Generator[str, None, None]:
    if FOUND is None:
        pytest.skip(REASON)
    with redis_server() as url:
        yield url
