"""Sample logs for `tests.selfcheck.hostile`: small, with nearly every kind of event that a runtime records.

One is of an agent with memory, knowledge, working memory, graph, breaker, subagent and approvals, with snapshots
beside. It comes as an SQLite file and in JSON Lines. The others are golden logs: of a long life, and of agents that do
one thing each, such as forks, handoffs, questions and retries.
"""

from pathlib import Path

import refold
from refold.agents.agent import Agent
from refold.inspection.export import export_to_file
from tests.golden import record_stores

GOLDEN = sorted((Path(__file__).parents[2] / "golden").glob("format-1-core-[45]*.db"))


def sample_agent() -> Agent:
    """Return the agent whose log the first sample is; the tools that it names are there to go on with."""
    stores = record_stores.Stores()
    stores.knowledge = refold.SemanticStore(scope="agent")  # Of any dimension.
    return record_stores.boss(stores, [], [])


async def make_samples(folder: Path) -> list[Path]:
    """Write the sample logs that are not golden into a folder, and return the paths of all."""
    log = folder / "sample.db"
    await record_stores.record(log, snapshot_every=5)
    exported = folder / "exported.jsonl"
    await export_to_file(log, exported)
    header, *lines, _ = exported.read_bytes().splitlines(keepends=True)
    # As early versions wrote it while they ran: it may end anywhere.
    written_live = folder / "sample.jsonl"
    written_live.write_bytes(b"".join([header.replace(b',"export":true', b""), *lines]))
    return [log, written_live, exported, *GOLDEN]
