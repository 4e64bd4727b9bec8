"""What a provider refuses for good spoils no session: it is set aside, and the conversation goes on (case T14)."""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.events.core.errors import CommandRejected, ConfigError
from refold.events.model.refused import INPUT_NOTE, RESULT_NOTE, names_setting
from refold.events.session.events import InputSetAside, ModelResponded
from refold.inspection.check import check_log
from refold.providers.anthropic.provider import AnthropicFormat
from refold.providers.http.wire import WireFormat
from refold.providers.openai.provider import OpenAIFormat
from refold.replay import recorded_request, replay
from tests.conformance.sessions import session_in
from tests.runtime.command_line import run

HAND_NOTE = "(What stood here was set aside by hand.)"
ONCE = refold.AgentConfig(model="m", retry=None)
BROKEN = refold.ImageBlock(media_type="image/png", data=b"broken")


def has_image(content: Sequence[object]) -> bool:
    return any(block == BROKEN or has_image(getattr(block, "content", ())) for block in content)


class Picky:
    """Refuses every request that holds a broken image, or a word, as `invalid_request`."""

    def __init__(self, *answers: refold.ModelResponse, word: str = "poison") -> None:
        self.answers = list(answers)
        self.word = word
        self.requests: list[refold.ModelRequest] = []

    async def complete(self, request: refold.ModelRequest) -> refold.ModelResponse:
        self.requests.append(request)
        if any(has_image(message.content) for message in request.messages) or self.word in repr(request.messages):
            raise refold.ProviderError("Could not process image", kind="invalid_request", status=400)
        return self.answers.pop(0) if self.answers else refold.say("Yes.")


@refold.tool(tier="observe", effect="pure")
def picture() -> list[refold.TextBlock | refold.ImageBlock]:
    return [refold.TextBlock(text="Here it is."), BROKEN]


ECHO = refold.TextBlock(text="Tea.")
BRINGING = ("HistoryImported", "InputQueued", "TimerSet", "ModelResponded")
CALL = refold.ModelResponse(content=(refold.use("picture", {}),), stop_reason="tool_use")
OLD = [
    refold.Message("user", (refold.TextBlock(text="Old."), BROKEN)),
    refold.Message("assistant", (refold.TextBlock(text="I see."),)),
]


async def image_sent(session: refold.Session) -> object:
    return (await session.send([refold.TextBlock(text="What is this?"), BROKEN])).outcome


async def image_returned(session: refold.Session) -> object:
    return (await session.send("Show me.")).outcome


async def image_imported(session: refold.Session) -> object:
    await session.import_history(OLD)
    return (await session.send("And?")).outcome


async def two_images_sent(session: refold.Session) -> object:
    good = refold.ImageBlock(media_type="image/png", data=b"good")
    return (await session.send([good, refold.TextBlock(text="Which?"), BROKEN])).outcome


REFUSED: dict[str, tuple[Callable[[refold.Session], Any], list[refold.ModelResponse], list[str]]] = {
    "an image in an input": (image_sent, [], [f"What is this?{INPUT_NOTE}"]),
    "one image of several": (two_images_sent, [], [f"Which?{INPUT_NOTE}"]),
    "an image that a tool returned": (
        image_returned,
        [refold.say("Good."), CALL],
        ["Show me.", f"Here it is.{INPUT_NOTE}"],
    ),
    "an image of an imported history": (image_imported, [], [f"Old.{INPUT_NOTE}", "And?"]),
}


def said_by_user(messages: Sequence[refold.Message]) -> list[str]:
    return [
        message.text
        or "".join(
            part.text
            for block in message.content
            if isinstance(block, refold.ToolResultBlock)
            for part in block.content
            if isinstance(part, refold.TextBlock)
        )
        for message in messages
        if message.role == "user"
    ]


async def asides_of(session: refold.Session) -> list[tuple[int, str]]:
    """Return the versions and reasons of what was set aside."""
    events = [event async for event in session.events()]
    return [(event.version, event.event.reason) for event in events if isinstance(event.event, InputSetAside)]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("what", REFUSED)
async def test_the_model_is_asked_without_what_is_refused_and_that_is_set_aside(
    tmp_path: Path, what: str, streaming: bool
) -> None:
    say_it, answers, shown = REFUSED[what]
    provider, log, config = Picky(*answers), tmp_path / "events.db", refold.AgentConfig(model="m", streaming=streaming)
    async with refold.AgentRuntime(config, provider=provider, tools=[picture], log=log) as runtime:
        session = await runtime.session("a")
        assert (await session.send("I like tea.")).outcome == refold.Completed()
        assert await say_it(session) == refold.Completed()
        assert len(provider.requests) == 3 + len(answers[1:]), "it is asked once more"
    async with refold.AgentRuntime(config, provider=provider, tools=[picture], log=log) as runtime:
        session = await runtime.session("a")
        assert (await session.send("Are you there?")).outcome == refold.Completed()
        assert said_by_user(provider.requests[-1].messages) == ["I like tea.", *shown, "Are you there?"]
        (aside,) = await asides_of(session)
        assert aside[1] == "ProviderError: Could not process image"
        answered = [event.version async for event in session.events() if isinstance(event.event, ModelResponded)]
        request = (await recorded_request(log, "a", answered[-2])).request
        assert request.messages == provider.requests[-2].messages
    assert (await check_log(log)).sound
    (await replay(log)).raise_for_divergence()


@pytest.mark.parametrize(
    ("error", "asks"),
    [
        (refold.ProviderError("model: claud", kind="invalid_request", status=404), 1),
        (refold.ProviderError("no", kind="invalid_request", status=400, field="temperature"), 1),
        (refold.ProviderError("I do not like it", kind="invalid_request", status=400), 2),
        (refold.ProviderError("no", kind="invalid_request", status=400, field="messages[0].content[1]"), 2),
        (refold.ProviderError("busy", kind="overloaded", status=529), 1),
    ],
    ids=["no such model", "a setting", "unsure", "the content", "no refusal"],
)
async def test_a_refusal_of_something_else_takes_no_image_away(error: refold.ProviderError, asks: int) -> None:
    refusals = [error] * asks
    provider = refold.ScriptedProvider([*refusals, refold.say("A cat.")])
    async with session_in(refold.AgentRuntime(refold.AgentConfig(model="m"), provider=provider), "a") as (_, session):
        outcome = await image_sent(session)
        assert isinstance(outcome, refold.Failed)
        assert str(error) in outcome.error.message
        assert (await session.send("And now?")).text == "A cat."
        assert has_image(provider.requests[-1].messages[0].content)
        assert await asides_of(session) == []


WIRES: list[tuple[WireFormat, object, bool]] = [
    *(
        (AnthropicFormat(), {"type": "error", "error": {"type": "invalid_request_error", "message": words}}, setting)
        for words, setting in {
            "temperature: range: 0..1": True,
            "max_tokens: 300000 > 128000, which is the maximum allowed number of output tokens": True,
            "`temperature` may only be set to 1 when thinking is enabled.": True,
            "tools.0.custom.input_schema: JSON schema is invalid": True,
            "thinking.budget_tokens: Input should be greater than or equal to 1024": True,
            "messages.1.content.0.image.source.base64: invalid base64 data": False,
            "messages: text content blocks must be non-empty": False,
            "Could not process image": False,
            "The PDF specified was not valid.": False,
        }.items()
    ),
    *(
        (OpenAIFormat(), {"error": {"type": "invalid_request_error", **error}}, setting)
        for error, setting in (
            ({"message": "no", "param": "temperature", "code": "unsupported_value"}, True),
            ({"message": "Unsupported parameter: 'max_tokens' is not supported with this model."}, True),
            ({"message": "unsupported parameter: temperature"}, True),
            ({"message": "Unrecognized request argument supplied: reasoning_effort"}, True),
            ({"message": "Invalid type for 'tools[0].function.parameters': expected an object."}, True),
            ({"message": "no", "param": "messages[3].content[1].image_url.url"}, False),
            ({"message": "Invalid image data.", "param": None, "code": "invalid_image"}, False),
            ({"message": "You uploaded an unsupported image. Please use a valid one."}, False),
        )
    ),
    (OpenAIFormat(), {"detail": [{"loc": ["body", "top_k"], "msg": "Input should be an integer"}]}, True),
    (OpenAIFormat(), {"detail": [{"loc": ["body", "messages", 1, "content"], "msg": "Input should be a text"}]}, False),
    (OpenAIFormat(), {"detail": "temperature is wrong"}, True),
]


@pytest.mark.parametrize(("wire", "body", "setting"), WIRES)
def test_what_servers_say_of_settings_and_of_content_is_told_apart(
    wire: WireFormat, body: object, setting: bool
) -> None:
    error = wire.failure(400, {}, json.dumps(body).encode())
    assert error.kind == "invalid_request"
    assert names_setting(error.field) is setting


async def test_a_text_that_no_run_got_past_is_set_aside_by_a_later_one_and_the_latest_never() -> None:
    provider = Picky()
    async with session_in(refold.AgentRuntime(refold.AgentConfig(model="m"), provider=provider), "a") as (_, session):
        assert isinstance((await session.send("poison")).outcome, refold.Failed)
        assert (await session.send("Are you there?")).outcome == refold.Completed()
        assert said_by_user(provider.requests[-1].messages) == [INPUT_NOTE, "Are you there?"]
        assert isinstance((await session.send("more poison")).outcome, refold.Failed)
        assert len(provider.requests) == 5, "of what was taken only the last answer is suspected"


THOUGHT = refold.ThinkingBlock(thinking="Hm.", signature="poison")
OWN: dict[str, tuple[list[refold.ModelResponse], str]] = {
    "its answer": ([refold.say("It is poison.")], INPUT_NOTE),
    "the arguments of its call": (
        [refold.ModelResponse(content=(refold.use("show", {"of": "poison"}),), stop_reason="tool_use")],
        "input={}",
    ),
    "thoughts that only another provider can read": (
        [refold.ModelResponse(content=(THOUGHT, refold.TextBlock(text="So."))), refold.say("Yes."), refold.say("Yes.")],
        INPUT_NOTE,
    ),
}


@pytest.mark.parametrize("what", OWN)
async def test_what_the_model_said_itself_is_set_aside_where_its_provider_refuses_it(tmp_path: Path, what: str) -> None:
    answers, stands = OWN[what]
    log, config = tmp_path / "events.db", refold.AgentConfig(model="m")

    @refold.tool(tier="observe", effect="pure")
    def show(of: str) -> str:
        return "Here it is."

    first = Picky(*answers, word="poison" if len(answers) == 1 else "nothing")
    for provider in (first, Picky()):
        async with refold.AgentRuntime(config, provider=provider, tools=[show], log=log) as runtime:
            session = await runtime.session("a")
            for number in range(max(len(answers), 2)):
                assert (await session.send(f"{number}?")).outcome == refold.Completed()
            left = repr(await session.history())
    assert "poison" not in left
    assert stands in left
    assert (await check_log(log)).sound
    (await replay(log)).raise_for_divergence()


FAILURES: list[tuple[refold.ProviderError, list[int]]] = [
    (refold.ProviderError("Unable to download the image", kind="invalid_request", status=404), [2]),
    (refold.ProviderError("Not found", kind="invalid_request", status=404), [1, 2]),
    (refold.ProviderError("Failed to process image", kind="server", status=500, retryable=True), [3]),
    (refold.ProviderError("Internal error", kind="server", status=500, retryable=True), [1, 3]),
    (refold.ProviderError("the body is not JSON", kind="malformed", retryable=True), [1, 3]),
    (refold.ProviderError("image service busy", kind="overloaded", status=503, retryable=True), [1, 1, 1]),
    (refold.ProviderError("no such model", kind="invalid_request", field="model", status=404), [1, 1, 1]),
]


@pytest.mark.parametrize(("error", "asks"), FAILURES, ids=lambda value: str(value))
async def test_a_server_that_fails_on_an_image_spoils_no_session_and_one_that_is_down_costs_none(
    error: refold.ProviderError, asks: list[int]
) -> None:
    """Where nothing tells that it is the image, only what no earlier run got past, and only after the same again."""
    counts, asked = [0], 0

    def fails(request: refold.ModelRequest) -> refold.ModelResponse:
        counts[-1] += 1
        if any(map(has_image, (message.content for message in request.messages))):
            raise error
        return refold.say("Yes.")

    async with session_in(refold.AgentRuntime(ONCE, provider=fails), "a") as (_, session):
        for asked, _ in enumerate(asks):
            sent = await session.send(["What is this?", BROKEN] if asked == 0 else "Are you there?")
            counts.append(0)
        assert counts[:-1] == asks
        spoiled = isinstance(sent.outcome, refold.Failed)
        assert spoiled == (asks[-1] == 1)
        assert len(await asides_of(session)) == (0 if spoiled else 1)


async def test_a_server_that_fails_once_more_by_chance_costs_no_image() -> None:
    down = refold.ProviderError("Internal error", kind="server", status=500, retryable=True)
    provider = refold.ScriptedProvider([down, down, "A cat."])
    async with session_in(refold.AgentRuntime(ONCE, provider=provider), "a") as (_, session):
        assert isinstance(await image_sent(session), refold.Failed)
        assert (await session.send("And now?")).text == "A cat."
        assert has_image(provider.requests[-1].messages[0].content)


def declined(text: str, category: str) -> refold.ModelResponse:
    details: dict[str, object] = {"type": "refusal", "category": category}
    content = (refold.TextBlock(text=text),) if text else ()
    return refold.ModelResponse(content=content, stop_reason="refusal", stop_details=details)


REFUSALS: dict[str, tuple[refold.ModelResponse, list[str]]] = {
    "a classifier": (declined("", "cyber"), ["user: (…)"]),
    "a classifier, after the first words": (declined("First", "cyber"), ["user: (…)", "assistant: (…)"]),
    "a filter, before the first word": (declined("", "content_filter"), ["user: (…)"]),
    "a filter, after the first words": (declined("First", "content_filter"), ["user: poison", "assistant: First"]),
    "the model, in words": (
        refold.ModelResponse(content=(refold.TextBlock(text="I cannot."),), stop_reason="refusal"),
        ["user: poison", "assistant: I cannot."],
    ),
}


@pytest.mark.parametrize("what", REFUSALS)
async def test_a_turn_that_a_classifier_refused_is_set_aside_and_the_conversation_goes_on(
    tmp_path: Path, what: str
) -> None:
    """As Anthropic advises: such a turn would be refused again as long as it is in the context."""
    answer, left = REFUSALS[what]
    log, provider = tmp_path / "events.db", refold.ScriptedProvider(["Hello.", answer, "Yes.", "Yes."])
    async with refold.AgentRuntime(refold.AgentConfig(model="m"), provider=provider, log=log) as runtime:
        session = await runtime.session("a")
        await session.send("Hello?")
        result = await session.send("poison")
        assert len(provider.requests) == 2
        assert isinstance(result.outcome, refold.Failed if not answer.content else refold.Completed)
        await session.send("And now?")
        lines = [f"{one.role}: {one.text}".replace(INPUT_NOTE, "(…)") for one in provider.requests[-1].messages]
        assert lines == ["user: Hello?", "assistant: Hello.", *left, "user: And now?"]
        asides = await asides_of(session)
        category = (answer.stop_details or {}).get("category")
        told = [f"The model refused to answer: {category}."] if "(…)" in left[0] else []
        assert [reason for _, reason in asides] == told
        for version, _ in asides:
            await session.take_back(version)
            assert "poison" in repr(await session.history())
    (await replay(log)).raise_for_divergence()


async def test_results_that_a_classifier_refused_are_set_aside_and_the_input_stays() -> None:
    provider = refold.ScriptedProvider([CALL, declined("", "bio"), "Yes."])
    async with refold.AgentRuntime(refold.AgentConfig(model="m"), provider=provider, tools=[picture]) as runtime:
        session = await runtime.session("a")
        assert isinstance((await session.send("Show me.")).outcome, refold.Failed)
        assert (await session.send("And now?")).text == "Yes."
        assert said_by_user(provider.requests[-1].messages) == ["Show me.", RESULT_NOTE, "And now?"]


async def test_an_address_that_has_expired_is_set_aside_though_it_was_taken_before() -> None:
    gone = refold.ImageBlock(url="https://example.org/gone.png")

    def answer(request: refold.ModelRequest) -> refold.ModelResponse:
        if len(requests) and any(gone in message.content for message in request.messages):
            raise refold.ProviderError("Unable to download the file", kind="invalid_request", status=400)
        requests.append(request)
        return refold.say("Yes.")

    requests: list[refold.ModelRequest] = []
    async with session_in(refold.AgentRuntime(refold.AgentConfig(model="m"), provider=answer), "a") as (_, session):
        assert (await session.send(["What is this?", BROKEN, gone])).outcome == refold.Completed()
        for words in ("And now?", "And again?"):
            assert (await session.send(words)).outcome == refold.Completed()
        assert requests[-1].messages[0].content == (
            refold.TextBlock(text="What is this?"),
            BROKEN,
            refold.TextBlock(text=INPUT_NOTE),
        ), "what it was given by bytes stays"
        assert len(await asides_of(session)) == 1


@pytest.mark.parametrize("word", ["tea 3", "Yes. 4"])
async def test_what_an_earlier_model_took_and_the_new_one_refuses_is_set_aside(tmp_path: Path, word: str) -> None:
    log, calm = tmp_path / "events.db", Picky(*(refold.say(f"Yes. {number}") for number in range(9)), word="?")
    async with refold.AgentRuntime(refold.AgentConfig(model="old"), provider=calm, log=log) as runtime:
        for number in range(6):
            await (await runtime.session("a")).send(f"tea {number}")
    async with refold.AgentRuntime(refold.AgentConfig(model="new"), provider=Picky(word=word), log=log) as runtime:
        session = await runtime.session("a")
        assert (await session.send("And now?")).outcome == refold.Completed()
        left = "".join(message.text for message in await session.history())
        assert word not in left
        assert len([number for number in range(6) if f"tea {number}" in left]) >= 4, "a quarter at most is lost"
        await session.take_back((await asides_of(session))[0][0])
        assert word in "".join(message.text for message in await session.history())
        assert (await session.send("And again?")).outcome == refold.Completed(), "it is suspected again"
    (await replay(log)).raise_for_divergence()


async def test_what_is_too_large_to_be_sent_is_set_aside_largest_first(tmp_path: Path) -> None:
    class Narrow(Picky):
        async def complete(self, request: refold.ModelRequest) -> refold.ModelResponse:
            self.requests.append(request)
            blocks = [block for message in request.messages for block in message.content]
            if (
                sum(len(block.data) for block in blocks if isinstance(block, refold.ImageBlock | refold.DocumentBlock))
                > 100
            ):
                raise refold.ProviderError("the request is too large", kind="context_too_long", status=413)
            return refold.say("Yes.")

    provider, log = Narrow(), tmp_path / "events.db"
    scan = refold.DocumentBlock(data=b"x" * 90, name="scan.pdf")
    async with refold.AgentRuntime(refold.AgentConfig(model="m"), provider=provider, log=log) as runtime:
        session = await runtime.session("a")
        await session.send("Hello")
        sent = await session.send([refold.TextBlock(text="Read both."), BROKEN, scan, scan])
        assert sent.outcome == refold.Completed()
        assert said_by_user(provider.requests[-1].messages) == ["Hello", f"Read both.{INPUT_NOTE}"]
        assert has_image(provider.requests[-1].messages[-1].content)
        whole = await session.send([refold.TextBlock(text="And this?"), refold.DocumentBlock(data=b"x" * 101)])
        assert whole.outcome == refold.Completed()
        assert len(provider.requests) <= 20
    (await replay(log)).raise_for_divergence()


@pytest.mark.parametrize(
    ("kind", "status", "words"),
    [
        ("context_too_long", 413, "request too large"),
        ("invalid_request", 400, "messages: too many images and documents: 4 > 3"),
    ],
)
async def test_old_images_go_where_a_request_holds_too_many_and_no_words_do(kind: Any, status: int, words: str) -> None:
    requests: list[refold.ModelRequest] = []

    def answer(request: refold.ModelRequest) -> refold.ModelResponse:
        requests.append(request)
        if sum(has_image(message.content) for message in request.messages) > 3:
            raise refold.ProviderError(words, kind=kind, status=status)
        return refold.say("Yes.")

    async with session_in(refold.AgentRuntime(refold.AgentConfig(model="m"), provider=answer), "a") as (_, session):
        for number in range(9):
            assert (await session.send([f"picture {number}", BROKEN])).outcome == refold.Completed()
        assert (await session.send("And now?")).outcome == refold.Completed()
        left = [message.text.removesuffix(INPUT_NOTE) for message in requests[-1].messages if message.role == "user"]
        assert left == [*(f"picture {number}" for number in range(9)), "And now?"]
        shown = [has_image(message.content) for message in requests[-1].messages if message.role == "user"]
        assert (shown[0], shown[-2]) == (False, True)
        assert len(requests) == 10 + len(await asides_of(session))


async def test_every_message_and_part_can_be_set_aside_by_hand_and_taken_back(tmp_path: Path) -> None:
    """The calls and results stay balanced, and each undo gives back exactly what was there."""
    call = refold.ModelResponse(
        content=(refold.TextBlock(text="I look."), refold.use("picture", {"of": "tea"})), stop_reason="tool_use"
    )
    provider, log = Picky(refold.say("Good."), call, refold.say("Seen.")), tmp_path / "events.db"

    @refold.tool(tier="observe", effect="pure")
    def picture(of: str) -> list[refold.TextBlock]:
        return [refold.TextBlock(text=f"Here is {of}."), refold.TextBlock(text="Enjoy.")]

    async with refold.AgentRuntime(
        refold.AgentConfig(model="m"), provider=provider, tools=[picture], log=log
    ) as runtime:
        session = await runtime.session("a")
        await session.import_history(
            [refold.Message("user", (refold.TextBlock(text="Old."), refold.TextBlock(text="Older."))), OLD[1]]
        )
        for text in ("One", "Two"):
            await session.send(text)
        versions = {
            name: [event.version async for event in session.events() if type(event.event).__name__ == name]
            for name in ("HistoryImported", "InputQueued", "ModelResponded", "ToolCallCompleted")
        }
        (imported,), (one, _), (_, asked, _), (result,) = versions.values()
        whole = await session.history()
        cases: list[tuple[int, dict[str, Any], str, str]] = [
            (one, {}, "One", HAND_NOTE),
            (imported, {"message": 1}, "I see.", HAND_NOTE),
            (imported, {"message": 0, "part": 1}, "Older.", HAND_NOTE),
            (asked, {"part": 0}, "I look.", HAND_NOTE),
            (asked, {"part": 1}, "{'of': 'tea'}", "input={}"),
            (asked, {}, "{'of': 'tea'}", "input={}"),
            (result, {"part": 1}, "Enjoy.", HAND_NOTE),
            (result, {}, "Here is tea.", "The result was set aside by hand."),
        ]
        for version, place, gone, stands in cases:
            await session.set_aside(version, **place)
            left = repr(await session.history())
            assert gone not in left, (version, place)
            assert stands in left
            lengths = [len(message.content) for message in await session.history()]
            assert lengths[: len(whole)] == [len(message.content) for message in whole]
            assert (await session.send("Go on.")).outcome == refold.Completed()
            await session.take_back((await asides_of(session))[-1][0], reason="by mistake")
            assert (await session.history())[: len(whole)] == whole
        wrong: list[tuple[Any, dict[str, Any], str]] = [
            (imported, {"message": 2}, "2 messages to name"),
            (imported, {"part": 0}, "of which the part is"),
            (result, {"message": 0}, "0 messages to name"),
            (result, {"part": 2}, "2 parts to name"),
            (one, {"part": -1}, "1 parts to name"),
            (1, {}, "brought nothing"),
            (99, {}, "brought nothing"),
            (-1, {}, "brought nothing"),
            ("3", {}, "version must be a version of the session, an integer, not '3'"),
        ]
        for version, place, words in wrong:
            with pytest.raises(ConfigError, match=words):
                await session.set_aside(version, **place)
    assert (await check_log(log)).sound
    (await replay(log)).raise_for_divergence()


async def test_one_of_several_that_say_the_same_is_set_aside_and_taken_back_alone(tmp_path: Path) -> None:
    same = [refold.Message("user", (refold.TextBlock(text="Tea."),)), refold.Message("assistant", (ECHO,))] * 2
    echoes = Picky(*(refold.ModelResponse(content=(ECHO,)) for _ in range(9)))
    log = tmp_path / "events.db"
    async with refold.AgentRuntime(refold.AgentConfig(model="m"), provider=echoes, log=log) as runtime:
        session = await runtime.session("a")
        await session.import_history(same)
        await session.send("Tea.")
        await session.send("Tea.", at=datetime.now(UTC) - timedelta(days=1))
        events = [event async for event in session.events()]
        named = {name: [one.version for one in events if type(one.event).__name__ == name] for name in BRINGING}
        ((imported,), (first, _), (second,), answers) = named.values()
        whole = await session.history()
        cases: list[tuple[int, dict[str, Any], int]] = [
            (imported, {"message": 0}, 0),
            (imported, {"message": 3}, 3),
            (first, {"part": 0}, 4),
            (second, {}, 6),
            (answers[1], {}, 7),
        ]
        for version, place, stands in cases:
            await session.set_aside(version, **place)
            left = await session.history()
            assert [one for one in range(len(whole)) if left[one] != whole[one]] == [stands], (version, place)
            await session.take_back((await asides_of(session))[-1][0])
            assert await session.history() == whole
    (await replay(log)).raise_for_divergence()


async def test_an_input_that_stands_behind_a_summary_of_its_run_is_found_there() -> None:
    calls = iter([refold.ModelResponse(content=(refold.use("tell"),), stop_reason="tool_use")] * 6)

    def answer(request: refold.ModelRequest) -> refold.ModelResponse:
        if not request.tools:
            return refold.say("Summary.")
        return next(calls, refold.say("Done."))

    @refold.tool(tier="observe", effect="pure")
    def tell() -> str:
        return "word " * 40

    window = refold.Summarising(320, keep_tokens=100)
    async with refold.AgentRuntime(
        refold.AgentConfig(model="m"), provider=answer, tools=[tell], context=window
    ) as runtime:
        session = await runtime.session("a")
        assert (await session.send("Tell me.")).outcome == refold.Completed()
        assert said_by_user((await session.history())[:2])[1] == "Tell me."
        await session.set_aside(3)
        assert said_by_user((await session.history())[:2])[1] == HAND_NOTE


async def test_keys_and_the_order_of_undoing_hold() -> None:
    async with session_in(refold.AgentRuntime(refold.AgentConfig(model="m"), provider=Picky()), "a") as (_, session):
        await session.send(["Keep this.", "And this."], key="one")
        await session.set_aside(3, part=0, key="k")
        await session.set_aside(3, part=0, key="k")
        with pytest.raises(CommandRejected, match="used before"):
            await session.set_aside(3, part=1, key="k")
        await session.set_aside(3, reason="all of it")
        first, second = [version for version, _ in await asides_of(session)]
        assert said_by_user(await session.history()) == [
            f"{HAND_NOTE}(What stood here was set aside by hand: all of it.)"
        ]
        with pytest.raises(CommandRejected, match="nothing of it"):
            await session.set_aside(3)
        with pytest.raises(CommandRejected, match=f"version {second} set more"):
            await session.take_back(first)
        for version in (second, first):
            await session.take_back(version, key=f"back {version}")
            await session.take_back(version, key=f"back {version}")
            with pytest.raises(CommandRejected, match="it is back"):
                await session.take_back(version)
        assert said_by_user(await session.history()) == ["Keep this.And this."]


def test_the_command_and_a_connection_set_aside_in_a_log_that_no_runtime_owns(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    with refold.AgentRuntime(refold.AgentConfig(model="m"), provider=Picky(refold.say("Good.")), log=log) as runtime:
        session = runtime.session("a")
        for text in ("One", "Two"):
            session.send(text)
    undo = run("set-aside", log, "a", 3, "--part", 0, "--reason", "private").stdout.splitlines()[-1]
    assert run("set-aside", log, "a", 3).exit_code == 1
    assert run("set-aside", log, "a", 1).exit_code == 1
    assert run("set-aside", log, "a", 0).exit_code == 2
    assert run("set-aside", log, "a", 3, "--undo", "--part", 0).exit_code == 2
    with refold.connect(log) as connection:
        connected = connection.session("a")
        assert said_by_user(connected.history())[0] == "(What stood here was set aside by hand: private.)"
        with pytest.raises(CommandRejected, match="brought nothing"):
            connected.set_aside(2)
        shown = run("show", log, "a").stdout
        assert "message 1 of the history is left out of later requests: private" in shown
        aside = next(event.version for event in connected.events() if isinstance(event.event, InputSetAside))
        assert undo.removeprefix("to show it again: refold ") == f"set-aside --undo {log} a {aside}"
        assert run(*undo.split()[5:]).exit_code == 0
        assert run("set-aside", log, "a", aside, "--undo").exit_code == 1
        assert said_by_user(connected.history())[0] == "One"
        assert connected.set_aside(3)
        assert connected.take_back(aside + 2)
    assert f"what version {aside} set aside is in later requests again" in run("show", log, "a").stdout
    assert run("check", log).exit_code == 0
    assert run("replay", log).exit_code == 0
