"""Signals for a main thread that waits for input.

The rule: a signal's handler is called at once, whatever the main thread waits for. Python calls handlers between two
steps of its own, so that a signal which comes just before a read begins to block would wait until there is something
to read. So another thread interrupts the read, with a signal that means nothing, until the handler has been called.
"""

import signal
import socket
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Final

INTERRUPTS: Final = signal.SIGURG
"""Means nothing, and is ignored where nobody handles it."""

ATTEMPTS_MAX: Final = 100
ATTEMPT_S: Final = 0.05
"""How long a handler may take to be called before the main thread is interrupted, and again."""


@contextmanager
def signals_handled(handlers: Mapping[signal.Signals, Callable[[], None]]) -> Generator[None, None, None]:
    """Call the handlers of signals in this thread, the main one, as long as the block lasts; they may raise."""
    called = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        called.set()
        handlers[signal.Signals(number)]()

    received, sends = socket.socketpair()
    sends.setblocking(False)
    before = {number: signal.signal(number, handle) for number in handlers}
    before[INTERRUPTS] = signal.signal(INTERRUPTS, lambda number, frame: None)
    fd_before = signal.set_wakeup_fd(sends.fileno(), warn_on_full_buffer=False)
    numbers = frozenset(map(int, handlers))
    main = threading.get_ident()
    watching = threading.Thread(target=_insist, args=(received, numbers, called, main), name="signals", daemon=True)
    watching.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(fd_before)
        sends.close()
        called.set()
        watching.join()
        received.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _insist(received: socket.socket, numbers: frozenset[int], called: threading.Event, main: int) -> None:
    """See to it that handlers are called, until nothing more can be received."""
    while data := received.recv(1024):
        if numbers.isdisjoint(data):
            continue
        for _ in range(ATTEMPTS_MAX):
            if called.wait(ATTEMPT_S):
                break
            signal.pthread_kill(main, INTERRUPTS)
        called.clear()
