"""Lines keep every byte of an event and of a payload, and people can read them where that is possible."""

import json
import sys

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import example, given

from refold.events.core.ids import PayloadHash, StreamName
from refold.events.core.records import EncodedBatch
from refold.stores.jsonl.format import NESTING_MAX, BatchLine, PayloadLine, batch_line, decoded, payload_line

HASH = PayloadHash("0" * 64)


def written(event: bytes) -> tuple[bytes, bytes]:
    """Return the line of a batch of one event, and the event as it is read back."""
    batch = EncodedBatch(stream=StreamName("note/a"), expected_version=0, at=0, events=(event,))
    line = batch_line(batch, 1, bytes(32))
    read = decoded(line)
    assert isinstance(read, BatchLine)
    assert line.count(b"\n") == 1
    json.loads(line)
    return line, read.batch().events[0]


@given(st.text().map(str.encode))
@example(b'{"a":1}')
@example(b'{"a":\n1}')
@example(b'{"a":"\\ud800"}')
@example(b' {"a":1}')
@example(b'{"a":1}}')
@example(b'"text"')
@example(b"{")
@example(b"")
def test_any_text_of_an_event_is_kept(event: bytes) -> None:
    assert written(event)[1] == event


@pytest.mark.parametrize(
    "event",
    [b'{"a": [1, 2.50, -0, 1E5]}', b"{}", '{"é":"𝄞 \\u0000"}'.encode(), b'{"n":123456789012345678901234567890}'],
)
def test_an_object_on_one_line_stands_there_as_it_is(event: bytes) -> None:
    line, read = written(event)
    assert event in line
    assert read == event


@pytest.mark.parametrize("depth", [NESTING_MAX, NESTING_MAX + 1, 500, 100_000])
def test_deep_nesting_is_kept_and_never_met_by_who_reads_lines(depth: int) -> None:
    event = b'{"[{[":' * depth + b"1" + b"}" * depth
    line, read = written(event)
    assert read == event
    assert (event in line) == (depth <= NESTING_MAX)


def test_many_objects_beside_each_other_are_not_nested() -> None:
    event = b'{"a":[' + b",".join([b'{"b":"}]{["}'] * 500) + b"]}"
    assert event in written(event)[0]


@given(st.binary() | st.text().map(str.encode))
@example(b"\0" * 1000)
def test_any_payload_is_kept(payload: bytes) -> None:
    line = payload_line(HASH, payload)
    read = decoded(line)
    assert isinstance(read, PayloadLine)
    assert read.payload() == payload
    assert line.count(b"\n") == 1
    assert len(line) <= len(payload) * 4 // 3 + 256


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"{}\n",
        b"[]\n",
        b"null\n",
        b'{"line":"batch"}\n',
        b'{"line":"payload","hash":"0","text":"a"}',
        b'{"line":"payload","hash":"0","text":"\\ud800"}\n',
        b'{"line":"payload","hash":"0","text":"a\0"}\n',
        b'{"line":"payload","hash":"0","text":"\xff"}\n',
        b'{"line":"payload","hash":"0","more":' + b"[" * 100_000 + b"\n",
        b'{"line":"batch","events":[' + b'{"a":' * 100_000 + b"\n",
        b'{"line":"payload","hash":"0","text":"a"} {}\n',
        b"\xef\xbb\xbf{}\n",
    ],
)
def test_what_is_no_line_is_refused_with_a_reason(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        decoded(line)


@pytest.mark.parametrize(
    "line", [b'{"line":"payload","hash":"0"}\n', b'{"line":"payload","hash":"0","text":"a","base64":""}\n']
)
def test_a_payload_is_either_a_text_or_base64(line: bytes) -> None:
    read = decoded(line)
    assert isinstance(read, PayloadLine)
    with pytest.raises(ValueError, match="either `text` or `base64`"):
        read.payload()


@pytest.mark.parametrize("text", ["=", "YQ", "Y Q==", "YQ==\n", "é"])
def test_damaged_base64_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="base64"):
        PayloadLine(hash=HASH, base64=text).payload()


@pytest.mark.parametrize("event", [b"1", b"null", b"[]", b'"\\ud800"'])
def test_an_event_is_an_object_or_a_string(event: bytes) -> None:
    line = BatchLine(
        position=1, stream=StreamName("a"), version=1, at=0, events=(msgspec.Raw(event),), chain=bytes(32).hex()
    )
    with pytest.raises(ValueError, match="an event is"):
        line.batch()


def test_the_depth_of_who_reads_does_not_matter() -> None:
    event = b'{"a":' * NESTING_MAX + b"1" + b"}" * NESTING_MAX
    line, _ = written(event)

    def deeper(levels: int) -> object:
        return deeper(levels - 1) if levels else decoded(line)

    here = len(__import__("inspect").stack(0))
    assert isinstance(deeper(sys.getrecursionlimit() - here - 120), BatchLine)
