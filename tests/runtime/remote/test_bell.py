"""The socket beside a log: who may use it, what lies at its path, and peers that are dead, slow or hostile."""

import asyncio
import errno
import gc
import os
import socket
import stat
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refold import AgentRuntime, ConfigError, PersistenceError, RunResult, connect, say
from refold.bell import owner_end as bell
from refold.bell.frames import Attend, Give, Look, address_of, bell_path, require_users_told, user_of
from refold.bell.owner_end import Bell
from tests.conformance.sessions import HeldAnswer
from tests.runtime.remote.conftest import runtime_of


def frame(said: object) -> bytes:
    data = said if isinstance(said, bytes) else msgspec.msgpack.encode(said)
    return struct.pack(">I", len(data)) + data


def connected(log: Path) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with address_of(bell_path(log)) as address:
        peer.connect(address)
    peer.setblocking(False)
    return peer


async def works(owner: AgentRuntime, log: Path) -> None:
    """A guest is served, and the owner serves itself."""
    async with runtime_of(log, share=True) as guest:
        assert (await (await guest.session("guest")).send("hello")).text == "Said."
    assert (await (await owner.session("owner")).send("hello")).text == "Said."


HOSTILE: dict[str, bytes] = {
    "nonsense": b"\xff" * 4096,
    "a frame that is too long": struct.pack(">I", 2**31) + b"x" * 100,
    "half a frame": struct.pack(">I", 1000) + b"x",
    "half a length": b"\0\0",
    "no frame of ours": frame({"look": 1}),
    "a frame of another type": frame(["hello", "owner", 1]),
    "a frame of the owner's": frame(["durable", 2**62]),
    "a frame with more in it": frame(["look", 1, 2, 3]),
    "deep nesting": frame(b"\x91" * 5000),
    "a claimed length": frame(b"\xdd\xff\xff\xff\xff"),
    "a number that is none": frame(["give", "x", "s", "k", b""]),
    "no command": frame(Give(1, "s", "k", b"{}")),
    "a session that cannot be": frame(Give(1, "\0", "k", b'{"type":"send","text":"hi"}')),
    "a key that cannot be": frame(Give(1, "s", "", b'{"type":"send","text":"hi"}')),
    "an empty input": frame(Give(1, "s", "k", b'{"type":"send"}')),
    "unknown fields": frame(Give(1, "s", "k", b'{"type":"send","text":"hi","as":"root"}')),
    "a flood": frame(Look()) * 20_000,
    "one that attends again and again": frame(Attend()) * 500,
    "many commands": b"".join(frame(Give(n, f"f{n}", "k", b'{"type":"cancel"}')) for n in range(300)),
}


async def test_a_peer_that_says_nonsense_stops_nobody(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    async with runtime_of(log) as owner, runtime_of(log, share=True) as guest:
        sessions = [await owner.session("owner"), await guest.session("guest")]
        for case, said in HOSTILE.items():
            peer = connected(log)
            try:
                peer.send(said)
                for session in sessions:
                    assert (await session.send(case)).text == "Said.", case
            finally:
                peer.close()


async def test_a_peer_that_reads_nothing_is_let_go_and_slows_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bell, "BUFFER_BYTES_MAX", 10_000)
    log = tmp_path / "events.db"
    async with runtime_of(log, *[say("x" * 50_000)] * 40, input_bytes_max=None) as owner:
        peer = connected(log)
        peer.send(frame(Attend()))
        session = await owner.session("s")
        for number in range(40):
            owner.event_bus.progressed(session.id, "call", "x" * 50_000)
            assert (await session.send(f"{number}")).text
        await asyncio.get_running_loop().sock_recv(peer, 4)
        while await asyncio.get_running_loop().sock_recv(peer, 1 << 20):
            pass  # It was closed by the owner, who still works.
        peer.close()


async def test_a_peer_of_whom_it_cannot_be_told_whose_it_is_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> frozenset[int]:
        raise PersistenceError("the folder cannot be looked at")

    log = tmp_path / "events.db"
    async with runtime_of(log):
        monkeypatch.setattr(bell, "trusted_users", refuse)
        with connected(log) as peer:
            assert await asyncio.get_running_loop().sock_recv(peer, 4) == b""


async def test_all_who_wait_in_one_loop_share_a_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    welcomed: list[object] = []

    def welcome(owner: Bell, peer: Any, welcome: Callable[[Bell, Any], None] = Bell.welcome) -> None:
        welcomed.append(peer)
        welcome(owner, peer)

    monkeypatch.setattr(Bell, "welcome", welcome)
    log, model = tmp_path / "events.db", HeldAnswer("Done.")
    async with runtime_of(log, model, say("Done.")):
        session = connect(log).session("s")
        async with session.follow():
            run = await session.submit("hello")
            waiting = [asyncio.create_task(call) for call in (run.result(), run.result(), session.send("and", key="k"))]
            await model.asked.wait()
            assert not await session.approvals()
            model.gate.set()
            assert [result.text for result in await asyncio.gather(*waiting) if isinstance(result, RunResult)] == [
                "Done."
            ] * 3
    assert len(welcomed) == 1


@pytest.mark.parametrize("length", [20, 250])
async def test_the_socket_is_the_owners_alone_and_gone_with_it(tmp_path: Path, length: int) -> None:
    folder = tmp_path / ("f" * (length // 2)) / ("g" * (length - length // 2))
    folder.mkdir(parents=True)
    log = folder / "events.db"
    async with runtime_of(log) as owner:
        status = bell_path(log).lstat()
        assert (stat.S_ISSOCK(status.st_mode), stat.S_IMODE(status.st_mode)) == (True, 0o600)
        await works(owner, log)
    assert not bell_path(log).exists()


def another_bell(path: Path) -> None:
    """Leave what an owner leaves that is killed."""
    with socket.socket(socket.AF_UNIX) as left, address_of(path) as address:
        left.bind(address)


def inode_of(path: Path) -> int | None:
    return path.lstat().st_ino if os.path.lexists(path) else None


IN_THE_WAY: dict[str, tuple[Callable[[Path], Any], bool]] = {
    "the socket of an owner that was killed": (another_bell, True),
    "a file": (lambda path: path.write_text("mine"), False),
    "a folder": (lambda path: path.mkdir(), False),
    "a link to nothing": (lambda path: path.symlink_to("nowhere"), False),
    "a link to a file": (lambda path: path.symlink_to(__file__), False),
    "a pipe": (lambda path: os.mkfifo(path), False),
}


@pytest.mark.parametrize("case", IN_THE_WAY)
async def test_what_lies_in_the_way_is_left_alone_and_polling_goes_on(tmp_path: Path, case: str) -> None:
    log = tmp_path / "events.db"
    put, ours = IN_THE_WAY[case]
    put(bell_path(log))
    before = inode_of(bell_path(log))
    async with runtime_of(log) as owner:
        await works(owner, log)
    assert inode_of(bell_path(log)) == (None if ours else before)


async def test_without_such_sockets_polling_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bell, "require_users_told", lambda: require_users_told("plan9"))
    log = tmp_path / "events.db"
    async with runtime_of(log) as owner:
        assert not bell_path(log).exists()
        await works(owner, log)


class MacSocket(socket.socket):
    """Tells whose the other end is as macOS does, in a form of some version."""

    version = 0

    def getsockopt(self, *asked: int) -> Any:
        assert asked == (0, 1, 76)  # SOL_LOCAL, LOCAL_PEERCRED, sizeof(struct xucred)
        return struct.pack("=IIhxx16I", self.version, 501, 2, 20, 12, *[0] * 14)


def test_macos_tells_whose_a_peer_is() -> None:
    with MacSocket() as peer:
        assert user_of(peer, "darwin") == 501
        peer.version = 1
        with pytest.raises(OSError, match="version 1"):
            user_of(peer, "darwin")


async def test_a_system_without_modes_of_sockets_has_a_bell_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = os.fchmod

    def of_files_only(descriptor: int, mode: int) -> None:
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "no mode of sockets")
        change(descriptor, mode)

    monkeypatch.setattr(os, "fchmod", of_files_only)
    log = tmp_path / "events.db"
    async with runtime_of(log) as owner:
        assert bell_path(log).lstat().st_mode & 0o777 == 0o600
        await works(owner, log)


async def test_another_user_is_not_heard_and_not_listened_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "events.db"
    async with runtime_of(log) as owner:
        monkeypatch.setattr(bell, "user_of", lambda peer: 12345)
        peer = connected(log)
        assert await asyncio.get_running_loop().sock_recv(peer, 100) == b""
        peer.close()
        await works(owner, log)  # By way of the inbox.


async def test_a_connection_says_once_that_a_bell_cannot_be_heard(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "events.db"
    bell_path(log).write_text("mine")
    async with runtime_of(log):
        session = connect(log).session("s")
        for _ in range(3):
            assert isinstance(await session.send("hello"), RunResult)
    said = [record.getMessage() for record in caplog.records if "cannot be heard" in record.getMessage()]
    assert len(said) == 1
    assert "is not a socket of the log's owner; remove it" in said[0]


async def test_a_bell_that_is_taken_by_the_next_owner_stays(tmp_path: Path) -> None:
    log = tmp_path / "events.db"

    async def perform(session: str, key: str, command: bytes) -> bytes:
        return b""

    first, second = [
        Bell(log, owner=name, position=0, rung=lambda: None, perform=perform, answers=list) for name in "ab"
    ]
    assert await first.open()
    assert await second.open()
    first.close()
    first.close()
    assert bell_path(log).exists()
    second.close()
    assert not bell_path(log).exists()


@pytest.mark.parametrize("turns", range(5))
async def test_a_connection_that_comes_as_the_bell_is_hung_up_is_let_go(log: Path, turns: int) -> None:
    async def perform(session: str, key: str, command: bytes) -> bytes:
        return b""

    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    rung = Bell(log, owner="a", position=0, rung=lambda: None, perform=perform, answers=list)
    assert await rung.open()
    with connected(log) as peer:
        peer.setblocking(False)
        for _ in range(turns):
            await asyncio.sleep(0)
        rung.close()
        with suppress(ConnectionResetError):
            while await asyncio.get_running_loop().sock_recv(peer, 1024):
                pass
    gc.collect()
    assert not failures


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"log": ":memory:"}, "path of a file"),
        ({"inbox_poll_s": 0}, "inbox_poll_s"),
        ({"share": "yes"}, "True or False"),
    ],
)
def test_what_cannot_be_shared_is_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        runtime_of(options.pop("log", tmp_path / "events.db"), **{"share": True, **options})


async def test_what_would_stay_in_a_process_and_what_is_the_owners_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    async with runtime_of(log, share=True) as owner, runtime_of(log, share=True) as guest:
        for runtime in (owner, guest):
            with pytest.raises(ConfigError, match="deps"):
                await runtime.session("s", deps=1)
            with pytest.raises(ConfigError, match="deps"):
                await (await runtime.session("s")).send("hello", deps=1)
        session = await guest.session("s")
        await session.send("hello")
        with pytest.raises(ConfigError, match="no session"):
            await guest.session("nobody", restore=True)
        await guest.forget("s")
