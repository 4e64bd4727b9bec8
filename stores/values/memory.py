"""The persistence backend in memory: for tests, and for what need not outlive the process."""

from refold.events.core.errors import PersistenceError
from refold.stores.values.backend import PersistenceBackend, checked_key, checked_value


class MemoryBackend(PersistenceBackend):
    """Keeps values until the process ends."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._closed = False

    async def save(self, key: str, value: bytes) -> None:
        self._check(key)
        self._values[key] = checked_value(value, key, self.name)

    async def load(self, key: str) -> bytes | None:
        self._check(key)
        return self._values.get(key)

    async def delete(self, key: str) -> None:
        self._check(key)
        self._values.pop(key, None)

    async def list_keys(self, prefix: str = "") -> list[str]:
        self._require_open()
        return sorted(key for key in self._values if key.startswith(prefix))

    async def close(self) -> None:
        self._closed = True

    def _check(self, key: str) -> None:
        self._require_open()
        checked_key(key, self.name)

    def _require_open(self) -> None:
        if self._closed:
            raise PersistenceError(f"{self.name} is closed; make another one")
