"""The shim of this process: a test module that imports it is skipped where SQLite cannot be reached from outside."""

import pytest

from refold.scenarios.world.sqlite_shim import ShimUnavailable, SQLiteShim

try:
    SHIM = SQLiteShim.of_process()
except ShimUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)
