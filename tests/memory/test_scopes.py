"""Whose memories a session sees: its user's, its own, or those that all share."""

import asyncio
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import refold
from refold.actors import ManualClock
from refold.events.core.content import Message, ToolResultBlock
from refold.memory import GraphStore, Scope, scoped
from refold.stores import InMemoryStore

CARD = "My card number ends in 4242"


class Listening:
    """A model that does what it is told, and keeps what it was asked."""

    def __init__(self) -> None:
        self.requests: list[refold.ModelRequest] = []

    async def complete(self, request: refold.ModelRequest) -> refold.ModelResponse:
        self.requests.append(request)
        last = request.messages[-1]
        told = re.search(r"(\w+)!(\{.*\})", last.text)
        if told is None or any(isinstance(block, ToolResultBlock) for block in last.content):
            return await refold.ScriptedProvider([refold.say("Done.")]).complete(request)
        return await refold.ScriptedProvider([refold.use(told[1], msgspec.json.decode(told[2]))]).complete(request)

    @property
    def prompts(self) -> list[str]:
        return [request.system_prompt for request in self.requests]


def told(tool: str, **arguments: Any) -> str:
    return f"{tool}!{msgspec.json.encode(arguments).decode()}"


class World:
    """An agent with all kinds of memories, and a helper that has the same ones."""

    def __init__(self, scope: Scope = "user", **options: Any) -> None:
        self.model = Listening()
        self.memory = refold.EpisodicStore(scope=scope, **options)
        self.facts = refold.SemanticStore(scope=scope)
        self.working = refold.WorkingMemory(50, scope=scope)
        self.graph = GraphStore(scope=scope)
        self.stores = (self.memory, self.facts, self.working, self.graph)
        helper = self.agent("helper")
        self.main = self.agent("agent", helper.as_tool())

    def agent(self, name: str, *more: refold.Tool[..., object]) -> refold.Agent:
        @refold.tool
        async def note(ctx: refold.ToolContext[None], text: str) -> str:
            """Keep a text in mind."""
            await self.working.within(ctx.session_context).set(text, text)
            return "Noted."

        @refold.tool
        async def entities(ctx: refold.ToolContext[None]) -> list[str]:
            """Return what the graph has."""
            return [entity.id for entity in await self.graph.within(ctx.session_context).entities()]

        @refold.tool
        async def know(ctx: refold.ToolContext[None], key: str) -> str:
            """Return a fact."""
            return str(await self.facts.within(ctx.session_context).get(key))

        tools = refold.memory_tools(episodic=self.memory, semantic=self.facts, graph=self.graph, agent=name)
        return refold.Agent(
            name=name,
            config=refold.AgentConfig(model="m", max_memory_recalls=50, max_memory_tokens=None),
            provider=self.model,
            tools=[*tools, note, entities, know, *more],
            memory=self.memory,
            semantic=self.facts,
            working_memory=self.working,
            graph=self.graph,
        )

    def runtime(self, log: Any = ":memory:") -> refold.AgentRuntime:
        return refold.AgentRuntime(self.main, log=log, inbox_poll_s=0)


async def test_the_card_number_of_one_user_is_in_no_prompt_of_another() -> None:
    world = World()
    async with world.runtime() as runtime:
        await (await runtime.session("a", user="alice")).send(told("remember", content=CARD))
        await (await runtime.session("b", user="bob")).send("Hello, what can you do? My card?")
        assert "4242" not in msgspec.json.encode(asked(world.model.requests[-1])).decode()
        await (await runtime.session("c", user="alice")).send("Which card?")
        await (await runtime.session("d")).send("Which card?")
        assert [CARD in prompt for prompt in world.model.prompts] == [False, True, False, True, False]


def tenant_of(context: refold.SessionContext) -> str:
    return context.metadata["tenant"]


@pytest.mark.parametrize(
    ("scope", "sees"),
    [("user", ["a", "c"]), ("session", ["a"]), ("agent", ["a", "b", "c", "d"]), (tenant_of, ["a", "b"])],
)
async def test_a_scope_says_which_sessions_see_what_one_remembered(scope: Scope, sees: list[str]) -> None:
    world = World(scope)
    whose = {"a": ("alice", "x"), "b": ("bob", "x"), "c": ("alice", "y"), "d": (None, "y")}
    async with world.runtime() as runtime:
        sessions = {
            name: await runtime.session(name, user=user, metadata={"tenant": one})
            for name, (user, one) in whose.items()
        }
        for name, text in (("remember", {"content": CARD}), ("note", {"text": "4243"})):
            await sessions["a"].send(told(name, **text))
        await sessions["a"].send(told("remember", content="4244", key="card"))
        await sessions["a"].send(told("relate", source="4245", relationship="is", target="card"))
        seen = {}
        for name, session in sessions.items():
            await session.send("Which card number?")
            prompt = world.model.prompts[-1]
            for tool, arguments in (("recall", {"query": "card"}), ("know", {"key": "card"}), ("entities", {})):
                await session.send(told(tool, **arguments))
            results = msgspec.json.encode(world.model.requests[-1].messages[-11:]).decode()
            found = [CARD in prompt, "4243" in prompt, CARD in results, "4244" in results, "4245" in results]
            seen[name] = found
        assert seen == {name: [name in sees] * 5 for name in sessions}


async def test_what_a_program_fills_in_is_seen_where_it_is_put(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.memory.add_episode("agent", "A tea for all")
    world.memory.of(user="alice").add_episode("agent", "A tea of Alice")
    world.memory.of(session="b").add_episode("agent", "A tea of the session b")
    async with world.runtime() as runtime:
        assert "memory/main has items that belong to no user and no session" in caplog.text
        for name, user in (("a", "alice"), ("b", None), ("c", "bob")):
            await (await runtime.session(name, user=user)).send("Some tea?")
        teas = [re.findall(r"^- (.*)", prompt, re.M) for prompt in world.model.prompts]
        assert teas == [["A tea of Alice"], ["A tea of the session b"], []]
        assert await world.memory.of(user="alice").count() == 1
        assert list(await world.memory.contents("agent")) == ["A tea for all"]


async def test_where_no_word_is_shared_nothing_is_recalled_unless_it_is_asked_for() -> None:
    for unmatched in (False, True):
        world = World(unmatched=unmatched)
        async with world.runtime() as runtime:
            session = await runtime.session("a", user="alice")
            await session.send(told("remember", content=CARD))
            await session.send("Hello there")
            assert (CARD in world.model.prompts[-1]) is unmatched


async def test_a_part_has_the_settings_of_its_memory_and_keeps_them_over_restarts(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    for capacity, kept in ((2, 2), (None, 7)):
        memory = refold.EpisodicStore(capacity=capacity)
        config = refold.AgentConfig(model="m")
        async with refold.AgentRuntime(config, provider=Listening(), memory=memory, log=log) as runtime:
            part = memory.of(user="alice")
            await part.add_episodes([refold.NewEpisode("agent", f"text {number}") for number in range(5)])
            assert await part.count() == kept
            assert await memory.count() == 0
            assert part is memory.of(user="alice")
            streams = [head.stream for head in await runtime.store.list_streams(prefix="memory/")]
    assert streams == ["memory/main", "memory/main/user/alice"]
    then = await memory.of(user="alice").at(log, version=2)
    assert await then.count() == 1


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: refold.EpisodicStore("main/user/alice"),
        lambda: refold.EpisodicStore("main/session"),
        lambda: refold.EpisodicStore(scope="all"),  # type: ignore[arg-type]
        lambda: refold.EpisodicStore().of(),
        lambda: refold.EpisodicStore().of(user="a", session="b"),
        lambda: refold.EpisodicStore().of(user=""),
        lambda: refold.EpisodicStore().of(user="a").of(user="b"),
    ],
)
def test_what_can_be_no_part_is_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(refold.ConfigError):
        wrong()


def test_no_two_owners_have_one_part() -> None:
    memory = refold.EpisodicStore()
    long = "é" * 256
    parts = [memory.of(user=user) for user in ("a", "session/a", "scope/a/user/b", "a/user/b", long, long[:-1] + "e")]
    parts += [memory.of(session=session) for session in ("a", long)] + [memory.of(scope="a"), memory]
    assert len({part.stream for part in parts}) == len(parts)


async def test_a_scope_that_fails_costs_what_would_have_been_said_and_no_run(caplog: pytest.LogCaptureFixture) -> None:
    world = World(tenant_of)
    async with world.runtime() as runtime:
        session = await runtime.session("a")
        result = await session.send(told("remember", content=CARD))
        assert result.text == "Done."
        assert "nothing was recalled: KeyError" in caplog.text
        assert CARD not in await world.memory.read(lambda state: str(state))


WHAT = ["remember", "know", "note", "relate", "recall", "look"]


PLAYS = {
    "whose": st.lists(st.sampled_from([None, "alice", "bob", "Alice", "bob/user/alice"]), min_size=3, max_size=4),
    "plays": st.lists(st.tuples(st.integers(0, 3), st.sampled_from(WHAT), st.booleans()), min_size=4, max_size=12),
    "restart": st.integers(0, 11),
}


@pytest.mark.parametrize("examples", [5, pytest.param(80, marks=pytest.mark.slow)])
def test_nothing_of_one_user_enters_a_request_of_another(examples: int) -> None:
    """Each text that is remembered is a canary; all share words with all inputs, so that they would be recalled."""
    quiet = settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    quiet(given(**PLAYS)(nothing_of_one_user_enters_a_request_of_another))()


def nothing_of_one_user_enters_a_request_of_another(
    whose: Sequence[str | None], plays: Sequence[tuple[int, str, bool]], restart: int
) -> None:
    owners: dict[str, str] = {}
    heard: list[tuple[str, bytes]] = []

    async def play(world: World, runtime: refold.AgentRuntime, number: int) -> None:
        at, what, by_helper = plays[number]
        at %= len(whose)
        canary, owner = f"canary{number}x", str(whose[at] or f"session {at}")
        owners[canary] = owner
        text = {
            "remember": told("remember", content=f"a canary text {canary}"),
            "know": told("remember", content=canary, key="canary"),
            "note": told("note", text=canary),
            "relate": told("relate", source=canary, relationship="is", target="canary"),
            "recall": told("recall", query="canary text"),
            "look": told("entities"),
        }[what]
        session = await runtime.session(f"s{at}", user=whose[at])
        before = len(world.model.requests)
        await session.send(told("helper", task=f"canary text {text}") if by_helper else f"canary text {text}")
        heard.extend((owner, msgspec.json.encode(asked(request))) for request in world.model.requests[before:])

    async def go() -> None:
        log, first = InMemoryStore(), min(restart, len(plays))
        for numbers in (range(first), range(first, len(plays))):
            world = World()
            async with world.runtime(log) as runtime:
                for number in numbers:
                    await play(world, runtime, number)

    asyncio.run(go())
    for owner, request in heard:
        found = set(re.findall(rb"canary\d+x", request))
        assert {owners[canary.decode()] for canary in found} <= {owner}


def asked(request: refold.ModelRequest) -> tuple[str, list[Message]]:
    return request.system_prompt, list(request.messages)


async def test_a_part_that_left_memory_is_read_again_and_found_whole() -> None:
    world, clock = World(), ManualClock()
    async with refold.AgentRuntime(
        world.main, inbox_poll_s=0, clock=clock, passivate_after_s=1, snapshot_every=2
    ) as runtime:
        part, facts = world.memory.of(user="alice"), world.facts.of(user="alice")
        working, graph = world.working.of(user="alice"), world.graph.of(user="alice")
        for number in range(4):
            await part.add_episode("agent", f"tea {number}")
            await facts.put(f"tea {number}", "green")
            await working.set("tea", str(number))
            await graph.add_entity(f"tea {number}")
            await clock.advance(5)
            assert part.stream not in runtime.system.live()
        assert {each.content for each in await part.look("agent", "tea")} == {f"tea {number}" for number in range(4)}
        assert len(await facts.matching("tea")) == len(await graph.entities()) == 4
        assert await working.items() == {"tea": "3"}


@pytest.mark.parametrize("holder", ["before", "in a runtime"])
async def test_a_part_that_is_held_is_the_same_one_in_the_next_runtime(
    holder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoped, "PARTS_KEPT", 2)
    memory, given = refold.EpisodicStore(), ["given"] if holder == "before" else []
    held = memory.of(user="alice")
    for text in given:
        held.add_episode("agent", text)
    for number in range(2):
        async with refold.AgentRuntime(refold.AgentConfig(model="m"), provider=Listening(), memory=memory):
            await held.add_episode("agent", f"text {number}")
            for other in range(5):
                await memory.of(user=f"{number} {other}").add_episode("agent", "tea")
            assert memory.of(user="alice") is held
            assert await held.count() == len(given) + 1, "each log has what was given before, and its own"
    del held
    assert memory.of(user="alice") is not None


async def test_a_part_that_is_asked_for_while_all_begin_anew_is_no_error() -> None:
    class Asking(refold.EpisodicStore):
        def begin_anew(self) -> None:
            super().begin_anew()
            if self is not memory:
                seen.append(memory.of(user=f"friend of {self.name}").name)

    memory, seen = Asking(), list[str]()
    memory.of(user="alice")
    memory.begin_anew()
    assert seen == ["main/user/friend of main/user/alice"]


async def test_threads_fill_parts_while_a_runtime_takes_their_memory() -> None:
    memory, users, texts = refold.EpisodicStore(capacity=1_000), [f"user {number}" for number in range(8)], 40
    begun = threading.Barrier(len(users) + 1)

    def fill(user: str) -> None:
        begun.wait()
        for number in range(texts):
            memory.of(user=user).add_episode("agent", f"text {number} of {user}").get()

    threads = [threading.Thread(target=fill, args=(user,)) for user in users]
    for thread in threads:
        thread.start()
    await asyncio.to_thread(begun.wait)
    async with refold.AgentRuntime(refold.AgentConfig(model="m"), provider=Listening(), memory=memory) as runtime:
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert [await memory.of(user=user).count() for user in users] == [texts] * len(users)
        assert len(await runtime.store.list_streams(prefix="memory/main/user/")) == len(users)
