"""The lines of a log from which secrets are taken that are in it already.

Read `refold.stores.jsonl.format` for the lines. The rule: a replay of what is written comes to the verdict that one of
the log comes to. So every digest over what is changed (of the history that was sent, of what a run added up to, of the
effects in flight, of payloads, the chain) is made anew, but only where today's code agrees with the one that was
recorded; where it does not, that is a divergence, and stays one.
"""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from refold.events.core.errors import ConfigError
from refold.events.core.ids import EventRef, PayloadHash, StreamName, kind_and_identifier, stream_name
from refold.events.core.pure_core import evolve_all, keys_of, noted
from refold.events.core.records import EncodedBatch, StoredEvent, first_chain, next_chain
from refold.events.model.configuration import payload_hash
from refold.events.model.cooperative import at_once
from refold.events.model.messages import RequestReference
from refold.events.model.payloads import cleaned_payload, referring
from refold.events.secrets.redaction import Redaction
from refold.events.session.core import SESSION_KIND
from refold.events.session.events import TerminalEvent
from refold.events.session.state import SessionState, run_totals
from refold.inspection.kinds import KINDS, StreamKind
from refold.inspection.log_reading import Batches, kind_of
from refold.keeping.belongings import Belongings
from refold.replay.core_replay import HistoryDigest
from refold.stores.event_store import EventStore
from refold.stores.forked import ForkPoint, origin_in
from refold.stores.jsonl.format import batch_line, payload_line
from refold.stores.keeping.erasing import names_in, payloads_of

_NAME = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_REFERENCE = re.compile(r"@\d+$")


async def redacted_lines(store: EventStore, needed: Belongings, redaction: Redaction) -> AsyncIterator[bytes]:
    """Give the lines of payloads and batches of some streams without secrets; memory holds all of them.

    Raises:
        ConfigError: a secret is in a name, where nothing can take its place.
    """
    streams = _renamed(needed.streams, redaction)
    names = await payloads_of(store, needed.streams, until_position=needed.until_position)
    payloads = _Payloads(await store.read_payloads(names), redaction)
    for name, payload in sorted(payloads.redacted.items()):
        yield payload_line(name, payload)
    batches: list[tuple[int, EncodedBatch]] = []
    for stream in needed.streams:
        again = _Stream(KINDS.get(kind_of(stream)), redaction, payloads)
        async for batch in Batches(store, stream):
            if batch[0].position <= needed.until_position:
                encoded = again.redacted(batch, streams)
                if batch[0].stream == stream:  # What a fork begins with stands once, where it lies.
                    batches.append((batch[0].position, encoded))
    chains = _Chains()
    for position, given in sorted(batches, key=lambda each: each[0]):
        encoded, chain = chains.continued(given)
        line = batch_line(encoded, position, chain)
        if redaction.holds_value(line.decode()):
            raise ConfigError(
                f"what is to be redacted is in an identifier of the event {encoded.stream}@"
                f"{encoded.expected_version + 1}, which nothing can take the place of; bundle another session"
            )
        yield line


class _Chains:
    """The digests of streams, made anew; a fork names that of its origin."""

    def __init__(self) -> None:
        self._ends: dict[StreamName, bytes] = {}
        self._at: dict[ForkPoint, bytes] = {}
        self._origins: dict[StreamName, ForkPoint] = {}

    def continued(self, batch: EncodedBatch) -> tuple[EncodedBatch, bytes]:
        """Return the next batch of its stream, and the digest after it."""
        end = self._ends.get(batch.stream)
        origin = origin_in(batch, batch.expected_version + 1) if end is None else None
        if origin is not None:
            self._origins[batch.stream] = origin
            batch = self._naming(batch, origin)
        chain = next_chain(end or first_chain(batch.stream), batch)
        self._ends[batch.stream] = chain
        self._at[ForkPoint(batch.stream, batch.expected_version + len(batch.events))] = chain
        return batch, chain

    def _naming(self, batch: EncodedBatch, origin: ForkPoint) -> EncodedBatch:
        while origin not in self._at and origin.stream in self._origins:  # A place in what that begins with itself.
            before = self._origins[origin.stream]
            origin = ForkPoint(before.stream, min(before.version, origin.version))
        event = msgspec.json.decode(batch.events[0])
        if origin not in self._at or not isinstance(event, dict) or "chain" not in event:
            return batch
        event["chain"] = self._at[origin].hex()
        return msgspec.structs.replace(batch, events=(msgspec.json.encode(event), *batch.events[1:]))


def _renamed(streams: Sequence[StreamName], redaction: Redaction) -> dict[str, str]:
    """Return the names of streams without secrets; a part of a memory has its owner's name in it."""
    found: dict[str, str] = {}
    for stream in streams:
        kind, name = kind_and_identifier(stream)
        found[stream] = stream_name(kind, redaction.text(name))
        if kind == SESSION_KIND and found[stream] != stream:
            raise ConfigError(
                f"the name of the session {name!r} holds what is to be redacted; calls and results are named after "
                "it, so it cannot be another one"
            )
    if len(set(found.values())) < len(found):
        raise ConfigError("the names of two memories are the same without what is to be redacted; name fewer patterns")
    return found


class _Payloads:
    """Payloads without secrets, and what they are called then."""

    def __init__(self, payloads: Mapping[PayloadHash, bytes], redaction: Redaction) -> None:
        self._payloads = payloads
        self._redaction = redaction
        self.names: dict[PayloadHash, PayloadHash] = {}
        self.redacted: dict[PayloadHash, bytes] = {}
        for name in payloads:
            self._redact(name)

    def _redact(self, name: PayloadHash) -> None:
        if name in self.names or name not in self._payloads:
            return
        data = self._payloads[name]
        self.names[name] = name  # Who names itself, in a damaged log, is left.
        within = [each for each in names_in(data) if each in self._payloads]
        for each in within:
            self._redact(each)
        # No pattern finds anything in the name of another payload.
        apart = {f"<refold-payload-{number}>": self.names[each] for number, each in enumerate(dict.fromkeys(within))}
        for word, each in zip(apart, dict.fromkeys(within), strict=True):
            data = data.replace(each.encode(), word.encode())
        data = at_once(cleaned_payload(self._redaction, data))
        try:
            cleaned = self._redaction.value(data.decode()).encode()
        except UnicodeDecodeError:
            cleaned = self._redaction.data(data)
        for word, new in apart.items():
            cleaned = cleaned.replace(word.encode(), new.encode())
        self.names[name] = payload_hash(cleaned)
        self.redacted[self.names[name]] = cleaned


class _Stream:
    """One stream, folded with and without its secrets, side by side."""

    def __init__(self, kind: StreamKind | None, redaction: Redaction, payloads: _Payloads) -> None:
        self._kind = kind
        self._redaction = redaction
        self._names = payloads.names
        self._sizes = {str(name): (name, len(data)) for name, data in payloads.redacted.items()}
        self._states: tuple[Any, Any] | None = (kind.core.initial(), kind.core.initial()) if kind is not None else None
        self._histories = (HistoryDigest(), HistoryDigest())
        self._noted: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self._changed = False

    def redacted(self, batch: Sequence[StoredEvent], streams: Mapping[str, str]) -> EncodedBatch:
        """Return a batch without secrets, the next one of the stream."""
        first = batch[0]
        renamed = [msgspec.structs.replace(each, data=self._with_names(each.data)) for each in batch]
        events, pending = self._plain(renamed), first.pending or ()
        if self._kind is not None:
            events, pending = self._decided(batch, renamed, pending)
        return EncodedBatch(
            stream=StreamName(streams[first.stream]),
            expected_version=first.version - 1,
            at=first.at,
            events=tuple(events),
            pending=pending,
            correlation=self._reference(first.correlation, streams),
            causation=self._reference(first.causation, streams),
        )

    def _with_names(self, data: bytes) -> bytes:
        def new(found: re.Match[bytes]) -> bytes:
            name = PayloadHash(found[0].decode())
            return self._names.get(name, name).encode()

        return _NAME.sub(new, data)

    def _reference(self, reference: EventRef | None, streams: Mapping[str, str]) -> EventRef | None:
        if reference is None or (end := _REFERENCE.search(reference)) is None:
            return reference
        stream = reference[: end.start()]
        return EventRef(streams.get(stream, stream) + end[0])

    def _plain(self, batch: Sequence[StoredEvent]) -> list[bytes]:
        """Return events of a kind that is not known here: JSON, or text."""
        if self._kind is not None:
            return []
        found: list[bytes] = []
        for stored in batch:
            try:
                found.append(msgspec.json.encode(self._redaction.value(msgspec.json.decode(stored.data))))
            except (msgspec.MsgspecError, UnicodeError, RecursionError):
                found.append(self._redaction.data(stored.data))
        return found

    def _decided(
        self, batch: Sequence[StoredEvent], renamed: Sequence[StoredEvent], pending: tuple[str, ...]
    ) -> tuple[list[bytes], tuple[str, ...]]:
        assert self._kind is not None
        assert self._states is not None
        core, codec = self._kind.core, self._kind.codec
        before = codec.decode_all(batch)
        after = [self._redaction.value(referring(event, self._sizes)) for event in codec.decode_all(renamed)]
        self._changed = self._changed or any(
            codec.encode(old) != codec.encode(new) for old, new in zip(before, after, strict=True)
        )
        totals: dict[str, str] = {}
        encoded: list[bytes] = []
        for old, new in zip(before, after, strict=True):
            new = self._with_digests(old, new, totals)
            encoded.append(codec.encode(new))
            self._states = (
                evolve_all(core, (old,), self._states[0]),
                evolve_all(core, (new,), self._states[1]),
            )
            self._count(totals)
        then, now = (noted(core.pending(state), known) for state, known in zip(self._states, self._noted, strict=True))
        now_pending = pending
        if pending in (then, keys_of(then)):  # Logs of before have no digest of the effects.
            now_pending = now if pending == then else keys_of(now)
        self._noted = (pending, now_pending)
        return encoded, now_pending

    def _with_digests(self, old: Any, new: Any, totals: Mapping[str, str]) -> Any:
        """Return an event whose digests are those of what it is about now."""
        assert self._states is not None
        sent, then = getattr(new, "request", None), getattr(old, "request", None)
        if isinstance(sent, RequestReference) and isinstance(then, RequestReference):
            digests = [
                history.digest_of(cast("SessionState", state).messages, sent.messages)
                for history, state in zip(self._histories, self._states, strict=True)
            ]
            if then.digest == digests[0]:
                sent = msgspec.structs.replace(sent, digest=digests[1])
            if self._changed:  # What left for the provider is only known by its digest.
                sent = msgspec.structs.replace(sent, sent="")
            new = msgspec.structs.replace(new, request=sent)
        if isinstance(new, TerminalEvent) and new.totals is not None and new.totals.digest in totals:
            new = msgspec.structs.replace(
                new, totals=msgspec.structs.replace(new.totals, digest=totals[new.totals.digest])
            )
        return new

    def _count(self, totals: dict[str, str]) -> None:
        """Note what the open run adds up to here, as it was recorded and without secrets."""
        assert self._states is not None
        then, now = self._states
        if isinstance(then, SessionState) and then.run is not None and now.run is not None:
            totals[run_totals(then, then.run).digest] = run_totals(now, now.run).digest
