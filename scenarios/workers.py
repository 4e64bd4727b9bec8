"""Work in several processes of this machine, with outcomes in order, and the signals that end it.

    for outcome in done_in_processes(square, iter([1, 2, 3]), jobs=2):
        print(outcome)

The rules: no process is left behind. When the work is over, given up, interrupted or fails, its processes are gone
before the caller goes on; and they end when the process ends that began them, even if it was killed. What a process
dies of is told, and never waited for.

Ctrl-C and SIGTERM come as a KeyboardInterrupt, which neither a tool nor an actor contains. asyncio's own handling would
only ask a task to end, and forget it where the task is over first.
"""

import os
import signal
import threading
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, Generic, TypeVar

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")

TASKS_AHEAD = 3
"""So many tasks for each process may be begun or done before the first outcome of them is known."""

END_S = 5.0
"""So long a process that has nothing to do may take to end before it is killed."""


class WorkerDied(Exception):
    """A process ended in the middle of a task, with an exit code; if negative, that is the signal that killed it."""

    def __init__(self, task: object, exit_code: int | None) -> None:
        self.task = task
        self.exit_code = exit_code
        super().__init__(f"the process that was doing {task!r:.200} {self.how()}")

    def how(self) -> str:
        """Return the words for how it ended."""
        if self.exit_code is None or self.exit_code >= 0:
            return f"ended with exit code {self.exit_code}"
        try:
            return f"was killed by {signal.Signals(-self.exit_code).name}"
        except ValueError:
            return f"was killed by signal {-self.exit_code}"


def done_in_processes(
    work: Callable[[Task], Outcome], tasks: Iterator[Task], jobs: int
) -> Generator[Outcome, None, None]:
    """Yield what comes of each task, in their order; close it, or exhaust it, to have the processes ended.

    Args:
        work: a function of a module, which each process imports.
        tasks: may be endless; a task is taken from it shortly before it is begun.
        jobs: most processes at a time, >= 1; begun only as there are tasks for them.

    Raises:
        WorkerDied: a process ended meanwhile.
        Exception: what the work raises.
    """
    workers: list[_Worker[Task, Outcome]] = []
    done: dict[int, Outcome] = {}
    taken = given = 0
    is_over = False
    try:
        while True:
            while taken - given < jobs * TASKS_AHEAD:
                idle = next((worker for worker in workers if worker.place is None), None)
                if idle is None and len(workers) == jobs:
                    break
                try:
                    task = next(tasks)
                except StopIteration:
                    break
                if idle is None:
                    workers.append(idle := _Worker(work))
                idle.begin(taken, task)
                taken += 1
            if given == taken:
                is_over = True
                return
            while given in done:
                yield done.pop(given)
                given += 1
            busy = {worker.connection: worker for worker in workers if worker.place is not None}
            for ready in wait(list(busy)) if busy and given < taken else ():
                assert isinstance(ready, Connection)
                place, outcome = busy[ready].outcome()
                done[place] = outcome
    finally:
        for worker in workers:
            worker.end(now=not is_over)


class _Worker(Generic[Task, Outcome]):
    def __init__(self, work: Callable[[Task], Outcome]) -> None:
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, work), daemon=True)
        with _ctrl_c_waits():
            self.process.start()
        theirs.close()
        self.place: int | None = None
        """Of the task that it does."""
        self.task: Task | None = None

    def begin(self, place: int, task: Task) -> None:
        self.place, self.task = place, task
        try:
            self.connection.send(task)
        except OSError:
            raise self._death() from None

    def outcome(self) -> tuple[int, Outcome]:
        place = self.place
        assert place is not None
        try:
            outcome, error = self.connection.recv()
        except (EOFError, OSError):
            raise self._death() from None
        self.place = None
        if error is not None:
            raise error
        return place, outcome

    def _death(self) -> WorkerDied:
        self.process.join()
        return WorkerDied(self.task, self.process.exitcode)

    def end(self, *, now: bool) -> None:
        self.connection.close()
        if not now:
            self.process.join(END_S)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()


@contextmanager
def _ctrl_c_waits() -> Generator[None]:
    """Leave Ctrl-C to this process: one that begins now is not told of it, neither now nor later."""
    resource_tracker.ensure_running()  # When that begins a process of its own, it lets the signal through.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(connection: Connection, work: Callable[[Any], object]) -> None:
    threading.Thread(target=_end_with_parent, name="end with the process that began this one", daemon=True).start()
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        try:
            answer: tuple[object, Exception | None] = (work(task), None)
        except Exception as error:  # noqa: BLE001 - It is raised where the work is waited for.
            answer = (None, error)
        connection.send(answer)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class Interrupted(KeyboardInterrupt):
    """A signal came."""


class Interruption:
    """Which signal came, if any."""

    def __init__(self) -> None:
        self.exit_code: int | None = None
        """With which a command leaves, as a shell says it: 130 or 143; None = no signal came."""

    def come(self, number: int, frame: FrameType | None) -> None:
        """Take a signal; a handler for `signal.signal`."""
        self.exit_code = 128 + number
        warnings.filterwarnings("ignore", "coroutine .* was never awaited")  # What is cut off here need not be told.
        raise Interrupted

    def check(self) -> None:
        """Raise what was raised before, where something has let it go by, such as a finaliser.

        Raises:
            KeyboardInterrupt: a signal came.
        """
        if self.exit_code is not None:
            raise Interrupted


@contextmanager
def interruptible() -> Generator[Interruption]:
    """Have both signals raise KeyboardInterrupt within the block, where it is in the main thread."""
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    before = {number: signal.signal(number, interruption.come) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with warnings.catch_warnings():
            yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
