"""Events to bytes and back: what is written can be read, and what cannot be read is named by its place."""

import math
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.events.core.cleaning import Unrecordable
from refold.events.core.codec import EVENT_BYTES_MAX, EventCodec, Upcasters, tag_of
from refold.events.core.content import (
    ImageBlock,
    Message,
    StoredBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from refold.events.core.errors import LogFormatError
from refold.events.core.event import Event
from refold.events.core.ids import AgentId, EventRef, PayloadHash, RunId, SessionId, StreamName, ToolCallId
from refold.events.core.records import StoredEvent
from refold.events.model.messages import RequestReference, Usage
from refold.events.session.core import SESSION_CODEC
from refold.events.session.events import (
    AgentConfigured,
    CancelRequested,
    ContextPrepared,
    HistoryCleared,
    HistoryImported,
    InputQueued,
    ModelFailed,
    ModelInterrupted,
    ModelRequested,
    ModelResponded,
    RetryScheduled,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunParked,
    RunResumed,
    RunStarted,
    SessionEvent,
    SessionOpened,
    TimerFired,
    TimerSet,
    ToolApprovalDecided,
    ToolApprovalRequested,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallWaiting,
    ToolResultLate,
    TurnAllowed,
    Verdict,
)
from tests.events.conftest import CODE, STREAM, configuration, say

RUN, CALL = RunId("run_3"), ToolCallId("call_6_0")
WORDS = (TextBlock(text="é\0😀"),)
EVERY_BLOCK = (
    TextBlock(text="a"),
    ImageBlock(media_type="image/png", data=b"\x00\xff"),
    ThinkingBlock(thinking="hm", signature="s"),
    StoredBlock(hash=PayloadHash("ab"), bytes=9, holds="text"),
    ToolUseBlock(id=CALL, name="look", input={"a": [1, 2.5, None, {"b": "x"}]}, provider_id="t", malformed_input="{"),
)

EVENTS: dict[str, SessionEvent] = {
    "session.opened.v1": SessionOpened(session=SessionId("alice"), agent=AgentId("agent")),
    "session.agent_configured.v1": AgentConfigured(configuration=configuration()),
    "session.history_imported.v1": HistoryImported(
        messages=(
            Message("assistant", EVERY_BLOCK),
            Message("user", (ToolResultBlock(tool_use_id=CALL, content=WORDS, is_error=True, kind="crashed"),)),
        ),
        key="k",
        digest="d",
    ),
    "session.history_cleared.v1": HistoryCleared(key="k"),
    "session.input_queued.v1": InputQueued(
        content=WORDS, key="k", cancelled=True, scheduled=3, joins=RUN, stepwise=True
    ),
    "session.turn_allowed.v1": TurnAllowed(run=RUN, turn=2),
    "session.run_started.v1": RunStarted(run=RUN, input=3, code=CODE, fingerprint="f"),
    "session.context_prepared.v1": ContextPrepared(run=RUN, replaced=2, summary=(Message("user", WORDS),)),
    "session.model_requested.v1": ModelRequested(run=RUN, turn=1),
    "session.model_responded.v1": ModelResponded(
        run=RUN,
        turn=1,
        content=EVERY_BLOCK,
        stop_reason="tool_use",
        usage=Usage(input_tokens=1, output_tokens=2, cache_read_tokens=3, cache_creation_tokens=4),
        model="m",
        request=RequestReference(configured=2, messages=1, digest="d"),
        verdicts=(Verdict(verdict="ask", reason="policy", action="look at all"),),
    ),
    "session.model_interrupted.v1": ModelInterrupted(
        turn=1, content=EVERY_BLOCK, usage=Usage(output_tokens=1), asked=5
    ),
    "session.model_failed.v1": ModelFailed(
        run=RUN, turn=1, kind="server", message="down", status=503, retryable=True, retry_after_s=1.5
    ),
    "session.retry_scheduled.v1": RetryScheduled(run=RUN, turn=1, attempt=1, due_at=1_700_000_000_000_000),
    "session.tool_approval_requested.v1": ToolApprovalRequested(
        run=RUN, call=CALL, tool="pay", input={"amount": 64}, action="pay at all", expires_at=1_700_000_000_000_000
    ),
    "session.tool_approval_decided.v1": ToolApprovalDecided(
        call=CALL, allowed=False, reason="no", key="k", always=True
    ),
    "session.tool_call_started.v1": ToolCallStarted(run=RUN, call=CALL),
    "session.tool_call_completed.v1": ToolCallCompleted(call=CALL, content=WORDS, ends_run=True),
    "session.tool_call_failed.v1": ToolCallFailed(call=CALL, kind="timeout", content=WORDS, started=True, broken=True),
    "session.tool_call_waiting.v1": ToolCallWaiting(call=CALL, waits=True),
    "session.tool_result_late.v1": ToolResultLate(call=CALL, content=WORDS, kind="transient"),
    "session.cancel_requested.v1": CancelRequested(run=RUN, reason="enough", key="k"),
    "session.run_resumed.v1": RunResumed(run=RUN, code=CODE, fingerprint="f", tools=("look",), asked=True),
    "session.run_parked.v1": RunParked(run=RUN, reason="enough"),
    "session.timer_set.v1": TimerSet(timer="input:3", due_at=5, content=WORDS, key="k"),
    "session.timer_fired.v1": TimerFired(timer="input:3"),
    "session.run_completed.v1": RunCompleted(run=RUN),
    "session.run_failed.v1": RunFailed(run=RUN, kind="provider", message="down"),
    "session.run_cancelled.v1": RunCancelled(run=RUN),
}
"""One event of every type that was ever recorded, by its tag. Lines are added here and never removed."""


def stored(data: bytes, *, version: int = 3, at: int = 77, batch: int | None = None) -> StoredEvent:
    return StoredEvent(
        position=version,
        stream=STREAM,
        version=version,
        batch=batch if batch is not None else version,
        at=at,
        data=data,
    )


def holding(value: object) -> ToolApprovalRequested:
    """Return an event with any object in its arguments."""
    anything: Any = value
    return ToolApprovalRequested(run=RUN, call=CALL, tool="pay", input={"x": anything})


def nested(levels: int) -> object:
    value: object = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize("tag", EVENTS)
def test_every_event_is_read_back_as_it_was_written_with_its_time(tag: str) -> None:
    event = msgspec.structs.replace(EVENTS[tag], at=77)
    data = SESSION_CODEC.encode(event)
    assert tag_of(data) == tag
    assert b'"at"' not in data
    assert SESSION_CODEC.decode(stored(data)) == event


def test_case_j07_every_tag_that_was_ever_recorded_is_still_known_and_none_is_derived_from_a_name() -> None:
    assert set(EVENTS) == set(SESSION_CODEC.tags)
    assert {type(event) for event in EVENTS.values()} == set(get_args(SessionEvent))
    assert {tag: tag_of(SESSION_CODEC.encode(event)) for tag, event in EVENTS.items()} == {tag: tag for tag in EVENTS}


def test_encoding_the_same_event_twice_gives_the_same_bytes_and_leaves_it_as_it_is() -> None:
    event = msgspec.structs.replace(EVENTS["session.model_responded.v1"], at=5)
    assert SESSION_CODEC.encode(event) == SESSION_CODEC.encode(event)
    assert event.at == 5


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("$.input.x", "a\ud83d"),
        ("$.input.x.rows[3]", {"rows": [0, 1, 2, math.nan]}),
        ("$.input.x", math.inf),
        ("$.input.x", {1, 2}),
        ("$.input.x", (1, 2)),
        ("$.input.x", b"raw"),
        ("$.input.x", {1: "a"}),
        ("$.input.x", ValueError),
        ("$.input.x", ValueError("x")),
        ("$.input.x", object()),
        ("$.input.x", 1j),
        ("$.input.x", 2**63),
        ("$.input.x", 2**64),
        ("$.input.x", -(2**64)),
        ("$.input.x", 10**400),
    ],
)
def test_what_would_not_be_read_back_equal_is_refused_by_its_path(path: str, value: object) -> None:
    with pytest.raises(Unrecordable) as refusal:
        SESSION_CODEC.encode(holding(value))
    assert refusal.value.path == path


def test_case_e01_a_lone_surrogate_is_refused_wherever_it_stands() -> None:
    with pytest.raises(Unrecordable, match=r"^\$\.content\[0\]\.text holds a lone surrogate"):
        SESSION_CODEC.encode(InputQueued(content=(TextBlock(text="a\ud83d"),)))
    with pytest.raises(Unrecordable, match=r"^\$\.key holds a lone surrogate"):
        SESSION_CODEC.encode(InputQueued(content=WORDS, key="\ud83d"))


def test_case_e04_an_integer_that_other_readers_cannot_hold_is_refused() -> None:
    for value in (19933688932870350000, 2**70, 10**5000):
        with pytest.raises(Unrecordable, match="integer beyond 64 bits"):
            SESSION_CODEC.encode(holding(value))
    with pytest.raises(Unrecordable, match=r"^\$\.usage\.input_tokens is an integer beyond 64 bits"):
        SESSION_CODEC.encode(ModelInterrupted(turn=1, usage=Usage(input_tokens=2**70)))
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
    assert SESSION_CODEC.encode(InputQueued(content=WORDS * 500))


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_number_that_json_has_no_form_for_is_refused_in_a_field_too(number: float) -> None:
    with pytest.raises(Unrecordable, match=r"^\$\.retry_after_s is"):
        SESSION_CODEC.encode(ModelFailed(run=RUN, turn=1, kind="server", message="", retry_after_s=number))


def test_a_field_of_another_type_is_refused() -> None:
    wrong: Any = 5
    with pytest.raises(Unrecordable, match="RunCompleted"):
        SESSION_CODEC.encode(RunCompleted(run=wrong))


def test_an_event_beyond_the_largest_size_is_refused_and_says_how_large_it_is() -> None:
    with pytest.raises(Unrecordable, match=r"ToolCallCompleted\) has 2,000,\d\d\d bytes; an event may have 1,048,576"):
        SESSION_CODEC.encode(ToolCallCompleted(call=CALL, content=(say("x" * 2_000_000),)))
    frame = len(SESSION_CODEC.encode(ToolCallCompleted(call=CALL, content=(say(""),))))
    assert SESSION_CODEC.encode(ToolCallCompleted(call=CALL, content=(say("x" * (EVENT_BYTES_MAX - frame)),)))


def test_an_event_that_is_longer_than_any_is_written_is_refused_before_it_is_looked_at() -> None:
    data = b'{"type":"session.input_queued.v1","content":[],"key":"' + b"k" * EVENT_BYTES_MAX + b'"}'
    with pytest.raises(
        LogFormatError, match=r"session/alice@3 is damaged: it has 1,048,\d\d\d bytes, and none is written"
    ):
        SESSION_CODEC.decode(stored(data))


def test_nul_characters_are_kept() -> None:
    data = SESSION_CODEC.encode(InputQueued(content=(say("a\0b"),)))
    assert b"\0" not in data
    assert SESSION_CODEC.decode(stored(data)) == InputQueued(content=(say("a\0b"),), at=77)


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
            + b"[" * 5000
            + b"]" * 5000
            + b"}}",
        ),
    ],
)
def test_what_cannot_be_read_is_an_error_that_names_the_place(words: str, data: bytes) -> None:
    with pytest.raises(LogFormatError, match=words):
        SESSION_CODEC.decode(stored(data))


def test_a_field_of_a_newer_version_is_passed_over() -> None:
    data = b'{"type":"session.run_completed.v1","run":"run_3","mood":"good","at":999}'
    assert SESSION_CODEC.decode(stored(data)) == RunCompleted(run=RUN, at=77)


def test_of_two_members_of_one_name_the_last_one_counts() -> None:
    data = b'{"type":"session.run_completed.v1","run":"run_1","run":"run_3"}'
    assert SESSION_CODEC.decode(stored(data)) == RunCompleted(run=RUN, at=77)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_an_event_or_an_error_of_ours(data: bytes) -> None:
    with pytest.raises(LogFormatError):
        SESSION_CODEC.decode(stored(data))


@given(tag=st.sampled_from(sorted(EVENTS)), cut=st.integers(0, 200))
def test_a_truncated_event_is_an_error_of_ours(tag: str, cut: int) -> None:
    data = SESSION_CODEC.encode(EVENTS[tag])
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
        data = SESSION_CODEC.encode(TimerFired(timer=str(version)))
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
    assert [event.causation for event in events] == [
        None,
        "session/alice@1",
        "session/bob@9",
        None,
        "session/alice@3",
    ]
    assert [event.correlation for event in events] == [
        "session/alice@1",
        "session/alice@1",
        "session/bob@7",
        "session/bob@1",
        "session/bob@7",
    ]
    assert events[2].event == TimerFired(timer="3", at=5)
    assert events[2].time == 5
