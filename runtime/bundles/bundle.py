"""A bundle: one session with all that it needs to be done again, in one file without secrets.

    await bundle_session("events.db", "ann", "ann.refold", agent=support)

`ann.refold` is an archive (ZIP) of `log.jsonl`, which `refold replay`, `show` and all that read a log read, and
`bundle.json`, which says what it was recorded with. Read `refold.keeping.belongings` for what is taken along. The rule:
what the rules of redaction find is in the file in no form, and where a replay of it comes to another verdict than one
of the log does, that is said.
"""

import asyncio
import hashlib
import os
import platform
import re
import tempfile
import zipfile
from collections.abc import AsyncIterator
from contextlib import aclosing
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import msgspec

from refold.agents.redact import Redact, redaction_of_agents, redaction_of_rules
from refold.bundles.redacted_log import redacted_lines
from refold.events.core.errors import ConfigError
from refold.events.model.configuration import CORE_VERSION
from refold.events.secrets.redaction import FieldPath, Redaction
from refold.events.session.core import SESSION_CODEC, SESSION_KIND
from refold.events.session.events import AgentConfigured
from refold.inspection.export import new_file
from refold.inspection.log_reading import Batches, ReadableLog, kind_of, opened
from refold.keeping.belongings import Belongings, belongings_of
from refold.replay.log_replay import replay
from refold.replay.manifest import BUNDLE_FORMAT, MANIFEST, BundleManifest, RecordedWith, ReplayVerdict
from refold.stores.event_store import EventStore, WholeLog
from refold.stores.jsonl.export import exported_lines
from refold.stores.jsonl.format import FORMAT, LOG_IN_BUNDLE, EndLine, HeaderLine, encoded
from refold.stores.keeping.erasing import payloads_of
from refold.stores.sqlite.file import BUNDLE_SUFFIX, is_bundle
from refold.version import __version__

if TYPE_CHECKING:
    from refold.agents.agent import AnyAgent

_SYNTAX: Final = re.compile(
    r"\[\^?\]?(?:\\.|[^]\\])*\]|\\.|\(\?(?:P?<\w+>|[-aiLmsux]*[:)]|<?[=!]|[>#])|\{[\d,]*\}|[()|?*+.^$]", re.DOTALL
)
"""What in a pattern does not stand for itself."""

_WRITTEN_AT: Final = (1980, 1, 1, 0, 0, 0)
"""The earliest time of an archive, so that the same session gives the same bytes."""


async def bundle_session(
    log: ReadableLog,
    session: str,
    path: str | os.PathLike[str],
    *,
    redact: Redact = (),
    agent: "AnyAgent | None" = None,
    agent_name: str | None = None,
    deps: object = None,
) -> BundleManifest:
    """Write a session into a bundle, and replay both to compare what is found.

    Args:
        log: path of the file, or an open store, which stays open.
        session: its name.
        path: of the new file, whose name ends in `.refold`; mode 0600, and it appears when it is complete.
        redact: what must not be in the bundle, as of `Agent`; beside that the agent's own `redact` and the keys of
            providers, from the agent and the environment.
        agent: whose code replays both.
        agent_name: `module:attribute` of it, for who replays the bundle.
        deps: as of `refold.replay.replay`.

    Raises:
        ConfigError: there is no such session, the file is there already, or a secret is in a name.
        LogFormatError: the log is damaged.
        PersistenceError: the log cannot be read, or the file cannot be written.
    """
    if not is_bundle(path):
        raise ConfigError(f"the name of a bundle ends in {BUNDLE_SUFFIX}, such as {session}{BUNDLE_SUFFIX}")
    redaction = Redaction(others=[redaction_of_rules(redact), redaction_of_agents([agent] if agent else [])])
    async with opened(log) as store:
        needed = await belongings_of(store, [session])
        recorded_with = await _recorded_with(store, needed)
        original = _original_lines(store, needed)
        lines = await _whole(original if not redaction else redacted_lines(store, needed, redaction), needed)
        plain = await _whole(_original_lines(store, needed), needed) if redaction else lines
    manifest = BundleManifest(
        format=BUNDLE_FORMAT,
        session=session,
        recorded_with=redaction.value(recorded_with),
        refold=__version__,
        core=CORE_VERSION,
        python=platform.python_version(),
        agent=agent_name,
        redacted=plain != lines,
        patterns=_told_patterns(redact, redaction),
        fields=tuple(rule.path for rule in redact if isinstance(rule, FieldPath)),
        left_out=tuple(map(redaction.text, needed.left_out)),
        verdict=ReplayVerdict(level="", diverged=0, kinds=(), missing=()),
    )
    verdict = await _verdict(_archive(manifest, lines), MANIFEST + BUNDLE_SUFFIX, agent, deps, redaction)
    log_verdict = await _verdict(plain, LOG_IN_BUNDLE, agent, deps, redaction) if manifest.redacted else verdict
    manifest = msgspec.structs.replace(
        manifest, verdict=verdict, log_verdict=log_verdict if log_verdict != verdict else None
    )
    async with new_file(path) as file:
        file.write(_archive(manifest, lines))
    return manifest


def _told_patterns(redact: Redact, redaction: Redaction) -> tuple[str, ...]:
    """Return the patterns that a replay is told: not one that names the secret itself."""
    patterns = [rule for rule in redact if isinstance(rule, re.Pattern) and rule.flags & ~re.UNICODE == 0]
    return tuple(
        each.pattern
        for each in patterns
        if all(redaction.text(text) == text for text in (each.pattern, *_literally(each.pattern)))
    )


def _literally(pattern: str) -> list[str]:
    """Return what a pattern says as itself, whole and each side of `|` alone: of `^pass(word)?$` it is password."""

    def said(found: re.Match[str]) -> str:
        first, second = found[0][0], found[0][1:2]
        if first == "[":  # One or two characters may be a way to write the first; more stand for any of them.
            return second if len(found[0]) < 5 and second not in "^\\" else ""
        if first == "\\":
            return "" if second.isalnum() else second
        return "\n" if first == "|" else ""

    text = _SYNTAX.sub(said, pattern)
    return [text.replace("\n", ""), *text.split("\n")]


def _archive(manifest: BundleManifest, lines: bytes) -> bytes:
    written = BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        _add(archive, MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
        _add(archive, LOG_IN_BUNDLE, lines)
    return written.getvalue()


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    member = zipfile.ZipInfo(name, _WRITTEN_AT)
    member.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(member, data)


async def _original_lines(store: EventStore, needed: Belongings) -> AsyncIterator[bytes]:
    """Give the lines of payloads and batches as they are in the log."""
    payloads = await payloads_of(store, needed.streams, until_position=needed.until_position)
    lines = exported_lines(
        cast("WholeLog", store), streams=needed.streams, payloads=payloads, until_position=needed.until_position
    )
    async with aclosing(lines):
        async for line in lines:
            if not line.startswith((b'{"line":"refold.log"', b'{"line":"end"')):
                yield line


async def _whole(lines: AsyncIterator[bytes], needed: Belongings) -> bytes:
    """Return a text log of some lines: with a header, and an end that counts and digests them."""
    header = HeaderLine(format=FORMAT, export=True, partial=True, removed_position=needed.until_position)
    pieces = [encoded(header)]
    batches = events = payloads = 0
    async for line in lines:
        pieces.append(line)
        is_payload = line.startswith(b'{"line":"payload"')
        payloads += is_payload
        batches += not is_payload
        if not is_payload:
            events += len(msgspec.json.decode(line, type=_Events).events)
    digest = hashlib.sha256(b"".join(pieces)).hexdigest()
    return b"".join((*pieces, encoded(EndLine(batches=batches, events=events, payloads=payloads, sha256=digest))))


class _Events(msgspec.Struct):
    events: list[msgspec.Raw]


async def _recorded_with(store: EventStore, needed: Belongings) -> tuple[RecordedWith, ...]:
    found: dict[RecordedWith, None] = {}
    for stream in needed.streams:
        if kind_of(stream) != SESSION_KIND:
            continue
        async for batch in Batches(store, stream):
            for event in SESSION_CODEC.decode_all(batch):
                if isinstance(event, AgentConfigured):
                    code = event.configuration.code
                    configured = event.configuration
                    found[
                        RecordedWith(
                            agent=configured.agent,
                            fingerprint=configured.fingerprint,
                            refold=code.refold,
                            core=code.core,
                            app=code.app,
                        )
                    ] = None
    return tuple(found)


async def _verdict(
    data: bytes, name: str, agent: "AnyAgent | None", deps: object, redaction: Redaction
) -> ReplayVerdict:
    """Replay a text log, or a bundle."""
    with tempfile.TemporaryDirectory(prefix="refold-") as folder:
        path = Path(folder) / name
        await asyncio.to_thread(path.write_bytes, data)
        report = await replay(path, agent=agent, deps=deps)
    return ReplayVerdict(
        level=report.level,
        diverged=report.diverged,
        kinds=tuple(f"{kind.differs} {redaction.text(kind.path)} {kind.first}" for kind in report.kinds),
        missing=tuple(map(redaction.text, report.missing())),
    )
