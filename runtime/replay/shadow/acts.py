"""What Python refuses in a process that may not act: an audit hook over the whole process, whichever thread asks.

The rule: code that only reads is not in the way: files are opened for reading, databases of SQLite too; what Python
itself would write (byte code) and what a logger would write goes nowhere, and is not told.
"""

import ctypes  # noqa: F401  # pyright: ignore[reportUnusedImport] - Its own import would be refused.
import inspect
import logging
import os
import socket
import sqlite3
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from sqlite3 import dbapi2
from typing import Any, Final, cast

from refold.tools.dry_run import OutsideInDryRun, refuse

REFUSED: Final = frozenset(
    {
        "ctypes.dlopen", "ctypes.dlsym",
        "ftplib.connect", "http.client.connect", "imaplib.open", "poplib.connect", "smtplib.connect", "urllib.Request",
        "os.chflags", "os.chmod", "os.chown", "os.link", "os.lockf", "os.mkdir", "os.remove", "os.removexattr",
        "os.rename", "os.rmdir", "os.setxattr", "os.symlink", "os.truncate", "os.utime",
        "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile", "os.system", "pty.spawn",
        "subprocess.Popen", "webbrowser.open",
        "os.kill", "os.killpg", "os.putenv", "os.unsetenv", "resource.prlimit", "resource.setrlimit",
        "shutil.chown", "shutil.copyfile", "shutil.copymode", "shutil.copystat", "shutil.copytree", "shutil.move",
        "shutil.rmtree", "shutil.make_archive", "shutil.unpack_archive",
        "socket.bind", "socket.connect", "socket.getaddrinfo", "socket.gethostbyaddr", "socket.gethostbyname",
        "socket.sendmsg", "socket.sendto", "socket.sethostname",
        "syslog.openlog", "syslog.syslog", "tempfile.mkdtemp", "tempfile.mkstemp",
    }
)  # fmt: skip
"""Python's audit events of what is refused with any arguments;
https://docs.python.org/3/library/audit_events.html
"""

HARMLESS_IN_IMPORTS: Final = frozenset({"ctypes.dlopen", "ctypes.dlsym", "os.putenv", "os.unsetenv"})
"""What a module may do while it is imported, since it changes this process only."""

WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

SOCKET_METHODS: Final = ("send", "sendall", "sendfile", "recv", "recv_into", "recvfrom", "accept", "read", "write")

_MEMORY = frozenset({"", ":memory:"})

_READING = frozenset({
    sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_PRAGMA,
    sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_SAVEPOINT, sqlite3.SQLITE_RECURSIVE,
})  # fmt: skip


def refuse_acts(led_outside: frozenset[int]) -> None:
    """Refuse from now on, in this process, what acts.

    Args:
        led_outside: descriptors that did, and lead nowhere now.
    """
    sys.dont_write_bytecode = True
    logging.raiseExceptions = False
    threading.excepthook = _unless_refused(threading.excepthook)
    _refuse_open_sockets(led_outside)
    connect = _read_only(sqlite3.connect)
    for module in (sqlite3, dbapi2):
        vars(module)["connect"] = connect
    begins = "_adjust_thread_count"
    setattr(ThreadPoolExecutor, begins, _with_threads_of_here(getattr(ThreadPoolExecutor, begins)))
    sys.addaudithook(_audit)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        path, _, flags = arguments
        if not isinstance(path, int) and flags & WRITING and path not in (os.devnull, None):
            _refuse("open for writing", (path,))
    elif event in REFUSED:
        _refuse(event, arguments)
    elif event == "socket.__new__":
        if arguments[1] in (socket.AF_INET, socket.AF_INET6):
            _refuse(event, ())
    elif event == "sqlite3.connect":
        if not _is_readable(arguments[0]):
            _refuse(event, arguments)
    elif event == "mmap.__new__":
        number, _, access, _ = arguments
        if number != -1 and access not in (1, 3):  # To read, or of a copy.
            _refuse(event, ())


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    frame = inspect.currentframe()
    importing = False
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if module == "logging":
            raise OutsideInDryRun(f"{event} cannot be called in a replay")
        importing = importing or module == "importlib._bootstrap"
        frame = frame.f_back
    if importing and event in HARMLESS_IN_IMPORTS:
        return
    named: list[Any] = [each for each in arguments if isinstance(each, str | bytes | os.PathLike | tuple | list)]
    refuse(event, _words(named))


def _words(argument: Any) -> str:
    if isinstance(argument, tuple | list):
        return " ".join(map(_words, cast("Sequence[Any]", argument)))
    if isinstance(argument, bytes | os.PathLike):
        return os.fsdecode(cast("bytes | os.PathLike[str]", argument))
    return str(argument)


def _is_readable(database: Any) -> bool:
    name = os.fsdecode(database)
    return name in _MEMORY or name.startswith("file:") or os.path.exists(name)


def _read_only(connect: Callable[..., sqlite3.Connection]) -> Callable[..., sqlite3.Connection]:
    """Have connections refuse what changes a file; databases in memory are changed as ever."""

    def connected(database: Any, *arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(database, *arguments, **options)
        path = connection.execute("PRAGMA database_list").fetchone()[2]

        def judge(action: int, first: str | None, second: str | None, schema: str | None, trigger: str | None) -> int:
            if action in _READING or schema == "temp" or (action == sqlite3.SQLITE_ATTACH and first in _MEMORY):
                return sqlite3.SQLITE_OK
            with suppress(OutsideInDryRun):
                _refuse("sqlite3", (f"writing to {path}",))
            return sqlite3.SQLITE_DENY

        if path:
            connection.set_authorizer(judge)
        return connection

    return connected


def _refuse_open_sockets(led_outside: frozenset[int]) -> None:
    classes: list[Any] = [socket.socket]
    if (tls := sys.modules.get("ssl")) is not None:
        classes.append(tls.SSLSocket)
    for each in classes:
        for name in SOCKET_METHODS:
            if hasattr(each, name):
                setattr(each, name, _guarded(name, getattr(each, name), led_outside))


def _guarded(name: str, method: Callable[..., Any], led_outside: frozenset[int]) -> Callable[..., Any]:
    def guarded(self: socket.socket, *arguments: Any, **options: Any) -> Any:
        if self.fileno() in led_outside:
            _refuse(f"socket.{name}", ())
        return method(self, *arguments, **options)

    return guarded


def _with_threads_of_here(adjust: Callable[[Any], None]) -> Callable[[Any], None]:
    """Have executors begin threads again: those that they had are not in this process."""

    def adjusting(executor: Any) -> None:
        if not all(thread.is_alive() for thread in executor._threads):
            executor._threads = set()
            executor._idle_semaphore = threading.Semaphore(0)
            while executor._work_queue.qsize() > 1:  # What was submitted before is done there, by the parent.
                executor._work_queue.get()
        adjust(executor)

    return adjusting


def _unless_refused(report: Callable[[Any], object]) -> Callable[[Any], object]:
    def reporting(failure: Any) -> None:
        if not isinstance(failure.exc_value, OutsideInDryRun):
            report(failure)

    return reporting
