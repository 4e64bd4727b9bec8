"""Work that is done once per key, however often it is asked for.

    payments = Deduplicator("payments", ttl_s=86_400)
    receipt = await payments.run("invoice-17", pay, invoice)

A caller that asks while the work is under way waits for the same result; one that asks later, until `ttl_s` seconds
after it, gets the result that was kept. Without a runtime, this holds in the process; where a runtime has it among its
`objects`, it holds over restarts, since the claim is durable before the work begins, and the result before any caller
gets it.

What fails is not kept: every waiting caller gets the error, and the next one begins anew. Where the process dies in the
middle, it is not known how far the work came. Its key then stays taken until `ttl_s` after its beginning,
and `run` refuses it meanwhile; `forget` frees it.
"""

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import Literal, ParamSpec, cast

import msgspec

from refold.actors.hosting import Host
from refold.actors.kernel.clock import Clock
from refold.actors.kernel.errors import AskCycle
from refold.actors.kernel.reply import ActorFuture
from refold.actors.shell.messages import Performed
from refold.events.core.cleaning import clean_json, is_finite
from refold.events.core.content import Json
from refold.events.core.errors import CommandRejected, ConfigError, RefoldError, quoted
from refold.events.core.event import SECOND_US
from refold.events.core.ids import checked_identifier
from refold.events.kinds.deduplicator import (
    DEDUP_CORE,
    DEDUP_KIND,
    ClaimWork,
    DedupCommand,
    DedupEntry,
    DedupEvent,
    DedupState,
    FinishWork,
    ReleaseWork,
)
from refold.inspection.times import time_words
from refold.memory.stream_object import StreamObject

P = ParamSpec("P")

log = logging.getLogger("refold.resilience")

TTL_S_MAX = 10 * 365 * 86_400.0
"""Longest time that results are kept."""

_doing: ContextVar[tuple["_Execution", ...]] = ContextVar("doing", default=())
"""The work that this code is part of, outermost first: a caller that waits for one of these waits for itself."""


class KeyStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a deduplicator knows of a key."""

    status: Literal["new", "in_progress", "done"]
    result: Json = None
    """What was kept, where it is done."""
    since: int = 0
    """When the work began, or its result came, microseconds since the epoch, UTC."""
    until: int = 0
    """When that is forgotten, microseconds since the epoch, UTC."""


class _Execution:
    """Work under way, and how many wait for it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.loop = asyncio.get_running_loop()
        self.outcome: ActorFuture[Json] = ActorFuture()
        self.ended: ActorFuture[None] = ActorFuture()
        self.waiting = 0
        self.given_up = False
        self.task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        task = self.task
        if task is not None:
            with contextlib.suppress(RuntimeError):  # Its loop is closed, and the task gone with it.
                self.loop.call_soon_threadsafe(task.cancel)


class Deduplicator(StreamObject[DedupState, DedupCommand, DedupEvent]):
    """Does work once per key.

    Args:
        name: on a log, its stream is `dedup/<name>`.
        ttl_s: how long a result is kept, and the claim of work whose process died, seconds > 0.
        clock: tells the time before a runtime has it; None = the machine's.

    Raises:
        ConfigError: a value is outside its bounds.
    """

    kind = DEDUP_KIND
    core = DEDUP_CORE

    def __init__(self, name: str, *, ttl_s: float = 3_600.0, clock: Clock | None = None) -> None:
        super().__init__(name, clock)
        good = is_finite(ttl_s)
        if not (good and 0 < ttl_s <= TTL_S_MAX):
            raise ConfigError(
                f"the ttl_s of {self!r} must be a number of seconds above 0, up to {TTL_S_MAX:.0f}, not {quoted(ttl_s)}"
            )
        self._ttl_us = max(1, round(ttl_s * SECOND_US))
        self._running: dict[str, _Execution] = {}
        self._lock = threading.Lock()

    def begin_anew(self) -> None:
        """Do as `StreamObject.begin_anew`; what is under way belongs to a process that is gone."""
        super().begin_anew()
        self._running = {}

    async def run(
        self, key: str, function: Callable[P, Awaitable[object] | object], *args: P.args, **kwargs: P.kwargs
    ) -> Json:
        """Return the result of the work under `key`, which `function` does where it has not been done.

        The result is its JSON form, for the first caller as for all others. Who is cancelled leaves the others alone;
        when nobody waits any more, the work is cancelled.

        Raises:
            AskCycle: the work, or a task that it began, asks for its own result.
            CommandRejected: the work was begun by a process that died, and its outcome is not known. As `Unrecordable`
                where the result has no JSON form: the work was done, and its result is not kept.
            PersistenceError: the log failed, before the work was begun or when its result was to be kept.
            Exception: what `function` raises.
        """
        checked_identifier(key, "key of work")
        execution = await self._joined(key, lambda: function(*args, **kwargs))
        try:
            return await execution.outcome
        finally:
            with self._lock:
                execution.waiting -= 1
                execution.given_up = last = execution.waiting == 0 and not execution.outcome.ready()
            if last:
                execution.cancel()
                await execution.ended

    async def _joined(self, key: str, work: Callable[[], Awaitable[object] | object]) -> _Execution:
        """Return the execution that is under way, or a new one, with one more who waits."""
        doing = _doing.get()
        while True:
            with self._lock:
                execution = self._running.get(key)
                if execution in doing:
                    circle = [it.address for it in doing[doing.index(execution) :]]
                    raise AskCycle((*circle, circle[0]), "Let the work not ask for its own result")
                if execution is None:
                    execution = self._running[key] = _Execution(f"{self.stream}: {key}")
                    execution.task = execution.loop.create_task(
                        self._execute(key, work, execution), name=execution.address
                    )
                    execution.task.add_done_callback(partial(self._executed, key, execution))
                if not execution.given_up:
                    execution.waiting += 1
                    return execution
            await execution.ended

    async def _execute(self, key: str, work: Callable[[], Awaitable[object] | object], execution: _Execution) -> None:
        _doing.set((*_doing.get(), execution))
        try:
            execution.outcome.settle(await self._result(key, work))
        except BaseException as error:
            execution.outcome.settle(error=error)
            if isinstance(error, KeyboardInterrupt | GeneratorExit):
                raise  # All else, such as SystemExit, is for those who wait, and would end the loop from here.
        finally:
            self._executed(key, execution)

    def _executed(self, key: str, execution: _Execution, _task: "asyncio.Task[None] | None" = None) -> None:
        """Make room for another execution; also where other code cancels the task before its first step."""
        execution.outcome.settle(error=asyncio.CancelledError())
        with self._lock:
            if self._running.get(key) is execution:
                del self._running[key]
        execution.ended.settle(None)

    async def _result(self, key: str, work: Callable[[], Awaitable[object] | object]) -> Json:
        while not (await self._claim(key)).new:
            entry = await self._entry(key)
            if entry is not None and entry.result is not None:
                return cast("Json", msgspec.json.decode(entry.result))
            if entry is not None:
                raise CommandRejected(
                    f"{self.stream}: the work {key!r} was begun at {time_words(entry.since)} by a process that is gone "
                    f"and nobody knows how far it came; it is refused until {time_words(entry.until)}, or until "
                    "forget() is called"
                )
        try:
            value = work()
            if inspect.isawaitable(value):
                value = await value
            text = msgspec.json.encode(clean_json(value)).decode()
        except BaseException:
            await self._released(key)
            raise
        now = self.now_us()
        await self.perform(FinishWork(work_key=key, result=text, decided_at=now, until=now + self._ttl_us))
        return cast("Json", msgspec.json.decode(text))

    async def _claim(self, key: str) -> Performed:
        """Claim a key; a claim whose sender is cancelled meanwhile is given back."""
        now = self.now_us()
        claiming = self.perform(ClaimWork(work_key=key, decided_at=now, until=now + self._ttl_us))
        try:
            return await claiming
        except asyncio.CancelledError:
            if (await claiming).new:
                await self._released(key)
            raise

    async def _released(self, key: str) -> None:
        """Give a key back, while another error is on its way."""
        try:
            await self.perform(ReleaseWork(work_key=key))
        except RefoldError as error:
            log.warning("%s: the key %r stays taken until its claim lapses: %s", self.stream, key, error)

    async def _entry(self, key: str) -> DedupEntry | None:
        entry = await self.read(lambda state: state.entries.get(key))
        return entry if entry is not None and self.now_us() < entry.until else None

    def waiting(self, key: str) -> int:
        """Return how many wait for the work under `key` in this process."""
        with self._lock:
            execution = self._running.get(key)
            return 0 if execution is None else execution.waiting

    def status(self, key: str) -> ActorFuture[KeyStatus]:
        """Return what is known of a key: it is new, in progress, or has a result."""
        checked_identifier(key, "key of work")
        return self.read(lambda state: state.entries.get(key)).map(self._status_of)

    def _status_of(self, entry: DedupEntry | None) -> KeyStatus:
        if entry is None or entry.until <= self.now_us():
            return KeyStatus(status="new")
        if entry.result is None:
            return KeyStatus(status="in_progress", since=entry.since, until=entry.until)
        result = cast("Json", msgspec.json.decode(entry.result))
        return KeyStatus(status="done", result=result, since=entry.since, until=entry.until)

    def forget(self, key: str) -> ActorFuture[bool]:
        """Forget a key, so that its work is done again when it is asked for; return whether anything was known of it.

        Work that is under way goes on, and its result is kept.
        """
        checked_identifier(key, "key of work")
        return self.perform(ReleaseWork(work_key=key)).map(lambda performed: performed.new)

    async def attach(self, host: Host) -> None:
        """Live on the log, and record there what is known; what the log knows already does not change there."""
        is_first = self._ref is None
        await super().attach(host)
        before = self._before if is_first else None
        for key, entry in before.entries.items() if before is not None else ():
            if entry.result is None:
                command: DedupCommand = ClaimWork(work_key=key, decided_at=entry.since, until=entry.until)
            else:
                command = FinishWork(work_key=key, result=entry.result, decided_at=entry.since, until=entry.until)
            await self.perform(command)

    def _perform_before(self, command: DedupCommand) -> Performed:
        return self._plan_before(command)
