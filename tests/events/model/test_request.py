"""What was done to a request is recorded so that the very same request comes out of the log again."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.events import SESSION_CODEC, EventCodec, Message, TextBlock, ToolSpec
from refold.events.core.cleaning import Unrecordable
from refold.events.core.errors import LogFormatError
from refold.events.core.ids import PayloadHash
from refold.events.model.context_window import Context, TokenWindow
from refold.events.model.messages import (
    NOTHING,
    ModelRequest,
    Prepared,
    RequestReference,
    Rewritten,
    Splice,
    SystemAddition,
)
from refold.events.model.payloads import INLINE_BYTES_MAX, referenced_payloads
from refold.events.model.request import (
    applied,
    difference,
    plain_request,
    prepared_of,
    prompt_and_tools,
    recordable,
    rewritten,
    with_prepared,
)
from refold.events.session.events import ModelResponded
from tests.events.conftest import configuration
from tests.events.histories import WORDS, histories, inputs, said

TOOLS = tuple(ToolSpec(name=name, description=name, input_schema={"type": "object"}) for name in ("act", "look"))
REFERENCE = RequestReference(configured=2, messages=1, digest="d")

requests = st.builds(
    ModelRequest,
    model=st.sampled_from(("model", "other")),
    system_prompt=st.sampled_from(("", "Be brief.")),
    messages=st.lists(inputs(), max_size=5).map(tuple),
    tools=st.sampled_from(((), TOOLS, TOOLS[:1])),
    max_tokens=st.sampled_from((None, 100)),
    temperature=st.sampled_from((None, 0.0, 0.5)),
    stop_sequences=st.sampled_from(((), ("stop",))),
)


def through_json(prepared: Prepared) -> Prepared:
    return msgspec.json.decode(msgspec.json.encode(prepared), type=Prepared)


@given(requests, requests)
def test_the_difference_of_any_two_requests_leads_from_the_one_to_the_other(
    before: ModelRequest, after: ModelRequest
) -> None:
    changes = difference(before, after)
    if changes is None:
        assert before == after
        return
    again = through_json(Prepared(rewritten=changes)).rewritten
    assert again is not None
    made = rewritten(before, again)
    for field in made.__struct_fields__:
        assert getattr(made, field) == getattr(after, field), field
    assert type(made.temperature) is type(after.temperature)


@pytest.mark.in_full
@given(histories(), st.integers(1, 80), st.lists(WORDS, max_size=2), requests | st.none())
def test_what_was_done_to_a_history_comes_out_of_the_log_field_by_field(
    drawn: tuple[list[Message], int], max_tokens: int, texts: list[str], wanted: ModelRequest | None
) -> None:
    messages, latest = drawn
    plain = plain_request(configuration(), "Be brief.", TOOLS, messages, None)
    added = tuple(SystemAddition("recall", text) for text in texts)
    context = Context(system_prompt="Be brief.", messages=messages, latest_input=latest)
    kept = TokenWindow(max_tokens).kept(context)
    prepared = Prepared(kept=None if kept is None else tuple(kept), added=added)
    sent = applied(plain, prepared)
    if wanted is not None:
        prepared = msgspec.structs.replace(prepared, rewritten=difference(sent, wanted))
        sent = wanted
    reference, payloads = with_prepared(REFERENCE, prepared)
    event = ModelResponded(run=RUN, turn=1, content=(), stop_reason="end_turn", request=reference)
    decoded = _decoded(SESSION_CODEC, event)
    assert decoded == event
    made = applied(plain, prepared_of(decoded.request, payloads))
    for field in made.__struct_fields__:
        found, meant = getattr(made, field), getattr(sent, field)
        assert (list(found) == list(meant)) if field == "messages" else found == meant, field


RUN: Any = "run_3"


def _decoded(codec: EventCodec[Any], event: Any) -> Any:
    return msgspec.json.decode(codec.encode(event), type=type(event))


def test_a_plain_request_refers_to_nothing_more_than_before() -> None:
    reference, payloads = with_prepared(REFERENCE, NOTHING)
    assert msgspec.json.encode(reference) == b'{"configured":2,"messages":1,"digest":"d"}'
    assert payloads == {}
    assert prepared_of(reference, {}) == NOTHING


def test_what_is_large_is_a_payload_that_its_event_refers_to() -> None:
    large = Prepared(added=(SystemAddition("recall", "x" * INLINE_BYTES_MAX),))
    reference, payloads = with_prepared(REFERENCE, large)
    assert reference.prepared is None
    assert list(payloads) == [reference.prepared_payload]
    assert prepared_of(reference, payloads) == large
    event = ModelResponded(run=RUN, turn=1, content=(), stop_reason="end_turn", request=reference)
    assert referenced_payloads(event) == [reference.prepared_payload]
    with pytest.raises(LogFormatError, match="missing"):
        prepared_of(reference, {})
    with pytest.raises(LogFormatError, match="damaged"):
        prepared_of(reference, dict.fromkeys(payloads, b"{"))


def test_what_a_function_gave_stands_before_the_prompt_and_additions_behind_it_with_empty_lines_between() -> None:
    added = (SystemAddition("recall", "Known: tea."), SystemAddition("working_memory", "Notes: none."))
    brief = ModelRequest(model="m", system_prompt="Be brief.", messages=[])
    whole = applied(brief, Prepared(prompt="It is noon.", added=added)).system_prompt
    assert whole == "It is noon.\n\nBe brief.\n\nKnown: tea.\n\nNotes: none."
    alone = msgspec.structs.replace(brief, system_prompt="")
    assert applied(alone, Prepared(prompt="", added=added[:1])).system_prompt == "Known: tea."


def test_only_the_stretch_that_differs_is_recorded() -> None:
    before = ModelRequest(model="m", system_prompt="", messages=[said("user", text) for text in "abcd"])
    after = msgspec.structs.replace(before, messages=[*before.messages[:2], said("user", "C!"), before.messages[3]])
    assert difference(before, after) == Rewritten(messages=Splice(first=2, removed=1, messages=(said("user", "C!"),)))
    inserted = msgspec.structs.replace(before, messages=[*before.messages, said("user", "e")])
    assert difference(before, inserted) == Rewritten(messages=Splice(first=4, messages=(said("user", "e"),)))
    assert difference(before, before) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": ["no message"]},
        {"messages": [Message("user", (TextBlock(text="\ud800"),))]},
        {"tools": (ToolSpec(name="look", description="", input_schema={"a": object()}),)},
        {"temperature": "hot"},
        {"stop_sequences": (3,)},
    ],
)
def test_a_request_that_no_log_can_hold_is_refused(wrong: dict[str, Any]) -> None:
    before = ModelRequest(model="m", system_prompt="", messages=[said("user", "a")])
    changes = difference(before, msgspec.structs.replace(before, **wrong))
    with pytest.raises(Unrecordable):
        recordable(Prepared(rewritten=changes))


@pytest.mark.parametrize(
    ("prompt", "tools"),
    [
        (b"\xff", b"[]"),
        (b"Be brief.", b""),
        (b"Be brief.", b"[{}]"),
        (b"Be brief.", b'{"a":' * 100_000),
        (b"Be brief.", None),
        (None, b"[]"),
    ],
)
def test_a_prompt_or_schemas_that_are_damaged_or_missing_are_named(prompt: bytes | None, tools: bytes | None) -> None:
    given = msgspec.structs.replace(
        configuration(), system_prompt=PayloadHash("1" * 64), tool_schemas=PayloadHash("2" * 64)
    )
    kept = {given.system_prompt: prompt, given.tool_schemas: tools}
    payloads = {name: data for name, data in kept.items() if data is not None}
    with pytest.raises(LogFormatError, match=r"^payload .{64} (of events\.db is damaged|is missing from events\.db)"):
        prompt_and_tools(given, payloads, "events.db")
