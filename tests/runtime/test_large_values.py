"""What is too large is refused with its size and the limit; what is large does not keep others from the loop."""

import signal
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold import CommandRejected, DocumentBlock, ImageBlock, Session, TextBlock, say, tool, use
from refold.actors.calls.results import result_content, result_in_steps
from refold.events.core.cleaning import Unrecordable, clean_json
from refold.events.model import payloads
from refold.events.model.cooperative import Cooperative, at_once
from refold.events.model.payloads import INLINE_BYTES_MAX, PIECE, kept_whole, whole_block
from refold.stores import InMemoryStore
from tests.conformance.sessions import opened, requests_of, types_of

KIB = 1024


def steps_of(steps: Cooperative[Any]) -> int:
    return sum(1 for _ in steps)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("x" * 4001, id="text"),
        pytest.param("é" * 2001, id="text of fewer characters than bytes"),
        pytest.param({"rows": ["x" * 100] * 50}, id="an object"),
        pytest.param([list(range(600))] * 5, id="an array of large arrays"),
        pytest.param({f"key {place}": place for place in range(1000)}, id="an object with many keys"),
        pytest.param([TextBlock(text="x" * 2000), ImageBlock(media_type="image/png", data=bytes(2001))], id="blocks"),
    ],
)
async def test_a_result_that_is_too_large_is_told_and_not_tried_again(value: object) -> None:
    made: list[int] = []

    @tool(effect="once")
    async def export() -> object:
        made.append(1)
        return value

    async with opened(InMemoryStore(), use("export"), say("done"), tools=[export], result_bytes_max=4000) as (
        runtime,
        session,
    ):
        assert (await session.send("go")).text == "done"
        [result] = requests_of(runtime)[1].messages[-1].content
        assert await types_of(session) == [
            *("SessionOpened", "AgentConfigured", "InputQueued", "RunStarted", "ModelRequested", "ModelResponded"),
            *("ToolCallStarted", "ToolCallFailed", "ModelRequested", "ModelResponded", "RunCompleted"),
        ]
    assert result.is_error  # type: ignore[union-attr]
    assert "The tool ran, and its result cannot be recorded" in result.text  # type: ignore[union-attr]
    assert "a result may have 4,000 (the runtime's `result_bytes_max`)" in result.text  # type: ignore[union-attr]
    assert made == [1]


@pytest.mark.parametrize("value", ["x" * 4000, "é" * 2000, ["x" * 97] * 39, None])
async def test_a_result_of_the_largest_size_is_taken(value: object) -> None:
    @tool(effect="pure", tier="observe")
    async def export() -> object:
        return value

    async with opened(InMemoryStore(), use("export"), say("done"), tools=[export], result_bytes_max=4000) as (
        _,
        session,
    ):
        assert (await session.send("go")).text == "done"
        assert "ToolCallCompleted" in await types_of(session)


@pytest.mark.parametrize("send", [Session.send, Session.next_turn])
async def test_an_input_that_is_too_large_is_refused_and_nothing_is_recorded(send: Callable[..., Any]) -> None:
    document = DocumentBlock(data=bytes(KIB), name="a.pdf")
    async with opened(InMemoryStore(), say("done"), input_bytes_max=2 * KIB) as (_, session):
        for content in ["é" * (KIB + 1), [document, document, "?"]]:
            with pytest.raises(CommandRejected, match=r"the input has 2,0\d\d bytes; 2,048 are accepted"):
                await send(session, content)
        assert await types_of(session) == []
        assert (await session.send([document, "é" * 512])).text == "done"


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.binary(min_size=1), st.integers(1, 9))
def test_what_is_encoded_in_pieces_is_the_same_json(text: str, data: bytes, step: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(payloads, "PIECE", 3 * step)
        blocks: list[payloads.Storable] = [
            TextBlock(text=text * 9),
            TextBlock(text=text * 9, provider_data={"a": payloads._PLACE}),
            ImageBlock(media_type="image/png", data=data * 9),
            DocumentBlock(data=data * 9, name=payloads._PLACE),
        ]
        for block in blocks:
            stored, encoded = at_once(kept_whole(block))
            assert encoded == msgspec.json.encode(block)
            assert whole_block(stored.hash, {stored.hash: encoded}) == block


def test_a_lone_surrogate_in_a_large_text_is_refused() -> None:
    with pytest.raises(Unrecordable, match="cannot be recorded"):
        at_once(kept_whole(TextBlock(text="x" * PIECE + "\ud800")))


@pytest.mark.parametrize(
    "value",
    [
        *([{"a": [1.5, None, "é"]}] * 2000, {f"k{place}": {"b": place} for place in range(2000)}),
        *({"rows": [[place] * 3 for place in range(2000)]}, tuple(range(2000)), [list(range(600))] * 3),
    ],
)
def test_the_json_of_a_large_value_is_the_same_in_steps(value: object) -> None:
    steps = result_in_steps(value, None)
    assert steps_of(result_in_steps(value, None)) >= 2
    [block], _ = at_once(steps)
    assert msgspec.json.decode(whole_text(block, value)) == msgspec.json.decode(msgspec.json.encode(clean_json(value)))


def whole_text(block: Any, value: object) -> str:
    if isinstance(block, TextBlock):
        return block.text
    [large], found = result_content(value)
    restored = whole_block(large.hash, found)  # type: ignore[union-attr]
    assert isinstance(restored, TextBlock)
    return restored.text


@pytest.mark.parametrize(("value", "path"), [([float("nan")], r"\$\[700\]"), ([{2: 3}], r"\$\[700\] has the key 2")])
def test_what_has_no_json_form_in_a_large_value_is_named_by_its_path(value: list[object], path: str) -> None:
    with pytest.raises(Unrecordable, match=path):
        at_once(result_in_steps([*range(700), *value], None))


def test_a_large_value_is_encoded_in_many_steps_and_a_small_one_in_none() -> None:
    assert steps_of(result_in_steps("x" * INLINE_BYTES_MAX, None)) == 0
    assert steps_of(result_in_steps("x" * 50 * PIECE, None)) >= 50
    assert steps_of(result_in_steps([ImageBlock(media_type="image/png", data=bytes(20 * PIECE))], None)) >= 20


class Ends(dict[str, object]):
    """A value of which every look raises what ends programs."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__(a=1)
        self.error = error

    def _end(self, *_: object) -> Any:
        raise self.error

    items = __iter__ = __len__ = __str__ = __repr__ = keys = values = __getitem__ = _end


class EndsInText(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("wrapped", [lambda value: value, lambda value: [value], lambda value: {"a": [value] * 600}])
async def test_a_result_whose_methods_end_programs_fails_its_call_only(
    error: type[BaseException], wrapped: Callable[[object], object]
) -> None:
    @tool(effect="pure", tier="observe")
    def plain() -> object:
        return wrapped(Ends(error))

    async with opened(InMemoryStore(), use("plain"), say("done"), tools=[plain], alike=False) as (runtime, session):
        assert (await session.send("go")).text == "done"
        [result] = requests_of(runtime)[1].messages[-1].content
        assert f"it raised {error.__name__}" in result.text  # type: ignore[union-attr]


async def test_an_error_whose_text_ends_programs_fails_its_call_only() -> None:
    @tool(effect="pure", tier="observe")
    def plain() -> object:
        raise EndsInText

    async with opened(InMemoryStore(), use("plain"), say("done"), tools=[plain]) as (runtime, session):
        assert (await session.send("go")).text == "done"
        [result] = requests_of(runtime)[1].messages[-1].content
        assert "its text cannot be had: KeyboardInterrupt" in result.text  # type: ignore[union-attr]


def test_an_interrupt_by_a_signal_passes_on() -> None:
    class Interrupted(dict[str, object]):
        def items(self) -> Any:
            signal.raise_signal(signal.SIGINT)
            return super().items()

    with pytest.raises(KeyboardInterrupt):
        at_once(result_in_steps(Interrupted(a=1), None))
