"""What an agent remembers enters its requests, is in the log as it entered, and costs no turn a wait."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

import refold
from refold import Agent, AgentConfig, Completed, ConfigError, ImageBlock, ScriptedProvider, TokenWindow, say, use
from refold.actors.calls.recall import RECALL_HEADING, recall_text
from refold.actors.kernel.reply import ActorFuture
from refold.events.core.ids import MemoryId
from refold.events.model.context_window import about_tokens
from refold.events.model.messages import SystemAddition
from refold.events.session.events import ModelResponded
from refold.stores import EventStore
from tests.conformance.requests.test_context import assert_rebuilt
from tests.conformance.sessions import CONFIG, HeldAnswer, events_of, look, opened, requests_of, runtime_of

TEA = ("memory_1", "Anna prefers tea.")
LISBON = ("memory_2", "Anna lives in Lisbon.")


class Found(msgspec.Struct, frozen=True):
    id: MemoryId
    content: str


class Episodes:
    """A memory that finds what shares a word with the query, and keeps what it was asked."""

    def __init__(self, *known: tuple[str, str]) -> None:
        self.known = known
        self.asked: list[tuple[str, str, int]] = []
        self.noted: list[tuple[tuple[MemoryId, ...], str | None]] = []
        self.error: BaseException | None = None

    def look(self, agent: str, query: str, limit: int) -> ActorFuture[list[Found]]:
        self.asked.append((agent, query, limit))
        words = set(query.lower().split())
        future: ActorFuture[list[Found]] = ActorFuture()
        if self.error is not None:
            future.settle(error=self.error)
        else:
            matching = [(name, text) for name, text in self.known if words & set(text.lower().rstrip(".").split())]
            future.set([Found(MemoryId(name), text) for name, text in matching])
        return future

    def note_recalled(self, ids: Sequence[MemoryId], key: str | None = None) -> None:
        self.noted.append((tuple(ids), key))
        if self.error is not None:
            raise self.error


class Notes:
    """A working memory."""

    def __init__(self, text: str | BaseException) -> None:
        self.text = text

    def prompt_text(self) -> ActorFuture[str]:
        future: ActorFuture[str] = ActorFuture()
        if isinstance(self.text, BaseException):
            future.settle(error=self.text)
        else:
            future.set(self.text)
        return future


async def test_what_matches_the_latest_input_enters_the_prompt_and_the_log_says_what(log: EventStore) -> None:
    memory = Episodes(TEA, LISBON, ("memory_3", "Bert has a cat."))
    script = [use("look", {}), say("Tea."), say("Hello.")]
    config = AgentConfig(model="m", system_prompt="Be brief.")
    async with opened(log, *script, tools=[look], config=config, memory=memory) as (runtime, session):
        await session.send("What does Anna drink?")
        await session.send("Nobody")
        requests = requests_of(runtime)
        wanted = f"Be brief.\n\n{RECALL_HEADING}\n- Anna prefers tea.\n- Anna lives in Lisbon."
        assert [request.system_prompt for request in requests] == [wanted, wanted, "Be brief."]
        assert memory.asked[0] == ("agent", "What does Anna drink?", 3)
        first, _, last = await events_of(session, ModelResponded)
        assert first.request.recalled == ("memory_1", "memory_2")
        assert [addition.source for addition in first.request.prepared.added] == ["recall"]
        assert (last.request.recalled, last.request.prepared) == ((), None)
        await assert_rebuilt(log, "s", requests)


async def test_recalls_are_noted_once_a_run_when_the_answer_is_durable_and_not_before(log: EventStore) -> None:
    memory = Episodes(TEA, LISBON)
    held = HeldAnswer(use("look", {}))
    async with opened(log, held, say("Tea."), say("Still tea."), tools=[look], memory=memory) as (_, session):
        sending = asyncio.create_task(session.send("Anna"))
        await held.asked.wait()
        assert memory.noted == []
        held.gate.set()
        await sending
        assert {ids for ids, _ in memory.noted} == {(MemoryId("memory_1"),), (MemoryId("memory_2"),)}
        assert len({key for _, key in memory.noted}) == 2
        await session.send("anna")
        assert len({key for _, key in memory.noted}) == 4


async def test_the_working_memory_stands_behind_what_was_recalled_and_an_empty_one_leaves_no_trace(
    log: EventStore,
) -> None:
    notes = Notes("Working memory:\n- city: Lisbon")
    async with opened(log, say("a"), say("b"), memory=Episodes(TEA), working_memory=notes) as (runtime, session):
        await session.send("anna")
        notes.text = " \n"
        await session.send("nobody")
        first, second = requests_of(runtime)
        assert first.system_prompt.endswith("- Anna prefers tea.\n\nWorking memory:\n- city: Lisbon")
        assert second.system_prompt == CONFIG.system_prompt
        (answered, _) = await events_of(session, ModelResponded)
        assert answered.request.prepared.added[1] == SystemAddition("working_memory", "Working memory:\n- city: Lisbon")
        await assert_rebuilt(log, "s", requests_of(runtime))


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        ({"max_memory_recalls": 1}, 1),
        ({"max_memory_recalls": 0}, 0),
        ({"max_memory_tokens": 0}, 0),
        ({"max_memory_tokens": about_tokens(f"{RECALL_HEADING}\n- {TEA[1]}")}, 1),
        ({"max_memory_tokens": 1_000}, 2),
    ],
)
async def test_no_more_enters_than_the_configuration_allows(
    log: EventStore, settings: dict[str, Any], lines: int
) -> None:
    config = AgentConfig(model="m", system_prompt="", **settings)
    async with opened(log, say("a"), config=config, memory=Episodes(TEA, LISBON)) as (runtime, session):
        await session.send("anna")
        (request,) = requests_of(runtime)
        assert request.system_prompt.count("\n- ") == lines
        (answered,) = await events_of(session, ModelResponded)
        assert len(answered.request.recalled) == lines


def test_an_item_without_room_is_left_out_and_the_next_one_tried_and_lines_cannot_pass_for_items() -> None:
    found = [("a", "x" * 400), ("b", "first\n- second"), ("c", "  ")]
    assert recall_text(found, 30) == (("b",), f"{RECALL_HEADING}\n- first\n  - second")
    assert recall_text([], None) == ((), "")


async def test_an_input_without_words_asks_no_memory(log: EventStore) -> None:
    memory = Episodes(TEA)
    async with opened(log, say("a"), memory=memory) as (_, session):
        await session.send(ImageBlock(media_type="image/png", data=b"PNG"))
        assert memory.asked == []


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit, asyncio.CancelledError])
async def test_a_memory_that_fails_costs_what_it_would_have_said_and_the_log_says_so(
    log: EventStore, caplog: pytest.LogCaptureFixture, kind: type[BaseException]
) -> None:
    memory = Episodes(TEA)
    memory.error = kind("out of mind")
    notes = Notes(kind("torn"))
    with caplog.at_level(logging.WARNING, "refold.model"):
        async with opened(log, say("a"), memory=memory, working_memory=notes) as (_, session):
            assert isinstance((await session.send("anna")).outcome, Completed)
            (answered,) = await events_of(session, ModelResponded)
            assert answered.request.prepared.notes == (
                f"nothing was recalled ({kind.__name__}: out of mind)",
                f"the working memory was left out ({kind.__name__}: torn)",
            )
    assert "out of mind" in caplog.text


async def test_a_memory_that_cannot_note_a_recall_does_not_disturb_the_session(
    log: EventStore, caplog: pytest.LogCaptureFixture
) -> None:
    memory = Episodes(TEA)

    def break_it(request: object) -> Any:
        memory.error = RuntimeError("full")
        return say("a")

    async with opened(log, break_it, memory=memory) as (_, session):
        assert isinstance((await session.send("anna")).outcome, Completed)
    assert "is not noted: full" in caplog.text


async def test_what_is_recalled_counts_for_the_window(log: EventStore) -> None:
    config = AgentConfig(model="m", system_prompt="")
    long = ("memory_9", "anna " + "x" * 2_000)
    async with opened(
        log, say("a" * 200), say("b"), config=config, memory=Episodes(long), context=TokenWindow(300)
    ) as (runtime, session):
        await session.send("hello")
        await session.send("anna")
        assert [len(request.messages) for request in requests_of(runtime)] == [1, 1]
        await assert_rebuilt(log, "s", requests_of(runtime))


async def test_episodes_and_the_working_memory_enter_the_prompt_and_each_recall_counts_once_a_run(
    log: EventStore,
) -> None:
    memory, working = refold.EpisodicStore(scope="agent"), refold.WorkingMemory(4, scope="agent")
    known = memory.add_episode("agent", "Anna prefers tea.").get()
    memory.add_episode("agent", "The office is closed.")
    memory.add_episode("other", "Anna prefers coffee.")
    working.set("city", "Lisbon")
    config = AgentConfig(model="m", system_prompt="Be brief.", max_memory_recalls=1)
    script = [use("look", {}), say("Tea."), say("Tea again.")]
    async with opened(log, *script, tools=[look], config=config, memory=memory, working_memory=working) as (
        runtime,
        session,
    ):
        await session.send("What does Anna drink?")
        requests = requests_of(runtime)
        assert "Anna prefers tea." in requests[0].system_prompt
        assert "office" not in requests[0].system_prompt
        assert "coffee" not in requests[0].system_prompt
        assert "- city: Lisbon" in requests[0].system_prompt
        (found,) = await memory.look("agent", "anna", 1)
        assert (found.id, found.recalls) == (known, 1)
        await session.send("And what does Anna drink now?")
        (found,) = await memory.look("agent", "anna", 1)
        assert found.recalls == 2
        for answered in await events_of(session, ModelResponded):
            assert answered.request.recalled == (known,)
        await assert_rebuilt(log, "s", requests)
    async with runtime_of(log, config=config, memory=refold.EpisodicStore(scope="agent"), alike=False) as runtime:
        assert isinstance(runtime.agent.memory, refold.EpisodicStore)
        (found,) = await runtime.agent.memory.look("agent", "anna", 1)
        assert found.recalls == 2


@pytest.mark.parametrize("parts", [{"memory": 3}, {"memory": Notes("")}, {"working_memory": Episodes()}])
def test_what_is_no_memory_is_refused(parts: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must have a method"):
        Agent(config=CONFIG, provider=ScriptedProvider([]), **parts)
