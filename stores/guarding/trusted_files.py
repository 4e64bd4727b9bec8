"""Whose the files are that SQLite reads by their names beside a database, before any of them is opened.

SQLite takes what lies beside a file for its own: it plays a `-journal` back into the file and reads a `-wal` as its
newest pages. In a folder where others may make files, another user could so decide calls in an inbox, or replace a log.
The rule it protects: each of these files is a regular file of a user who is trusted and that nobody else may write, and
nobody else may put another one in its place.

Trusted are this process's user and root; for root the owner of the folder too, on whose behalf it acts; and for a
process that only reads a log, that log's owner.
"""

import os
import stat
from contextvars import ContextVar
from pathlib import Path
from typing import Final

from refold.events.core.errors import LogFormatError, PersistenceError
from refold.stores.guarding.log_place import HEAD_SUFFIX, status_of

try:
    import grp
    import pwd
except ImportError:  # Windows, where no log is written
    grp = pwd = None  # type: ignore[assignment]

BESIDE: Final = ("-wal", "-shm", "-journal")
"""Endings of the files that SQLite reads beside a database."""

INBOX_SUFFIX: Final = ".inbox"

shared_folders_allowed: ContextVar[bool] = ContextVar("shared_folders_allowed", default=False)
"""Whether logs may lie in folders where others may make files, although no opening says so; for the commands."""


def require_log_trusted(log: Path, *, writing: bool, allow_shared_folder: bool = False) -> None:
    """Return if the files of a log are those of trusted users, or not there.

    Args:
        log: its path, absolute.
        writing: whether the log is to be written, with its inbox read, or only to be read. Then its folder is not
            looked at: what another user puts there belongs to that user, and is refused.
        allow_shared_folder: whether others may make files in the folder.

    Raises:
        LogFormatError: something else than a file lies where SQLite would look for one.
        PersistenceError: a file, or the folder, is not to be trusted; the message names it.
    """
    if grp is None:
        return
    trusted = trusted_users(log, writing=writing)
    if writing and not (allow_shared_folder or shared_folders_allowed.get()):
        _require_folder(log, trusted)
    inbox = log.name + INBOX_SUFFIX
    names = [log.name + suffix for suffix in (*BESIDE, ".lock", HEAD_SUFFIX)]
    if writing:
        names += [log.name, *(inbox + suffix for suffix in ("", *BESIDE))]
    for name in names:
        require_file(log.with_name(name), trusted, writing=writing)


def require_inbox_trusted(log: Path, *, allow_shared_folder: bool = False) -> None:
    """Return if the files of a log's inbox are those of trusted users, or not there; see `require_log_trusted`."""
    if grp is None:
        return
    trusted = trusted_users(log, writing=True) | trusted_users(log, writing=False)
    if not (allow_shared_folder or shared_folders_allowed.get()):
        _require_folder(log, trusted)
    for suffix in ("", *BESIDE):
        require_file(log.with_name(log.name + INBOX_SUFFIX + suffix), trusted, writing=True)


def whose(path: Path) -> str:
    """Return whose a file is that this user may not read, for a message: `belongs to ann, 1000 (mode 600), …`."""
    status = status_of(path, follow=True)
    if grp is None or status is None:
        return "cannot be read by this user"
    return f"belongs to {_user(status.st_uid)} (mode {stat.S_IMODE(status.st_mode):o}), and this user may not read it"


def trusted_users(log: Path, *, writing: bool) -> frozenset[int]:
    """Return the users whose files may lie beside a log."""
    me = os.geteuid()
    whose = log.parent if writing else log
    status = status_of(whose, follow=True)
    # Who runs as root in a folder of another user acts for that user, who may do as much to the log.
    acts_for_owner = status is not None and (me == 0 or not writing)
    return frozenset({me, 0, status.st_uid} if status is not None and acts_for_owner else {me, 0})


def require_file(path: Path, trusted: frozenset[int], *, writing: bool) -> None:
    """Return if there is nothing at the path, or a regular file of a trusted user that only they may write."""
    status = status_of(path)
    if status is None:
        return
    if stat.S_ISLNK(status.st_mode):
        raise PersistenceError(f"{path} is a symbolic link, and SQLite would follow it; remove it, or name the file")
    if not stat.S_ISREG(status.st_mode):
        raise LogFormatError(f"{path} is not a regular file, and SQLite would read it; move it away")
    if status.st_uid not in trusted:
        raise PersistenceError(
            f"{path} belongs to another user ({_user(status.st_uid)}), and SQLite would read it as part of the log; "
            "move it away, or change its owner if it is yours"
        )
    if not writing:
        return
    if status.st_nlink > 1:
        raise PersistenceError(
            f"{path} has {status.st_nlink} names (hard links), and who writes under one does not see who writes under "
            f"another; remove the others (`find -samefile {path.name}` lists them) or copy the file"
        )
    if status.st_mode & stat.S_IWOTH:
        raise PersistenceError(f"everybody may write into {path}; take that right away (chmod o-w)")


def _require_folder(log: Path, trusted: frozenset[int]) -> None:
    folder = log.parent
    status = status_of(folder, follow=True)
    if status is None:
        return  # That is said where the log is looked at.
    if status.st_uid not in trusted:
        who = f"belongs to another user ({_user(status.st_uid)})"
    elif status.st_mode & stat.S_IWOTH:
        who = f"may be written by everybody (mode {stat.S_IMODE(status.st_mode):o})"
    elif status.st_mode & stat.S_IWGRP and _others_may_be_in(status.st_gid, trusted):
        who = f"may be written by a group (mode {stat.S_IMODE(status.st_mode):o}, {_group(status.st_gid)})"
    elif status.st_mode & stat.S_IWGRP and _has_access_list(folder):
        who = "may be written by users of an access list (getfacl)"
    else:
        return
    raise PersistenceError(
        f"the folder {folder} of the log {log.name} {who}, who may put files there that SQLite reads as part of the "
        "log; use a folder of your own (chmod go-w), or, if you trust them, open the log with allow_shared_folder=True "
        "(`refold --allow-shared-folder …`)"
    )


def _others_may_be_in(group: int, trusted: frozenset[int]) -> bool:
    """Tell whether a user who is not trusted may be in a group.

    A group with the name of a trusted user is that user's alone, as Linux makes one for each, unless it has other
    members. One without a name is what containers are given beside their user, and nobody else is.
    """
    assert grp is not None
    assert pwd is not None
    try:
        entry = grp.getgrgid(group)
    except KeyError:
        return group not in (os.getegid(), *os.getgroups())
    names = {user.pw_name for user in pwd.getpwall() if user.pw_uid in trusted}
    if entry.gr_name not in {*names, "root"} or not names.issuperset(entry.gr_mem):
        return True
    return any(user.pw_gid == group and user.pw_uid not in trusted for user in pwd.getpwall())


def _has_access_list(folder: Path) -> bool:
    if not hasattr(os, "listxattr"):
        return False
    try:
        return "system.posix_acl_access" in os.listxattr(folder)
    except OSError:  # A file system without such attributes has no lists either.
        return False


def _user(uid: int) -> str:
    assert pwd is not None
    try:
        return f"{pwd.getpwuid(uid).pw_name}, {uid}"
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    assert grp is not None
    try:
        return f"group {grp.getgrgid(gid).gr_name}, {gid}"
    except KeyError:
        return f"group {gid}"
