"""The journal: group commit, and what each caller is told, for each way in which the store fails."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from refold.actors import Journal
from refold.actors.shell.journal import GROUP_BATCHES_MAX, GROUP_BYTES_MAX
from refold.events.core.errors import PersistenceError, WrongExpectedVersion
from refold.events.core.ids import PayloadHash, StreamName
from refold.events.core.records import Appended, EncodedBatch
from refold.events.model.configuration import payload_hash
from refold.stores import InMemoryStore


def batch(stream: str, expected_version: int = 0, *, key: str = "effect") -> EncodedBatch:
    return EncodedBatch(
        stream=StreamName(stream), expected_version=expected_version, at=1, events=(b'{"type":"x"}',), pending=(key,)
    )


class Gated(InMemoryStore):
    """Lets each append in only when it is told to, and can be told to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.begun = asyncio.Event()
        self.groups: list[list[str]] = []
        self.failures: list[BaseException | None] = []
        self.answers: list[Any] = []

    async def append(
        self, batches: Sequence[EncodedBatch], payloads: Mapping[PayloadHash, bytes] | None = None
    ) -> list[Appended]:
        self.groups.append([str(item.stream) for item in batches])
        self.begun.set()
        await self.gate.wait()
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
        appended = await super().append(batches, payloads)
        return self.answers.pop(0) if self.answers else appended


class Beginning(Gated):
    """Begins appends by itself."""

    def begin_append(
        self,
        batches: Sequence[EncodedBatch],
        payloads: Mapping[PayloadHash, bytes],
        done: Callable[[list[Appended] | BaseException], object],
    ) -> bool:
        if self.refuses_to_begin:
            self.refuses_to_begin = False
            return False
        appending = asyncio.create_task(self.append(batches, payloads))
        appending.add_done_callback(lambda task: done(task.exception() or task.result()))
        return True

    refuses_to_begin = False


class Hesitating(Beginning):
    """Has to wait for something before its first append."""

    refuses_to_begin = True


@pytest.fixture(params=[Gated, Beginning, Hesitating])
def store(request: pytest.FixtureRequest) -> Gated:
    made = request.param()
    assert isinstance(made, Gated)
    return made


async def started(journal: Journal, *batches: EncodedBatch) -> list[asyncio.Task[Any]]:
    """Begin an append of each batch, in order, and return the tasks."""
    tasks = [asyncio.create_task(journal.append([item])) for item in batches]
    await asyncio.sleep(0)
    return tasks


async def test_appends_that_arrive_while_one_is_written_share_the_next_transaction(store: Gated) -> None:
    journal = Journal(store)
    first = await started(journal, batch("s/0"))
    await store.begun.wait()
    others = await started(journal, *(batch(f"s/{number}") for number in range(1, 6)))
    store.gate.set()
    places = [appended for (appended,) in await asyncio.gather(*first, *others)]

    assert store.groups == [["s/0"], ["s/1", "s/2", "s/3", "s/4", "s/5"]]
    assert [place.stream for place in places] == [f"s/{number}" for number in range(6)]
    assert [place.position for place in places] == [1, 2, 3, 4, 5, 6]
    assert journal.commits == 2


async def test_an_observer_that_fails_costs_no_append_its_answer() -> None:
    class Failing:
        counts = True

        def written(self, batches: object, appended: object) -> None:
            raise LookupError("a fault of its own")

        not_written = written

    store = Beginning()
    journal = Journal(store)
    journal.observer = Failing()
    first = await started(journal, batch("s/0"))
    await store.begun.wait()
    others = await started(journal, batch("s/1"))
    store.gate.set()
    assert [place.position for (place,) in await asyncio.gather(*first, *others)] == [1, 2]
    await journal.close()


async def test_a_transaction_takes_nothing_more_once_it_has_bytes_enough(store: Gated) -> None:
    journal = Journal(store)
    first = await started(journal, batch("s/0"))
    await store.begun.wait()
    half = {payload_hash(data): data for data in [bytes(GROUP_BYTES_MAX // 2)]}
    others = [asyncio.create_task(journal.append([batch(f"s/{number}")], half)) for number in range(1, 5)]
    await asyncio.sleep(0)
    store.gate.set()
    await asyncio.gather(*first, *others)

    assert store.groups == [["s/0"], ["s/1", "s/2"], ["s/3", "s/4"]]
    await journal.close()


async def test_a_wrong_expected_version_in_a_group_fails_only_its_own_append(store: Gated) -> None:
    journal = Journal(store)
    first = await started(journal, batch("s/0"))
    await store.begun.wait()
    others = await started(journal, batch("s/1"), batch("s/2", 7), batch("s/3"))
    store.gate.set()
    outcomes = await asyncio.gather(*first, *others, return_exceptions=True)

    assert isinstance(outcomes[2], WrongExpectedVersion)
    assert (outcomes[2].stream, outcomes[2].expected, outcomes[2].actual) == ("s/2", 7, 0)
    assert [isinstance(outcome, list) for outcome in outcomes] == [True, True, False, True]


@pytest.mark.parametrize("failure", [None, PersistenceError("disk full")])
async def test_a_caller_that_is_cancelled_is_told_after_the_outcome_is_known(
    store: Gated, failure: Exception | None
) -> None:
    journal = Journal(store)
    store.failures = [failure]
    (task,) = await started(journal, batch("s/1"))
    await store.begun.wait()
    told: list[bool] = []
    for _ in range(2):
        task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        told.append(task.done())
    store.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told == [False, False]
    head = await store.head("s/1")
    assert (head.version if head else 0) == (1 if failure is None else 0)


@pytest.mark.parametrize("rounds", range(8))
async def test_a_caller_cancelled_at_any_moment_ends(rounds: int) -> None:
    journal = Journal(InMemoryStore())
    task = asyncio.create_task(journal.append([batch("s/1")]))
    for _ in range(rounds):
        await asyncio.sleep(0)
    task.cancel()
    ended, _ = await asyncio.wait([task], timeout=5)
    assert ended
    await journal.close()


async def test_a_caller_cancelled_in_the_moment_of_the_outcome_ends(store: Gated) -> None:
    journal = Journal(store)
    (task,) = await started(journal, batch("s/1"))
    await store.begun.wait()
    loop = asyncio.get_running_loop()
    store.gate.set()
    loop.call_soon(task.cancel)
    loop.call_soon(lambda: loop.call_soon(task.cancel))
    ended, _ = await asyncio.wait([task], timeout=5)
    assert ended


async def test_an_idle_journal_has_no_task() -> None:
    before = asyncio.all_tasks()
    journal = Journal(InMemoryStore())
    await journal.append([batch("s/1")])
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_closing_waits_for_what_was_accepted_and_refuses_the_rest(store: Gated) -> None:
    journal = Journal(store)
    (task,) = await started(journal, batch("s/1"))
    closing = asyncio.create_task(journal.close())
    await store.begun.wait()
    with pytest.raises(PersistenceError, match="closed"):
        await journal.append([batch("s/2")])
    assert not closing.done()
    store.gate.set()
    await closing
    assert task.done()
    assert len(await task) == 1


async def test_a_transaction_takes_a_bounded_number_of_batches(store: Gated) -> None:
    journal = Journal(store)
    tasks = await started(journal, *(batch(f"s/{number}") for number in range(GROUP_BATCHES_MAX + 88)))
    store.gate.set()
    await asyncio.gather(*tasks)
    assert [len(group) for group in store.groups] == [GROUP_BATCHES_MAX, 88]


async def test_a_writer_that_is_cancelled_before_its_first_step_keeps_nobody_waiting() -> None:
    journal = Journal(InMemoryStore())
    appending = asyncio.create_task(journal.append([batch("session/a", 0)]))
    await asyncio.sleep(0)
    (writer,) = (task for task in asyncio.all_tasks() if task.get_name() == "journal")
    writer.cancel()
    assert len(await appending) == 1
    await journal.close()
