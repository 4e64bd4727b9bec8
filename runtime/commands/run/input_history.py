"""What a person wrote at the prompt of `refold chat`, for the keys that bring it back in this chat and in later ones.

The rules: the file is the person's alone and lies apart from every log, which others may be given. Only messages go
there: nothing that answers a question of a tool or of the command, and no line that holds a secret which the agent, its
provider or the environment knows. A history that cannot be kept ends no conversation.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp
from typing import Final

from refold.commands.output import tell
from refold.stores.clean_log import without_known_secrets

LINES_MAX: Final = 1_000
"""So many lines are brought back; a file that has twice as many is cut."""

BYTES_MAX: Final = 1024 * 1024
"""So much of a file's end is read."""


def history_file() -> Path | None:
    """Return `refold/chat_history` in `XDG_STATE_HOME`, or else in `~/.local/state`; None = there is no home."""
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        folder = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return folder / "refold" / "chat_history"


class InputHistory:
    """The history of lines that are read with `input`; without readline there is none.

    Args:
        path: its file; None = it lasts as long as this process.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._last = ""
        try:
            import readline
        except ImportError:  # Not every Python has it; without it the terminal itself edits lines.
            self._readline = None
            return
        self._readline = readline
        readline.set_auto_history(False)
        for line in self._read():
            readline.add_history(line)
            self._last = line

    def add(self, line: str) -> None:
        """Keep a line that a person wrote as a message."""
        line = line.removesuffix("\\").strip()
        if self._readline is None or not line or line == self._last or without_known_secrets(line) != line:
            return
        self._last = line
        self._readline.add_history(line)
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = _opened(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            try:
                os.write(descriptor, f"{line}\n".encode(errors="replace"))
            finally:
                os.close(descriptor)
        except OSError as error:
            self._give_up(error)

    def _read(self) -> list[str]:
        if self._path is None:
            return []
        try:
            descriptor = _opened(self._path, os.O_RDONLY)
            with os.fdopen(descriptor, "rb") as file:
                file.seek(max(os.fstat(descriptor).st_size - BYTES_MAX, 0))
                lines = [line for line in file.read().decode(errors="replace").split("\n") if line]
            if len(lines) > 2 * LINES_MAX:
                self._cut(lines[-LINES_MAX:])
        except FileNotFoundError:
            return []
        except OSError as error:
            self._give_up(error)
            return []
        return lines[-LINES_MAX:]

    def _cut(self, lines: list[str]) -> None:
        assert self._path is not None
        descriptor, name = mkstemp(dir=self._path.parent, prefix=f"{self._path.name}.")
        shorter = Path(name)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
                file.write("".join(f"{line}\n" for line in lines))
            shorter.replace(self._path)
        finally:
            with suppress(FileNotFoundError):
                shorter.unlink()

    def _give_up(self, error: OSError) -> None:
        tell(f"what you write is not kept for later chats: {self._path}: {error.strerror or error}")
        self._path = None


def _opened(path: Path, flags: int) -> int:
    """Return the descriptor of a file that is this user's alone from now on.

    Raises:
        OSError: it cannot be opened, or belongs to another user, or is no file.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise PermissionError(0, "it is no file of yours")
        if status.st_mode & 0o077:
            os.fchmod(descriptor, 0o600)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
