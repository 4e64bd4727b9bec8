import re
import subprocess
import sys
from pathlib import Path

import refold.stores


def test_importing_the_package_loads_no_store() -> None:
    script = (
        "import sys, refold.stores; print(sorted({'aiosqlite', 'sqlite3', 'asyncio', 'msgspec'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_no_statement_numbers_its_placeholders() -> None:
    """Python 3.12.0 to 3.12.3 takes `?1` for a name, and warns of each use with values in order."""
    sources = Path(refold.stores.__file__).parent.rglob("*.py")
    assert [path.name for path in sources if re.search(r"\?[1-9]", path.read_text(encoding="utf-8"))] == []
