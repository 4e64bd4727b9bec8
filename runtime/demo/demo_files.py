"""The files that a demonstration makes: its log, and beside it what the agent files and writes."""

import tempfile
from pathlib import Path
from typing import Self

import msgspec

from refold.events.core.errors import ConfigError


class DemoFiles(msgspec.Struct, frozen=True):
    """Paths of files that are not there yet; absolute, so that another process finds them."""

    log: Path
    tickets: Path
    report: Path

    @classmethod
    def beside(cls, log: Path | None) -> Self:
        """Return the files of a demonstration with its log at `log`; None = in a new folder for temporary files.

        Raises:
            ConfigError: one of them is there already, or their folder is not or cannot be made.
        """
        if log is None:
            try:
                log = Path(tempfile.mkdtemp(prefix="refold-demo-")) / "events.db"
            except OSError as error:
                raise ConfigError(
                    f"no folder for temporary files can be made: {error.strerror}; name a place with --log"
                ) from error
        path = log.absolute()
        files = cls(path, path.with_name(f"{path.name}.tickets.jsonl"), path.with_name(f"{path.name}.report.md"))
        if not path.parent.is_dir():
            raise ConfigError(f"the folder {path.parent} does not exist; make it, or choose another place")
        for file in (files.log, files.tickets, files.report):
            if file.exists():
                raise ConfigError(
                    f"{file} is there already; the demonstration begins a log of its own, at another path"
                )
        return files
