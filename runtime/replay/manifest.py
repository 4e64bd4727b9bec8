"""What a bundle says of itself, which a replay of it has to know."""

import os
import re
import zipfile
import zlib
from typing import Final

import msgspec

from refold.events.core.errors import ConfigError, LogFormatError, PersistenceError
from refold.events.secrets.redaction import FieldPath, Redaction

MANIFEST: Final = "bundle.json"
MANIFEST_BYTES_MAX: Final = 1024 * 1024

BUNDLE_FORMAT: Final = 1


class RecordedWith(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration that was in force in the session, or in one that its calls began."""

    agent: str
    fingerprint: str
    """Of the configuration."""
    refold: str
    core: int
    app: str | None = None
    """The application's own version, if it gave one."""


class ReplayVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay found."""

    level: str
    diverged: int
    kinds: tuple[str, ...]
    """Of differences: how they differ, at which path, and where first."""
    missing: tuple[str, ...]
    """What was not compared."""


class BundleManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a bundle is of."""

    format: int
    session: str
    recorded_with: tuple[RecordedWith, ...]
    refold: str
    """Version of the Refold that made the bundle."""
    core: int
    python: str
    agent: str | None
    """`module:attribute` of the agent that it was made with."""
    redacted: bool
    """Whether anything was taken out."""
    patterns: tuple[str, ...] = ()
    """That were taken out, as regular expressions without flags; what today's code makes is compared without them."""
    fields: tuple[str, ...] = ()
    """Likewise, as paths."""
    left_out: tuple[str, ...]
    """Streams that the session may have seen, which the log does not say."""
    verdict: ReplayVerdict
    """Of the bundle, replayed when it was made."""
    log_verdict: ReplayVerdict | None = None
    """Of the log, where it is another one: what was redacted makes a difference."""

    @property
    def redaction(self) -> Redaction:
        """What was taken out, but for values, which are not in the bundle."""
        return Redaction(patterns=map(re.compile, self.patterns), fields=map(FieldPath, self.fields))


def read_manifest(path: str | os.PathLike[str]) -> BundleManifest:
    """Return what a bundle is of.

    Raises:
        LogFormatError: it is no bundle.
        PersistenceError: it cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive, archive.open(MANIFEST) as file:
            manifest = msgspec.json.decode(file.read(MANIFEST_BYTES_MAX), type=BundleManifest)
        if manifest.format != BUNDLE_FORMAT:
            raise LogFormatError(f"{os.fspath(path)} is a bundle of a newer Refold; use that one")
        manifest.redaction  # noqa: B018 - Its rules must be rules.
        return manifest
    except OSError as error:
        raise PersistenceError(f"{os.fspath(path)} cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError, RuntimeError) as error:
        raise LogFormatError(f"{os.fspath(path)} is no bundle: {error}") from error
    except (msgspec.MsgspecError, re.error, OverflowError, ConfigError) as error:
        raise LogFormatError(f"{os.fspath(path)} is no bundle: {error}") from error
