"""Identifiers: what can name something, and how streams and events are named."""

from typing import Any

import pytest

from refold.events.core.errors import ConfigError
from refold.events.core.ids import IDENTIFIER_BYTES_MAX, checked_identifier, kind_and_identifier, stream_name
from refold.events.core.records import event_ref


@pytest.mark.parametrize(
    "value", ["a", "alice", "user 7", "a/b@3", "日本", "😀", "..", "x" * IDENTIFIER_BYTES_MAX, "é" * 256]
)
def test_a_name_is_taken_as_it_is(value: str) -> None:
    assert checked_identifier(value, "session id") == value


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("a session id must be a string, not int", 7),
        ("a session id must be a string, not NoneType", None),
        ("a session id must be a string, not bytes", b"a"),
        ("a session id must not be empty", ""),
        ("holds a NUL character", "a\0b"),
        ("holds a lone surrogate", "a\ud800"),
        ("has 513 UTF-8 bytes; the limit is 512", "x" * 513),
        ("has 514 UTF-8 bytes", "é" * 257),
    ],
)
def test_what_can_name_nothing_is_refused_in_words(words: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=words) as refusal:
        checked_identifier(value, "session id")
    assert str(refusal.value).encode()
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize("identifier", ["alice", "a/b", "/", "x@3"])
def test_a_stream_is_named_by_its_kind_and_identifier_and_an_event_by_stream_and_version(identifier: str) -> None:
    assert kind_and_identifier(stream_name("session", identifier)) == ("session", identifier)
    assert event_ref("session/alice", 3) == "session/alice@3"


@pytest.mark.parametrize("stream", ["", "session", "session/", "/alice", "/"])
def test_what_names_no_stream_is_refused(stream: str) -> None:
    with pytest.raises(ConfigError, match="is not a stream name"):
        kind_and_identifier(stream)
