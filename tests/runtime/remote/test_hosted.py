"""Actors that the owner of a log hosts, as a guest and a connection reach them: each command takes effect once."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refold import AgentRuntime, AskTimeout, CommandRejected, ConfigError, RunResult, connect
from refold.actors import EventSourcedSystem
from refold.events import Effect, Event, KeyedCommand, KeyedEvent, PureCore, State
from refold.events.core.ids import stream_name
from refold.inspection.check import check_log
from refold.remote.hosted import queue_of
from refold.stores.sqlite.inbox import InboxFile
from refold.stores.sqlite.ownership import LogOwner
from tests.runtime.remote.conftest import runtime_of


class Note(KeyedCommand, frozen=True, kw_only=True):
    text: str
    weight: float = 1.0
    more: str = ""


class Wish(msgspec.Struct, frozen=True):
    text: str


class Noted(KeyedEvent, frozen=True, kw_only=True, tag="book.noted.v1"):
    text: str


class Wished(Event, frozen=True, kw_only=True, tag="book.wished.v1"):
    text: str


class Pages(State):
    texts: list[str] = []


class Book(PureCore[Pages, Note | Wish, Noted | Wished]):
    def admit(self, state: Pages, command: Note | Wish) -> Noted | Wished:
        if not command.text:
            raise CommandRejected("an empty note")
        if command.text == "break":
            raise KeyError("broken")
        return Noted(text=command.text) if isinstance(command, Note) else Wished(text=command.text)

    def evolve(self, state: Pages, event: Noted | Wished) -> Pages:
        state.texts = [*state.texts, event.text]
        return state

    def pending(self, state: Pages) -> list[Effect]:
        return [Effect(key="print")] if state.texts[-1:] == ["print"] else []


LONG = "ß" * 700_000
"""Too long for a frame of the bell, so that it goes through the inbox."""


async def use(books: Any) -> list[object]:
    """Do what users do with hosted actors, and return what they see."""
    seen: list[object] = [await books.read("a/ü", lambda state: state.texts)]
    one = Note(text="one", key="1")
    for command in (one, Note(text="two"), one, Note(text="long", more=LONG)):
        performed = await books.ask("a/ü", command)
        seen.append((performed.version, performed.new))
    for command, said in [(Note(text=""), "an empty note"), (Note(text="other", key="1"), "key")]:
        with pytest.raises(CommandRejected, match=said):
            await books.ask("a/ü", command)
    with pytest.raises(ConfigError, match="book id"):
        await books.ask("", Note(text="x"))
    told = books.tell("b", Note(text="told"))
    if isinstance(told, Awaitable):
        await told
    while not (texts := await books.read("b", lambda state: state.texts)):  # noqa: ASYNC110 - it was told
        await asyncio.sleep(0.01)
    seen += [texts, [len(text) for text in await books.read("a/ü", lambda state: state.texts)]]
    with pytest.raises(ZeroDivisionError):
        await books.read("b", lambda state: 1 / 0)
    return seen


@pytest.mark.parametrize("way", ["guest", "connection"])
async def test_hosted_actors_are_reached_from_other_processes_as_in_the_owners(tmp_path: Path, way: str) -> None:
    async with runtime_of(tmp_path / "own.db", share=True) as runtime:
        saw = await use(await runtime.host("book", Book))
    log = tmp_path / "events.db"
    async with runtime_of(log, share=True) as owner, runtime_of(log, share=True) as guest:
        await owner.host("book", Book)
        books: Any = await guest.host("book", Book) if way == "guest" else connect(log).hosted("book", Book)
        assert await use(books) == saw
        with pytest.raises(ConfigError, match="derive it from KeyedCommand"):
            await books.ask("b", Wish(text="x"))
        with pytest.raises(ConfigError, match="no command of Book"):
            await books.ask("b", "x")
        with pytest.raises(CommandRejected, match=r"Book\.admit fails on the Note"):
            await books.ask("b", Note(text="break"))
        with pytest.raises(CommandRejected, match="cannot go to another process"):
            await books.ask("b", Note(text="x", weight=float("nan")))
        if way == "guest":
            with pytest.raises(ConfigError, match="another process owns"):
                books.ref("b")
            with pytest.raises(ConfigError, match="registered already"):
                await guest.host("book", Book)
    assert (await check_log(log, kinds={"book": Book})).sound


def test_threads_reach_hosted_actors_too(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    with runtime_of(log) as runtime, connect(log) as connection:
        runtime.host("book", Book)
        books = connection.hosted("book", Book)
        assert books.ask("a", Note(text="one")).version == 1
        books.tell("a", Note(text="two", key="k"))
        assert books.ask("a", Note(text="two", key="k")).version == 2
        assert books.read("a", lambda state: state.texts) == ["one", "two"]


async def test_a_command_waits_for_a_runtime_that_hosts_its_kind(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    books = connect(log).hosted("book", Book)
    async with runtime_of(log):
        with pytest.raises(AskTimeout, match="a runtime that hosts book"):
            await books.ask("a", Note(text="early", key="k"), timeout=0.2)
    async with runtime_of(log) as owner:
        late = asyncio.create_task(books.ask("a", Note(text="late")))
        await asyncio.sleep(0)
        await owner.host("book", Book)
        assert (await late).version == 2
        performed = await books.ask("a", Note(text="early", key="k"))
        assert (performed.version, await books.read("a", lambda state: state.texts)) == (1, ["early", "late"])


async def test_no_session_shares_the_queue_of_an_actor_by_its_name(log: Path) -> None:
    book, names = connect(log, patience_s=0.1).hosted("book", Book), ["hosted:book/a", "book/a", "whole log"]
    async with runtime_of(log) as runtime:
        with pytest.raises(AskTimeout):
            await book.ask("a", Note(text="early", key="k"))  # It waits until its kind is hosted.
        for name in names:
            assert isinstance(await connect(log).session(name).send("hello", key="k"), RunResult)
            await runtime.delete(name)
        assert queue_of(stream_name("book", "a")) in await InboxFile(log).sessions_waiting()
        await runtime.host("book", Book)
        assert (await connect(log).hosted("book", Book).ask("a", Note(text="early", key="k"))).version == 1
    with pytest.raises(ConfigError, match="NUL"):
        connect(log).session(queue_of(stream_name("book", "a")))


def test_of_a_system_by_itself_others_read_its_actors_and_are_told_what_can_be_commanded(log: Path) -> None:
    with EventSourcedSystem(log) as system, connect(log) as connection:
        assert system.host("book", Book).ask("a", Note(text="one")).version == 1
        books = connection.hosted("book", Book)
        assert books.read("a", lambda state: state.texts) == ["one"]
        for call in (books.ask, books.tell):
            with pytest.raises(ConfigError, match=r"EventSourcedSystem.*await runtime\.host\('book', \.\.\.\)"):
                call("a", Note(text="two"))
        assert connection.owner() == LogOwner(pid=os.getpid(), host=socket.gethostname(), takes_commands=False)
        beside = [sys.executable, "-P", "-c", OWNER, str(log)]
        assert subprocess.run(beside, check=True, capture_output=True, text=True).stdout == "False\n"
    with runtime_of(log) as runtime, connect(log) as connection:
        runtime.host("book", Book)
        assert connection.hosted("book", Book).ask("a", Note(text="two")).version == 2


OWNER = "import sys; from refold import connect; print(connect(sys.argv[1]).owner().takes_commands)"


async def left(close: Callable[[], Awaitable[None]], runtime: AgentRuntime) -> None:
    await close()
    while not runtime.is_owner:  # noqa: ASYNC110 - it takes the log over
        await asyncio.sleep(0.01)


async def test_a_guest_that_takes_over_hosts_what_it_named(tmp_path: Path) -> None:
    log, printed = tmp_path / "events.db", asyncio.Event()

    async def print_it(effect: Effect) -> Note:
        printed.set()
        return Note(text="printed", key="printed")

    async with AsyncExitStack() as stack:
        owner = await stack.enter_async_context(runtime_of(log, share=True))
        guest = await stack.enter_async_context(runtime_of(log, share=True))
        await owner.host("book", Book)
        events: list[str] = []
        books = await guest.host("book", Book, perform=print_it, on_event=lambda each: events.append(each.event.text))
        await books.ask("a", Note(text="one", key="1"))
        await books.ask("a", Note(text="print", key="2"))
        waiting = asyncio.create_task(books.ask("b", Note(text="while it changes", key="3")))
        cancelled = asyncio.create_task(books.ask("b", Note(text="whose caller is gone", key="4")))
        await asyncio.sleep(0)
        cancelled.cancel()
        await left(owner.close, guest)
        await printed.wait()
        assert (await waiting).version in (1, 2)
        assert not (await books.ask("a", Note(text="one", key="1"))).new
        await books.ask("b", Note(text="whose caller is gone", key="4"))
        assert sorted(await books.read("b", lambda state: state.texts)) == ["while it changes", "whose caller is gone"]
        assert books.ref("a").actor_urn
        assert "one" not in events
    assert (await check_log(log, kinds={"book": Book})).sound
