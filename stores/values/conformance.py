"""The contract of `PersistenceBackend` as tests that any backend can run.

    class TestMyBackend(PersistenceBackendConformance):
        async def make_backend(self) -> PersistenceBackend:
            return MyBackend()

That is all: pytest collects the subclass, no plugin is needed, and each test makes and closes its own backend and
event loop. A durable backend also gives `reopen_backend`; one that cannot list its keys sets `lists_keys = False`.
Read `refold.stores.values.backend` beside it: every sentence there has its test here.
"""

import asyncio
import contextlib
import functools
import unicodedata
import unittest
from collections.abc import Callable, Coroutine
from typing import ClassVar, TypeVar

from refold.events.core.errors import PersistenceError
from refold.stores.conformance import refused
from refold.stores.values.backend import KEY_BYTES_MAX, PersistenceBackend

ODD_KEYS = (
    *("a/b", "a_b", "a:b", "a\\b", "a b", "a%2fb", "a%2Fb", "a.b", "a..b", "ab", "a//b", "/a/b", "a/b/", "./a/b"),
    *("A/B", "Ab", "aB", "i", "I", "\u0131", "İ", "ß", "ss", "SS", "k", "K", "\u212a"),  # Kelvin sign
    *(".", "..", "/", "//", "../escaped", "../../escaped", "/etc/passwd", "~", "~root", "-", "-rf", "--", "."),
    *("\0", "a\0b", "a\0", "\n", "\r\n", " ", "  ", "\t", "a ", " a", "a.", ".a", "\x7f", "\x01", "\x1b[2J"),
    *("nul", "con.txt", "aux", "c:\\x", "*", "?", '"', "'", "';--", "%", "%%", "%_", "=", "=a", "#", "$HOME", "`id`"),
    *(unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é"), "𝄞", "\u202e", "\ufeff", "\uffff"),
    *("session/alice", "session/alice.json", "session", "lock", "wal", "key", "value", "index.json", ".new-abcdefgh"),
    *("x" * 139, "x" * 140, "x" * 141, "x" * 255, "x" * 256, "X" * 256, "é" * 100, "é" * 200, "/" * 300),
    *("x" * KEY_BYTES_MAX, "x" * (KEY_BYTES_MAX - 1), "\U0010ffff" * (KEY_BYTES_MAX // 4), "=" + "0" * 64, "5" * 64),
)
"""Keys that are legal, and that a backend could take for another, or for something else than a key."""

CONCURRENT = 40

Suite = TypeVar("Suite", bound="PersistenceBackendConformance")


def with_backend(
    test: Callable[[Suite, PersistenceBackend], Coroutine[None, None, None]],
) -> Callable[[Suite], None]:
    """Make a test that gets a new backend into one that needs neither an argument nor a pytest plugin."""

    @functools.wraps(test)
    def run(suite: Suite) -> None:
        async def run_with_backend() -> None:
            backend = await suite.make_backend()
            try:
                await test(suite, backend)
            finally:
                await backend.close()
                await suite.clean_up(backend)

        asyncio.run(run_with_backend())

    del run.__wrapped__  # pytest would take the backend for a fixture
    return run


class PersistenceBackendConformance:
    """Tests of the contract; subclass it, give `make_backend`, and let pytest collect the subclass."""

    lists_keys: ClassVar[bool] = True
    """Whether the backend gives `list_keys`."""

    async def make_backend(self) -> PersistenceBackend:
        """Return a new, empty backend."""
        raise NotImplementedError

    async def reopen_backend(self, backend: PersistenceBackend) -> PersistenceBackend:
        """Close `backend` and return another over the same values; only durable backends give this."""
        raise unittest.SkipTest(f"{type(backend).__name__} is not durable")

    async def clean_up(self, backend: PersistenceBackend) -> None:
        """Release what `make_backend` made beside the backend, which is closed."""

    # One value.

    @with_backend
    async def test_a_new_backend_is_empty(self, backend: PersistenceBackend) -> None:
        assert await backend.load("key") is None
        assert await backend.exists("key") is False
        assert await backend.batch_load(["key", "other"]) == [None, None]
        assert await self._keys(backend) == []
        assert backend.name

    @with_backend
    async def test_a_value_is_loaded_as_it_was_saved(self, backend: PersistenceBackend) -> None:
        values = (b"", b"\0", b"text", b"\r\n\n\r", b"\xff\xfe", bytes(range(256)), b"9\nkey", b"x" * 3_000_000)
        for value in values:
            await backend.save("key", value)
            loaded = await backend.load("key")
            assert type(loaded) is bytes
            assert loaded == value
            assert await backend.exists("key") is True
        assert await self._keys(backend) == ["key"]

    @with_backend
    async def test_a_deleted_value_is_gone_and_may_come_back(self, backend: PersistenceBackend) -> None:
        await backend.save("key", b"1")
        await backend.save("other", b"2")
        await backend.delete("key")
        assert await backend.load("key") is None
        assert await backend.exists("key") is False
        assert await self._keys(backend) == ["other"]
        await backend.save("key", b"3")
        assert await backend.batch_load(["key", "other"]) == [b"3", b"2"]

    @with_backend
    async def test_deleting_what_is_missing_is_no_error(self, backend: PersistenceBackend) -> None:
        await backend.delete("key")
        await backend.save("key", b"1")
        await backend.delete("key")
        await backend.delete("key")
        assert await self._keys(backend) == []

    # Keys.

    @with_backend
    async def test_keys_that_differ_never_share_a_value(self, backend: PersistenceBackend) -> None:
        keys = list(dict.fromkeys(ODD_KEYS))
        await backend.batch_save({key: str(place).encode() for place, key in enumerate(keys)})
        assert await backend.batch_load(keys) == [str(place).encode() for place in range(len(keys))]
        assert await self._keys(backend, keys) == sorted(keys)
        for place, key in enumerate(keys):
            await backend.delete(key)
            assert await backend.exists(key) is False
            if place % 25 == 0:
                assert await self._keys(backend, keys) == sorted(keys[place + 1 :])
        assert await self._keys(backend, keys) == []

    @with_backend
    async def test_what_cannot_be_a_key_is_refused_everywhere(self, backend: PersistenceBackend) -> None:
        for key in (
            "",
            "x" * (KEY_BYTES_MAX + 1),
            "é" * (KEY_BYTES_MAX // 2) + "x",
            "\ud800",
            "a\udfff",
            None,
            b"key",
            7,
        ):
            wrong: str = key  # type: ignore[assignment]
            for call in (backend.load, backend.exists, backend.delete):
                error = await refused(call(wrong), PersistenceError)
                assert backend.name in str(error)
            await refused(backend.save(wrong, b"1"), PersistenceError)
            await refused(backend.batch_load(["key", wrong]), PersistenceError)
            await refused(backend.batch_save({wrong: b"1"}), PersistenceError)
        assert await self._keys(backend) == []

    @with_backend
    async def test_what_is_no_bytes_is_refused_and_the_old_value_stays(self, backend: PersistenceBackend) -> None:
        await backend.save("key", b"old")
        for value in (None, "text", 7, bytearray(b"1"), memoryview(b"1"), [1]):
            error = await refused(backend.save("key", value), PersistenceError)  # type: ignore[arg-type]
            assert "'key'" in str(error)
            assert backend.name in str(error)
        assert await backend.load("key") == b"old"

    @with_backend
    async def test_keys_are_listed_in_order_and_by_prefix(self, backend: PersistenceBackend) -> None:
        if not self.lists_keys:
            error = await refused(backend.list_keys(), PersistenceError)
            assert "cannot list" in str(error)
            return
        keys = ["b", "a", "a/", "a/b", "a/c", "A/b", "a%", "a_", "ab", "\uffff", "\U0001f600", "\U0001f600x", "é"]
        await backend.batch_save(dict.fromkeys(keys, b"1"))
        for prefix in ("", "a", "a/", "a%", "a_", "A", "\U0001f600", "\uffff", "z", "\ud83d", "a/b", "a/bc"):
            assert await backend.list_keys(prefix) == sorted(key for key in keys if key.startswith(prefix))
        assert await backend.key_count() == len(keys)

    # Several at once.

    @with_backend
    async def test_a_batch_is_loaded_in_the_order_asked_for(self, backend: PersistenceBackend) -> None:
        await backend.batch_save({f"key {place}": str(place).encode() for place in range(40)})
        places = [*range(39, -1, -7), 500, 3, 3]
        loaded = await backend.batch_load(f"key {place}" for place in places)
        assert loaded == [str(place).encode() if place < 40 else None for place in places]
        assert await backend.batch_load([]) == []
        await backend.batch_save({})

    @with_backend
    async def test_a_batch_goes_on_beside_what_fails_in_it(self, backend: PersistenceBackend) -> None:
        wrong: bytes = "text"  # type: ignore[assignment]
        error = await refused(backend.batch_save({"a": b"1", "b": wrong, "c": b"3", "": b"4"}), PersistenceError)
        assert "'b'" in str(error)
        assert getattr(error, "__notes__", []) == ["1 more of the batch failed"]
        assert await backend.batch_load(["a", "b", "c"]) == [b"1", None, b"3"]

    @with_backend
    async def test_writers_of_one_key_leave_one_whole_value(self, backend: PersistenceBackend) -> None:
        values = [bytes([number]) * (20_000 + number) for number in range(CONCURRENT)]
        seen: list[bytes | None] = []

        async def read() -> None:
            for _ in range(CONCURRENT):
                seen.append(await backend.load("key"))

        await asyncio.gather(*(backend.save("key", value) for value in values), read(), read())
        assert set(seen) <= {None, *values}
        assert await backend.load("key") in values
        assert await self._keys(backend) == ["key"]

    @with_backend
    async def test_a_cancelled_save_is_settled_when_the_caller_is_told(self, backend: PersistenceBackend) -> None:
        expected = b"0"
        await backend.save("key", expected)
        for steps in range(1, 12):
            value = str(steps).encode()
            task = asyncio.ensure_future(backend.save("key", value))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):  # It may have been done before.
                await task
            settled = await backend.load("key")
            assert settled in (expected, value)
            for _ in range(5):
                await asyncio.sleep(0)
                assert await backend.load("key") == settled
            expected = settled or b""

    # The end.

    @with_backend
    async def test_a_closed_backend_may_be_closed_again(self, backend: PersistenceBackend) -> None:
        await backend.save("key", b"1")
        await backend.close()
        await backend.close()

    @with_backend
    async def test_a_durable_backend_keeps_everything_when_it_is_opened_again(
        self, backend: PersistenceBackend
    ) -> None:
        keys = list(dict.fromkeys(ODD_KEYS))
        await backend.batch_save({key: key.encode() for key in keys})
        await backend.delete(keys[0])
        again = await self.reopen_backend(backend)
        try:
            assert await again.batch_load(keys) == [None, *(key.encode() for key in keys[1:])]
            assert await self._keys(again, keys) == sorted(keys[1:])
            await again.save(keys[0], b"back")
            assert await again.load(keys[0]) == b"back"
        finally:
            await again.close()
            await self.clean_up(again)

    async def _keys(self, backend: PersistenceBackend, candidates: list[str] | None = None) -> list[str]:
        """Return the keys there are, sorted; where they cannot be listed, those of the candidates."""
        if self.lists_keys:
            keys = await backend.list_keys()
            assert await backend.key_count() == len(keys)
            return keys
        return sorted([key for key in candidates or ("key", "other") if await backend.exists(key)])
