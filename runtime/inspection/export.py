"""`export_log`: a log as JSON Lines, whole or some of its streams, to any writer or to a new file; or a conversation.

Read `refold.stores.jsonl.export` for what is written. The rule it protects: an export of some streams holds all
payloads that they refer to and, of sessions, no others, and a file appears when it is complete.
"""

import asyncio
import contextlib
import gzip
import os
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from refold.events.core.content import Message
from refold.events.core.errors import ConfigError, PersistenceError
from refold.events.core.ids import PayloadHash, StreamName
from refold.events.core.pure_core import evolve_all
from refold.events.model.messages import RequestReference
from refold.events.model.payloads import all_restored, stored_hashes
from refold.events.model.request import prepared_of
from refold.events.session.core import SESSION_CODEC, SESSION_CORE
from refold.events.session.events import ModelResponded
from refold.events.session.state import history
from refold.inspection.log_reading import Batches, ReadableLog, opened, session_head, stream_head
from refold.stores.event_store import TellProgress, WholeLog, untold
from refold.stores.forked import origins_of
from refold.stores.jsonl.export import exported_lines
from refold.stores.keeping.erasing import payloads_of
from refold.stores.sqlite.file import absolute
from refold.stores.sqlite.rewrite import synchronise

_BYTES_PER_WRITE = 256 * 1024

UNFINISHED = ".exporting"
"""Ends the name of a file that is not complete."""


async def export_log(
    log: ReadableLog,
    write: Callable[[bytes], object],
    *,
    sessions: Sequence[str] | None = None,
    streams: Sequence[str] | None = None,
    until_position: int | None = None,
    progress: TellProgress = untold,
) -> None:
    """Write a log as JSON Lines; what is appended to it meanwhile is left out.

    Args:
        log: path of the file, or an open store, which stays open.
        write: is given the bytes, in pieces of some lines each.
        sessions: only these, and `streams`, in an export that says so.
        streams: only these, named `"<kind>/<id>"`, and `sessions`; None for both = all streams.
        until_position: only what begins at a position up to it; None = all.
        progress: called from time to time with what is counted, how many are done, and of how many.

    Raises:
        ConfigError: there is no such session or stream, or a store of yours does not list its payloads.
        LogFormatError: the log is damaged.
        PersistenceError: the log cannot be read.
    """
    async with opened(log) as store:
        if not hasattr(store, "list_payloads"):
            raise ConfigError(
                f"the store {store.name} cannot be exported: it lacks the methods of refold.stores.event_store.WholeLog"
            )
        only: set[StreamName] | None = None
        payloads: Collection[PayloadHash] | None = None
        if sessions is not None or streams is not None:
            heads = [await session_head(store, session) for session in sessions or ()]
            heads += [await stream_head(store, stream) for stream in streams or ()]
            heads += await origins_of(store, heads)  # A fork is nothing without what it goes on from.
            only = {head.stream for head in heads}
            payloads = await payloads_of(store, only, until_position=until_position)
        pieces: list[bytes] = []
        size = 0
        whole = cast("WholeLog", store)
        written = exported_lines(
            whole, streams=only, payloads=payloads, until_position=until_position, progress=progress
        )
        async with aclosing(written) as lines:
            async for line in lines:
                pieces.append(line)
                size += len(line)
                if size >= _BYTES_PER_WRITE:
                    write(b"".join(pieces))
                    pieces, size = [], 0
        write(b"".join(pieces))


async def export_to_file(
    log: ReadableLog,
    path: str | os.PathLike[str],
    *,
    sessions: Sequence[str] | None = None,
    streams: Sequence[str] | None = None,
    until_position: int | None = None,
    progress: TellProgress = untold,
) -> None:
    """Write a log as JSON Lines into a new file with mode 0600, which appears when it is complete and durable.

    It is compressed where its name ends in `.gz`. The same log gives the same bytes.

    Raises:
        ConfigError: the file is there already; or as `export_log`.
        LogFormatError: as `export_log`.
        PersistenceError: the log cannot be read, or the file cannot be written.
    """
    write = partial(
        export_log, log, sessions=sessions, streams=streams, until_position=until_position, progress=progress
    )
    async with new_file(path) as file:
        if os.fspath(path).lower().endswith(".gz"):
            with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=file, mtime=0) as packed:
                await write(packed.write)
        else:
            await write(file.write)


async def export_to_new_file(path: str | os.PathLike[str], content: bytes) -> None:
    """Write bytes into a new file with mode 0600, which appears when it is complete and durable.

    Raises:
        ConfigError: the file is there already.
    """
    async with new_file(path) as file:
        file.write(content)


async def conversation_of(log: ReadableLog, session: str) -> tuple[str, list[Message]]:
    """Return the system prompt that a session's agent has now, and its balanced history.

    Where a function gives the prompt, it is the one of the last answer.

    Raises:
        ConfigError: there is no such session.
    """
    async with opened(log) as store:
        head = await session_head(store, session)
        state = SESSION_CORE.initial()
        last: RequestReference | None = None
        async for batch in Batches(store, head.stream):
            events = SESSION_CODEC.decode_all(batch)
            state = evolve_all(SESSION_CORE, events, state)
            last = next((event.request for event in reversed(events) if isinstance(event, ModelResponded)), last)
        messages = history(state)
        names = [state.configuration.system_prompt] if state.configuration is not None else []
        more = [last.prepared_payload] if last is not None and last.prepared_payload is not None else []
        payloads = await store.read_payloads([*stored_hashes(messages), *names, *more])
        given = prepared_of(last, payloads).prompt if last is not None else None
        texts = (given, *(payloads[name].decode() for name in names))
        return "\n\n".join(filter(None, texts)), all_restored(messages, payloads)


@asynccontextmanager
async def new_file(path: str | os.PathLike[str]) -> AsyncGenerator[BinaryIO, None]:
    """Give a new file with mode 0600 to be written, which appears when it is complete and durable.

    Raises:
        ConfigError: the file is there already.
    """
    target = absolute(path)
    unfinished = target.with_name(target.name + UNFINISHED)
    require_new_file(target)
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise PersistenceError(
            f"{unfinished} is there: another export writes the same file, or one was killed; remove it in that case"
        ) from None
    except OSError as error:
        raise PersistenceError(f"{target} cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            await asyncio.to_thread(os.fsync, descriptor)
        require_new_file(target)
        unfinished.rename(target)
        synchronise(target.parent)
    except OSError as error:
        raise PersistenceError(f"{target} cannot be written: {error.strerror}") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            unfinished.unlink()


def require_new_file(target: Path) -> None:
    """Return where nothing is.

    Raises:
        ConfigError: something is there.
    """
    if os.path.lexists(target):
        raise ConfigError(f"{target} is there already; name another file, or remove it first")
