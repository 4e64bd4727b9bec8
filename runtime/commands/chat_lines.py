"""Where the lines of a chat come from: a person at a terminal, or a pipe.

The rule: whoever reads blocks this thread and no event loop, so that Ctrl-C, which is raised here, ends the reading.
"""

import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import Final

import typer

CONTINUES: Final = "\\"
"""At the end of a line that a person writes, it says that the next one belongs to it."""


class Lines:
    """Lines of stdin; at a terminal with a prompt, and with editing and a history where stdout is one too."""

    def __init__(self) -> None:
        self.from_terminal = sys.stdin is not None and sys.stdin.isatty()
        """Whether a person writes them."""
        self._is_edited = self.from_terminal and sys.stdout.isatty()
        if isinstance(sys.stdin, TextIOWrapper):
            # What is no text in the terminal's encoding is shown as such, instead of ending the conversation.
            sys.stdin.reconfigure(errors="replace")  # pyright: ignore[reportUnknownMemberType]
        if self._is_edited:
            with suppress(ImportError):  # Not every Python has it; without it the terminal itself edits lines.
                import readline  # noqa: F401  # pyright: ignore[reportUnusedImport] - From now on `input` uses it.

    def message(self, prompt: str, more: str) -> str | None:
        """Return the next message, without the end of its line; None = there are no more.

        A person writes one of several lines by ending each but the last with a backslash, or pastes them.

        Args:
            prompt: stands before it.
            more: stands before its other lines.
        """
        parts: list[str] = []
        while True:
            part = self.line(more if parts else prompt)
            if part is None:
                return "\n".join(parts) if parts else None
            if not self.from_terminal or not part.endswith(CONTINUES):
                return "\n".join([*parts, part])
            parts.append(part.removesuffix(CONTINUES))

    def line(self, prompt: str) -> str | None:
        """Return the next line, without its end; None = there are no more."""
        if self._is_edited:
            try:
                return input(prompt)
            except EOFError:
                typer.echo()
                return None
        if self.from_terminal:
            typer.echo(prompt, nl=False, err=True)
        line = sys.stdin.readline() if sys.stdin is not None else ""
        if line:
            return line.rstrip("\r\n")
        if self.from_terminal:
            typer.echo(err=True)
        return None
