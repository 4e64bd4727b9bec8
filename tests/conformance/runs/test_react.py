"""Sessions of models that call tools in ReAct text: the same state machine as for native calls; rows A2, A16 and C9."""

from typing import Any

import pytest

import refold
from refold.events.core.content import CANCELLED_TEXT, CRASHED_TEXT
from refold.react.text import EXPECTED
from refold.stores import EventStore
from tests.conformance.cases import Bench, Case, Fails, Held, Play, as_tests
from tests.conformance.sessions import opened
from tests.conformance.steps import (
    approval_asked,
    asked,
    begin,
    begun,
    cancel,
    check,
    crash_and_restart,
    decide,
    ends,
    let_go,
    restart,
    send,
)

REACT: dict[str, Any] = {"model": "text-model", "protocol": "react"}
CONFIG = refold.AgentConfig(**REACT)

LOOK = 'Thought: I look.\nAction: look\nAction Input: {"at": "x"}'
DONE = "Thought: I know.\nFINAL_ANSWER: Seen."
DENIED = "Observation: Error (denied): not x"
PARK = 'Action: {}\nAction Input: {{"name": "x"}}'


def text_only(play: Play) -> bool:
    """Return whether any text model takes the requests: text and images alone, the roles alternating."""
    for request in play.requests:
        roles = [message.role for message in request.messages]
        blocks = [block for message in request.messages for block in message.content]
        assert request.tools == ()
        assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"] * (len(roles) % 2)
        assert all(isinstance(block, refold.TextBlock | refold.ImageBlock) for block in blocks)
    return True


def react(script: list[Any], do: list[Any], **more: Any) -> Case:
    """A case of an agent that speaks in text, and whose requests are text."""
    return Case(script, [*do, check(text_only)], config=REACT | more.pop("config", {}), **more)


async def blocks(play: Play) -> list[type]:
    return [type(block) for message in await play.session.history() for block in message.content][:3]


async def verdicts(play: Play) -> list[str]:
    return [line for request in play.requests[1:] for line in [request.messages[-1].text.partition("): ")[0]]]


OWN = "**Thought:** I look.\n**Action:** `Look`\n**Action Input:** x"
REASON = f"The answer has neither an Action nor a FINAL_ANSWER; it begins with 'It is fine.'. {EXPECTED}"
INVENTED = f"{OWN}\n**Observation:** invented\n**Final Answer:** invented"

CASES = {
    "A2: a tool is called and the answer is given": react(
        [LOOK, DONE],
        [
            send("What is x?", "Seen."),
            check(blocks, [refold.TextBlock, refold.ThinkingBlock, refold.ToolUseBlock]),
        ],
        events=[
            *["SessionOpened", "AgentConfigured", "InputQueued", "RunStarted", "ModelRequested", "ModelResponded"],
            *["ToolCallStarted", "ToolCallCompleted", "ModelRequested", "ModelResponded", "RunCompleted"],
        ],
        requests={1: ["user: What is x?", f"assistant: {LOOK}", "user: Observation: saw x"]},
    ),
    "the model reads its own words again": react(
        [INVENTED, "**Final Answer: Seen.**", DONE],
        [send("What is x?", "Seen."), send("And now?", "Seen.")],
        results=["saw x"],
        requests={
            2: [
                *["user: What is x?", f"assistant: {OWN}", "user: Observation: saw x"],
                *["assistant: **Final Answer: Seen.**", "user: And now?"],
            ]
        },
    ),
    **{
        f"C9: what cannot be parsed is asked again and then fails, {most}": react(
            ["It is fine."] * (most + 1),
            [
                send(
                    "What is x?",
                    Fails(
                        "agent_loop",
                        message=f"AgentLoopError: {most + 1} answers in a row could not be used. {REASON}",
                    ),
                )
            ],
            config={"rejections_max": most},
            requests={most: ["user: What is x?", *["assistant: It is fine.", f"user: {REASON}"] * most]},
            asked=most + 1,
        )
        for most in (0, 1, 2)
    },
    "a model that corrects itself goes on": react(
        ["Hm.", LOOK, "Thought: Hm.", DONE, "FINAL_ANSWER: Still."],
        [send("What is x?", "Seen."), send("And now?", "Still.")],
        config={"rejections_max": 1},
    ),
    "arguments that do not fit are the tool's matter": react(
        [
            *['Action: look\nAction Input: {"at": "x', 'Action: park\nAction Input: {"number": 1}'],
            *["Action: loook\nAction Input: {}", DONE],
        ],
        [
            send("What is x?", "Seen."),
            check(
                verdicts,
                [f"Observation: Error ({kind}" for kind in ("invalid_arguments", "invalid_arguments", "not_found")],
            ),
            check(lambda play: play.requests[1].messages[1].text, 'Action: look\nAction Input: {"at": "x'),
        ],
        kinds=["invalid_arguments", "invalid_arguments", "not_found"],
    ),
    "an answer that is cut inside its action is not run": react(
        [refold.say('Action: look\nAction Input: {"at": "x', stop_reason="max_tokens"), LOOK, DONE],
        [send("What is x?", "Seen.")],
        kinds=["truncated", None],
    ),
    "native calls are taken and shown one after another": react(
        [[refold.use("look", {"at": "a"}), refold.use("look", {"at": "b"})], DONE],
        [send("What?", "Seen.")],
        requests={
            1: [
                *["user: What?", 'assistant: Action: look\nAction Input: {"at": "a"}', "user: Observation: saw a"],
                *['assistant: Action: look\nAction Input: {"at": "b"}', "user: Observation: saw b"],
            ]
        },
    ),
    "A16: a session changes between text and native calls": Case(
        [LOOK, DONE, refold.use("look", {"at": "y"}), "Native.", DONE],
        [
            [send("one", "Seen."), restart(config={"model": "native-model", "protocol": "native"})],
            [send("two", "Native."), restart(), send("three", "Seen.")],
        ],
        config=REACT,
        requests={
            4: [
                *["user: one", f"assistant: {LOOK}", "user: Observation: saw x", f"assistant: {DONE}", "user: two"],
                *['assistant: Action: look\nAction Input: {"at": "y"}', "user: Observation: saw y"],
                *["assistant: FINAL_ANSWER: Native.", "user: three"],
            ]
        },
    ),
    "cancelling a tool leaves a balanced history": react(
        [PARK.format("park"), DONE],
        [begin(), begun(1), cancel(), ends(refold.Cancelled()), send("go on", "Seen.")],
        results=[CANCELLED_TEXT],
        requests={1: ["...", f"user: Observation: Error (cancelled): {CANCELLED_TEXT}", "user: go on"]},
    ),
    "cancelling a model leaves no answer": react(
        [Held(refold.say(LOOK)), DONE],
        [begin(), asked(), cancel(), ends(refold.Cancelled()), send("go on", "Seen.")],
        requests={1: ["user: go", "user: go on"]},
    ),
    **{
        f"a crash inside a tool is recovered from, {name}": react(
            [PARK.format(name), DONE],
            [begin("go", key="k"), begun(1), crash_and_restart(), let_go(), send("go", "Seen.", key="k"), began],
            requests={1: ["user: go", f"assistant: {PARK.format(name)}", f"user: Observation: {observed}"]},
        )
        for name, observed, began in (
            ("once", f"Error (crashed): {CRASHED_TEXT}", check(lambda play: play.bench.begun, ["x"])),
            ("act", "x returned", check(lambda play: play.bench.begun, ["x", "x"])),
        )
    },
    "a crash between two rejected answers counts on": react(
        ["Hm.", Held("Hm.")],
        [begin("go", key="k"), asked(), crash_and_restart(), let_go(), send("go", Fails("agent_loop"), key="k")],
        config={"rejections_max": 1},
        asked=3,
    ),
    "a policy judges what was parsed": react(
        ["Action: look\nAction Input: x", "Action: look\nAction Input: y", DONE],
        [send("What?", "Seen."), check(lambda play: play.requests[1].messages[-1].text, DENIED)],
        options={"policy": lambda call: refold.Deny("not x") if call.input == {"at": "x"} else None},
        results=["not x", "saw y"],
        kinds=["denied", None],
    ),
    "an approval is asked for and survives a restart": react(
        ["Action: pay(amount=3)", DONE],
        [begin("go", key="k"), approval_asked(), restart(), decide(True), send("go", "Seen.", key="k")],
        requests={1: ["...", "assistant: Action: pay(amount=3)", "user: Observation: paid 3"]},
        done=["paid 3"],
    ),
}


test_react, test_react_with_a_crash_after_each_commit = as_tests(CASES)


async def test_a_provider_for_text_is_not_put_behind_another(log: EventStore) -> None:
    scripted = refold.ScriptedProvider([LOOK, DONE])
    provider = refold.ReActProvider(scripted, stop=False)
    async with refold.AgentRuntime(CONFIG, provider=provider, tools=Bench().tools, log=log) as runtime:
        assert (await (await runtime.session("s")).send("What is x?")).text == "Seen."
    assert [request.stop_sequences for request in scripted.requests] == [(), ()]
    assert scripted.requests[0].system_prompt.count("# How to answer") == 1


async def test_a_stream_shows_thoughts_and_the_answer(log: EventStore) -> None:
    config = refold.AgentConfig(streaming=True, **REACT)
    async with opened(log, LOOK, DONE, tools=Bench().tools, config=config) as (_, session):
        deltas = [item.delta async for item in session.stream("What is x?") if isinstance(item, refold.Streamed)]
    assert "".join(delta.thinking for delta in deltas if isinstance(delta, refold.ThinkingDelta)) == "I look.I know."
    assert "".join(delta.text for delta in deltas if isinstance(delta, refold.TextDelta)) == "Seen."


@pytest.mark.parametrize("name", ["none", "NULL", "final_answer", "Final-Answer"])
def test_a_tool_whose_name_means_something_else_in_react_text_is_refused(name: str) -> None:
    tools = [refold.tool(tier="observe", effect="pure", name=name)(lambda: "x")]
    with pytest.raises(refold.ConfigError, match=name):
        refold.AgentRuntime(CONFIG, provider=refold.ScriptedProvider([]), tools=tools)
    refold.AgentRuntime(refold.AgentConfig(model="m"), provider=refold.ScriptedProvider([]), tools=tools)
