"""A child process that replays streams for its parent, and the parent's side of it.

The child is forked, so that it has the agent that its parent has, whichever way that was made: an object of a test as
well as an attribute of a module. It reads the log through its parent, which answers. The rule: what the code does to
its process, the parent survives: a child that is silent for too long, or ends, is replaced by one that does not run the
same piece of code again, and the reason is told.
"""

import asyncio
import gc
import mmap
import os
import pickle
import signal
import socket
import struct
import sys
import tempfile
import traceback
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, NoReturn, TypeVar, cast

import msgspec

from refold.events.core.errors import RefoldError
from refold.events.core.ids import PayloadHash
from refold.events.core.records import StoredEvent
from refold.replay.shadow.acts import refuse_acts
from refold.replay.shadow.confinement import confine
from refold.stores.event_store import EventStore
from refold.tools.dry_run import begin_dry_runs, no_answer_within

J = TypeVar("J")

Gone = dict[str, str]
"""Places of code that are not run again, and why."""

Work = Callable[[Any, Gone], Awaitable[Any]]
"""Does one job; adds to the places that are gone."""

PAGE_BYTES = 4096

JOBS_AHEAD = 8
"""So many jobs per process are taken before the first of them is done."""

EVENTS = frozenset({"read_all", "read_stream"})
"""What of a log gives events, which cross in a form that is quicker than Python's own."""

_encode = msgspec.msgpack.Encoder().encode
_events = msgspec.msgpack.Decoder(list[StoredEvent])

_LENGTH = struct.Struct("!I")
_COUNT = struct.Struct("=Q")
_PLACE = struct.Struct("=QH")


class Page:
    """Memory of both processes: which piece of code the child runs now, and how far it is with its job."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, PAGE_BYTES)
        self._told = 0

    def tell(self, place: str) -> None:
        """Tell which code runs from now on; empty = none."""
        self._told += 1
        data = place.encode(errors="replace")[: PAGE_BYTES - _COUNT.size - _PLACE.size]
        begin = _COUNT.size + _PLACE.size
        self._memory[begin : begin + len(data)] = data
        _PLACE.pack_into(self._memory, _COUNT.size, self._told, len(data))

    def count(self, events: int) -> None:
        _COUNT.pack_into(self._memory, 0, events)

    @property
    def place(self) -> tuple[int, str]:
        """How often it was told which code runs, and which does."""
        told, length = _PLACE.unpack_from(self._memory, _COUNT.size)
        begin = _COUNT.size + _PLACE.size
        return told, self._memory[begin : begin + length].decode(errors="replace")

    @property
    def events(self) -> int:
        return int(_COUNT.unpack_from(self._memory, 0)[0])


Begin = Callable[[EventStore, Page], Work]
"""Makes, in the child, what does jobs; it tells the page which code it runs, and how far it is."""


class _Lost(Exception):
    """A child is gone, or was silent for too long and was ended."""

    def __init__(self, place: str, why: str) -> None:
        super().__init__(why)
        self.place = place
        self.why = why


class Shadow:
    """A child process, and what it is asked.

    Args:
        answer_s: how many seconds a piece of code may take there.
    """

    def __init__(self, store: EventStore, begin: Begin, answer_s: float) -> None:
        self._store = store
        self._answer_s = answer_s
        self.page = Page()
        self._ours, theirs = socket.socketpair()
        tempfile.gettempdir()  # What Python does once and writes for is done beforehand.
        for stream in (sys.stdout, sys.stderr):
            with suppress(ValueError, OSError, AttributeError):  # Closed, or none.
                stream.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Of threads, of which the child needs none.
            self._pid = os.fork()
        if self._pid == 0:
            _live(theirs.fileno(), store, begin, self.page)
        theirs.close()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def do(self, job: object, gone: Mapping[str, str], reads: Callable[[], object]) -> tuple[Any, Gone]:
        """Return what comes of a job, and the places that are gone after it.

        Args:
            reads: called whenever the child reads the log.

        Raises:
            RefoldError: it raised that.
            _Lost: the child is gone.
        """
        if self._streams is None:
            self._streams = await asyncio.open_connection(sock=self._ours)
        _, writer = self._streams
        doing = asyncio.ensure_future(self._serve((job, gone), reads))
        try:
            place = await self._watch(doing)
        finally:
            if not doing.done():
                doing.cancel()
                await asyncio.wait([doing])
        if place is not None:
            self._kill()
            raise _Lost(place, no_answer_within(self._answer_s))
        try:
            return doing.result()
        except (EOFError, ConnectionError) as error:
            writer.close()
            status = self._wait()
            how = f"signal {-status}" if status < 0 else f"exit code {status}"
            raise _Lost(self.page.place[1], f"it ended its process ({how})") from error

    async def _watch(self, doing: "asyncio.Future[Any]") -> str | None:
        """Return when a job is done; or the place of the code that is silent for too long."""
        seen = self.page.place
        while True:
            await asyncio.wait([doing], timeout=2 * self._answer_s + 0.1)
            if doing.done():
                return None
            now = self.page.place
            if now == seen and now[1]:
                return now[1]
            seen = now

    async def _serve(self, job: object, reads: Callable[[], object]) -> tuple[Any, Gone]:
        assert self._streams is not None
        reader, writer = self._streams
        message: Any = job
        while True:
            data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
            writer.write(_LENGTH.pack(len(data)) + data)
            await writer.drain()
            (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            kind, *rest = pickle.loads(await reader.readexactly(length))  # noqa: S301 - Of our own process.
            if kind == "done":
                return rest[0], rest[1]
            if kind == "failed":
                raise rest[0]
            reads()
            method, arguments, options = rest
            try:
                answer = await getattr(self._store, method)(*arguments, **options)
                message = (True, _encode(answer) if method in EVENTS else answer)
            except Exception as error:  # noqa: BLE001 - Raised in the child.
                message = (False, error)

    def end(self) -> None:
        """End the child, before it is left without its parent and tells of that."""
        self._kill()
        if self._streams is not None:
            self._streams[1].close()
        self._ours.close()

    def _kill(self) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            self._wait()

    def _wait(self) -> int:
        pid, self._pid = self._pid, 0
        try:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if pid else 0
        except ChildProcessError:  # The application waits for all children itself.
            return 0


class LogOfParent:
    """The log in a child, which its parent reads."""

    def __init__(self, pipe: int, store: EventStore) -> None:
        self._pipe = pipe
        self._store = store
        self.name = store.name

    async def read_payloads(self, hashes: Iterable[PayloadHash]) -> dict[PayloadHash, bytes]:
        wanted = list(hashes)
        read: dict[PayloadHash, bytes] = await self.__getattr__("read_payloads")(wanted) if wanted else {}
        return read

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        getattr(self._store, method)  # A store of the application need not have all of them.

        async def asked(*arguments: object, **options: object) -> Any:
            return self.call(method, *arguments, **options)

        return asked

    def call(self, method: str, *arguments: object, **options: object) -> Any:
        """Return what a method of the parent's returns, or raise what it raises; nothing else runs meanwhile."""
        _send(self._pipe, ("read", method, arguments, options))
        done, answer = _receive(self._pipe)
        if not done:
            raise answer
        return _events.decode(answer) if method in EVENTS else answer


def _live(pipe: int, store: EventStore, begin: Begin, page: Page) -> NoReturn:
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent's matter.
        # The output of its parent is a report; a stream of its own has no text of the parent's in it.
        sys.stdout = sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        refuse_acts(confine({pipe}))
        gc.freeze()  # So that nothing of the parent's is finalized here.
        begin_dry_runs()
        asyncio.run(_do_jobs(pipe, begin(cast("EventStore", LogOfParent(pipe, store)), page)))
    except EOFError:
        os._exit(0)
    except SystemExit as error:
        os._exit(error.code if isinstance(error.code, int) else 1)
    except BaseException:  # noqa: BLE001 - It must not go on as its parent.
        traceback.print_exc()
    os._exit(1)


async def _do_jobs(pipe: int, work: Work) -> None:
    while True:
        job, gone = _receive(pipe)
        try:
            _send(pipe, ("done", await work(job, gone), gone))
        except Exception as error:  # noqa: BLE001 - Raised by the parent.
            _send(pipe, ("failed", _sendable(error)))


def _sendable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - Our own.
    except Exception:  # noqa: BLE001 - An error of the application's own may be anything.
        return RefoldError("".join(traceback.format_exception(error)))
    return error


def _send(pipe: int, message: object) -> None:
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    view = memoryview(_LENGTH.pack(len(data)) + data)
    while view:
        view = view[os.write(pipe, view) :]


def _receive(pipe: int) -> Any:
    (length,) = _LENGTH.unpack(_read(pipe, _LENGTH.size))
    return pickle.loads(_read(pipe, length))  # noqa: S301 - Of our own parent.


def _read(pipe: int, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = os.read(pipe, length - len(data))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


async def in_shadows(
    store: EventStore,
    jobs: AsyncIterator[J],
    begin: Begin,
    *,
    processes: int,
    answer_s: float,
    told: Callable[[int, int], object] | None,
) -> AsyncGenerator[Any, None]:
    """Give what comes of each job, in their order, however many processes do them.

    Args:
        answer_s: how many seconds a piece of code may take there.
        told: called with how many jobs were begun and are not given yet, and how many events of them are done.

    Raises:
        RefoldError: the first job that failed raised that, or a child ended for no reason that is known.
    """
    loop = asyncio.get_running_loop()
    results: dict[int, asyncio.Future[Any]] = {}
    gone: Gone = {}
    taking, room = asyncio.Lock(), asyncio.Semaphore(JOBS_AHEAD * processes)
    taken = 0
    events: dict[int, int] = {}

    def tell(number: int, page: Page) -> None:
        events[number] = page.events
        if told is not None:
            told(len(events), sum(events.values()))

    def result_of(number: int) -> asyncio.Future[Any]:
        if number not in results:
            results[number] = loop.create_future()
        return results[number]

    async def do_jobs() -> None:
        nonlocal taken
        shadow: Shadow | None = None
        try:
            while True:
                await room.acquire()
                async with taking:
                    job = await anext(jobs, None)
                    if job is None:
                        return
                    number = taken
                    taken += 1
                result = result_of(number)
                while not result.done():
                    shadow = shadow or Shadow(store, begin, answer_s)
                    known = dict(gone)
                    try:
                        came, now_gone = await shadow.do(job, known, partial(tell, number, shadow.page))
                    except _Lost as lost:
                        shadow.end()
                        shadow = None
                        if not lost.place or lost.place in known:
                            at = f" at {lost.place!r}" if lost.place else ""
                            result.set_exception(RefoldError(f"the replay's process is gone{at}: {lost.why}"))
                        gone[lost.place] = lost.why
                    except Exception as error:  # noqa: BLE001 - Raised where results are read, in their order.
                        result.set_exception(error)
                    else:
                        gone.update(now_gone)
                        result.set_result(came)
        finally:
            if shadow is not None:
                shadow.end()

    workers = [asyncio.ensure_future(do_jobs()) for _ in range(processes)]
    all_done = asyncio.gather(*workers)
    try:
        for number in count():
            result = result_of(number)
            await asyncio.wait([result, all_done], return_when=asyncio.FIRST_COMPLETED)
            if not result.done():
                await all_done
                if number >= taken:
                    return
            came = await results.pop(number)
            events.pop(number, None)
            yield came
            room.release()
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(all_done, *workers, return_exceptions=True)
        for result in results.values():
            if not result.cancel():
                result.exception()  # Retrieved, so that asyncio does not log it.
