"""What a provider refuses for good spoils no session: it is set aside, and the conversation goes on (case T14)."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.events.core.errors import CommandRejected, ConfigError
from refold.events.session.events import InputSetAside
from refold.events.session.set_aside import INPUT_NOTE, RESULT_NOTE
from refold.inspection.check import check_log
from refold.replay import replay
from tests.runtime.command_line import run

BROKEN = refold.ImageBlock(media_type="image/png", data=b"broken")


def has_image(content: Sequence[object]) -> bool:
    return any(isinstance(block, refold.ImageBlock) or has_image(getattr(block, "content", ())) for block in content)


class Picky:
    """Refuses every request that holds an image or the word "poison", as `invalid_request`."""

    def __init__(self, *answers: refold.ModelResponse) -> None:
        self.answers = list(answers)
        self.requests: list[refold.ModelRequest] = []

    async def complete(self, request: refold.ModelRequest) -> refold.ModelResponse:
        self.requests.append(request)
        if any(has_image(message.content) or "poison" in message.text for message in request.messages):
            raise refold.ProviderError("Could not process image", kind="invalid_request", status=400)
        return self.answers.pop(0) if self.answers else refold.say("Yes.")


@refold.tool(tier="observe", effect="pure")
def picture() -> list[refold.TextBlock | refold.ImageBlock]:
    return [refold.TextBlock(text="Here it is."), BROKEN]


CALL = refold.ModelResponse(content=(refold.use("picture", {}),), stop_reason="tool_use")


async def image_sent(session: refold.Session) -> object:
    return (await session.send([refold.TextBlock(text="What is this?"), BROKEN])).outcome


async def image_returned(session: refold.Session) -> object:
    return (await session.send("Show me.")).outcome


async def image_imported(session: refold.Session) -> object:
    old = [
        refold.Message("user", (refold.TextBlock(text="Old."), BROKEN)),
        refold.Message("assistant", (refold.TextBlock(text="I see."),)),
    ]
    await session.import_history(old)
    return (await session.send("And?")).outcome


REFUSED: dict[str, tuple[Callable[[refold.Session], Any], list[refold.ModelResponse], list[str]]] = {
    "an image in an input": (image_sent, [], [f"What is this?{INPUT_NOTE}"]),
    "an image that a tool returned": (image_returned, [refold.say("Good."), CALL], ["Show me.", RESULT_NOTE]),
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


@pytest.mark.parametrize("what", REFUSED)
async def test_what_is_refused_is_set_aside_and_the_session_goes_on(tmp_path: Path, what: str) -> None:
    say_it, answers, shown = REFUSED[what]
    provider, log = Picky(*answers), tmp_path / "events.db"
    async with refold.AgentRuntime(
        refold.AgentConfig(model="m"), provider=provider, tools=[picture], log=log
    ) as runtime:
        session = await runtime.session("a")
        assert (await session.send("I like tea.")).outcome == refold.Completed()
        failed = await say_it(session)
        assert isinstance(failed, refold.Failed)
        assert "Could not process image" in str(failed.error)
    async with refold.AgentRuntime(
        refold.AgentConfig(model="m"), provider=provider, tools=[picture], log=log
    ) as runtime:
        session = await runtime.session("a")
        assert (await session.send("Are you there?")).outcome == refold.Completed()
        assert said_by_user(provider.requests[-1].messages) == ["I like tea.", *shown, "Are you there?"]
        asides = [event.event async for event in session.events() if isinstance(event.event, InputSetAside)]
        assert [aside.reason for aside in asides] == ["ProviderError: Could not process image"]
    assert (await check_log(log)).sound
    (await replay(log)).raise_for_divergence()


async def test_a_text_is_set_aside_by_hand_only_since_settings_are_refused_in_the_same_words() -> None:
    provider = Picky()
    async with refold.AgentRuntime(refold.AgentConfig(model="m"), provider=provider) as runtime:
        session = await runtime.session("a")
        assert isinstance((await session.send("poison")).outcome, refold.Failed)
        assert isinstance((await session.send("Are you there?")).outcome, refold.Failed)
        await session.set_aside(3, reason="the provider refuses it")
        assert (await session.send("And now?")).outcome == refold.Completed()
        assert said_by_user(provider.requests[-1].messages) == [INPUT_NOTE, "Are you there?", "And now?"]


async def test_a_model_that_is_not_there_takes_no_image_away() -> None:
    async def answer(request: refold.ModelRequest) -> refold.ModelResponse:
        raise refold.ProviderError("model: claud", kind="invalid_request", status=404)

    provider = refold.ScriptedProvider([answer, refold.say("A cat.")])
    async with refold.AgentRuntime(refold.AgentConfig(model="m"), provider=provider) as runtime:
        session = await runtime.session("a")
        assert isinstance(await image_sent(session), refold.Failed)
        assert (await session.send("And now?")).text == "A cat."
        assert has_image(provider.requests[-1].messages[0].content)


async def test_what_was_taken_before_is_left_alone_and_a_person_sets_it_aside(tmp_path: Path) -> None:
    provider, log = Picky(), tmp_path / "events.db"
    async with refold.AgentRuntime(
        refold.AgentConfig(model="m"), provider=provider, tools=[picture], log=log
    ) as runtime:
        session = await runtime.session("a")
        await session.send("Keep this.", key="one")
        versions = [event.version async for event in session.events()]
        await session.set_aside(3, reason="by mistake", key="k")
        await session.set_aside(3, reason="by mistake", key="k")
        assert len([event async for event in session.events()]) == len(versions) + 1
        assert said_by_user(await session.history()) == [INPUT_NOTE]
        for version, error, words in (
            (3, CommandRejected, "nothing of it"),
            (1, ConfigError, "brought no input"),
            (99, ConfigError, "brought no input"),
            (-1, ConfigError, "brought no input"),
        ):
            with pytest.raises(error, match=words):
                await session.set_aside(version)
        await session.send("Go on.")
        assert said_by_user(provider.requests[-1].messages) == [INPUT_NOTE, "Go on."]


def test_the_command_and_a_connection_set_aside_in_a_log_that_no_runtime_owns(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    with refold.AgentRuntime(
        refold.AgentConfig(model="m"), provider=Picky(refold.say("Good."), CALL), tools=[picture], log=log
    ) as runtime:
        session = runtime.session("a")
        for text in ("One", "Two"):
            session.send(text)
    assert run("set-aside", log, "a", 3, "--reason", "private").exit_code == 0
    assert run("set-aside", log, "a", 3).exit_code == 1
    assert run("set-aside", log, "a", 1).exit_code == 1
    assert run("set-aside", log, "a", 0).exit_code == 2
    with refold.connect(log) as connection:
        assert said_by_user(connection.session("a").history())[0] == INPUT_NOTE
        with pytest.raises(CommandRejected, match="brought no input"):
            connection.session("a").set_aside(2)
    assert "message 1 of the history is left out of later requests: private" in run("show", log, "a").stdout
    assert run("check", log).exit_code == 0
    assert run("replay", log).exit_code == 0
