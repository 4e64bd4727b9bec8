"""What is asked of a log afterwards: where two sessions part, why something happened, and the same answers again."""

import json
from pathlib import Path
from typing import Any

import pytest

from refold import (
    Agent,
    AgentConfig,
    AgentRuntime,
    CommandRejected,
    Completed,
    ConfigError,
    Failed,
    ProviderError,
    RetryPolicy,
    ScriptedProvider,
    Session,
    say,
    tool,
    use,
)
from refold.lineage import RecordedTools, diff, timeline, why
from refold.stores import EventStore, InMemoryStore
from tests.conformance.sessions import assert_sound, runtime_of
from tests.runtime.command_line import run

THREE_TIMES = "(empty_answers: The model gave 3 empty answers in a row.) after 4 turns, 0 tokens in, 0 out"
LONG = "The parcel was sent on Monday and it will be with you on Thursday morning, before ten."


@tool(effect="once")
async def price(what: str, pieces: int = 1) -> str:
    """What it costs."""
    return f"{what}: {3 * pieces} euros"


@tool(effect="pure")
async def broken(what: str) -> str:
    """Fail."""
    raise ValueError(f"no {what}")


async def talked(log: Any, *script: Any, name: str = "alice", text: str = "Tea?") -> None:
    async with runtime_of(log, *script, tools=[price, broken], alike=False) as runtime:
        await (await runtime.session(name)).send(text)


@pytest.mark.parametrize(
    ("other", "parts"),
    [
        ([use("price", {"what": "tea"}), say(LONG)], []),
        (
            [use("price", {"what": "tea", "pieces": 2}), say(LONG)],
            [("arguments", "price.pieces: (nothing) -> 2"), ("result", "price: tea: [-3-] {+6+} euros")],
        ),
        (
            [use("broken", {"what": "tea"}), say(LONG)],
            [("call", '[-price(what="tea")-]'), ("call", '{+broken(what="tea")+}')],
        ),
        (
            [use("price", {"what": "tea"}), say(LONG.replace("Thursday", "Friday"))],
            [("answer", "… it will be with you on [-Thursday-] {+Friday+} morning, before ten.")],
        ),
        (
            [use("price", {"what": "tea"}), *[say("")] * 3],
            [
                ("answer", f"[-{LONG}-]"),
                ("outcome", "completed after 2 turns, 0 tokens in, 0 out -> failed " + THREE_TIMES),
                ("answer", "{+(nothing)+}"),
                ("answer", "{+(nothing)+}"),
            ],
        ),
    ],
)
async def test_two_sessions_are_compared_by_what_was_said_called_and_returned(
    other: list[Any], parts: list[tuple[str, str]]
) -> None:
    log, second = InMemoryStore(), InMemoryStore()
    await talked(log, use("price", {"what": "tea"}), say(LONG))
    await talked(second, say("Earlier."), name="x")
    await talked(second, *other, name="bob")
    found = await diff(log, "alice", "bob", right_log=second)
    assert [(part.what, part.words) for part in found.parts] == parts
    assert (found.same, found.shared, found.found) == (not parts, 0, len(parts))
    assert (found.left.turns, found.left.calls) == (2, 1)


async def test_a_fork_is_compared_from_where_it_parts() -> None:
    log = InMemoryStore()
    async with runtime_of(log, say("One."), say("Two."), say("Three."), alike=False) as runtime:
        session = await runtime.session("alice")
        await session.send("1")
        fork = await session.fork()
        await session.send("2")
        await fork.send("2")
        found = await diff(log, "alice", fork.id)
        assert found.shared == 7
        assert [(part.what, part.left, part.right, part.words) for part in found.parts] == [
            ("answer", 11, 12, "[-Two.-] {+Three.+}")
        ]
        assert (await diff(log, "alice", fork.id, left_at=7, right_at=8)).same
        for left, right in (("alice", "alice"), ("alice", "nobody")):
            with pytest.raises(ConfigError, match=r"compared with itself|no session 'nobody'"):
                await diff(log, left, right)


async def test_the_causes_of_an_event_lead_back_over_streams() -> None:
    log = InMemoryStore()
    helper = Agent(
        name="helper",
        config=AgentConfig(model="m"),
        provider=ScriptedProvider([use("price", {"what": "tea"}), say("Three.")]),
        tools=[price],
    )
    script = [use("helper", {"task": "Ask."}), say("It is three.")]
    async with runtime_of(log, *script, tools=[helper.as_tool()], alike=False) as runtime:
        session = await runtime.session("alice")
        await session.send("What is it?")
        fork = await session.fork()
    child = next(head.stream for head in await log.list_streams(prefix="session/alice/"))
    names = [cause.type.partition(".")[2] or cause.type for cause in await why(log, f"{child}@8")]
    chain = [f"{cause.reference.rpartition('@')[0]} {cause.type}" for cause in await why(log, f"{child}:8")]
    assert chain[0].startswith(child)
    assert chain[-1] == "session/alice input_queued.v1", names
    assert any(step == "session/alice tool_call_started.v1" for step in chain)
    forked = await why(log, f"{fork.id}@{(await fork_end(log, fork))}")
    assert forked[0].type == "forked.v1"
    assert forked[1].reference.startswith("session/alice@")
    [stored] = await log.read_all(after_position=4, limit=1)
    assert (await why(log, "5"))[0].position == stored.position
    for wrong, said in (
        ("x", "names no event"),
        ("alice@99", "has the versions 1 to"),
        ("999", "no event at position"),
    ):
        with pytest.raises(ConfigError, match=said):
            await why(log, wrong)
    around = await timeline(log, 5, window=2)
    assert [event.position for event in around] == [3, 4, 5, 6, 7]
    assert [event.position for event in await timeline(log, 1, window=1)] == [1, 2]
    assert len(await timeline(log, 5, window=0)) == 1
    with pytest.raises(ConfigError, match="the positions 1 to"):
        await timeline(log, 10_000)


async def fork_end(log: EventStore, fork: Session) -> int:
    head = await log.head(f"session/{fork.id}")
    assert head is not None
    return head.version


async def test_a_recorded_session_is_played_again_by_position_without_its_tools() -> None:
    log, again = InMemoryStore(), InMemoryStore()
    script = [
        [use("price", {"what": "tea"}), use("price", {"what": "milk"})],
        use("broken", {"what": "sugar"}),
        ProviderError("busy", kind="overloaded", retryable=True),
        say("Done."),
    ]
    config = AgentConfig(model="m", retry=RetryPolicy(base_s=0.001, jitter=0))
    async with runtime_of(log, *script, tools=[price, broken], config=config, alike=False) as runtime:
        session = await runtime.session("alice")
        await session.send("Tea?")
        history = await session.history()
    tools = await RecordedTools.from_log(log, "alice")
    assert [each.name for each in tools] == ["broken", "price"]
    provider = await ScriptedProvider.from_log(log, "alice")
    async with AgentRuntime(config, provider=provider, tools=tools, log=again) as runtime:
        session = await runtime.session("alice")
        result = await session.send("Tea?")
        assert (result.text, result.outcome) == ("Done.", Completed())
        assert await session.history() == history
        assert tools.different() == []
        assert isinstance((await session.send("More?")).outcome, Failed), "the script is over"
    assert (await diff(log, "alice", "alice", right_log=again, right_at=await fork_end(log, session))).same
    with pytest.raises(ConfigError, match="no session 'bob'"):
        await ScriptedProvider.from_log(log, "bob")


@pytest.mark.parametrize(
    ("at", "left", "why_not"),
    [
        (None, ["1", "One."], ""),
        (7, ["1", "One."], ""),
        (2, [], ""),
        (11, None, "a run was under way after version 8; name version 7"),
        (99, None, "has the versions 1 to 12"),
    ],
)
async def test_a_conversation_is_taken_back(at: int | None, left: list[str] | None, why_not: str) -> None:
    log = InMemoryStore()
    async with runtime_of(log, say("One."), say("Two."), say("Three.")) as runtime:
        session = await runtime.session("alice")
        assert await session.rewind() == 0, "there is nothing"
        await session.send("1", key="a")
        await session.send("2")
        if left is None:
            with pytest.raises(CommandRejected, match=why_not.replace("8", "[0-9]+")):
                await session.rewind(at if at != 11 else 10)
            return
        version = await session.rewind(at, key="k")
        assert version == await session.rewind(at, key="k"), "once"
        assert [message.text for message in await session.history()] == left
        assert (await session.send("1", key="a")).text == "One.", "a key stays used"
        assert (await session.send("3")).text == "Three."
        assert [message.text for message in await session.history()] == [*left, "3", "Three."]
        assert (await session.spent()).usage.input_tokens == 0
        await session.clear()
        with pytest.raises(CommandRejected, match="cleared or summarised after version 7"):
            await session.rewind(7)
        fork = await session.fork(7)
        assert [message.text for message in await fork.history()] == ["1", "One."]
    await assert_sound(log)


@pytest.mark.parametrize(
    ("stream", "held"),
    [
        ("memory/main", "importance"),
        ("knowledge/main", ""),
        ("working/main", ""),
        ("graph/main", " -> "),
        ("dedup/payments", "until"),
    ],
)
def test_what_a_stream_holds_is_shown_as_of_any_version(stream: str, held: str) -> None:
    log = Path(__file__).parents[2] / "golden" / "format-1-core-4-stores.db"
    now = run("show", log, stream, "--json")
    then = [run("show", log, stream, "--json", "--at", at) for at in range(1, json.loads(now.stdout)["version"] + 1)]
    assert json.loads(now.stdout) == json.loads(then[-1].stdout)
    assert any(item["words"] for result in then for item in json.loads(result.stdout)["content"])
    assert any(held in result.stdout for result in then)
    assert "TYPE" in run("show", log, stream, "--events").stdout
    assert "CONTENT" in run("show", log, stream).stdout
