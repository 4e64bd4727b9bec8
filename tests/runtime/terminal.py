"""The `refold` command at a terminal: a real process on a pseudo-terminal, which is its controlling one."""

import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

PATIENCE_S = 60.0
"""What never happens fails a test after so long, instead of hanging it."""

# Without asyncio's debug mode, which writes a line to stderr whenever a step of the loop takes long.
QUIET = {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"}

ATTACH = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)"
COMMAND = "from refold.commands.cli import main; main()"


class Terminal:
    """A process and the person in front of it; use it as `with Terminal(folder, "chat", ...) as terminal`."""

    def __init__(self, folder: Path, *arguments: str, program: str = COMMAND, **environment: str) -> None:
        self._screen, inside = os.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"{ATTACH}\n{program}", *arguments],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            cwd=folder,
            env={**QUIET, "TERM": "dumb", "XDG_STATE_HOME": str(folder.absolute() / "state"), **environment},
            start_new_session=True,
        )
        os.close(inside)
        self._unread = ""
        self._bytes = b""
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._screen)

    def write(self, text: str) -> None:
        """Type `text`; Ctrl-C is `\\x03`, Ctrl-D `\\x04`."""
        os.write(self._screen, text.encode())

    def until(self, text: str) -> str:
        """Return what is shown up to and with `text`, in plain lines, from where the last call stopped."""
        while text not in self._unread:
            assert self._read_more(), f"the process ended; {text!r} is not in {self._unread!r}"
        end = self._unread.index(text) + len(text)
        shown, self._unread = self._unread[:end], self._unread[end:]
        return shown

    def end(self) -> tuple[int, str]:
        """Return the exit code, and what is shown from where `until` stopped."""
        while self._read_more():
            pass
        return self._process.wait(PATIENCE_S), self._unread

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.send_signal(signal.SIGTERM)

    def _read_more(self) -> bool:
        if self._ended:
            return False
        ready, _, _ = select.select([self._screen], [], [], PATIENCE_S)
        assert ready, f"nothing more is shown after {self._unread!r}"
        try:
            data = os.read(self._screen, 65536)
        except OSError:  # The other side is closed.
            data = b""
        self._ended = not data
        self._bytes += data
        text = self._bytes.decode(errors="ignore")
        self._bytes = self._bytes[len(text.encode()) :]
        self._unread = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", self._unread + text)
        return not self._ended
