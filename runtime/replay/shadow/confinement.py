"""What a process gives up so that nothing that runs in it acts: files that grow or change, the network, processes.

The layers, each of its own: no file can grow (`RLIMIT_FSIZE`); nothing that was open leads outside any more; on Linux
the file system is read-only (Landlock), and sockets, programs and signals are refused (a seccomp filter). Where a
kernel lacks one of these, the others and `refold.replay.shadow.acts` remain. The rule: what is given up is never taken
back, so this is called in a child process only.
"""

import ctypes
import fcntl
import os
import platform
import resource
import signal
import stat
import struct
import sys
from collections.abc import Collection
from typing import Final

NULL = os.devnull

_NO_NEW_PRIVILEGES: Final = 38
_DIES_WITH_PARENT: Final = 1
_SECCOMP: Final = 22
_FILTER: Final = 2
"""Of prctl(2)."""

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
"""System calls; their numbers are the same on all architectures."""

_WRITE_FILE: Final = 1 << 1
_CHANGES: Final = (0, 0x1FF2, 0x3FF2, 0x7FF2)
"""Rights of Landlock's first versions that change a file system: write, remove, make; since 2 refer, since 3 truncate.
"""

_CALLS: Final = {
    "x86_64": (0xC000003E, (41, 42, 49, 57, 58, 59, 62, 101, 322, 424, 425)),
    "aarch64": (0xC00000B7, (198, 203, 200, 221, 129, 117, 281, 424, 425)),
}
"""Of an architecture, its name in the kernel, and the numbers of socket, connect, bind, fork, vfork, execve, kill,
ptrace, execveat, pidfd_send_signal and io_uring_setup. A pair of connected sockets can still be made."""

_EPERM: Final = 1


def confine(keep: Collection[int]) -> frozenset[int]:
    """Take from this process what it could act with; return the file descriptors that led outside."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # So that a write fails, and does not end the process.
    led_outside = _replace_descriptors(keep)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_DIES_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
        libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        _make_files_read_only(libc)
        _refuse_calls(libc)
    return led_outside


def _replace_descriptors(keep: Collection[int]) -> frozenset[int]:
    """Have all that leads to other processes lead nowhere, and what is printed to where errors are shown."""
    null = os.open(NULL, os.O_RDWR | os.O_CLOEXEC)
    replaced: set[int] = set()
    for number in sorted(map(int, os.listdir("/proc/self/fd" if sys.platform == "linux" else "/dev/fd"))):
        mode = _mode(number)
        is_device = stat.S_ISCHR(mode)
        if not mode or number in keep or number == null or stat.S_ISDIR(mode) or (is_device and number != 0):
            continue
        if stat.S_ISREG(mode) and number > 2:
            if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                continue
            replaced.add(number)  # It cannot grow, so that a write to it fails.
            continue
        if number == 2 and stat.S_ISFIFO(mode):
            continue
        os.dup2(null, number)
        replaced.add(number)
    os.dup2(2, 1)
    return frozenset(replaced)


def _mode(number: int) -> int:
    """Return what kind of file a descriptor is of; 0 = it is not open, as the one that listed them."""
    try:
        return os.fstat(number).st_mode
    except OSError:
        return 0


def _make_files_read_only(libc: ctypes.CDLL) -> None:
    version: int = libc.syscall(_LANDLOCK_CREATE, None, 0, 1)
    rights = _CHANGES[min(max(version, 0), 3)]
    rules = ctypes.create_string_buffer(struct.pack("=Q", rights))
    ruleset = libc.syscall(_LANDLOCK_CREATE, rules, 8, 0) if rights else -1
    if ruleset < 0:
        return
    null = os.open(NULL, os.O_PATH | os.O_CLOEXEC)
    rule = ctypes.create_string_buffer(struct.pack("=Qi", _WRITE_FILE, null))
    libc.syscall(_LANDLOCK_ADD, ruleset, 1, rule, 0)
    libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0)
    os.close(null)
    os.close(ruleset)


def _refuse_calls(libc: ctypes.CDLL) -> None:
    """Have the kernel answer EPERM to system calls that reach outside."""
    if platform.machine() not in _CALLS:
        return
    architecture, numbers = _CALLS[platform.machine()]
    load, jump_if_equal, give = 0x20, 0x15, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000 | _EPERM
    program = [(load, 0, 0, 4), (jump_if_equal, 1, 0, architecture), (give, 0, 0, allow), (load, 0, 0, 0)]
    for number in numbers:
        program += [(jump_if_equal, 0, 1, number), (give, 0, 0, refuse)]
    program.append((give, 0, 0, allow))
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in program))
    pointer = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(code)))
    libc.prctl(_SECCOMP, _FILTER, pointer, 0, 0)
