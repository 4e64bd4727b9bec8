import subprocess
import sys

import pytest

import refold.stores


def test_importing_the_package_loads_no_store() -> None:
    script = (
        "import sys, refold.stores; print(sorted({'aiosqlite', 'sqlite3', 'asyncio', 'msgspec'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_name_of_the_package_is_there() -> None:
    for name in refold.stores.__all__:
        assert getattr(refold.stores, name).__name__
    assert dir(refold.stores) == refold.stores.__all__


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        refold.stores.nothing  # noqa: B018
