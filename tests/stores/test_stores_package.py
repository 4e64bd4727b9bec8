import subprocess
import sys


def test_importing_the_package_loads_no_store() -> None:
    script = (
        "import sys, refold.stores; print(sorted({'aiosqlite', 'sqlite3', 'asyncio', 'msgspec'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
