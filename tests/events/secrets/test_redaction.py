"""What must not be recorded is found however it is spelled, nothing of it is left, and nothing else is touched."""

import base64
import json
import pickle
import re
import urllib.parse
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.events.core.content import ImageBlock, TextBlock, ThinkingBlock, ToolUseBlock
from refold.events.core.errors import CommandRejected, ConfigError
from refold.events.core.event import Event
from refold.events.core.ids import RunId, ToolCallId
from refold.events.model.messages import TextDelta
from refold.events.model.redacted_stream import RedactedStream
from refold.events.secrets import spellings
from refold.events.secrets.redaction import NOTHING_SECRET, REDACTED, FieldPath, Redaction

KEY = "sk-ant-api03-ABCdef/123+xyz_QQ"
ODD = 'pass "word"\n\\ütf \U0001f511'

SPELLINGS: dict[str, Callable[[str], str]] = {
    "plain": lambda key: key,
    "in JSON": lambda key: json.dumps({"key": key}),
    "in JSON, not in ASCII": lambda key: json.dumps({"key": key}, ensure_ascii=False),
    "in JSON in JSON": lambda key: json.dumps(json.dumps([key])),
    "with escaped slashes": lambda key: json.dumps(key).replace("/", "\\/"),
    "all escaped": lambda key: "".join(
        f"\\u{unit:04x}" for unit in memoryview(key.encode("utf-16-le")).cast("H").tolist()
    ),
    "escaped in JSON, not closed": lambda key: f'{{"key": "\\u{ord(key[0]):04X}' + json.dumps(key)[2:-1],
    "in a URL": lambda key: urllib.parse.quote(key, safe=""),
    "in a form": lambda key: urllib.parse.urlencode({"key": key}),
    "URL-encoded twice": lambda key: urllib.parse.quote(urllib.parse.quote(key, safe=""), safe=""),
    "URL-encoded three times, in JSON": lambda key: json.dumps(
        urllib.parse.quote(urllib.parse.quote_plus(urllib.parse.quote_plus(key)))
    ),
    "as Python shows its bytes": lambda key: repr(key.encode()),
    "as Python shows its bytes, in JSON": lambda key: json.dumps([repr(key.encode())]),
    "as Python shows it in ASCII": lambda key: ascii([key]),
    "in base64 with line ends": lambda key: base64.encodebytes(b"0123456789" * 4 + key.encode() * 4).decode(),
    "in base64 of short lines, in JSON": lambda key: json.dumps(
        "\r\n  ".join(re.findall(".{1,16}", base64.b64encode(b"0" * 8 + key.encode() + b"1" * 9).decode()))
    ),
    "of basic authentication": lambda key: base64.b64encode(f"user:{key}".encode()).decode(),
    "in base64, at another place": lambda key: base64.urlsafe_b64encode(f"use:{key}.".encode()).decode(),
    "in base64, at the third place": lambda key: base64.b64encode(f"us:{key}".encode()).decode(),
}


@pytest.mark.parametrize("key", [KEY, ODD], ids=["a key", "odd characters"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_value_is_found_however_it_is_spelled(spelling: str, key: str) -> None:
    redaction = Redaction([key, "another value"])
    text = f"before {SPELLINGS[spelling](key)} after"
    clean = redaction.text(text)
    assert REDACTED in clean
    assert clean.startswith("before ")
    assert clean.endswith(" after")
    assert redaction.text(clean) == clean
    assert redaction.finds(msgspec.json.encode([text]))
    assert not redaction.finds(msgspec.json.encode([clean]))
    assert redaction.value({"a": [text]}) == {"a": [clean]}


@pytest.mark.parametrize(
    ("values", "patterns", "text", "clean"),
    [
        (["secret-1", "secret-1-and-more"], [], "a secret-1-and-more b secret-1", "a [redacted] b [redacted]"),
        (["secret-1-and-more", "more-than-that"], [], "a secret-1-and-more-than-that b", "a [redacted] b"),
        (["ababab"], [], "ababababab", "[redacted]"),
        (["secret-1", "secret-2"], [], "secret-1secret-2", "[redacted][redacted]"),
        ([], [r"\b\d{4} \d{4}\b"], "card 4242 4242, not 14242 42429", "card [redacted], not 14242 42429"),
        (["4242 4242 9"], [r"\d{4} \d{4}"], "4242 4242 9", "[redacted]"),
        ([], [r"\w+", "x*"], "two [redacted] words", "[redacted] [redacted] [redacted]"),
        (["secret-1"], [], "100% of C:\\up are \\u00 %2", "100% of C:\\up are \\u00 %2"),
    ],
)
def test_of_what_overlaps_nothing_is_left(values: list[str], patterns: list[str], text: str, clean: str) -> None:
    for order in (values, values[::-1]):
        redaction = Redaction(order, map(re.compile, patterns))
        assert redaction.text(text) == clean
        assert redaction.text(clean) == clean


@given(
    st.text(max_size=40),
    st.sampled_from(sorted(SPELLINGS)),
    st.text(max_size=40),
    st.lists(st.text(min_size=6, max_size=12).filter(lambda value: len(value.strip()) >= 6), max_size=3),
)
def test_a_second_pass_changes_nothing_and_events_stay_readable(
    before: str, spelling: str, after: str, others: list[str]
) -> None:
    redaction = Redaction([KEY, *(value for value in others if REDACTED not in value and value not in REDACTED)])
    text = f"{before}{SPELLINGS[spelling](KEY)}{after}"
    clean = redaction.value(text)
    assert KEY not in clean
    assert redaction.value(clean) == clean
    body = msgspec.json.encode({"text": text})  # As a provider reads it, before it is decoded.
    assert isinstance(msgspec.json.decode(redaction.data(body)), dict)


class Paid(Event, frozen=True, kw_only=True, tag="account.paid.v1"):
    run: RunId
    number: str
    way: Literal["card 4242 4242"] = "card 4242 4242"
    amount: int = 42424242
    more: dict[str, Any] = {}


def test_fields_of_structs_are_looked_at_by_what_their_types_say() -> None:
    event = Paid(run=RunId("run_4242 4242"), number="4242 4242", more={"4242 4242": {"pin": 12}, "n": 42424242})
    redaction = Redaction(["424242"], [re.compile(r"\d{4} \d{4}")], [FieldPath("pin")])
    assert redaction.value(event) == Paid(
        run=RunId("run_4242 4242"), number=REDACTED, more={REDACTED: {"pin": REDACTED}, "n": REDACTED}
    )
    assert Redaction([], [], [FieldPath("number")]).value(event).number == REDACTED
    assert NOTHING_SECRET.value(event) is event
    other = Paid(run=RunId("run_3"), number="none")
    assert redaction.value(other) is other


@pytest.mark.parametrize(
    ("path", "value", "clean"),
    [
        (
            "card.number",
            {"card": {"number": 4, "cvc": 5}, "number": 6},
            {"card": {"number": "*", "cvc": 5}, "number": 6},
        ),
        ("pin", {"a": [{"pin": [1, 2]}, {"pin": None}]}, {"a": [{"pin": "*"}, {"pin": None}]}),
        ("cards.*.cvc", {"cards": {"x": {"cvc": 1, "n": 2}}}, {"cards": {"x": {"cvc": "*", "n": 2}}}),
        ("pin", {"result": '{"pin":"12","n":1}'}, {"result": '{"pin":"*","n":1}'}),
        ("pin", {"result": '{"pin": "12", "n'}, {"result": '{"pin": "*", "n'}),
        ("pin", {"result": '[{"pin": 12'}, {"result": '[{"pin": "*"'}),
        ("pin", {"said": 'the "pin": 12'}, {"said": 'the "pin": 12'}),
    ],
)
def test_a_field_path_names_what_is_in_json_values_and_texts(path: str, value: object, clean: object) -> None:
    expected = json.loads(json.dumps(clean).replace("*", REDACTED))
    redaction = Redaction(fields=[FieldPath(path)])
    assert redaction.value(value) == expected
    assert redaction.value(expected) == expected


@pytest.mark.parametrize("depth", [600, 5_000, 100_000])
def test_a_field_is_found_in_a_text_that_is_nested_deeper_than_python_can_follow(depth: int) -> None:
    text = '{"pin":"12","in":' * depth + "1" + "}" * depth
    expected = text.replace('"12"', f'"{REDACTED}"')
    assert Redaction(fields=[FieldPath("pin")]).value({"result": text}) == {"result": expected}


def test_blocks_stay_usable() -> None:
    redaction = Redaction([KEY])
    thought = ThinkingBlock(thinking=f"I know {KEY}", signature="signed")
    assert redaction.value(thought) == ThinkingBlock(thinking=f"I know {REDACTED}", signature=None)
    image = ImageBlock(media_type="image/png", data=b"\x89" + KEY.encode() + b"\xff")
    assert redaction.value(image).data == b"\x89" + b"*" * len(KEY) + b"\xff"
    call = ToolUseBlock(id=ToolCallId("call_6_0"), name=KEY, input={KEY: 1, "x": KEY, REDACTED: 2}, malformed_input=KEY)
    clean = redaction.value(call)
    assert (clean.id, clean.name, clean.malformed_input) == ("call_6_0", REDACTED, REDACTED)
    assert list(clean.input.values()) == [1, REDACTED, 2]
    assert redaction.value(TextBlock(text="plain")) == TextBlock(text="plain")


def test_two_keys_never_become_the_same() -> None:
    class Send(msgspec.Struct, frozen=True):
        text: str
        key: str | None = None

    redaction = Redaction([KEY])
    assert redaction.command(Send(KEY, "k")) == Send(REDACTED, "k")
    with pytest.raises(CommandRejected, match="choose another key") as caught:
        redaction.command(Send("hello", f"request {KEY}"))
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "waits"),
    [("hello sk-ant", 6), ("hello", 0), ("hello \\u0073k-a\\u00", 13), ("50%", 1), (f"{KEY}", 0), (KEY[:-1], 29)],
)
def test_the_beginning_of_a_value_is_known_at_the_end_of_a_text(text: str, waits: int) -> None:
    assert Redaction([KEY]).held_back(text) == waits


@pytest.mark.parametrize(
    "make",
    [
        lambda: Redaction(["short"]),
        lambda: Redaction(["   x    "]),
        lambda: Redaction([7]),  # type: ignore[list-item]
        lambda: Redaction(["a [redacted] b"]),
        lambda: Redaction(["redacted"]),
        lambda: Redaction(["a \ud800 surrogate"]),
        lambda: Redaction([], [re.compile(b"bytes")]),  # type: ignore[arg-type]
        lambda: FieldPath("a..b"),
        lambda: FieldPath(""),
    ],
)
def test_what_cannot_be_looked_for_is_refused(make: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert "surrogate" not in str(caught.value)


def test_what_knows_secrets_is_not_shown_or_copied() -> None:
    redaction = Redaction([KEY], [re.compile("x")], [FieldPath("y")])
    assert repr(redaction) == "Redaction(1 values, 1 patterns, 1 fields)"
    with pytest.raises(TypeError, match="is not pickled"):
        pickle.dumps(redaction)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ('{"card": 42424242, "n": 1}', '{"card": "*", "n": 1}'),
        ("[-142424242.5e3,42424242]", '["*","*"]'),
        (' {"says": "[1, 42424242, 2]", "n": [42424242]}', ' {"says": "[1, *, 2]", "n": ["*"]}'),
        ('{"a": "\\"", "n":42424242 \n}', '{"a": "\\"", "n":"*" \n}'),
        ('{"n": 42424242', '{"n": *'),
        ("[Note] it is 42424242, you see", "[Note] it is *, you see"),
    ],
)
def test_a_number_of_json_that_holds_a_secret_becomes_a_text_in_quotes(text: str, clean: str) -> None:
    redaction = Redaction(["42424242"])
    clean = clean.replace("*", REDACTED)
    assert redaction.text(text) == redaction.value([text])[0] == redaction.data(text.encode()).decode() == clean
    assert redaction.text(clean) == clean


def test_what_is_found_does_not_depend_on_where_the_steps_end(monkeypatch: pytest.MonkeyPatch) -> None:
    redaction = Redaction([KEY, ODD, "42424242"], [re.compile(r"\d{4} \d{4}")])
    words = [spelling(key) for spelling in SPELLINGS.values() for key in (KEY, ODD)]
    text = "\n".join(f"{word} 42424242 4242 4242 \\\\%25{word}" for word in words)
    found, data = redaction.spans(text), text.encode()
    for characters in (1, 7, 40, 1000):
        monkeypatch.setattr(spellings, "STEP_CHARACTERS", characters)
        monkeypatch.setattr(spellings, "STEP_ESCAPES", characters)
        assert redaction.spans(text) == found
        assert redaction.finds(data)
        assert sum(1 for _ in redaction.spans_in_steps(text)) > len(text) // max(characters, 50)


@pytest.mark.parametrize(("text", "found", "pauses"), [("a" * 45, False, 8), ("a" * 39 + "%" + "a" * 5, True, 7)])
def test_signs_of_an_escape_are_looked_for_with_pauses(
    text: str, found: bool, pauses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spellings, "STEP_CHARACTERS", 10)
    steps = spellings.holds_any(text, "\\%")
    for _ in range(pauses):
        next(steps)
    with pytest.raises(StopIteration) as told:
        next(steps)
    assert told.value.value is found


def in_pieces(redaction: Redaction, text: str, size: int) -> str:
    stream = RedactedStream(redaction)
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    shown = [delta for piece in pieces for delta in stream.pieces([TextDelta(piece)])] + stream.rest()
    return "".join(delta.text for delta in shown if isinstance(delta, TextDelta))


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_no_piece_of_a_stream_shows_a_part_however_it_is_spelled(spelling: str) -> None:
    redaction = Redaction([KEY])
    text = f"before {SPELLINGS[spelling](KEY)} after"
    for size in (1, 2, 3, 5, 8, 13):
        assert in_pieces(redaction, text, size) == redaction.text(text)


@given(
    st.recursive(
        st.sampled_from([42424242, -142424242.5, 4242, 4242424, 7, "42424242", "n: 42424242,", "\\", None, "x"]),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "42424242"]), inner),
    ),
    st.sampled_from(["", " ", "[Note] ", "so: "]),
    st.integers(1, 30),
    st.booleans(),
)
def test_the_pieces_of_a_stream_are_what_is_recorded_also_of_json(
    value: object, before: str, size: int, pattern: bool
) -> None:
    redaction = Redaction(["42424242"], [re.compile(r"\b4242\b")] if pattern else [])
    text = before + json.dumps(value)
    assert in_pieces(redaction, text, size) == redaction.text(text)


@pytest.mark.parametrize("word", ["\\", "%25", "\\r\\n", "\\u0041", "A" * 20 + "\n  ", "A" * 16 + "\\", "[42424242,"])
def test_no_text_makes_it_go_back_over_what_it_has_read(word: str) -> None:
    """Where it did, this would last for minutes."""
    redaction = Redaction([KEY, ODD, "42424242"])
    assert redaction.held_back("\\u0041%41" + word * 20_000) <= len(word) * 20_000
    assert redaction.text("\\u0041%41" + word * 50_000)
