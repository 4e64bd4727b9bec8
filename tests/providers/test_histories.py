"""Conversations in the two wire forms become histories and come back; nothing that is certain in meaning is lost."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold import AgentConfig, AgentRuntime, ScriptedProvider, say
from refold.actors.calls.validation import checked_messages
from refold.events import Message, TextBlock, ToolResultBlock, ToolUseBlock
from refold.events.core.content import DocumentBlock, ImageBlock, JsonObject, ProviderBlock, ThinkingBlock
from refold.events.core.errors import ConfigError, LogInUse
from refold.events.core.ids import ToolCallId
from refold.events.session.invariants import check_history
from refold.events.session.normalise import imported_messages
from refold.inspection.check import check_log
from refold.providers import (
    WireHistory,
    history_from_anthropic,
    history_from_openai,
    history_to_anthropic,
    history_to_openai,
)
from refold.remote.importing import import_conversation
from tests.providers.wire_histories import ANNOTATION, AUDIO, PDF, PNG, anthropic_histories, lost, openai_histories
from tests.runtime.command_line import error_of, run

OPENAI, ANTHROPIC = (
    json.loads((Path(__file__).parent / "histories" / f"{form}.json").read_text()) for form in ("openai", "anthropic")
)
"""One of everything that the two forms have."""


CALL: JsonObject = {"id": "x", "type": "function", "function": {"name": "look", "arguments": "{}"}}
PICTURE: JsonObject = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
SAID: JsonObject = {"role": "assistant", "content": "Tea."}
NAMELESS: JsonObject = {"function": {"name": "look", "arguments": {}}}
ASKED: JsonObject = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT: JsonObject = {"role": "tool", "tool_call_id": "x", "content": "a"}
USE: JsonObject = {"type": "tool_use", "id": "x", "name": "look", "input": {}}
USED: JsonObject = {"role": "assistant", "content": [USE]}
RESULTED: JsonObject = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}


def text(said: str) -> TextBlock:
    return TextBlock(text=said)


def call(identifier: str, name: str = "look", **arguments: object) -> ToolUseBlock:
    return ToolUseBlock(id=ToolCallId(identifier), name=name, input=arguments, provider_id=identifier)


def result(identifier: str, said: str, *, failed: bool = False) -> ToolResultBlock:
    return ToolResultBlock(tool_use_id=ToolCallId(identifier), content=(text(said),), is_error=failed)


def test_a_history_of_chat_completions_is_read_with_its_system_prompt_images_thoughts_and_old_forms() -> None:
    history = history_from_openai(OPENAI)
    assert history.system_prompt == "Be brief.\n\nIn English."
    old = ToolUseBlock(id=ToolCallId("call_7_0"), name="old", input={})
    image = ImageBlock(media_type="image/png", data=b"png")
    assert history.messages == [
        Message("assistant", (text("Hello, how can I help you?"),)),
        Message("user", (text("Look"), image, ProviderBlock(provider="openai", data=AUDIO))),
        Message("assistant", (ThinkingBlock(thinking="Both."), call("x", at="x"), call("y", at="x"))),
        Message("user", (result("x", "a"),)),
        Message("user", (result("y", "b"),)),
        Message("assistant", (old,)),
        Message("user", (result(old.id, "c"),)),
        Message("user", (TextBlock(text="It is noon.", provider_data={"history": {"role": "system"}}),)),
        Message("assistant", (TextBlock(text="I will not.", provider_data={"history": {"refusal": True}}),)),
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
        assert content == openai.get("text", [openai])
    if isinstance(openai, dict) and openai["type"] == "file":
        assert history_from_openai([message]).messages == history
    cited = {**part, "citations": {"enabled": True}}
    [kept] = history_from_anthropic([{"role": "user", "content": [cited]}]).messages
    data: JsonObject = {"anthropic": {"citations": {"enabled": True}}}
    assert kept.content == (msgspec.structs.replace(document, provider_data=data),)
    assert history_to_anthropic([kept])["messages"] == [{"role": "user", "content": [cited]}]


@pytest.mark.parametrize(
    ("read", "given", "said"),
    [
        (history_from_openai, "text", "a list of messages"),
        (history_from_openai, {"input": []}, "a list of messages"),
        (history_from_openai, ["Hi"], r"messages\[0\] is no object"),
        (history_from_openai, [{"role": "user", "content": "a"}, {"role": "bot"}], r"messages\[1\] has the role 'bot'"),
        (history_from_openai, [{"role": "user", "content": 3}], r"messages\[0\] has neither a text nor a list"),
        (history_from_openai, [{"role": "user", "content": [3]}], r"messages\[0\]\.content\[0\] is neither"),
        (history_from_openai, [{"role": "tool", "content": "x"}], "without an id, and no call is open"),
        (history_from_openai, [ASKED, {"role": "tool", "name": "k", "content": "x"}], "no call of 'k' is open"),
        (
            history_from_openai,
            [{**ASKED, "tool_calls": [{**CALL, "id": None}] * 2}, {"role": "tool", "name": "look", "content": "x"}],
            r"messages\[1\] is the result .* several calls",
        ),
        (history_from_openai, [{**ASKED, "tool_calls": "x"}], r"messages\[0\] has tool_calls that are no list"),
        (history_from_openai, [{**ASKED, "tool_calls": [{}]}], r"tool_calls\[0\] calls nothing"),
        (history_from_anthropic, [{"role": "tool", "content": "x"}], "has the role 'tool'"),
        (history_from_anthropic, [{"role": "user", "content": 3}], "neither a text nor a list"),
        (history_from_anthropic, [{"role": "user", "content": [{"text": "x"}]}], "no object with a type"),
        (history_from_anthropic, [{"role": "assistant", "content": [{"type": "text"}]}], "cannot be understood"),
    ],
)
def test_what_is_no_history_is_refused_by_its_place(read: Any, given: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(given)


def calling(**changed: object) -> JsonObject:
    return {**ASKED, "tool_calls": [{**CALL, **changed}]}


def spoken(**more: object) -> JsonObject:
    return {"role": "assistant", "content": None, "audio": {"id": "audio_1", **more}}


@pytest.mark.parametrize(
    "given_history",
    [
        [calling(function={"name": "look", "arguments": '{"a": '})],
        [calling(function={"name": "look", "arguments": "three " * 200})],
        [calling(function={"name": "look", "arguments": '{"n":99999999999999999999}'})],
        [{**ASKED, "tool_calls": [{"id": "x", "type": "custom", "custom": {"name": "run", "input": "print(1)"}}]}],
        [spoken()],
        [spoken(data="UklG", expires_at=1, transcript="Hello")],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a.b/c", "detail": "low"}}]}],
        [{"role": "assistant", "content": "Tea.", "annotations": [ANNOTATION]}],
        [{"role": "assistant", "content": None, "refusal": "No."}],
        [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}, {"type": "text", "text": "But"}]}],
        [{"role": "user", "content": "Hi", "name": "Zoë"}, {"role": "assistant", "content": "Hi", "name": "Max"}],
        [{"role": "user", "content": "Hi"}, {"role": "system", "content": "It is noon."}],
        [{"role": "user", "content": "Hi"}, {"role": "developer", "content": "It is noon."}],
        [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": t} for t in "bc"]}],
        [{**SAID, "reasoning_content": "t", "reasoning_details": [{"type": "x", "text": "t"}]}],
        [{"role": "assistant", "content": "<think>Hm.</think>Yes."}],
        [ASKED, {"role": "user", "content": "Hm."}, {"role": "assistant", "content": "Wait."}, RESULT],
        [calling(extra_content={"google": {"thought_signature": "s"}}), RESULT],
    ],
)  # fmt: skip
def test_what_a_history_of_chat_completions_holds_is_written_as_it_was(given_history: list[JsonObject]) -> None:
    history, left_out = history_from_openai(given_history), list[str]()
    assert history_to_openai(history.messages, left_out=left_out) == {"messages": given_history}
    assert left_out + history.left_out == []


@pytest.mark.parametrize(
    ("given_history", "written"),
    [
        ([ASKED, {"role": "tool", "name": "look", "content": "a"}], [ASKED, RESULT]),
        ([ASKED, {**RESULT, "tool_call_id": None, "name": "look"}], [ASKED, RESULT]),
        ([ASKED, {"role": "tool", "content": "a"}], [ASKED, RESULT]),
        ([ASKED, {**RESULT, "content": {"n": 1}}], [ASKED, {**RESULT, "content": '{"n":1}'}]),
        (
            [
                {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [NAMELESS, NAMELESS]},
                {"role": "tool", "tool_name": "look", "content": "a"},
                {"role": "tool", "tool_name": "look", "content": "b"},
            ],
            [
                {**ASKED, "reasoning_content": "Hm.", "tool_calls": [{**CALL, "id": f"call_0_{n}"} for n in (0, 1)]},
                {**RESULT, "tool_call_id": "call_0_0"},
                {"role": "tool", "tool_call_id": "call_0_1", "content": "b"},
            ],
        ),
        (
            [calling(id=None), {**RESULT, "name": "look"}],
            [calling(id="call_0_0"), {**RESULT, "tool_call_id": "call_0_0"}],
        ),
        ([ASKED, RESULT, RESULT], [ASKED, RESULT, RESULT]),
        ([{"role": "system", "content": None}, {"role": "user", "content": [" "]}], []),
        (
            [{**ASKED, "tool_calls": [CALL, CALL]}, RESULT, {**RESULT, "content": "b"}],
            [
                {**ASKED, "tool_calls": [CALL, {**CALL, "id": "x_"}]},
                RESULT,
                {"role": "tool", "tool_call_id": "x_", "content": "b"},
            ],
        ),
        (
            [{"role": "user", "content": "Look", "images": [PNG, "bm8="]}],
            [{"role": "user", "content": [{"type": "text", "text": "Look"}, PICTURE]}],
        ),
    ],
)  # fmt: skip
def test_a_history_of_chat_completions_whose_meaning_is_certain_is_read(
    given_history: list[JsonObject], written: list[JsonObject]
) -> None:
    history = history_from_openai(given_history).messages
    assert history_to_openai(history) == {"messages": written}
    assert not written or check_history(closed(imported_messages(history, 1, first=True))) == []


@pytest.mark.parametrize(
    ("given_history", "written"),
    [
        ([{"role": "system", "content": "Be brief."}, RESULTED | {"content": "Hi"}], ("Be brief.", ["user"])),
        ([{"role": "user", "content": None}, {"role": "system", "content": "a"}], ("a", [])),
        ([{"role": "user", "content": "Hi"}, {"role": "system", "content": "It is noon."}], ("", ["user", "system"])),
        ([{"role": "assistant", "content": [{**USE, "id": None}]}, RESULTED], ("", ["assistant", "user"])),
        ([USED, {"role": "user", "content": [{"type": "tool_result", "content": ["a"]}]}], ("", ["assistant", "user"])),
        ([USED, {"role": "user", "content": "Hm."}, RESULTED], ("", ["assistant", "user", "user"])),
    ],
)
def test_a_history_of_the_messages_api_whose_meaning_is_certain_is_read(
    given_history: list[JsonObject], written: tuple[str, list[str]]
) -> None:
    history = history_from_anthropic(given_history)
    out: Any = history_to_anthropic(history.messages)["messages"]
    assert (history.system_prompt, [message["role"] for message in out]) == written
    if any_content(history):
        assert check_history(closed(imported_messages(history.messages, 1, first=True))) == []


def test_what_is_not_read_and_what_a_form_does_not_have_is_named_by_its_place() -> None:
    call = {**CALL, "function": {"name": "look", "arguments": "three"}}
    history = history_from_openai(
        [
            {"role": "user", "content": [{"type": "text", "text": "Hi", "weight": 1}, AUDIO], "name": "Zoë", "time": 5},
            {"role": "assistant", "content": "Tea.", "annotations": [ANNOTATION], "logprobs": {"n": 1}, "usage": None},
            {"role": "assistant", "refusal": "No.", "tool_calls": [call]},
        ]
    )
    assert history.left_out == ["messages[0].content[0].weight", "messages[0].time", "messages[1].logprobs"]
    left_out: list[str] = []
    history_to_anthropic(history.messages, left_out=left_out)
    assert left_out == [
        "messages[0]: input_audio of openai",
        "messages[0]: the name 'Zoë'",
        "messages[1]: annotations of openai",
        "messages[2]: that the text is a refusal",
        "messages[2]: the arguments of x, which are no JSON object: three",
    ]
    left_out = []
    history_to_openai(history_from_anthropic(ANTHROPIC).messages, left_out=left_out)
    assert left_out == [
        "messages[1].content[0]: the signature of a thought",
        "messages[1].content[1]: redacted_thinking of anthropic",
        "messages[4].content[0]: citations of anthropic",
    ]


@pytest.mark.parametrize("setting", ["tags", "end_tag"])
@pytest.mark.parametrize(
    ("said", "thoughts", "written"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", "\nHm.\n", None),
        ("Hm.</think>\n\nYes.", "Hm.", "<think>Hm.</think>\n\nYes."),
        ("<think>Hm.</think>Yes.", "Hm.", "<think>Hm.</think>\n\nYes."),
        ("<think>Hm.</think>", "Hm.", None),
        ("<think>Hm.", None, None),
        ("Yes.", None, None),
    ],
)
def test_case_t37_thoughts_that_a_setting_reads_in_text_are_written_into_it_again(
    setting: Any, said: str, thoughts: str | None, written: str | None
) -> None:
    if setting == "tags" and said.startswith("Hm."):
        thoughts, written = None, None
    history = history_from_openai([{"role": "assistant", "content": said}], thoughts_in_text=setting).messages
    found = [block.thinking for block in history[0].content if isinstance(block, ThinkingBlock)]
    assert found == ([thoughts] if thoughts is not None else [])
    [message] = json.loads(json.dumps(history_to_openai(history, thoughts_in_text=True)["messages"]))
    assert message == {"role": "assistant", "content": written if written is not None else said}
    assert history_from_openai([message], thoughts_in_text=setting).messages == history


FORMS: dict[str, tuple[Callable[..., WireHistory], Callable[..., JsonObject]]] = {
    "openai": (history_from_openai, history_to_openai),
    "anthropic": (history_from_anthropic, history_to_anthropic),
}
ONE_FORM_ONLY = (
    *("web_search", "secret", "UklG", "https://a.example", "data:image/png;name=x;base64,cG5n"),
    "data:text/plain;base64,/w==",
)
GIVEN = st.tuples(st.just("openai"), openai_histories()) | st.tuples(st.just("anthropic"), anthropic_histories())


@given(GIVEN)
def test_whatever_is_certain_is_read_and_written_again_and_nothing_of_it_is_lost(
    drawn: tuple[str, list[dict[str, Any]]],
) -> None:
    form, given_history = drawn
    read, write = FORMS[form]
    history, left_out = read(given_history), list[str]()
    written = write(history.messages, system_prompt=history.system_prompt, left_out=left_out)
    assert lost(given_history, written, history.left_out) == []
    assert [note for note in left_out if "the place of thoughts" not in note] == []
    again = read(written)
    assert again.left_out == []
    assert write(again.messages, system_prompt=again.system_prompt) == written
    imported = imported_messages(checked_messages(history.messages), 1, first=True) if any_content(history) else ()
    assert check_history(closed(imported)) == []


@given(GIVEN)
def test_what_both_forms_have_comes_from_one_into_the_other_and_the_rest_is_named(
    drawn: tuple[str, list[dict[str, Any]]],
) -> None:
    form, given_history = drawn
    (read, _), (_, write) = FORMS[form], FORMS["anthropic" if form == "openai" else "openai"]
    history, left_out = read(given_history), list[str]()
    written = write(history.messages, system_prompt=history.system_prompt, left_out=left_out)
    missing = set[str]()
    for path, text in lost(given_history, written, history.left_out):
        if text not in "".join(left_out) and text not in ONE_FORM_ONLY:
            *above, field = path.split(".")[1:]
            missing.add("called" if field == "name" and above else field.split("[")[0])
    only_here = {
        "openai": "file_id title start_index signature detail transcript text name format",
        "anthropic": "file_id signature query cited_text context citations source title",
    }
    assert missing <= set(only_here[form].split())
    assert bool(left_out) or not missing


def any_content(history: WireHistory) -> bool:
    return any(message.content for message in history.messages)


def closed(history: Sequence[Message]) -> list[Message]:
    """Return a history whose last calls have results, as a session gives them."""
    last = history[-1].content if history and history[-1].role == "assistant" else ()
    results = tuple(result(block.id, "x") for block in last if isinstance(block, ToolUseBlock))
    return [*history, *([Message("user", results)] if results else [])]


# Into a log and out of it.


@pytest.mark.parametrize(("form", "given_history"), [("openai", OPENAI), ("anthropic", ANTHROPIC)])
def test_a_conversation_becomes_a_session_that_goes_on_and_is_exported_again(
    tmp_path: Path, form: str, given_history: object
) -> None:
    file, log = tmp_path / "history.json", tmp_path / "events.db"
    file.write_text(json.dumps(given_history))
    told = json.loads(run("import", file, log, "--format", form, "--session", "s", "--json").stdout)
    assert (told["session"], told["imported"]) == ("s", 9 if form == "openai" else 5)
    assert (told["system"].split("\n")[0], told["left_out"]) == ("Be brief.", [])
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
    ("encoding", "text", "read"),
    [("utf-8-sig", "tea", "tea"), ("utf-16", "茶", "茶"), ("ascii", "\\ud83d cut", "\ufffd cut")],
    ids=["a byte order mark", "as PowerShell writes", "half a character"],
)
def test_files_as_other_programs_write_them_are_read(tmp_path: Path, encoding: str, text: str, read: str) -> None:
    (tmp_path / "h.json").write_bytes(f'[{{"role": "user", "content": "{text}"}}]'.encode(encoding))
    log = tmp_path / "x.db"
    assert run("import", tmp_path / "h.json", log, "--format", "openai", "--session", "s").exit_code == 0
    written = run("export", log, "--session", "s", "--format", "openai").stdout
    assert json.loads(written)["messages"][0]["content"] == read


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["import", "h.json", "x.db", "--format", "openai"], "belong together"),
        (["import", "h.json", "x.db", "--session", "s"], "belong together"),
        (["import", "h.json", "x.db", "--format", "anthropic", "--session", "s"], "is not JSON"),
        (["import", "none.json", "x.db", "--format", "openai", "--session", "s"], "cannot be read"),
        (["import", "orphan.json", "x.db", "--format", "openai", "--session", "s"], "no message before it calls"),
        (["import", "empty.json", "x.db", "--format", "openai", "--session", "s"], "nothing to import"),
        (["export", "x.db", "--format", "openai"], "one --session"),
        (["export", "x.db", "--thoughts-in-text"], "is for --format openai"),
        (
            ["import", "h.json", "x.db", "--format", "anthropic", "--session", "s", "--thoughts-in-text", "tags"],
            "is for --format openai",
        ),
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


def test_an_import_shows_the_system_prompt_and_an_import_and_an_export_name_what_they_leave_out(tmp_path: Path) -> None:
    file, log = tmp_path / "history.json", tmp_path / "events.db"
    tagged = {"role": "assistant", "content": "<think>Hm.</think>\n\nYes.", "annotations": [ANNOTATION], "logprobs": 1}
    messages = [{"role": "system", "content": "Be brief.\nIn English."}, {"role": "user", "content": "Hi"}, tagged]
    file.write_text(json.dumps(messages))
    given_options = ["--format", "openai", "--session", "s"]
    assert run("import", file, log, *given_options, "--thoughts-in-text", "end_tag").stdout == (
        "session s has 2 messages in its history\n"
        "left out: messages[2].logprobs\n"
        "the system prompt was not imported, since an agent has its own; it was:\n"
        "  Be brief.\n"
        "  In English.\n"
    )
    exported = run("export", log, *given_options, "--thoughts-in-text")
    del tagged["logprobs"]
    assert (json.loads(exported.stdout)["messages"], exported.stderr) == (messages[1:], "")
    told = run("export", log, "--format", "anthropic", "--session", "s")
    assert told.stderr == "left out: messages[1]: annotations of openai\n"
    assert [block["type"] for block in json.loads(told.stdout)["messages"][1]["content"]] == ["thinking", "text"]
