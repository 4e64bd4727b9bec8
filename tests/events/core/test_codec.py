"""Events to bytes and back: what is written can be read, and what cannot be read is named by its place."""

import math
import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.events import SESSION_CODEC, Event, TextBlock
from refold.events.core.cleaning import Unrecordable
from refold.events.core.codec import EVENT_BYTES_MAX, EventCodec, Upcasters, tag_of
from refold.events.core.errors import LogFormatError
from refold.events.core.ids import EventRef, RunId, StreamName, ToolCallId
from refold.events.core.records import StoredEvent
from refold.events.kinds.episodic import EPISODIC_CORE
from refold.events.kinds.runtime import RUNTIME_CODEC
from refold.events.kinds.semantic import SEMANTIC_CORE
from refold.events.kinds.tool import TOOL_CODEC
from refold.events.kinds.working_memory import WORKING_CORE
from refold.events.model.messages import Usage
from refold.events.session import events as ev
from tests.events.conftest import say
from tests.selfcheck.exhaustive.scope import STREAM

RUN, CALL = RunId("run_3"), ToolCallId("call_6_0")
WORDS = (say("é\0😀"),)

RECORDED = (Path(__file__).parents[2] / "golden" / "text" / "recorded_events.jsonl").read_bytes().splitlines()
"""An event of every type that these codecs ever recorded. Lines are added there, and none is ever changed."""

CODECS: dict[str, EventCodec[Any]] = {
    "session": SESSION_CODEC,
    "memory": EPISODIC_CORE.codec,
    "knowledge": SEMANTIC_CORE.codec,
    "working": WORKING_CORE.codec,
    "runtime": RUNTIME_CODEC,
    "tool": TOOL_CODEC,
}


def stored(data: bytes, *, version: int = 3, at: int = 77, batch: int | None = None) -> StoredEvent:
    return StoredEvent(
        position=version,
        stream=STREAM,
        version=version,
        batch=batch if batch is not None else version,
        at=at,
        data=data,
    )


def holding(value: object) -> ev.ToolApprovalRequested:
    """Return an event with any object in its arguments."""
    anything: Any = value
    return ev.ToolApprovalRequested(run=RUN, call=CALL, tool="pay", input={"x": anything})


def nested(levels: int) -> object:
    value: object = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize("data", RECORDED, ids=tag_of)
def test_every_recorded_shape_is_read_with_its_time_and_written_again_byte_for_byte(data: bytes) -> None:
    codec = CODECS[str(tag_of(data)).partition(".")[0]]
    event = codec.decode(stored(data))
    assert event.at == 77
    assert codec.encode(event) == codec.encode(event) == data
    assert event.at == 77
    assert b'"at"' not in data


def test_case_j07_every_tag_that_was_ever_recorded_is_still_known_and_none_is_derived_from_a_name() -> None:
    assert {tag_of(data) for data in RECORDED} == {tag for codec in CODECS.values() for tag in codec.tags}
    decoded = {type(SESSION_CODEC.decode(stored(data))) for data in RECORDED if data.startswith(b'{"type":"session.')}
    assert decoded == set(get_args(ev.SessionEvent))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("$.input.x", "a\ud83d"),
        ("$.input.x.rows[3]", {"rows": [0, 1, 2, math.nan]}),
        ("$.input.x", (1, 2)),
        ("$.input.x", 2**63),
    ],
)
def test_what_would_not_be_read_back_equal_is_refused_by_its_path(path: str, value: object) -> None:
    with pytest.raises(Unrecordable) as refusal:
        SESSION_CODEC.encode(holding(value))
    assert refusal.value.path == path


def test_case_e01_a_lone_surrogate_is_refused_wherever_it_stands() -> None:
    with pytest.raises(Unrecordable, match=r"^\$\.content\[0\]\.text holds a lone surrogate"):
        SESSION_CODEC.encode(ev.InputQueued(content=(TextBlock(text="a\ud83d"),)))
    with pytest.raises(Unrecordable, match=r"^\$\.key holds a lone surrogate"):
        SESSION_CODEC.encode(ev.InputQueued(content=WORDS, key="\ud83d"))


def test_case_e04_an_integer_that_other_readers_cannot_hold_is_refused() -> None:
    for value in (19933688932870350000, 2**70, 10**5000):
        with pytest.raises(Unrecordable, match="integer beyond 64 bits"):
            SESSION_CODEC.encode(holding(value))
    with pytest.raises(Unrecordable, match=r"^\$\.usage\.input_tokens is an integer beyond 64 bits"):
        SESSION_CODEC.encode(ev.ModelInterrupted(turn=1, usage=Usage(input_tokens=2**70)))
    assert SESSION_CODEC.encode(holding([2**63 - 1, -(2**63), "9" * 100, 1e300]))


def test_case_e06_a_librarys_number_is_refused_by_its_path() -> None:
    numpy = pytest.importorskip("numpy")
    for value in (numpy.float64(1), numpy.float32(1), numpy.int64(1)):
        with pytest.raises(Unrecordable) as refusal:
            SESSION_CODEC.encode(holding({"a": [{"b": value}]}))
        assert refusal.value.path == "$.input.x.a[0].b"


@pytest.mark.parametrize("levels", [200, 900, 2_000, 5_000])
def test_case_e08_nesting_that_a_deeper_stack_could_not_read_is_refused(levels: int) -> None:
    with pytest.raises(Unrecordable, match="is nested deeper than"):
        SESSION_CODEC.encode(holding(nested(levels)))


def test_many_blocks_beside_each_other_are_not_deep() -> None:
    assert SESSION_CODEC.encode(ev.InputQueued(content=WORDS * 500))


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_number_that_json_has_no_form_for_is_refused_in_a_field_too(number: float) -> None:
    with pytest.raises(Unrecordable, match=r"^\$\.retry_after_s is"):
        SESSION_CODEC.encode(ev.ModelFailed(run=RUN, turn=1, kind="server", message="", retry_after_s=number))


def test_a_field_of_another_type_is_refused() -> None:
    wrong: Any = 5
    with pytest.raises(Unrecordable, match="RunCompleted"):
        SESSION_CODEC.encode(ev.RunCompleted(run=wrong))


def test_an_event_beyond_the_largest_size_is_refused_and_says_how_large_it_is() -> None:
    with pytest.raises(Unrecordable, match=r"ToolCallCompleted\) has 2,000,\d\d\d bytes; an event may have 1,048,576"):
        SESSION_CODEC.encode(ev.ToolCallCompleted(call=CALL, content=(say("x" * 2_000_000),)))
    frame = len(SESSION_CODEC.encode(ev.ToolCallCompleted(call=CALL, content=(say(""),))))
    assert SESSION_CODEC.encode(ev.ToolCallCompleted(call=CALL, content=(say("x" * (EVENT_BYTES_MAX - frame)),)))


def test_an_event_that_is_longer_than_any_is_written_is_refused_before_it_is_looked_at() -> None:
    data = b'{"type":"session.input_queued.v1","content":[],"key":"' + b"k" * EVENT_BYTES_MAX + b'"}'
    with pytest.raises(
        LogFormatError, match=r"session/alice@3 is damaged: it has 1,048,\d\d\d bytes, and none is written"
    ):
        SESSION_CODEC.decode(stored(data))


def test_nul_characters_are_kept() -> None:
    data = SESSION_CODEC.encode(ev.InputQueued(content=(say("a\0b"),)))
    assert b"\0" not in data
    assert SESSION_CODEC.decode(stored(data)) == ev.InputQueued(content=(say("a\0b"),), at=77)


# Damaged and strange logs


@pytest.mark.parametrize(
    ("words", "data"),
    [
        ("event session/alice@3 is damaged: Input data was truncated", b'{"type":"session.run_completed.v1","run"'),
        ("event session/alice@3 is damaged", b""),
        ("event session/alice@3 is damaged", b"\xff\xfe"),
        ("event session/alice@3 is damaged: Expected `object`", b"[]"),
        ("event session/alice@3 is damaged: .*`type`", b'{"run":"run_3"}'),
        ("event session/alice@3 is damaged", b'{"type":7}'),
        (
            r"event session/alice@3 \(session.run_completed.v1\) does not have the shape .*Expected `str`, got `int`"
            r" - at `\$.run`",
            b'{"type":"session.run_completed.v1","run":1}',
        ),
        ("does not have the shape .* missing required field `run`", b'{"type":"session.run_completed.v1"}'),
        ("does not have the shape", b'{"type":"session.run_completed.v1","run":"a","type":"session.run_failed.v1"}'),
        ("does not have the shape", b'{"type":"session.run_failed.v1","run":"a","kind":"boredom","message":""}'),
        (
            "has the type 'session.dreamt.v1', which this version of Refold does not know; open it with a newer one",
            b'{"type":"session.dreamt.v1","run":"run_3"}',
        ),
        ("has the type 'session.run_completed.v2'", b'{"type":"session.run_completed.v2","run":"run_3"}'),
        ("is damaged", b'{"type":"session.run_completed.v1","run":"\\ud800"}'),
        ("is damaged|does not have the shape", b'{"type":"session.timer_set.v1","timer":"t","due_at":NaN}'),
        ("does not have the shape", b'{"type":"session.timer_set.v1","timer":"t","due_at":' + b"9" * 5000 + b"}"),
        (
            "is damaged|does not have the shape",
            b'{"type":"session.tool_approval_requested.v1","run":"r","call":"c","tool":"t","input":{"x":'
            + b"[" * 100_000  # Python 3.13 and later read some thousands.
            + b"]" * 100_000
            + b"}}",
        ),
    ],
)
def test_what_cannot_be_read_is_an_error_that_names_the_place(words: str, data: bytes) -> None:
    with pytest.raises(LogFormatError, match=words):
        SESSION_CODEC.decode(stored(data))


TIMES = re.compile(rb'("(?:[a-z_]+_at|[a-z_]+_us|until|probe_since)":)[0-9]+')


@pytest.mark.parametrize("data", [data for data in RECORDED if TIMES.search(data)], ids=tag_of)
def test_a_recorded_time_is_one_that_a_float_and_a_database_can_hold(data: bytes) -> None:
    codec = CODECS[str(tag_of(data)).partition(".")[0]]
    for time in TIMES.finditer(data):
        damaged = data[: time.end(1)] + b"1" + b"0" * 400 + data[time.end() :]
        with pytest.raises(LogFormatError, match=r"does not have the shape of its type: Expected `int.*` <= "):
            codec.decode(stored(damaged))


def test_a_field_of_a_newer_version_is_passed_over() -> None:
    data = b'{"type":"session.run_completed.v1","run":"run_3","mood":"good","at":999}'
    assert SESSION_CODEC.decode(stored(data)) == ev.RunCompleted(run=RUN, at=77)


def test_of_two_members_of_one_name_the_last_one_counts() -> None:
    data = b'{"type":"session.run_completed.v1","run":"run_1","run":"run_3"}'
    assert SESSION_CODEC.decode(stored(data)) == ev.RunCompleted(run=RUN, at=77)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_an_event_or_an_error_of_ours(data: bytes) -> None:
    with pytest.raises(LogFormatError):
        SESSION_CODEC.decode(stored(data))


@given(data=st.sampled_from(RECORDED), cut=st.integers(0, 200))
def test_a_truncated_event_is_an_error_of_ours(data: bytes, cut: int) -> None:
    with pytest.raises(LogFormatError):
        SESSION_CODEC.decode(stored(data[: min(cut, len(data) - 1)]))


# Older shapes


class Said(Event, frozen=True, kw_only=True, tag="test.said.v2"):
    text: str


def text_from_words(data: dict[str, object]) -> dict[str, object]:
    words = data.pop("words")
    return {**data, "text": " ".join(msgspec.convert(words, list[str]))}


OLDER = EventCodec([Said], Upcasters({"test.said.v1": ("test.said.v2", text_from_words)}, ["test.said.v2"]))


def test_an_event_of_an_older_shape_is_brought_to_todays() -> None:
    assert OLDER.decode(stored(b'{"type":"test.said.v1","words":["Hello","there"]}')) == Said(text="Hello there", at=77)


@pytest.mark.parametrize("data", [b'{"type":"test.said.v1"}', b'{"type":"test.said.v1","words":[1]}'])
def test_an_older_event_that_cannot_be_brought_to_todays_shape_is_named(data: bytes) -> None:
    with pytest.raises(LogFormatError, match=r"session/alice@3 \(test.said.v1\) cannot be brought to today's shape"):
        OLDER.decode(stored(data))


# Places and causes


def test_events_get_their_places_and_causes_from_their_batches() -> None:
    def item(version: int, batch: int, position: int) -> StoredEvent:
        data = SESSION_CODEC.encode(ev.TimerFired(timer=str(version)))
        return StoredEvent(position=position, stream=STREAM, version=version, batch=batch, at=5, data=data)

    other = StreamName("session/bob")
    events = SESSION_CODEC.recorded(
        [
            item(1, 1, 10),
            item(2, 1, 11),
            msgspec.structs.replace(
                item(3, 3, 20), correlation=EventRef("session/bob@7"), causation=EventRef("session/bob@9")
            ),
            msgspec.structs.replace(item(1, 1, 21), stream=other),
            item(4, 3, 22),
        ]
    )
    assert [(event.stream, event.version, event.position, event.batch) for event in events] == [
        (STREAM, 1, 10, 1),
        (STREAM, 2, 11, 1),
        (STREAM, 3, 20, 3),
        (other, 1, 21, 1),
        (STREAM, 4, 22, 3),
    ]
    assert [event.causation for event in events] == [None, "session/alice@1", "session/bob@9", None, "session/alice@3"]
    assert [event.correlation for event in events] == [
        "session/alice@1",
        "session/alice@1",
        "session/bob@7",
        "session/bob@1",
        "session/bob@7",
    ]
    assert events[2].event == ev.TimerFired(timer="3", at=5)
    assert events[2].time == 5
