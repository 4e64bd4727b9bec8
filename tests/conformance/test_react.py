"""Sessions of models that call tools in ReAct text: the same state machine as for native calls; rows A2, A16 and C9."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from refold import (
    AgentConfig,
    AgentRuntime,
    Cancelled,
    Completed,
    ConfigError,
    Deny,
    Failed,
    ImageBlock,
    ModelRequest,
    ProposedCall,
    ReActProvider,
    ScriptedProvider,
    Streamed,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolApprovalRequested,
    ToolUseBlock,
    say,
    tool,
    use,
)
from refold.events.core.content import CANCELLED_TEXT, CRASHED_TEXT
from refold.react.text import EXPECTED
from refold.stores import EventStore, SQLiteStore
from tests.conformance.failing_store import FailingStore
from tests.conformance.sessions import (
    HeldAnswer,
    Parked,
    Seen,
    assert_accepted,
    assert_sound,
    crash,
    results_of,
    shown,
    types_of,
)

CONFIG = AgentConfig(model="text-model", protocol="react")

LOOK = 'Thought: I look.\nAction: look\nAction Input: {"name": "x"}'
DONE = "Thought: I know.\nFINAL_ANSWER: Seen."


@tool(tier="observe", effect="pure")
async def look(name: str) -> str:
    """Look at something."""
    return f"saw {name}"


class TextModel:
    """A scripted text model in a runtime, and what it was asked."""

    def __init__(self, *script: Any) -> None:
        self.scripted = ScriptedProvider(script)

    def runtime(
        self, log: EventStore, *, config: AgentConfig = CONFIG, tools: Any = (look,), **options: Any
    ) -> AgentRuntime:
        return AgentRuntime(config, provider=self.scripted, tools=tools, log=log, **options)

    @property
    def requests(self) -> list[ModelRequest]:
        return self.scripted.requests


def assert_text(request: ModelRequest) -> None:
    """Check that any text model takes a request: text and images alone, the roles alternating."""
    assert request.tools == ()
    assert [message.role for message in request.messages[::2]] == ["user"] * len(request.messages[::2])
    assert [message.role for message in request.messages[1::2]] == ["assistant"] * len(request.messages[1::2])
    blocks = [block for message in request.messages for block in message.content]
    assert all(isinstance(block, TextBlock | ImageBlock) for block in blocks)


def said(request: ModelRequest) -> list[str]:
    return shown(request.messages)


async def test_a_tool_is_called_and_the_answer_is_given(log: EventStore) -> None:
    model = TextModel(LOOK, DONE)
    async with model.runtime(log) as runtime:
        session = await runtime.session("s")
        result = await session.send("What is x?")
        assert (result.outcome, result.text) == (Completed(), "Seen.")
        assert await types_of(session) == [
            "SessionOpened",
            "AgentConfigured",
            "InputQueued",
            "RunStarted",
            "ModelRequested",
            "ModelResponded",
            "ToolCallStarted",
            "ToolCallCompleted",
            "ModelRequested",
            "ModelResponded",
            "RunCompleted",
        ]
        assert_accepted(await session.history())
        assert [type(block) for message in await session.history() for block in message.content][1:3] == [
            ThinkingBlock,
            ToolUseBlock,
        ]
    assert said(model.requests[1]) == ["user: What is x?", f"assistant: {LOOK}", "user: Observation: saw x"]
    for request in model.requests:
        assert_text(request)


async def test_a_provider_for_text_is_not_put_behind_another(log: EventStore) -> None:
    scripted = ScriptedProvider([LOOK, DONE])
    provider = ReActProvider(scripted, stop=False)
    async with AgentRuntime(CONFIG, provider=provider, tools=[look], log=log) as runtime:
        assert (await (await runtime.session("s")).send("What is x?")).text == "Seen."
    assert [request.stop_sequences for request in scripted.requests] == [(), ()]
    assert scripted.requests[0].system_prompt.count("# How to answer") == 1


async def test_the_model_reads_its_own_words_again(log: EventStore) -> None:
    own = "**Thought:** I look.\n**Action:** `Look`\n**Action Input:** x"
    model = TextModel(f"{own}\n**Observation:** invented\n**Final Answer:** invented", "**Final Answer: Seen.**", DONE)
    async with model.runtime(log) as runtime:
        session = await runtime.session("s")
        assert (await session.send("What is x?")).text == "Seen."
        assert [block.text for block in await results_of(session)] == ["saw x"]
        await session.send("And now?")
    assert said(model.requests[2]) == [
        "user: What is x?",
        f"assistant: {own}",
        "user: Observation: saw x",
        "assistant: **Final Answer: Seen.**",
        "user: And now?",
    ]


async def test_sessions_at_once_share_nothing(log: EventStore) -> None:
    def answer(request: ModelRequest) -> str:
        name = request.messages[0].text
        if len(request.messages) == 1:
            return f'Action: look\nAction Input: {{"name": "{name}"}}'
        return f"FINAL_ANSWER: {request.messages[-1].text}"

    model = TextModel(*[answer] * 10)
    async with model.runtime(log) as runtime:
        sessions = [await runtime.session(f"s{number}") for number in range(5)]
        results = await asyncio.gather(*(session.send(f"n{place}") for place, session in enumerate(sessions)))
        assert [result.text for result in results] == [f"Observation: saw n{place}" for place in range(5)]


@pytest.mark.parametrize("rejections_max", [0, 1, 2])
async def test_c9_what_cannot_be_parsed_is_asked_again_and_then_fails(log: EventStore, rejections_max: int) -> None:
    model = TextModel(*["It is fine."] * (rejections_max + 1))
    reason = f"The answer has neither an Action nor a FINAL_ANSWER; it begins with 'It is fine.'. {EXPECTED}"
    config = AgentConfig(model="text-model", protocol="react", rejections_max=rejections_max)
    async with model.runtime(log, config=config) as runtime:
        session = await runtime.session("s")
        outcome = (await session.send("What is x?")).outcome
        assert isinstance(outcome, Failed)
        assert outcome.error.kind == "agent_loop"
        times = rejections_max + 1
        assert outcome.error.message == f"AgentLoopError: {times} answers in a row could not be used. {reason}"
        assert_accepted(await session.history())
    assert len(model.requests) == rejections_max + 1
    asked_again = ["assistant: It is fine.", f"user: {reason}"]
    assert said(model.requests[-1]) == ["user: What is x?", *asked_again * rejections_max]
    for request in model.requests:
        assert_text(request)


async def test_a_model_that_corrects_itself_goes_on(log: EventStore) -> None:
    model = TextModel("Hm.", LOOK, "Thought: Hm.", DONE, "FINAL_ANSWER: Still.")
    config = AgentConfig(model="text-model", protocol="react", rejections_max=1)
    async with model.runtime(log, config=config) as runtime:
        session = await runtime.session("s")
        assert (await session.send("What is x?")).text == "Seen."
        assert (await session.send("And now?")).text == "Still."
        assert_accepted(await session.history())


async def test_arguments_that_do_not_fit_are_the_tools_matter(log: EventStore) -> None:
    model = TextModel(
        'Action: look\nAction Input: {"name": "x',
        'Action: look\nAction Input: {"number": 1}',
        "Action: loook\nAction Input: {}",
        DONE,
    )
    async with model.runtime(log) as runtime:
        session = await runtime.session("s")
        assert (await session.send("What is x?")).outcome == Completed()
        assert [block.kind for block in await results_of(session)] == [
            "invalid_arguments",
            "invalid_arguments",
            "not_found",
        ]
    observations = [line for line in said(model.requests[-1]) if line.startswith("user: Observation: ")]
    kinds = [line.removeprefix("user: Observation: Error (").partition("): ")[0] for line in observations]
    assert kinds == ["invalid_arguments", "invalid_arguments", "not_found"]
    assert 'assistant: Action: look\nAction Input: {"name": "x' in said(model.requests[1])


async def test_an_answer_that_is_cut_inside_its_action_is_not_run(log: EventStore) -> None:
    model = TextModel(say('Action: look\nAction Input: {"name": "x', stop_reason="max_tokens"), LOOK, DONE)
    async with model.runtime(log) as runtime:
        session = await runtime.session("s")
        assert (await session.send("What is x?")).text == "Seen."
        assert [block.kind for block in await results_of(session)] == ["truncated", None]


async def test_native_calls_are_taken_and_shown_one_after_another(log: EventStore) -> None:
    model = TextModel([use("look", {"name": "a"}), use("look", {"name": "b"})], DONE)
    async with model.runtime(log) as runtime:
        session = await runtime.session("s")
        assert (await session.send("What?")).text == "Seen."
    assert said(model.requests[1]) == [
        "user: What?",
        'assistant: Action: look\nAction Input: {"name": "a"}',
        "user: Observation: saw a",
        'assistant: Action: look\nAction Input: {"name": "b"}',
        "user: Observation: saw b",
    ]


async def test_a_session_changes_between_text_and_native_calls(log: EventStore) -> None:
    async with TextModel(LOOK, DONE).runtime(log) as runtime:
        await (await runtime.session("s")).send("one")
    native = ScriptedProvider([use("look", {"name": "y"}), "Native."])
    async with AgentRuntime(AgentConfig(model="native-model"), provider=native, tools=[look], log=log) as runtime:
        assert (await (await runtime.session("s")).send("two")).text == "Native."
        assert_accepted(native.requests[0].messages)
    model = TextModel(DONE)
    async with model.runtime(log) as runtime:
        assert (await (await runtime.session("s")).send("three")).text == "Seen."
    assert said(model.requests[0]) == [
        "user: one",
        f"assistant: {LOOK}",
        "user: Observation: saw x",
        f"assistant: {DONE}",
        "user: two",
        'assistant: Action: look\nAction Input: {"name": "y"}',
        "user: Observation: saw y",
        "assistant: FINAL_ANSWER: Native.",
        "user: three",
    ]


async def test_a_stream_shows_thoughts_and_the_answer(log: EventStore) -> None:
    model = TextModel(LOOK, DONE)
    config = AgentConfig(model="text-model", protocol="react", streaming=True)
    async with model.runtime(log, config=config) as runtime:
        session = await runtime.session("s")
        deltas = [item.delta async for item in session.stream("What is x?") if isinstance(item, Streamed)]
    assert "".join(delta.thinking for delta in deltas if isinstance(delta, ThinkingDelta)) == "I look.I know."
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == "Seen."


async def test_cancelling_a_tool_leaves_a_balanced_history(log: EventStore) -> None:
    parked = Parked()
    model = TextModel('Action: park\nAction Input: {"name": "x"}', DONE)
    async with model.runtime(log, tools=[parked.park]) as runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("go"))
        await parked.until(1)
        await session.cancel()
        assert isinstance((await sending).outcome, Cancelled)
        assert [block.text for block in await results_of(session)] == [CANCELLED_TEXT]
        assert_accepted(await session.history())
        assert (await session.send("go on")).text == "Seen."
    assert said(model.requests[1])[-2:] == [f"user: Observation: Error (cancelled): {CANCELLED_TEXT}", "user: go on"]
    assert_text(model.requests[1])


async def test_cancelling_a_model_leaves_no_answer(log: EventStore) -> None:
    held = HeldAnswer(say(LOOK))
    model = TextModel(held, DONE)
    async with model.runtime(log) as runtime:
        session = await runtime.session("s")
        sending = asyncio.create_task(session.send("go"))
        await held.asked.wait()
        await session.cancel()
        assert isinstance((await sending).outcome, Cancelled)
        assert (await session.send("go on")).text == "Seen."
    assert said(model.requests[1]) == ["user: go", "user: go on"]


@pytest.mark.parametrize(("effect", "begun"), [("once", 1), ("pure", 2)])
async def test_a_crash_inside_a_tool_is_recovered_from(log: EventStore, effect: str, begun: int) -> None:
    store, parked = FailingStore(log), Parked()
    body = parked.act if effect == "once" else parked.repeat
    action = f'Action: {body.name}\nAction Input: {{"name": "x"}}'
    async with TextModel(action).runtime(store, tools=[body], close_grace_s=0) as runtime:
        sending = asyncio.create_task((await runtime.session("s")).send("go", key="k"))
        await parked.until(1)
        await crash(runtime, store)
    await asyncio.gather(sending, return_exceptions=True)
    parked.gate.set()
    model = TextModel(DONE)
    async with model.runtime(log, tools=[body]) as runtime:
        session = await runtime.session("s")
        assert (await session.send("go", key="k")).text == "Seen."
    assert len(parked.begun) == begun
    observed = f"Error (crashed): {CRASHED_TEXT}" if effect == "once" else "x returned"
    assert said(model.requests[0]) == ["user: go", f"assistant: {action}", f"user: Observation: {observed}"]


async def test_a_crash_between_two_rejected_answers_counts_on(log: EventStore) -> None:
    store, held = FailingStore(log), HeldAnswer(say("never"))
    config = AgentConfig(model="text-model", protocol="react", rejections_max=1)
    async with TextModel("Hm.", held).runtime(store, config=config, close_grace_s=0) as runtime:
        sending = asyncio.create_task((await runtime.session("s")).send("go", key="k"))
        await held.asked.wait()
        await crash(runtime, store)
    await asyncio.gather(sending, return_exceptions=True)
    model = TextModel("Hm.")
    async with model.runtime(log, config=config) as runtime:
        outcome = (await (await runtime.session("s")).send("go", key="k")).outcome
        assert isinstance(outcome, Failed)
        assert outcome.error.kind == "agent_loop"
    assert len(model.requests) == 1


async def test_a_policy_judges_what_was_parsed(log: EventStore) -> None:
    judged: list[ProposedCall] = []

    def policy(call: ProposedCall) -> Deny | None:
        judged.append(call)
        return Deny("not x") if call.input == {"name": "x"} else None

    model = TextModel("Action: look\nAction Input: x", "Action: look\nAction Input: y", DONE)
    async with model.runtime(log, policy=policy) as runtime:
        session = await runtime.session("s")
        assert (await session.send("What?")).text == "Seen."
        assert [(block.kind, block.text) for block in await results_of(session)][1] == (None, "saw y")
    assert [(call.tool, call.input) for call in judged] == [("look", {"name": "x"}), ("look", {"name": "y"})]
    assert said(model.requests[1])[-1].startswith("user: Observation: Error (denied): ")


async def test_an_approval_is_asked_for_and_survives_a_restart(tmp_path: Path) -> None:
    paid: list[int] = []

    @tool(tier="confirm")
    async def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    log = await SQLiteStore.open(tmp_path / "events.db")
    async with TextModel("Action: pay(amount=3)").runtime(log, tools=[pay]) as runtime:
        session = await runtime.session("s")
        seen = Seen(runtime, session)
        sending = asyncio.create_task(session.send("go", key="k"))
        (asked,) = await seen.first(ToolApprovalRequested)
    await asyncio.gather(sending, return_exceptions=True)
    model = TextModel(DONE)
    async with model.runtime(log, tools=[pay]) as runtime:
        session = await runtime.session("s")
        await session.decide(asked.call, allow=True)
        assert (await session.send("go", key="k")).text == "Seen."
    assert paid == [3]
    assert said(model.requests[0])[-2:] == ["assistant: Action: pay(amount=3)", "user: Observation: paid"]
    await assert_sound(log)
    await log.close()


@pytest.mark.parametrize("name", ["none", "NULL", "final_answer", "Final-Answer"])
def test_a_tool_whose_name_means_something_else_in_react_text_is_refused(name: str) -> None:
    tools = [tool(tier="observe", effect="pure", name=name)(lambda: "x")]
    with pytest.raises(ConfigError, match=name):
        AgentRuntime(CONFIG, provider=ScriptedProvider([]), tools=tools)
    AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([]), tools=tools)
