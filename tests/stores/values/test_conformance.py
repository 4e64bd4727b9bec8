"""The three backends keep the contract, and the shipped suite is believed because it fails on those that do not."""

import asyncio
import tempfile
import unittest
from collections.abc import Mapping
from pathlib import Path

import pytest

from refold.events.core.errors import PersistenceError
from refold.stores import FileBackend, MemoryBackend, PersistenceBackend, SQLiteBackend, SQLiteStore
from refold.stores.values.backend import BATCH_CONCURRENCY
from refold.stores.values.conformance import PersistenceBackendConformance


class TestMemory(PersistenceBackendConformance):
    async def make_backend(self) -> PersistenceBackend:
        return MemoryBackend()


class TestFile(PersistenceBackendConformance):
    async def make_backend(self) -> PersistenceBackend:
        self.folder = tempfile.TemporaryDirectory()
        return FileBackend(Path(self.folder.name) / "not" / "there" / "yet")

    async def reopen_backend(self, backend: PersistenceBackend) -> PersistenceBackend:
        await backend.close()
        return FileBackend(backend.name)

    async def clean_up(self, backend: PersistenceBackend) -> None:
        self.folder.cleanup()


class TestSQLite(PersistenceBackendConformance):
    async def make_backend(self) -> PersistenceBackend:
        self.folder = tempfile.TemporaryDirectory()
        self.store = await SQLiteStore.open(Path(self.folder.name) / "events.db")
        return SQLiteBackend(self.store)

    async def reopen_backend(self, backend: PersistenceBackend) -> PersistenceBackend:
        await backend.close()
        await self.store.close()
        self.store = await SQLiteStore.open(backend.name)
        return SQLiteBackend(self.store)

    async def clean_up(self, backend: PersistenceBackend) -> None:
        await self.store.close()
        self.folder.cleanup()


class OnlyWhatMustBeGiven(PersistenceBackend):
    """The three methods, and all the rest by default."""

    def __init__(self) -> None:
        self.kept = MemoryBackend()

    async def save(self, key: str, value: bytes) -> None:
        await self.kept.save(key, value)

    async def load(self, key: str) -> bytes | None:
        return await self.kept.load(key)

    async def delete(self, key: str) -> None:
        await self.kept.delete(key)

    @property
    def name(self) -> str:
        return self.kept.name


class TestOnlyWhatMustBeGiven(PersistenceBackendConformance):
    lists_keys = False

    async def make_backend(self) -> PersistenceBackend:
        return OnlyWhatMustBeGiven()


class SharesCases(MemoryBackend):
    async def save(self, key: str, value: bytes) -> None:
        await super().save(key.lower() if key else key, value)

    async def load(self, key: str) -> bytes | None:
        return await super().load(key.lower() if key else key)

    async def delete(self, key: str) -> None:
        await super().delete(key.lower() if key else key)


class ListsSanitisedKeys(MemoryBackend):
    async def list_keys(self, prefix: str = "") -> list[str]:
        return [key.replace("/", "_") for key in await super().list_keys(prefix)]


class ListsInTheOrderOfSaving(MemoryBackend):
    async def list_keys(self, prefix: str = "") -> list[str]:
        return [key for key in self._values if key.startswith(prefix)]


class DeletesWithAnError(MemoryBackend):
    async def delete(self, key: str) -> None:
        if not await self.exists(key):
            raise PersistenceError(f"there is no {key!r} in {self.name}")
        await super().delete(key)


class TakesAnyKey(MemoryBackend):
    def _check(self, key: str) -> None:
        pass


class EmptyIsMissing(MemoryBackend):
    async def load(self, key: str) -> bytes | None:
        return await super().load(key) or None


class LoadsInAnyOrder(MemoryBackend):
    async def batch_load(self, keys: object) -> list[bytes | None]:
        return await super().batch_load(sorted(keys))  # type: ignore[call-overload]


class GivesUpABatch(MemoryBackend):
    async def batch_save(self, entries: Mapping[str, bytes]) -> None:
        for key, value in entries.items():
            await self.save(key, value)


class KeepsWhatIsDeleted(MemoryBackend):
    async def delete(self, key: str) -> None:
        await super().save(key, b"")


BROKEN = [
    SharesCases,
    ListsSanitisedKeys,
    ListsInTheOrderOfSaving,
    DeletesWithAnError,
    TakesAnyKey,
    EmptyIsMissing,
    LoadsInAnyOrder,
    GivesUpABatch,
    KeepsWhatIsDeleted,
]


@pytest.mark.parametrize("broken", BROKEN)
def test_the_suite_finds_a_backend_that_breaks_a_promise(broken: type[MemoryBackend]) -> None:
    class Suite(PersistenceBackendConformance):
        async def make_backend(self) -> PersistenceBackend:
            return broken()

    suite = Suite()
    failed, skipped = [], []
    for name in sorted(dir(suite)):
        if name.startswith("test_"):
            try:
                getattr(suite, name)()
            except unittest.SkipTest:  # What asks for a backend that survives its closing.
                skipped.append(name)
            except Exception:  # noqa: BLE001 - However it fails.
                failed.append(name)
    assert failed, f"nothing fails, and {skipped} were skipped"


async def test_a_batch_is_loaded_beside_each_other_and_within_bounds() -> None:
    under_way = most = 0

    class Counting(MemoryBackend):
        async def load(self, key: str) -> bytes | None:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0)
            under_way -= 1
            return await super().load(key)

    assert await Counting().batch_load(str(number) for number in range(200)) == [None] * 200
    assert most == BATCH_CONCURRENCY
