"""The chain of digests: any change in a stream's past changes every digest after it."""

import hashlib

import msgspec
import pytest

from refold.events.core.ids import EventRef, StreamName
from refold.events.core.records import EncodedBatch, first_chain, next_chain

ALICE = StreamName("session/alice")
BATCH = EncodedBatch(
    stream=ALICE,
    expected_version=2,
    at=1_700_000_000_000_000,
    events=(b'{"type":"a.v1"}', b'{"type":"b.v1"}'),
    pending=("model:5",),
    correlation=EventRef("session/alice@3"),
    causation=EventRef("session/bob@1"),
)


def test_the_digest_of_a_batch_is_this_for_ever() -> None:
    assert first_chain(ALICE) == hashlib.sha256(b"refold stream\0session/alice").digest()
    header = (
        b'[2,1700000000000000,["model:5"],"session/alice@3","session/bob@1",[15,15]]\n{"type":"a.v1"}{"type":"b.v1"}'
    )
    assert next_chain(b"\0" * 32, BATCH) == hashlib.sha256(b"\0" * 32 + header).digest()


CHANGED = [
    msgspec.structs.replace(BATCH, expected_version=3),
    msgspec.structs.replace(BATCH, at=BATCH.at + 1),
    msgspec.structs.replace(BATCH, events=BATCH.events[:1]),
    msgspec.structs.replace(BATCH, events=BATCH.events[::-1]),
    msgspec.structs.replace(BATCH, events=(b"".join(BATCH.events),)),
    msgspec.structs.replace(BATCH, events=(BATCH.events[0][:-1], b"}" + BATCH.events[1])),
    msgspec.structs.replace(BATCH, pending=()),
    msgspec.structs.replace(BATCH, pending=("model:5", "model:6")),
    msgspec.structs.replace(BATCH, correlation=None),
    msgspec.structs.replace(BATCH, causation=None),
    msgspec.structs.replace(BATCH, correlation=BATCH.causation, causation=BATCH.correlation),
]


@pytest.mark.parametrize("changed", CHANGED)
def test_any_change_of_a_batch_changes_its_digest_and_every_one_after_it(changed: EncodedBatch) -> None:
    start = first_chain(ALICE)
    assert start != first_chain(StreamName("session/alicf"))
    edited = next_chain(start, changed)
    for _ in range(3):
        start = next_chain(start, BATCH)
        assert len(start) == len(edited) == 32
        assert start != edited
        edited = next_chain(edited, BATCH)


def test_a_batch_that_was_removed_or_moved_is_seen() -> None:
    other = msgspec.structs.replace(BATCH, at=BATCH.at + 1)
    start = first_chain(ALICE)
    both = next_chain(next_chain(start, BATCH), other)
    assert both != next_chain(start, other)
    assert both != next_chain(next_chain(start, other), BATCH)
