"""Bytes by string key: the contract of every persistence backend.

    class RedisBackend(PersistenceBackend):
        name = "redis"
        async def save(self, key: str, value: bytes) -> None: ...
        async def load(self, key: str) -> bytes | None: ...
        async def delete(self, key: str) -> None: ...

What Refold exports, such as checkpoints of sessions, goes through this protocol; nothing that a session needs to go on
does, since that is in the log. The shipped suite in `refold.stores.values.conformance` checks what the docstrings
below promise, on our backends (`MemoryBackend`, `FileBackend`, `SQLiteBackend`) and on yours.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, TypeVar

from refold.events.core.cleaning import error_words
from refold.events.core.errors import PersistenceError
from refold.stores.append_rules import BYTES_MAX

A = TypeVar("A")
T = TypeVar("T")

KEY_BYTES_MAX: Final = 2048
"""Longest key, in UTF-8 bytes."""

VALUE_BYTES_MAX: Final = BYTES_MAX
"""Longest value, in bytes."""

BATCH_CONCURRENCY: Final = 64
"""So many values of a batch are under way at once."""

_KEY_CHARACTERS_SHOWN = 80


class PersistenceBackend(ABC):
    """Keeps bytes by key. `save`, `load` and `delete` must be given; the rest follows from them where it can.

    A key is any text of 1 to `KEY_BYTES_MAX` UTF-8 bytes: slashes, dots and NUL mean nothing in it, and keys that
    differ, if only in case or in how an accent is written, are different keys. All methods may be called at the same
    time; those for one key take effect one after another. None of them blocks the event loop.
    """

    @property
    def name(self) -> str:
        """What errors call this backend: a path, or the name of its class."""
        return type(self).__name__

    @abstractmethod
    async def save(self, key: str, value: bytes) -> None:
        """Keep `value` under `key`, in place of what was there; on return it is as durable as the backend promises.

        A load meanwhile, or after a crash, gives the old value or the new one, whole. A caller who is
        cancelled gets CancelledError once the outcome is settled.

        Raises:
            PersistenceError: the key or the value cannot be kept (`checked_key`, `checked_value`), or the backend
                failed; the message names the key and the place, and the old value is still there unless
                `outcome_unknown` is set.
        """

    @abstractmethod
    async def load(self, key: str) -> bytes | None:
        """Return the value of `key`, or None if there is none.

        Raises:
            PersistenceError: the key cannot be one, or what is there cannot be read; names the key and the place.
        """

    @abstractmethod
    async def delete(self, key: str) -> None:
        """Forget the value of `key`; where there is none, nothing happens.

        Raises:
            PersistenceError: the key cannot be one, or its value could not be deleted; names the key and the place.
        """

    async def batch_save(self, entries: Mapping[str, bytes]) -> None:
        """Save several values beside each other; each is kept or not for itself.

        Raises:
            PersistenceError: as `save`, for the first of them that could not be kept; the others were tried all the
                same, and a note on the error says how many more failed.
        """
        given = dict(entries)
        await _beside_each_other(lambda entry: self.save(*entry), given.items())

    async def batch_load(self, keys: Iterable[str]) -> list[bytes | None]:
        """Return the values of several keys, in their order, None for each that has none; a key may repeat.

        Raises:
            PersistenceError: as `load`, for the first that could not be read.
        """
        return await _beside_each_other(self.load, keys)

    async def exists(self, key: str) -> bool:
        """Return whether there is a value under `key`.

        Raises:
            PersistenceError: as `load`.
        """
        return await self.load(key) is not None

    async def list_keys(self, prefix: str = "") -> list[str]:
        """Return the keys that begin with `prefix`, as they were given to `save`, in order of code points.

        Raises:
            PersistenceError: the keys cannot be read, or this backend cannot list them.
        """
        raise PersistenceError(
            f"{self.name} cannot list its keys (prefix {shown(prefix)}); give {type(self).__name__} a list_keys"
        )

    async def key_count(self) -> int:
        """Return how many keys there are.

        Raises:
            PersistenceError: as `list_keys`.
        """
        return len(await self.list_keys())

    async def close(self) -> None:  # noqa: B027 - Most backends hold nothing.
        """Release threads and connections once what is under way has ended; a second call does nothing.

        What the backend keeps stays, and nothing else may be called afterwards.
        """


async def save_in(backend: PersistenceBackend, key: str, value: bytes) -> None:
    """Save a value in a backend that may be the user's own."""
    try:
        await backend.save(key, value)
    except PersistenceError:
        raise
    except Exception as error:
        said = error_words(error)
        place = type(backend).__name__  # Its name is user code too.
        failed = f"the value of {shown(key)} could not be saved in {place}: {said}"
        raise PersistenceError(failed, outcome_unknown=True) from error


def checked_key(key: object, place: str) -> bytes:
    """Return a key as UTF-8 bytes.

    Args:
        key: the caller's.
        place: the backend's name, for the error.

    Raises:
        PersistenceError: it is not a string, empty, too long, or holds a lone surrogate, which UTF-8 has not.
    """
    if not isinstance(key, str):
        raise PersistenceError(f"a key of {place} must be a string, not {type(key).__name__}")
    if not key:
        raise PersistenceError(f"a key of {place} must not be empty")
    try:
        encoded = key.encode()
    except UnicodeEncodeError:
        raise PersistenceError(f"the key {shown(key)} of {place} holds a lone surrogate; use valid Unicode") from None
    if len(encoded) > KEY_BYTES_MAX:
        raise PersistenceError(
            f"the key {shown(key)} of {place} has {len(encoded):,} UTF-8 bytes; {KEY_BYTES_MAX:,} are accepted"
        )
    return encoded


def checked_value(value: object, key: str, place: str) -> bytes:
    """Return a value that can be kept.

    Raises:
        PersistenceError: it is not bytes, or longer than `VALUE_BYTES_MAX`; names the key and the place.
    """
    if not isinstance(value, bytes):
        raise PersistenceError(f"the value of {shown(key)} for {place} must be bytes, not {type(value).__name__}")
    if len(value) > VALUE_BYTES_MAX:
        raise PersistenceError(
            f"the value of {shown(key)} for {place} has {len(value):,} bytes; {VALUE_BYTES_MAX:,} are accepted"
        )
    return value


def shown(key: str) -> str:
    return repr(key) if len(key) <= _KEY_CHARACTERS_SHOWN else f"{key[:_KEY_CHARACTERS_SHOWN]!r}…"


async def _beside_each_other(work: Callable[[A], Awaitable[T]], items: Iterable[A]) -> list[T]:
    """Do `work` for all items, `BATCH_CONCURRENCY` at once, and return the results in the order of the items."""
    room = asyncio.Semaphore(BATCH_CONCURRENCY)

    async def one(item: A) -> T:
        async with room:
            return await work(item)

    outcomes = await asyncio.gather(*map(one, items), return_exceptions=True)
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if errors:
        if len(errors) > 1:
            errors[0].add_note(f"{len(errors) - 1} more of the batch failed")
        raise errors[0]
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
