"""What tests of the synchronous face share: calls in threads, and answers that any thread lets go."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from refold import CancellationToken, ModelRequest

T = TypeVar("T")


class InThread(Generic[T]):
    """A call in a thread of its own, and what it came to."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._values: list[T] = []
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._values.append(self._call())
        except BaseException as error:  # noqa: BLE001 - Kept for the thread that asks.
            self.error = error

    def wait(self) -> None:
        """Return when the call has ended, however it has."""
        self.thread.join()

    def result(self) -> T:
        """Return what the call returned, or raise what it raised."""
        self.wait()
        if self.error is not None:
            raise self.error
        return self._values[0]


class Held:
    """A model's answer that comes when it is let go, by any thread."""

    def __init__(self, answer: str = "let go") -> None:
        self.asked = threading.Event()
        self.gate = CancellationToken()
        self._answer = answer

    async def __call__(self, request: ModelRequest) -> str:
        self.asked.set()
        await self.gate.wait()
        return self._answer
