"""Looking for secrets in a log: keys of known formats, and values and patterns that the caller names.

Two ways, since neither finds all: every event, payload, snapshot and waiting inbox command is decoded, so that a secret
is found however JSON spells it and named by its place; and the bytes of the files are read, with what free pages and
the WAL still hold. The rule: what is found is never shown, and a hostile log costs time and memory in proportion to its
size: one event, payload or block of bytes is held at a time, and no pattern goes back over what it has read.
"""

import os
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, cast

import msgspec

from refold.events.core.errors import ConfigError, PersistenceError, quoted
from refold.events.core.ids import kind_and_identifier
from refold.events.secrets.redaction import Redaction
from refold.events.secrets.spellings import ESCAPES, unescaped, without_pauses
from refold.inspection.log_reading import Streams, opened
from refold.stores.event_store import EventStore, TellProgress, WholeLog, untold
from refold.stores.guarding.trusted_files import whose
from refold.stores.past_state import last_position
from refold.stores.sqlite.file import absolute, is_text_log
from refold.stores.sqlite.inbox import InboxFile

_KEY: Final = r"(?<![A-Za-z0-9_-])"
"""Nothing of a key stands before: each run of such characters is tried once."""

FORMATS: Final[Mapping[str, re.Pattern[str]]] = {
    "Anthropic key": re.compile(_KEY + r"sk-ant-[A-Za-z0-9_-]{20,500}"),
    "OpenAI key": re.compile(_KEY + r"sk-(?!ant-)(?:proj-|svcacct-|admin-)?[A-Za-z0-9_-]{20,500}"),
    "AWS access key": re.compile(_KEY + r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}(?![A-Za-z0-9])"),
    "AWS secret key": re.compile(r"(?i)aws.{0,20}secret.{0,40}?['\"=:\s][A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])"),
    "Google key": re.compile(_KEY + r"(?:AIza[A-Za-z0-9_-]{35}|ya29\.[A-Za-z0-9_-]{20,2000})"),
    "GitHub token": re.compile(_KEY + r"(?:gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,255})"),
    "Slack token": re.compile(_KEY + r"(?:xox[abeoprs]-[A-Za-z0-9-]{10,255}|xapp-[A-Za-z0-9-]{10,255})"),
    "Stripe key": re.compile(_KEY + r"(?:(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{16,255}|whsec_[A-Za-z0-9+/]{24,255})"),
    "private key": re.compile(r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,3}PRIVATE KEY-----"),
    "JSON Web Token": re.compile(_KEY + r"eyJ[A-Za-z0-9_-]{8,4000}\.eyJ[A-Za-z0-9_-]{8,4000}\.[A-Za-z0-9_-]{0,2000}"),
    "bearer header": re.compile(r"(?i)\bbearer\s{1,5}[A-Za-z0-9._~+/-]{16,4000}={0,2}"),
}
"""Formats of keys, by the name under which they are reported."""

SHOWN: Final = 8
"""So many characters of a key of a known format are shown, which all of its kind begin with."""

FINDINGS_MAX: Final = 10_000
"""So many findings are kept; more are counted."""

BLOCK_BYTES: Final = 1024 * 1024
OVERLAP_BYTES: Final = 8 * 1024
"""Files are read in blocks; a secret of this length is found where two meet."""


class FoundSecret(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A secret, and where it is."""

    kind: str
    """The name of its format; or what the caller named it."""
    masked: str
    """What may be shown of it."""
    stream: str | None = None
    version: int | None = None
    payload: str | None = None
    """Hash of the payload."""
    path: str | None = None
    """Of the field, such as `content[0].text`."""
    file: str | None = None
    """The file in whose bytes it is."""
    times: int = 1


class ScanReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, and how much was looked at."""

    findings: tuple[FoundSecret, ...]
    found: int
    """More than `findings` where there are too many."""
    streams: int
    events: int
    payloads: int
    file_bytes: int
    not_read: tuple[str, ...]
    """What could not be read as a log or an inbox, and why: the bytes of its file were looked at, unless they are among
    `not_seen`."""
    not_seen: tuple[str, ...] = ()
    """Files whose bytes could not be read, and why."""
    incomplete: bool = False
    """Whether one of those holds what was said; the lock and the index of the WAL do not."""


class SoughtSecrets:
    """What is looked for beside known formats.

    Args:
        values: exact secrets, by the name under which they are reported.
        patterns: likewise.

    Raises:
        ConfigError: a value is too short to be looked for.
    """

    def __init__(self, values: Mapping[str, str], patterns: Mapping[str, re.Pattern[str]]) -> None:
        self._values = {name: Redaction([value]) for name, value in values.items()}
        self._in_bytes = {name: Redaction([value, value.encode().decode("latin-1")]) for name, value in values.items()}
        self._patterns = {**FORMATS, **patterns}

    def in_text(self, text: str, *, raw: bool = False) -> Iterator[tuple[str, str]]:
        """Give what is found, as kind and mask; of bytes read as Latin-1 if `raw`."""
        for name, redaction in (self._in_bytes if raw else self._values).items():
            for start, end in redaction.spans(text):
                yield name, f"({end - start} characters)"
        plain = without_pauses(unescaped(text, ESCAPES))[0] if "\\" in text or "%" in text else text
        for name, pattern in self._patterns.items():
            known = name in FORMATS
            for match in pattern.finditer(plain):
                if match[0]:
                    shown = match[0][:SHOWN] if known else ""
                    yield name, f"{shown}… ({len(match[0])} characters)" if known else f"({len(match[0])} characters)"


class _Report:
    def __init__(self, progress: TellProgress) -> None:
        self.progress = progress
        self.findings: list[FoundSecret] = []
        self.found = self.streams = self.events = self.payloads = self.file_bytes = 0
        self.not_read: list[str] = []
        self.not_seen: list[str] = []
        self.incomplete = False

    def add(self, finding: FoundSecret) -> None:
        self.found += finding.times
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)


async def scan_log(
    log: str | os.PathLike[str], wanted: SoughtSecrets, *, progress: TellProgress = untold
) -> ScanReport:
    """Look for secrets in a log, its WAL, its inbox and its lock, as far as this user may read them.

    Args:
        log: path of the file.
        wanted: what is looked for beside known formats.
        progress: called from time to time with what is counted, how many are done, and of how many.

    Raises:
        PersistenceError: there is no such file, or the log's own bytes cannot be read.
    """
    path, report = absolute(log), _Report(progress)
    try:
        async with opened(log) as store:
            await _scan_store(store, wanted, report)
    except PersistenceError as error:
        if not path.is_file():
            raise
        report.not_read.append(str(error))
    if not is_text_log(log):
        await _scan_inbox(path, wanted, report)
    _scan_file(path, wanted, report)
    for beside in ("-wal", "-shm", "-journal", ".inbox", ".inbox-journal", ".lock"):
        try:
            _scan_file(path.with_name(path.name + beside), wanted, report)
        except PersistenceError as error:
            report.not_seen.append(str(error))
            report.incomplete |= beside not in ("-shm", ".lock")
    return ScanReport(
        findings=tuple(report.findings),
        found=report.found,
        streams=report.streams,
        events=report.events,
        payloads=report.payloads,
        file_bytes=report.file_bytes,
        not_read=tuple(report.not_read),
        not_seen=tuple(report.not_seen),
        incomplete=report.incomplete,
    )


async def _scan_store(store: EventStore, wanted: SoughtSecrets, report: _Report) -> None:
    async for head in Streams(store):
        report.streams += 1
        for kind, masked in wanted.in_text(head.stream):
            report.add(
                FoundSecret(kind=kind, masked=masked, stream=kind_and_identifier(head.stream)[0], path="(its name)")
            )
        snapshot = await store.load_snapshot(head.stream)
        if snapshot is not None:
            for kind, masked in wanted.in_text(snapshot.state.decode("latin-1"), raw=True):
                report.add(
                    FoundSecret(
                        kind=kind, masked=masked, stream=head.stream, version=snapshot.version, path="(its snapshot)"
                    )
                )
    position, end = 0, await last_position(store)
    while page := await store.read_all(after_position=position, limit=100):
        position = page[-1].position
        report.progress("events", position, max(end, position))
        for event in page:
            report.events += 1
            for kind, masked, path in _in_json(event.data, wanted):
                report.add(FoundSecret(kind=kind, masked=masked, stream=event.stream, version=event.version, path=path))
    if hasattr(store, "list_payloads"):
        async for name, payload in _payloads(cast("WholeLog", store)):
            report.payloads += 1
            report.progress("payloads", report.payloads, None)
            for kind, masked, path in _in_json(payload, wanted):
                report.add(FoundSecret(kind=kind, masked=masked, payload=name, path=path))


async def _payloads(store: WholeLog) -> AsyncIterator[tuple[str, bytes]]:
    after = ""
    while listed := await store.list_payloads(after=after, limit=100):
        after = listed[-1].hash
        for item in listed:
            for name, data in (await store.read_payloads([item.hash])).items():
                yield name, data


async def _scan_inbox(log: Path, wanted: SoughtSecrets, report: _Report) -> None:
    inbox = InboxFile(log)
    try:
        for session in await inbox.sessions_waiting():
            for row in await inbox.waiting(session):
                for kind, masked, path in _in_json(row.command or b"", wanted):
                    place = f"{path} (command {row.id} waiting for session {quoted(session)})"
                    report.add(FoundSecret(kind=kind, masked=masked, file=inbox.path.name, path=place))
    except PersistenceError as error:
        report.not_read.append(str(error))


def _in_json(data: bytes, wanted: SoughtSecrets) -> Iterator[tuple[str, str, str]]:
    """Give what is found in JSON: its kind, its mask, and its place."""
    try:
        value: object = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        value = data.decode("utf-8", "replace")
    for path, text in _texts(value):
        for kind, masked in wanted.in_text(text):
            yield kind, masked, path


def _texts(value: object) -> Iterator[tuple[str, str]]:
    """Give every text in a JSON value with its path; keys and long numbers too. It keeps its own stack."""
    waiting: list[tuple[str, object]] = [("", value)]
    while waiting:
        path, item = waiting.pop()
        if isinstance(item, str):
            yield path or "$", item
        elif isinstance(item, dict):
            for key, member in cast("dict[str, object]", item).items():
                yield f"{path}.{key[:80]}".lstrip(".") + " (its name)", key
                waiting.append((f"{path}.{key[:80]}".lstrip("."), member))
        elif isinstance(item, list):
            waiting += [(f"{path}[{place}]", each) for place, each in enumerate(cast("Sequence[object]", item))]
        elif isinstance(item, int | float) and not isinstance(item, bool):
            yield path, str(item)


def _scan_file(path: Path, wanted: SoughtSecrets, report: _Report) -> None:
    """Look at a file's bytes; what stands there often is one finding."""
    counts: dict[tuple[str, str], int] = {}
    if not path.is_file() or path.is_symlink():
        return
    before = ""
    try:
        with path.open("rb") as file:
            begin, size = report.file_bytes, os.fstat(file.fileno()).st_size
            while block := file.read(BLOCK_BYTES):
                report.file_bytes += len(block)
                report.progress(f"bytes of {path.name}", report.file_bytes - begin, size)
                text = before + block.decode("latin-1")
                seen = list(wanted.in_text(before, raw=True)) if before else []
                for found in wanted.in_text(text, raw=True):
                    if found in seen:
                        seen.remove(found)  # It was counted with the block before.
                    else:
                        counts[found] = counts.get(found, 0) + 1
                before = text[-OVERLAP_BYTES:]
    except OSError as error:
        why = whose(path) if isinstance(error, PermissionError) else f"cannot be read: {error.strerror}"
        raise PersistenceError(f"{path} {why}") from error
    for (kind, masked), times in counts.items():
        report.add(FoundSecret(kind=kind, masked=masked, file=path.name, times=times))


def required_values(variables: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the values of variables of the environment, by what they are reported as.

    Raises:
        ConfigError: one is not set.
    """
    values: dict[str, str] = {}
    for name in variables:
        value = environment.get(name, "").strip()
        if not value:
            raise ConfigError(f"the variable {name} is not set in the environment; nothing was looked for")
        values[f"value of {name}"] = value
    return values
