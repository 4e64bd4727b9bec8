"""Conversations in the two wire forms become histories and come back; nothing that is certain in meaning is lost."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold import AgentConfig, AgentRuntime, ScriptedProvider, say
from refold.events import Message, TextBlock, ToolResultBlock, ToolUseBlock
from refold.events.core.content import DocumentBlock, ImageBlock, JsonObject, ProviderBlock, ThinkingBlock
from refold.events.core.errors import ConfigError, LogInUse
from refold.events.core.ids import ToolCallId
from refold.inspection.check import check_log
from refold.providers import (
    history_from_anthropic,
    history_from_openai,
    history_to_anthropic,
    history_to_openai,
)
from refold.remote.importing import import_conversation
from tests.runtime.command_line import error_of, run

AUDIO: JsonObject = {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}}
PDF = base64.b64encode(b"%PDF-1.7").decode()
DOCUMENT: JsonObject = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Tea."}}

OPENAI, ANTHROPIC = (
    json.loads((Path(__file__).parent / "histories" / f"{form}.json").read_text()) for form in ("openai", "anthropic")
)
"""One of everything that the two forms have."""


def text(said: str) -> TextBlock:
    return TextBlock(text=said)


def call(identifier: str, name: str = "look", **arguments: object) -> ToolUseBlock:
    return ToolUseBlock(id=ToolCallId(identifier), name=name, input=arguments, provider_id=identifier)


def result(identifier: str, said: str, *, failed: bool = False) -> ToolResultBlock:
    return ToolResultBlock(tool_use_id=ToolCallId(identifier), content=(text(said),), is_error=failed)


def test_a_history_of_chat_completions_is_read_with_its_system_prompt_images_thoughts_and_old_forms() -> None:
    history = history_from_openai(OPENAI)
    assert history.system_prompt == "Be brief.\n\nIn English."
    old = ToolUseBlock(id=ToolCallId("messages[7].calls[0]"), name="old", input={})
    image = ImageBlock(media_type="image/png", data=b"png")
    assert history.messages == [
        Message("assistant", (text("Hello, how can I help you?"),)),
        Message("user", (text("Look"), image, ProviderBlock(provider="openai", data=AUDIO))),
        Message("assistant", (ThinkingBlock(thinking="Both."), call("x", at="x"), call("y", at="x"))),
        Message("user", (result("x", "a"),)),
        Message("user", (result("y", "b"),)),
        Message("assistant", (old,)),
        Message("user", (result(old.id, "c"),)),
        Message("user", (text("It is noon."),)),
        Message("assistant", (text("I will not."),)),
    ]
    assert history_from_openai({"model": "m", "messages": OPENAI}) == history


def test_a_history_of_the_messages_api_is_read_with_its_system_prompt_and_blocks_of_its_own() -> None:
    history = history_from_anthropic(ANTHROPIC)
    assert history.system_prompt == "Be brief."
    redacted = ProviderBlock(provider="anthropic", data={"type": "redacted_thinking", "data": "e"})
    image = ImageBlock(media_type="image/png", data=b"png")
    cited = TextBlock(text="Tea.", provider_data={"anthropic": {"citations": [{"cited_text": "Tea."}]}})
    assert history.messages == [
        Message("user", (text("Look"),)),
        Message("assistant", (ThinkingBlock(thinking="Hm.", signature="s"), redacted, call("x", at="x"))),
        Message("user", (result("x", "a", failed=True), text("And?"))),
        Message("user", (image, DocumentBlock(media_type="text/plain", data=b"Tea."))),
        Message("assistant", (cited,)),
    ]
    assert history_from_anthropic(history_to_anthropic(history.messages, system_prompt="Be brief.")) == history


@pytest.mark.parametrize(
    ("source", "document", "openai"),
    [
        (
            {"type": "base64", "media_type": "application/pdf", "data": PDF},
            DocumentBlock(data=b"%PDF-1.7", name="T"),
            {"type": "file", "file": {"filename": "T", "file_data": f"data:application/pdf;base64,{PDF}"}},
        ),
        (
            {"type": "text", "media_type": "text/plain", "data": "Tea."},
            DocumentBlock(media_type="text/plain", data=b"Tea.", name="T"),
            {"type": "text", "text": "T:\nTea."},
        ),
        (
            {"type": "url", "url": "https://a.example/b.pdf"},
            DocumentBlock(url="https://a.example/b.pdf", name="T"),
            None,
        ),
    ],
)
def test_a_document_goes_from_one_form_to_the_other(
    source: JsonObject, document: DocumentBlock, openai: JsonObject | None
) -> None:
    part: JsonObject = {"type": "document", "source": source, "title": "T"}
    history = history_from_anthropic([{"role": "user", "content": [part]}]).messages
    assert history == [Message("user", (document,))]
    assert history_to_anthropic(history)["messages"] == [{"role": "user", "content": [part]}]
    written: Any = history_to_openai(history)["messages"]
    [message] = written
    content = message["content"]
    if openai is None:
        assert "https://a.example/b.pdf" in str(content)
    else:
        assert content == [openai]
    if isinstance(openai, dict) and openai["type"] == "file":
        assert history_from_openai([message]).messages == history
    cited = {**part, "citations": {"enabled": True}}
    [kept] = history_from_anthropic([{"role": "user", "content": [cited]}]).messages
    assert kept.content == (ProviderBlock(provider="anthropic", data=cited),)


@pytest.mark.parametrize(
    ("read", "given", "said"),
    [
        (history_from_openai, "text", "a list of messages"),
        (history_from_openai, {"input": []}, "a list of messages"),
        (history_from_openai, ["Hi"], r"messages\[0\] is no object"),
        (history_from_openai, [{"role": "user", "content": "a"}, {"role": "bot"}], r"messages\[1\] has the role 'bot'"),
        (history_from_openai, [{"role": "user", "content": 3}], r"messages\[0\] has neither a text nor a list"),
        (history_from_openai, [{"role": "user", "content": [3]}], r"messages\[0\]\.content\[0\] is neither"),
        (history_from_openai, [{"role": "tool", "content": "x"}], "has no tool_call_id"),
        (history_from_anthropic, [{"role": "system", "content": "x"}], "has the role 'system'"),
        (history_from_anthropic, [{"role": "user", "content": None}], "neither a text nor a list"),
        (history_from_anthropic, [{"role": "user", "content": [{"text": "x"}]}], "no object with a type"),
        (history_from_anthropic, [{"role": "assistant", "content": [{"type": "text"}]}], "cannot be understood"),
    ],
)
def test_what_is_no_history_is_refused_by_its_place(read: Any, given: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(given)


words = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=8).filter(str.strip)
names = st.text("abcXYZ019_-", min_size=1, max_size=12)
arguments = st.dictionaries(words, st.none() | st.booleans() | st.integers(-9, 9) | words | st.lists(words), max_size=2)


@st.composite
def openai_histories(draw: st.DrawFn) -> list[dict[str, object]]:
    messages: list[dict[str, object]] = []
    for turn in range(draw(st.integers(1, 4))):
        said, sounds = draw(words), draw(st.lists(st.just(AUDIO), max_size=2))
        messages.append({"role": "user", "content": [{"type": "text", "text": said}, *sounds] if sounds else said})
        ids = [f"{draw(names)}{turn}{place}" for place in range(draw(st.integers(0, 2)))]
        answer: dict[str, object] = {"role": "assistant", "content": None if ids else draw(words)}
        if ids:
            made = [
                (name, draw(names), json.dumps(draw(arguments), separators=(",", ":"), ensure_ascii=False))
                for name in ids
            ]
            answer["tool_calls"] = [
                {"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in made
            ]
        if draw(st.booleans()):
            answer["reasoning_content"] = draw(words)
        messages.append(answer)
        messages.extend({"role": "tool", "tool_call_id": name, "content": draw(words)} for name in ids)
        if ids:
            messages.append({"role": "assistant", "content": draw(words)})
    return messages


@st.composite
def anthropic_histories(draw: st.DrawFn) -> list[dict[str, object]]:
    said = words.map(lambda word: {"type": "text", "text": word})
    thought = st.builds(lambda word, sign: {"type": "thinking", "thinking": word, "signature": sign}, words, words)
    messages: list[dict[str, object]] = []
    results: list[object] = []
    for turn in range(draw(st.integers(1, 4))):
        messages.append({"role": "user", "content": [*results, draw(said | st.just(DOCUMENT))]})
        ids = [f"{draw(names)}{turn}{place}" for place in range(draw(st.integers(0, 2)))]
        calls = [{"type": "tool_use", "id": name, "name": draw(names), "input": draw(arguments)} for name in ids]
        messages.append({"role": "assistant", "content": [*draw(st.lists(thought, max_size=1)), draw(said), *calls]})
        results = [{"type": "tool_result", "tool_use_id": name, "content": [draw(said)]} for name in ids]
    return messages


@given(openai_histories())
def test_what_chat_completions_took_comes_back_the_same(messages: list[dict[str, object]]) -> None:
    history = history_from_openai(messages)
    assert history_to_openai(history.messages)["messages"] == messages
    assert history_to_openai(history.messages, system_prompt="Hi")["messages"] == [
        {"role": "system", "content": "Hi"},
        *messages,
    ]


@given(anthropic_histories())
def test_what_the_messages_api_took_comes_back_the_same(messages: list[dict[str, object]]) -> None:
    history = history_from_anthropic(messages)
    assert history_to_anthropic(history.messages) == {"messages": messages}


# Into a log and out of it.


@pytest.mark.parametrize(("form", "given_history"), [("openai", OPENAI), ("anthropic", ANTHROPIC)])
def test_a_conversation_becomes_a_session_that_goes_on_and_is_exported_again(
    tmp_path: Path, form: str, given_history: object
) -> None:
    file, log = tmp_path / "history.json", tmp_path / "events.db"
    file.write_text(json.dumps(given_history))
    told = json.loads(run("import", file, log, "--format", form, "--session", "s", "--json").stdout)
    assert (told["session"], told["imported"]) == ("s", 9 if form == "openai" else 5)
    assert run("import", "-", log, "--format", form, "--session", "t", stdin=file.read_bytes()).exit_code == 0

    async def go_on() -> list[Message]:
        async with AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([say("Yes.")]), log=log) as runtime:
            session = await runtime.session("s")
            assert (await session.send("And now?")).text == "Yes."
            with pytest.raises(LogInUse):
                await import_conversation(log, "s", await session.history())
            return await session.history()

    history = asyncio.run(go_on())
    assert asyncio.run(check_log(log)).sound
    out = tmp_path / "out.json"
    assert run("export", log, "--session", "s", "--format", form, "-o", out).exit_code == 0
    written = json.loads(out.read_text())
    assert (written if form == "openai" else written["messages"]) != []
    read = (history_from_openai if form == "openai" else history_from_anthropic)(written)
    assert [block.text for message in read.messages for block in message.content if isinstance(block, TextBlock)] == [
        block.text for message in history for block in message.content if isinstance(block, TextBlock)
    ][form == "openai" :]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["import", "h.json", "x.db", "--format", "openai"], "belong together"),
        (["import", "h.json", "x.db", "--session", "s"], "belong together"),
        (["import", "h.json", "x.db", "--format", "anthropic", "--session", "s"], "is not JSON"),
        (["import", "none.json", "x.db", "--format", "openai", "--session", "s"], "cannot be read"),
        (["import", "orphan.json", "x.db", "--format", "openai", "--session", "s"], "does not call"),
        (["import", "empty.json", "x.db", "--format", "openai", "--session", "s"], "nothing to import"),
        (["export", "x.db", "--format", "openai"], "one --session"),
    ],
)
def test_a_conversation_that_cannot_be_read_leaves_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "h.json").write_text("[{")
    (tmp_path / "empty.json").write_text("[]")
    (tmp_path / "orphan.json").write_text('[{"role": "tool", "tool_call_id": "a", "content": "x"}]')
    outcome = run(*arguments)
    assert outcome.exit_code == 2
    assert said in " ".join((outcome.stderr or error_of(outcome)).split())
    assert not (tmp_path / "x.db").exists()
