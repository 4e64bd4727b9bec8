"""The order desk with a fault in it: what the harness must report, or it would not be worth its time.

python -P -m tests.conformance.killed_process.planted FAULT LOG PLAN WITNESS
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from refold import Tool
from refold.events.core.ids import PayloadHash
from refold.events.core.records import Appended, EncodedBatch, first_chain, next_chain
from refold.stores import SQLiteStore
from tests.conformance.killed_process.order_desk import TOOLS, work
from tests.conformance.killed_process.work_plan import Counter, WorkPlan, read_plan

LATE = 4
"""How many more appends are acknowledged before one is committed."""


class HastyStore(SQLiteStore):
    """Acknowledges what it is about to commit."""

    _positions = 0
    _last: asyncio.Task[None] | None = None
    _late: list[Sequence[EncodedBatch]] | None = None
    _heads: dict[str, tuple[int, bytes]]

    async def append(
        self, batches: Sequence[EncodedBatch], payloads: Mapping[PayloadHash, bytes] | None = None
    ) -> list[Appended]:
        """Say where the batches will be."""
        if payloads:  # Before the first batch; without them there would be no work to lose.
            return await super().append(batches, payloads)
        if self._late is None:
            self._late = []
            await self._find_end()
        appended: list[Appended] = []
        for batch in batches:
            _, chain = self._heads.get(batch.stream, (0, first_chain(batch.stream)))
            version = batch.expected_version + len(batch.events)
            chain = next_chain(chain, batch)
            self._heads[batch.stream] = (version, chain)
            position = self._positions + 1
            self._positions += len(batch.events)
            appended.append(Appended(stream=batch.stream, position=position, version=version, chain=chain))
        self._late.append(batches)
        if len(self._late) > LATE:
            self._last = asyncio.create_task(self._append_after(self._last, self._late.pop(0)))
        return appended

    async def close(self) -> None:
        """Do what was promised, and close."""
        if self._last is not None:
            await self._last
        for batches in self._late or ():
            await super().append(batches)
        await super().close()

    async def _find_end(self) -> None:
        self._heads = {head.stream: (head.version, head.chain) for head in await self.list_streams()}
        while page := await self.read_all(after_position=self._positions):
            self._positions = page[-1].position

    async def _append_after(self, before: asyncio.Task[None] | None, batches: Sequence[EncodedBatch]) -> None:
        if before is not None:
            await before
        await super().append(batches)


async def acknowledge_early(log: Path, plan: WorkPlan, witness: Path) -> None:
    """Acknowledge before the commit."""
    async with await HastyStore.open(log, durability=plan.durability) as store:
        await work(store, plan, witness)


async def run_twice(log: Path, plan: WorkPlan, witness: Path) -> None:
    """Run the body of a `once` call again after a crash."""

    def repeatable(tool: Tool[..., object]) -> Tool[..., object]:
        return replace(tool, spec=msgspec.structs.replace(tool.spec, effect="idempotent"))

    await work(log, plan, witness, [repeatable(tool) for tool in TOOLS])


async def lose_the_tail(log: Path, plan: WorkPlan, witness: Path) -> None:
    """Begin each life without what was committed and not yet moved from the WAL into the log."""
    log.with_name(f"{log.name}-wal").unlink(missing_ok=True)
    await work(log, plan, witness)


async def forget_keys(log: Path, plan: WorkPlan, witness: Path) -> None:
    """Send what an earlier life has sent under another key."""
    again = await asyncio.to_thread(log.exists)
    await work(log, _under_other_keys(plan) if again else plan, witness)


def _under_other_keys(plan: WorkPlan) -> WorkPlan:
    def other(counter: Counter) -> Counter:
        bursts = tuple(
            tuple(msgspec.structs.replace(it, key=f"{it.key}.again") for it in burst) for burst in counter.bursts
        )
        return msgspec.structs.replace(counter, bursts=bursts)

    return msgspec.structs.replace(plan, counters=tuple(map(other, plan.counters)))


FAULTS = {
    "acknowledge-early": acknowledge_early,
    "run-twice": run_twice,
    "lose-the-tail": lose_the_tail,
    "forget-keys": forget_keys,
}

if __name__ == "__main__":
    fault, log_path, plan_path, witness_path = sys.argv[1:]
    asyncio.run(FAULTS[fault](Path(log_path), read_plan(Path(plan_path)), Path(witness_path)))
