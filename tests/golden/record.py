"""Record a sample log of today's format, to be kept here for ever.

Run: python -P tests/golden/record.py NAME, where NAME is format-<format>-core-<CORE_VERSION>, alone for a session with
all that today's core can decide, or followed by -stores, -children and the like for the runtime of the module
`record_stores` or another one.

Each is run once for each change of the log's format or of `CORE_VERSION`, and its output is never changed:
`NAME.db`, and beside it `NAME.json` with the folded histories of the sessions and the folded state of each other
stream. `tests/test_golden_logs.py` opens, folds, checks and replays all of them, and says whether any event is missing.
"""

import asyncio
import re
import sqlite3
import sys
from contextlib import closing
from importlib import import_module
from pathlib import Path

from refold import AgentConfig
from refold.events import SESSION_CODEC
from refold.events.core.records import EncodedBatch
from refold.events.model.configuration import configuration_of
from refold.stores import SQLiteStore

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parents[1]))

from tests.events.life import Life  # noqa: E402 - a script finds the tests only now
from tests.golden import record_stores  # noqa: E402
from tests.selfcheck.exhaustive.scope import STREAM, TOOLS  # noqa: E402


async def record(log: Path) -> None:
    """Write the log: a session in which everything happens that may."""
    life, version = Life(seed=82), 0
    life.go(1_000)
    config = AgentConfig(model=life.configuration.model)
    agent, code = life.configuration.agent, life.configuration.code
    payloads = configuration_of(config, agent=agent, tools=TOOLS, code=code)[1]
    async with await SQLiteStore.open(log) as store:
        for batch, pending in zip(life.batches, life.pending, strict=True):
            encoded = EncodedBatch(
                stream=STREAM,
                expected_version=version,
                at=batch[0].at,
                events=tuple(map(SESSION_CODEC.encode, batch)),
                pending=tuple(pending),
            )
            await store.append([encoded], payloads)
            version += len(batch)


def write(name: str) -> None:
    """Record the log of a name, and the folded histories and states beside it."""
    target = FOLDER / f"{name}.db"
    if target.exists():
        sys.exit(f"{target} exists; a golden log is never changed, record one under a new name")
    of = re.sub(r"format-\d+-core-\d+-?", "", name)
    recorder = import_module(f"tests.golden.record_{of}").record if of else record
    asyncio.run(recorder(target))
    target.with_name(target.name + ".lock").unlink()
    with closing(sqlite3.connect(target)) as connection:
        connection.execute("VACUUM")
    target.with_suffix(".json").write_bytes(asyncio.run(record_stores.read(target)))


if __name__ == "__main__":
    write(sys.argv[1])
