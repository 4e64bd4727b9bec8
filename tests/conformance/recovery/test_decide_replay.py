"""Level `decide`: a dry run of today's agent on what a session recorded; what differs, and what cannot be compared.

Every other test of this folder whose log one agent wrote is such a replay as well: it must find nothing.
"""

import asyncio
import json
import mmap
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from typer.testing import CliRunner

from refold import (
    Agent,
    AgentConfig,
    AgentRuntime,
    Allow,
    Ask,
    Completed,
    ConfigError,
    Deny,
    HookContext,
    Middleware,
    ModelRequest,
    ModelResponse,
    Price,
    ProposedCall,
    ScriptedProvider,
    Skill,
    Summarising,
    TextBlock,
    TokenWindow,
    ToolResultBlock,
    Usage,
    say,
    stall,
    tool,
    use,
)
from refold.actors import ManualClock
from refold.commands.cli import app
from refold.events.core.codec import RecordedEvent
from refold.events.core.errors import CommandRejected, DivergenceError, ProviderError
from refold.events.session.commands import RecordToolResult
from refold.events.session.core import SESSION_CODEC, SESSION_CORE
from refold.events.session.events import (
    InputQueued,
    ModelFailed,
    ModelRequested,
    ModelResponded,
    RequestBuilt,
    RunStarted,
    ToolApprovalRequested,
    ToolCallCompleted,
)
from refold.events.session.react import CallModel, RunTool
from refold.memory import EpisodicStore, WorkingMemory
from refold.replay import MeantDifferences, ReplayReport, replay, write_expected
from refold.replay.findings import What
from refold.stores import InMemoryStore
from tests.conformance.sessions import session_in

CONFIG = AgentConfig(model="m")

STORY = "story " * 300
INPUTS = ("xylophone tea", "Now pay.", STORY, "And then?")


@tool(tier="observe", effect="pure")
async def look(what: str) -> str:
    """Look."""
    return f"{what} seen"


@tool(name="look", description="Look.", tier="observe", effect="pure", validate=lambda what: "no tea" if what else None)
async def strict_look(what: str) -> str:
    return f"{what} seen"


@tool(name="look", description="Look.", tier="confirm", effect="pure")
async def confirmed_look(what: str) -> str:
    return f"{what} seen"


@tool(name="look", description="Look closely.", tier="observe", effect="pure", timeout_s=7, display_name="Seeing")
async def closer_look(what: str) -> str:
    return f"{what} seen"


@tool(tier="confirm")
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


class Office(Middleware):
    """Changes something in each hook; `words` are what differs tomorrow."""

    def __init__(self, **words: str) -> None:
        self.words = {"user": "y", "pre": "!", "post": "<>", "call": "never", "result": "R "} | words

    def on_user_message(self, context: HookContext, content: Any) -> Any:
        return [TextBlock(text=block.text.replace("x", self.words["user"])) for block in content]

    async def on_pre_llm(self, context: HookContext, request: ModelRequest) -> ModelRequest:
        await asyncio.sleep(0)
        return msgspec.structs.replace(request, system_prompt=request.system_prompt + self.words["pre"])

    def on_post_llm(self, context: HookContext, response: ModelResponse) -> ModelResponse | None:
        if response.stop_reason == "tool_use":
            return None
        text = "".join(block.text for block in response.content if isinstance(block, TextBlock))
        begin, end = tuple(self.words["post"])
        return msgspec.structs.replace(response, content=(TextBlock(text=f"{begin}{text}{end}"),))

    def on_tool_call(self, context: HookContext, call: Any) -> Deny | None:
        return Deny("not today") if call.tool == self.words["call"] else None

    async def on_tool_result(self, context: HookContext, result: ToolResultBlock) -> ToolResultBlock:
        text = "".join(block.text for block in result.content if isinstance(block, TextBlock))
        return msgspec.structs.replace(result, content=(TextBlock(text=self.words["result"] + text),))


def only_look(call: ProposedCall) -> Allow | Deny | Ask:
    return Allow() if call.tool == "look" else Ask("money")


def memories() -> tuple[EpisodicStore, WorkingMemory]:
    memory, working = EpisodicStore(scope="agent"), WorkingMemory(3, scope="agent")
    for content in ("tea is green", "tea is hot", "payments need a receipt"):
        memory.add_episode("boss", content, importance=0.5)
    working.set("city", "Lisbon")
    return memory, working


def office(**changed: Any) -> Agent:
    """Return the agent, as it was or changed; its memories are filled where it is to run, and empty in a replay."""
    script = changed.pop("script", ())
    config = changed.pop("config", {})
    clerk = Agent(
        name="clerk",
        config=AgentConfig(model="m", system_prompt=changed.pop("clerk_prompt", "Serve.")),
        provider=ScriptedProvider([use("look", {"what": "till"}), say("The till is full.")] if script else []),
        tools=[look],
    )
    parts: dict[str, Any] = {
        "tools": [changed.pop("look", look), pay, clerk.as_tool()],
        "middleware": [Office()],
        "keep_originals": True,
        "policy": only_look,
        "context": Summarising(500),
        "memory": EpisodicStore(scope="agent"),
        "working_memory": WorkingMemory(3, scope="agent"),
    }
    return Agent(
        name="boss",
        config=AgentConfig(model="m", **({"system_prompt": "Rule."} | config)),
        provider=ScriptedProvider(script),
        **parts | changed,
    )


async def recorded(store: Any, session: str = "s") -> Agent:
    """Return the agent that wrote a session with all that can be decided again."""
    memory, working = memories()
    answers = (
        [use("look", {"what": "tea"}), use("clerk", {"task": "Look into the till."})], say("Tea."),
        use("pay", {"amount": 3}), say("Paid.", usage=Usage(input_tokens=5)),
        say("A story."),
        say("They spoke of tea."), say("The end."),
    )  # fmt: skip

    async def allow(session_id: str, request: ToolApprovalRequested) -> Allow:
        async with (await runtime.session(session_id)).follow(after_version=0) as followed:
            async for item in followed:
                if isinstance(item, RecordedEvent) and isinstance(item.event, ToolCallCompleted):
                    break  # So that events stand in one order, always.
        return Allow()

    agent = office(script=answers, memory=memory, working_memory=working, approval=allow)
    async with AgentRuntime(agent, log=store) as runtime:
        talk = await runtime.session(session)
        for text in INPUTS:
            assert (await talk.send(text)).outcome == Completed(), text
    return agent


@pytest.fixture(scope="module")
def log() -> InMemoryStore:
    """A recorded session, which nothing here changes."""
    store = InMemoryStore()
    asyncio.run(recorded(store))
    return store


def plain(*script: Any, config: AgentConfig = CONFIG, **parts: Any) -> Agent:
    return Agent(config=config, provider=ScriptedProvider(script), **parts)


async def written(agent: Agent) -> InMemoryStore:
    """Return the log of a session in which an agent was sent one input."""
    store = InMemoryStore()
    async with AgentRuntime(agent, log=store) as runtime:
        await (await runtime.session("s")).send("Go")
    return store


def counted(report: ReplayReport) -> dict[What, tuple[int, int]]:
    return {each.what: (each.compared, each.differ) for each in report.compared}


def missed(report: ReplayReport) -> list[tuple[What, str]]:
    return [(each.what, reason.why) for each in report.compared for reason in each.not_compared]


def places(report: ReplayReport) -> list[str]:
    return [f"{found.version} {found.difference.path}" for found in report.divergences if found.stream == "session/s"]


async def test_an_unchanged_agent_decides_all_of_a_session_and_of_its_childs_the_same_again() -> None:
    store = InMemoryStore()
    agent = await recorded(store)
    asked = len(agent.provider.requests)  # type: ignore[attr-defined]
    events = len(await store.read_all(limit=1000))
    for again in (agent, office()):
        report = await replay(store, agent=again)
        report.raise_for_divergence()
        assert (report.level, report.diverged, missed(report), report.other_agents) == ("decide", 0, [], {})
        decided = counted(report)
        assert {what: compared for what, (compared, _) in decided.items() if what not in ("admit", "decision")} == {
            "input": 4, "recall": 6, "request": 8, "summary": 6, "answer": 8, "call": 4, "result": 4
        }  # fmt: skip
        assert decided["decision"][0] == decided["admit"][0] > 20
    assert len(agent.provider.requests) == asked  # type: ignore[attr-defined]
    assert len(await store.read_all(limit=1000)) == events


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"middleware": [Office(user="z")]}, ["3 input.content[0].text"]),
        ({"middleware": [Office(pre="?")]}, ["6 request.system_prompt"]),
        ({"middleware": [Office(post="()")]}, ["14 answer.content[0].text"]),
        ({"middleware": [Office(call="look")]}, ["9 call.refused"]),
        ({"middleware": [Office(result="Q ")]}, ["9 result.content[0].text"]),
        (
            {"middleware": []},
            ["3 input.content[0].text", "6 request.system_prompt", "9 result.content[0].text",
             "14 answer.content[0].text"],
        ),
        ({"middleware": [Office(), Office(user="y", pre="", post="[]", result="")]}, ["14 answer.content[0].text"]),
        ({"policy": lambda call: Deny("no tea") if call.tool == "look" else only_look(call)},
         ["6 answer.verdicts[0].verdict"]),
        ({"policy": None}, ["6 answer.verdicts[1].verdict"]),
        ({"look": strict_look}, ["6 answer.verdicts[0].verdict"]),
        ({"look": confirmed_look}, ["7 consequences[0].call"]),
        ({"look": closer_look}, ["6 request.tools.look.description"]),
        ({"config": {"system_prompt": "Reign."}}, ["6 request.system_prompt"]),
        ({"config": {"temperature": 0.5}}, ["6 request.temperature", "35 summary.request.temperature"]),
        ({"config": {"max_memory_recalls": 1}}, ["6 recall.added[0].text"]),
        ({"memory": None}, ["6 recall.added[0].source"]),
        ({"working_memory": None}, ["6 recall.added[1]"]),
        ({"offer": lambda session, spec: spec.name != "pay"}, ["6 request.tools.pay", "19 answer.verdicts[0].verdict"]),
        ({"context": Summarising(5_000)}, ["30 request.messages[0].content[0].text", "35 summary.replaced"]),
        ({"context": Summarising(500, prompt="Shorter.")}, ["35 summary.request.system_prompt"]),
        ({"context": Summarising(300)}, ["30 summary.replaced"]),
        ({"context": None}, ["30 request.messages[0].content[0].text", "35 summary.replaced"]),
        ({"output_type": dict}, ["6 request.system_prompt", "14 answer.rejected"]),
        ({"config": {"max_turns": 1}}, ["13 consequences[0].type"]),
    ],
)  # fmt: skip
async def test_what_has_changed_is_found_where_it_first_makes_a_difference(
    log: InMemoryStore, changed: dict[str, Any], found: Sequence[str]
) -> None:
    report = await replay(log, agent=office(**changed))
    assert places(report) == list(found)
    assert [why for what, why in missed(report) if what != "decision"] == []
    with pytest.raises(DivergenceError, match=r"session/s@"):
        report.raise_for_divergence()


@pytest.mark.parametrize(
    "changed",
    [
        {"middleware": []},
        {"policy": None},
        {"config": {"system_prompt": "Reign.", "max_turns": 1}},
        {"context": Summarising(300)},
        {"memory": None, "working_memory": None},
        {"middleware": [Office(call="look")]},
    ],
)
async def test_what_is_meant_is_looked_past_and_what_lies_behind_it_is_not(
    log: InMemoryStore, tmp_path: Path, changed: dict[str, Any]
) -> None:
    path = tmp_path / "expected.json"
    learnt = await replay(log, agent=office(**changed), meant=MeantDifferences(learn=True))
    learnt.raise_for_divergence(allow_missing=["decisions that differ and are meant to"])
    assert write_expected(path, learnt.accepted) == len({(each.path, each.said) for each in learnt.accepted}) > 0
    meant = MeantDifferences.read(path)
    again = await replay(log, agent=office(**changed), meant=meant)
    assert (again.divergences, again.accepted, again.unmet) == ((), learnt.accepted, ())
    for left_out in {each.path for each in learnt.accepted}:  # Each is a difference of its own.
        fewer = tuple(each for each in meant.expected if each.path != left_out)
        report = await replay(log, agent=office(**changed), meant=MeantDifferences(expected=fewer))
        assert left_out in [kind.path for kind in report.kinds]
    unchanged = await replay(log, agent=office(), meant=meant)
    assert (unchanged.divergences, unchanged.accepted, unchanged.unmet) == ((), (), meant.expected)


@pytest.mark.parametrize(
    ("ignored", "left"),
    [
        (["input", "request"], ["9 result.content[0].text", "14 answer.content[0].text"]),
        (["*.content[]", "*.original", "request.system_prompt"], []),
        (["*.content[0].text", "*.original", "request.system"], ["6 request.system_prompt"]),
        (["input.content[1]", "answer.content[].text", "request.*", "result"], ["3 input.content[0].text"]),
    ],
)  # fmt: skip
async def test_a_path_is_ignored_with_what_lies_below_it(
    log: InMemoryStore, ignored: list[str], left: list[str]
) -> None:
    meant = MeantDifferences(ignored=tuple(ignored))
    assert places(await replay(log, agent=office(middleware=[]), session="s", meant=meant)) == left


async def test_what_is_meant_of_the_core_goes_on_behind_it_as_well(
    log: InMemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    react = type(SESSION_CORE).react

    def changed(state: Any, event: Any) -> Any:
        return [
            msgspec.structs.replace(each, turn=each.turn + 7) if isinstance(each, ModelRequested) else each
            for each in react(state, event)
        ]

    monkeypatch.setattr(type(SESSION_CORE), "react", staticmethod(changed))
    turns = MeantDifferences(ignored=("consequences[].turn",))
    report = await replay(log, session="s", meant=turns)
    assert [kind.path for kind in report.kinds] == ["pending.digest"]
    report = await replay(log, session="s", meant=MeantDifferences(ignored=(*turns.ignored, "pending")))
    assert (report.divergences, report.missing()) == ((), [])
    assert {each.path for each in report.accepted} == {"consequences[].turn", "pending.digest"}


async def test_what_changed_of_the_configuration_is_told_also_where_it_makes_no_difference(log: InMemoryStore) -> None:
    report = await replay(log, agent=office(look=closer_look, config={"max_turns": 7}, clerk_prompt="Bow."))
    assert {(each.agent, str(each), each.sessions) for each in report.changes} == {
        ("boss", 'tools.look.description: "Look." -> "Look closely."', 1),
        ("boss", "tools.look.timeout_s: 120.0 -> 7.0", 1),
        ("boss", 'tools.look.display_name: "" -> "Seeing"', 1),
        ("boss", "max_turns: 50 -> 7", 1),
        ("clerk", 'prompt: "Serve." -> "Bow."', 1),
    }
    assert [(kind.path, kind.streams) for kind in report.kinds] == [
        ("request.tools.look.description", 1), ("request.system_prompt", 1)
    ]  # fmt: skip
    assert (await replay(log, agent=office())).changes == ()


async def test_a_window_that_leaves_more_out_shows_in_the_messages_of_the_request(log: InMemoryStore) -> None:
    report = await replay(log, agent=office(context=TokenWindow(250)))
    assert "request.messages" in " ".join(places(report))


async def test_both_sides_are_shown_and_only_the_part_that_differs(log: InMemoryStore) -> None:
    (found,) = (await replay(log, agent=office(middleware=[Office(result="Q ")]))).divergences
    assert str(found) == 'session/s@9: result.content[0].text: "R tea seen" -> "Q tea seen"'
    assert found.recorded["original"][0]["text"] == found.now["original"][0]["text"] == "tea seen"  # type: ignore[index]
    (found,) = (await replay(log, agent=office(middleware=[Office(call="look")]))).divergences
    assert found.now == {"tool": "look", "input": {"what": "tea"}, "refused": "not today"}
    assert isinstance(found.recorded, dict)
    assert found.recorded["refused"] is None


async def test_a_childs_session_is_decided_by_its_own_agent(log: InMemoryStore) -> None:
    report = await replay(log, agent=office(clerk_prompt="Bow."))
    assert [found.stream.rpartition("/")[0] for found in report.divergences] == ["session/s"]
    assert [found.difference.path for found in report.divergences] == ["request.system_prompt"]
    lone = plain(name="clerk", config=AgentConfig(model="m", system_prompt="Serve."), tools=[look])
    report = await replay(log, agent=lone)
    assert (report.diverged, report.other_agents) == (0, {"boss": 1})


class Failing(Office):
    """Does something in one hook that no replay can do again."""

    def __init__(self, act: Any) -> None:
        super().__init__()
        self.act = act

    async def on_pre_llm(self, context: HookContext, request: ModelRequest) -> Any:
        await self.act(request)
        return await super().on_pre_llm(context, request)


async def _raise(request: ModelRequest) -> None:
    raise KeyError("no such thing")


async def _ask_web(request: ModelRequest) -> None:
    async with httpx.AsyncClient() as client:
        await client.get("http://127.0.0.1:9/")


async def _connect_in_thread(request: ModelRequest) -> None:
    await asyncio.to_thread(lambda: socket.create_connection(("127.0.0.1", 9)))


async def _begin_process(request: ModelRequest) -> None:
    try:
        subprocess.run(["/bin/true"], check=True)  # noqa: ASYNC221
    except Exception:  # noqa: BLE001 - What is swallowed was tried nevertheless.
        return


async def _ask_model(request: ModelRequest) -> None:
    await ScriptedProvider([say("Never.")]).complete(request)


async def _call_tool(request: ModelRequest) -> None:
    await look("the moon")


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (_ask_web, "it needs something outside: socket."),
        (_connect_in_thread, "it needs something outside: socket."),
        (_begin_process, "it needs something outside: subprocess.Popen"),
        (_ask_model, "it needs something outside: a provider"),
        (_call_tool, "it needs something outside: the tool look"),
    ],
)
async def test_what_cannot_be_done_again_is_counted_with_the_reason_and_the_rest_is_compared(
    log: InMemoryStore, act: Any, why: str
) -> None:
    report = await replay(log, agent=office(middleware=[Failing(act)]), session="s")
    ((what, said),) = missed(report)
    assert what == "request"
    assert said.startswith(why)
    reason = next(each for each in report.compared if each.what == "request").not_compared[0]
    assert (reason.times, reason.first) == (6, "session/s@6")
    assert report.diverged == 0
    assert counted(report)["answer"] == (6, 0)


async def test_a_hook_that_raises_today_and_did_not_then_is_a_difference(log: InMemoryStore) -> None:
    report = await replay(log, agent=office(middleware=[Failing(_raise)]), session="s")
    (found,) = report.divergences
    said = "Failing.on_pre_llm failed: KeyError: 'no such thing'"
    assert str(found) == f'session/s@6: request.failure: (nothing) -> "{said}"'
    assert (counted(report)["request"], missed(report), found.now) == ((6, 6), [], found.difference.right)


async def test_the_words_of_a_summary_and_of_a_skill_are_compared(
    log: InMemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("refold.events.model.context_window.SUMMARY_HEADING", "So far:")
    assert "35 summary.messages[0].content[0].text" in places(await replay(log, agent=office(), session="s"))

    def skilled(instructions: str) -> Agent:
        skill = Skill(name="refunds", description="How to refund.", instructions=instructions)
        return plain(use("load_skill", {"name": "refunds"}), say("Done."), skills=[skill])

    store = await written(skilled("Ask a person."))
    (await replay(store, agent=skilled("Ask a person."))).raise_for_divergence()
    (found,) = (await replay(store, agent=skilled("Pay at once."))).divergences
    assert str(found) == 'session/s@8: result.content[0].text: "Ask a person." -> "Pay at once."'


async def test_what_was_not_compared_is_no_green_result(log: InMemoryStore) -> None:
    report = await replay(log, agent=office(middleware=[Failing(_ask_web)]), session="s")
    (line,) = report.missing()
    assert line.startswith("request: 6 not compared, first session/s@6: it needs something outside: socket.")
    with pytest.raises(DivergenceError, match="shows no divergence, but not everything was compared: request: 6"):
        report.raise_for_divergence()
    assert report.missing(["something else", "outside: socket."]) == []
    report.raise_for_divergence(allow_missing=["outside: socket."])
    stranger = plain(name="stranger")
    with pytest.raises(DivergenceError, match="no session of the agent is in the log; there are those of 'boss'"):
        (await replay(log, agent=stranger)).raise_for_divergence(allow_missing=["outside: socket."])


async def test_what_no_model_is_told_of_a_tool_is_no_difference_of_a_request(log: InMemoryStore) -> None:
    @tool(name="look", description="Look.", tier="observe", effect="idempotent", timeout_s=7, display_name="Seeing")
    async def same_look(what: str) -> str:
        return f"{what} seen"

    assert places(await replay(log, agent=office(look=same_look))) == []


def evolving(do: Callable[[Any, Any], object]) -> Any:
    """Return a fold that does something more to each state."""
    evolve = type(SESSION_CORE).evolve

    def changed(state: Any, event: Any) -> Any:
        state = evolve(state, event)
        do(state, event)
        return state

    return "evolve", changed


def remembering(change: Callable[[list[Any]], list[Any]]) -> Any:
    """Return a fold that makes another history of a result."""

    def do(state: Any, event: Any) -> None:
        if isinstance(event, ToolCallCompleted):
            state.messages[:] = change(list(state.messages))

    return evolving(do)


def counting_twice() -> Any:
    def do(state: Any, event: Any) -> None:
        if isinstance(event, ModelResponded):
            state.run.usage = state.run.usage + event.usage

    return evolving(do)


def without_final_text() -> Any:
    def do(state: Any, event: Any) -> None:
        if isinstance(event, ModelResponded) and event.stop_reason == "end_turn":
            state.run.final = ()

    return evolving(do)


def forgetting_usage() -> Any:
    def do(state: Any, event: Any) -> None:
        if isinstance(event, RunStarted):
            state.usage = Usage()

    return evolving(do)


def admitting(kind: type[Any], **changes: Any) -> Any:
    """Return an `admit` that makes another event of one kind of command, or refuses it."""
    admit = type(SESSION_CORE).admit

    def changed(state: Any, command: Any) -> Any:
        event = admit(state, command)
        if not isinstance(event, kind):
            return event
        if not changes:
            raise CommandRejected("no more of that")
        return msgspec.structs.replace(event, **changes)

    return "admit", changed


def wanting(kind: type[Any], **changes: Any) -> Any:
    """Return a `pending` that wants one kind of effect otherwise."""
    pending = type(SESSION_CORE).pending

    def changed(state: Any) -> Any:
        effects = pending(state)
        return [msgspec.structs.replace(each, **changes) if isinstance(each, kind) else each for each in effects]

    return "pending", changed


def raising(function: str) -> Any:
    own = getattr(type(SESSION_CORE), function)

    def changed(state: Any, about: Any) -> Any:
        if isinstance(about, ToolCallCompleted | RecordToolResult):
            raise NameError("not written yet")
        return own(state, about)

    return function, changed


HISTORY = (
    r'14: history: "3 messages, SHA-256 \w+…" -> "{} messages, SHA-256 \w+…: messages 2 to 3 are not what was sent"$'
)

CORES: dict[str, tuple[Callable[[], Any], str]] = {
    "evolve loses a message": (lambda: remembering(lambda messages: messages[:-1]), HISTORY.format(1)),
    "evolve repeats a message": (lambda: remembering(lambda messages: [*messages, messages[-1]]), HISTORY.format(3)),
    "evolve makes another order": (lambda: remembering(lambda messages: messages[::-1]), HISTORY.format(3)),
    "evolve counts tokens twice": (counting_twice, r"26: consequences\[0\].totals.usage.input_tokens: 5 -> 10"),
    "evolve has no final text": (without_final_text, r"15: consequences\[0\].totals.digest: "),
    "evolve forgets the usage": (forgetting_usage, r"31: consequences\[0\].totals.digest: "),
    "admit refuses an input": (lambda: admitting(InputQueued), r'3: admit: {"type":"session.input_queued.v1"'),
    "admit loses a result": (
        lambda: admitting(ToolCallCompleted, content=()),
        r'9: admit.content\[0\]: {"type":"text","text":"R tea seen"} -> \(nothing\)',
    ),
    "admit counts no tokens": (
        lambda: admitting(ModelResponded, usage=Usage()),
        r"25: admit.usage.input_tokens: 5 -> 0",
    ),
    "pending loses arguments": (lambda: wanting(RunTool, input={}), r"8: pending.digest: "),
    "pending has another turn": (lambda: wanting(CallModel, turn=7), r"5: pending.digest: "),
    "admit raises": (lambda: raising("admit"), r"9: admit.*not written yet"),
    "evolve raises": (lambda: raising("evolve"), r"9: failure: .*not written yet"),
    "react raises": (lambda: raising("react"), r"9: failure: .*not written yet"),
}


@pytest.mark.parametrize("level", ["core", "decide"])
@pytest.mark.parametrize("core", CORES)
async def test_a_core_that_differs_is_a_divergence_where_it_first_does(
    log: InMemoryStore, monkeypatch: pytest.MonkeyPatch, level: Any, core: str
) -> None:
    make, found = CORES[core]
    function, changed = make()
    monkeypatch.setattr(type(SESSION_CORE), function, staticmethod(changed))
    report = await replay(log, level=level, agent=office() if level == "decide" else None, session="s")
    assert re.match(f"session/s@{found}", str(report.divergence))
    assert report.divergence is not None
    assert isinstance(report.divergence.now, list) or report.divergence.differs != "history"


async def test_a_core_that_fails_behind_a_difference_ends_no_replay(
    log: InMemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget(state: Any, event: Any) -> None:
        if isinstance(event, ToolCallCompleted):
            state.messages.clear()
        assert state.version < 20

    monkeypatch.setattr(type(SESSION_CORE), "evolve", staticmethod(evolving(forget)[1]))
    report = await replay(log, agent=office(), session="s")
    assert report.divergence is not None
    assert (report.divergence.differs, report.divergence.version) == ("history", 14)
    assert ("decision", "today's code cannot fold what is before it") in missed(report)


async def test_another_time_that_a_run_may_take_is_a_difference() -> None:
    def timed(run_timeout_s: float) -> Agent:
        return plain(say("One."), config=AgentConfig(model="m", run_timeout_s=run_timeout_s))

    store = await written(timed(900))
    assert places(await replay(store, agent=timed(900))) == []
    report = await replay(store, agent=timed(0.0001))
    said = re.fullmatch(r"session/s@5: pending\[0\].due_at: (\d+) -> (\d+)", str(report.divergence))
    assert said is not None, report.divergence
    assert int(said[1]) - int(said[2]) == 900_000_000 - 100


async def test_other_prices_are_no_difference_where_no_budget_decides_by_them() -> None:
    def priced(price: float) -> Agent:
        config = AgentConfig(model="m", prices={"m": Price(input=price, output=price)})
        return plain(say("One.", usage=Usage(input_tokens=9)), config=config)

    assert places(await replay(await written(priced(1.0)), agent=priced(2.0))) == []


async def test_a_hook_that_hangs_is_waited_for_once_and_not_asked_again(log: InMemoryStore) -> None:
    asked = mmap.mmap(-1, 1)  # Of this process and of the one that replays.

    async def hang(request: ModelRequest) -> None:
        asked[0] += 1
        await asyncio.get_running_loop().create_future()

    report = await replay(log, agent=office(middleware=[Failing(hang)]), session="s", answer_s=0.5)
    assert missed(report) == [("request", "it gave no answer within 0.5 seconds")]
    assert asked[0] == 1
    assert counted(report)["answer"] == (6, 0)


async def test_after_a_replay_nothing_is_kept_from_the_outside(log: InMemoryStore) -> None:
    await replay(log, agent=office(), session="s")
    assert await look("tea") == "tea seen"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        pass


async def test_a_payload_that_is_gone_is_a_comparison_that_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    agent = plain(say("One."), say("Two."))
    async with session_in(AgentRuntime(agent, log=path)) as (_, session):
        await session.send("a" * 100_000)
        await session.send("b")
    assert (await replay(path, agent=agent)).diverged == 0
    import sqlite3

    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM payloads WHERE length(data) > 90000")
    connection.close()
    report = await replay(path, agent=agent)
    assert report.diverged == 0
    assert {what for what, why in missed(report) if "is missing from the log" in why} == {"input", "request"}
    assert counted(report)["input"] == (1, 0)


async def test_a_memory_that_is_not_of_the_log_is_taken_as_it_was_recorded() -> None:
    class Own:
        async def look(self, agent: str, query: str, limit: int) -> list[Any]:
            return []

        def note_recalled(self, ids: Any, key: str | None = None) -> None:
            raise AssertionError("nothing was recalled")

    agent = plain(say("One."), memory=Own())
    report = await replay(await written(agent), agent=agent)
    ((what, why),) = missed(report)
    assert (what, "not one of the log" in why, counted(report)["request"]) == ("recall", True, (1, 0))


async def test_a_memory_that_has_other_settings_today_is_told() -> None:
    def remembering(capacity: int | None) -> Agent:
        return plain(say("One."), memory=EpisodicStore(capacity=capacity))

    for then, now in ((3, 2), (None, 2), (3, None)):
        store, agent = InMemoryStore(), remembering(then)
        async with AgentRuntime(agent, log=store) as runtime:
            assert isinstance(agent.memory, EpisodicStore)
            await agent.memory.of(session="s").add_episode("agent", "Tea is green")
            await (await runtime.session("s")).send("Green tea?")
        assert missed(await replay(store, agent=agent)) == []
        told = missed(await replay(store, agent=remembering(now)))
        assert any("/s was kept by other settings than today's: " in why for _, why in told)


@pytest.mark.parametrize("hook", ["on_tool_call", "on_tool_result"])
async def test_a_hook_around_a_body_that_raises_today_and_did_not_then_is_a_difference(hook: str) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("broken")

    agent = plain(use("look", {"what": "sun"}), say("Well."), tools=[look])
    store = await written(agent)
    failing = type("Broken", (Middleware,), {hook: fails})()
    (found,) = (await replay(store, agent=msgspec.structs.replace(agent, middleware=[failing]))).divergences
    assert (found.version, found.difference.path) == (8, "call.failure")
    assert f"{hook} failed" in str(found)


async def test_what_a_failed_hook_did_to_a_call_is_no_difference() -> None:
    class Broken(Middleware):
        def on_tool_result(self, context: HookContext, result: ToolResultBlock) -> None:
            raise RuntimeError("broken")

        def on_tool_call(self, context: HookContext, call: Any) -> Deny | None:
            return Deny("no moon") if call.input["what"] == "moon" else None

    calls = [use("look", {"what": what}) for what in ("moon", "sun")]
    agent = plain(calls, say("Well."), tools=[look], middleware=[Broken()])
    store = await written(agent)
    assert counted(await replay(store, agent=agent))["call"] == (1, 0)
    allowing = msgspec.structs.replace(agent, middleware=[])
    (found,) = (await replay(store, agent=allowing)).divergences
    assert (found.differs, found.difference.left) == ("call", "no moon")


async def test_a_failed_model_calls_request_is_compared_as_well() -> None:
    agent = plain(ValueError("down"))
    store = await written(agent)
    events = SESSION_CODEC.decode_all(await store.read_stream("session/s"))
    assert ModelFailed in [type(event) for event in events]
    changed = msgspec.structs.replace(agent, config=AgentConfig(model="n"))
    assert counted(await replay(store, agent=agent))["request"] == (1, 0)
    assert [str(found) for found in (await replay(store, agent=changed)).divergences] == [
        'session/s@6: request.model: "m" -> "n"'
    ]


@pytest.mark.parametrize("cancelled", [True, False], ids=["a run that is cancelled", "a log that ends"])
async def test_a_request_that_was_built_and_never_answered_is_compared_as_well(cancelled: bool) -> None:
    def advised(prompt: str) -> Agent:
        config = AgentConfig(model="m", system_prompt=lambda context: prompt)
        return plain(stall("Well", after=0), say("Hello."), config=config)

    store, clock = InMemoryStore(), ManualClock()
    async with session_in(AgentRuntime(advised("Be brief."), log=store, clock=clock, close_grace_s=0)) as (_, session):
        sending = asyncio.create_task(session.send("Go"))
        while RequestBuilt not in [type(recorded.event) async for recorded in session.events()]:
            await clock.advance(0.02)
        if cancelled:
            await session.cancel()
            await sending
            await session.send("Hello")
    await asyncio.gather(sending, return_exceptions=True)
    assert counted(await replay(store, agent=advised("Be brief.")))["request"] == (1 + cancelled, 0)
    (found,) = (await replay(store, agent=advised("Be kind."))).divergences
    assert str(found) == 'session/s@6: request.system_prompt: "Be brief." -> "Be kind."'


class OtherForm(ScriptedProvider):
    """Sends each request with one thing more in it."""

    def sent_digest(self, request: ModelRequest, *, streamed: bool) -> str:
        return f"request:{request.model}"


@pytest.mark.parametrize("ends", ["cancelled", "log", "failed", "resumed"])
async def test_a_summary_that_was_asked_for_and_never_came_is_compared_as_well(ends: str) -> None:
    def windowed(provider: Any = None, **window: Any) -> Agent:
        return Agent(config=CONFIG, provider=provider, context=Summarising(60, **window))

    async def summary(request: ModelRequest) -> str:
        if ends == "failed":
            await clock.sleep(0.1)
            raise ProviderError("down", kind="server")
        await asyncio.Event().wait()
        return ""

    store, clock = InMemoryStore(), ManualClock()
    spoken = [say("Well, " * 30), say("So, " * 30)]
    agent = windowed(ScriptedProvider([*spoken, summary, say("Done."), say("Yes.")]))
    async with session_in(AgentRuntime(agent, log=store, clock=clock, close_grace_s=0)) as (_, session):
        for text in ("Go", "And?"):
            await session.send(text)
        sending = asyncio.create_task(session.send("More", key="third"))
        while ends == "failed" and not sending.done():
            await clock.advance(0.02)
        while RequestBuilt not in [type(recorded.event) async for recorded in session.events()]:
            await clock.advance(0.02)
        if ends == "cancelled":
            await session.cancel()
            await sending
    await asyncio.gather(sending, return_exceptions=True)
    if ends == "resumed":  # Then the same is asked once more, and is compared with what came of it.
        async with AgentRuntime(windowed(ScriptedProvider([say("They spoke."), say("Done.")])), log=store) as runtime:
            handle = await (await runtime.session("s")).run(key="third")
            assert (await handle.result()).text == "Done."
    same = await replay(store, agent=windowed(ScriptedProvider([])))
    assert (same.divergence, missed(same), counted(same)["summary"]) == (None, [], (3, 0))
    for changed, path in (
        (windowed(ScriptedProvider([]), prompt="Shorter."), "summary.request.system_prompt"),
        (windowed(ScriptedProvider([]), model="n"), "summary.request.model"),
        (windowed(OtherForm([])), "summary.sent"),
        (plain(), "summary.replaced" if ends == "resumed" else "summary.request"),
    ):
        found = await replay(store, agent=changed)
        assert [each.difference.path for each in found.divergences if each.differs == "summary"] == [path]


async def test_a_level_and_an_agent_go_together(log: InMemoryStore) -> None:
    with pytest.raises(ConfigError, match="needs the agent"):
        await replay(log, level="decide")
    with pytest.raises(ConfigError, match="runs no agent"):
        await replay(log, level="core", agent=office())


# The command

MODULE = """
from pathlib import Path
from refold import Agent, AgentConfig, Middleware, ScriptedProvider, say

class Polite(Middleware):
    def on_user_message(self, context, content):
        return "Please: " + content[0].text

class Tidy(Polite):
    def on_user_message(self, context, content):
        print("tidying")
        Path("a.db").unlink()

config = AgentConfig(model="m")
tidy = Agent(config=config, provider=ScriptedProvider([]), middleware=[Tidy()])
agent = Agent(config=config, provider=ScriptedProvider([say("Hi.")]), middleware=[Polite()])
rude = Agent(config=config, provider=ScriptedProvider([]))
stranger = Agent(name="stranger", config=config, provider=ScriptedProvider([]))
"""


def refold(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_the_command_names_an_agent_and_leaves_with_1_where_it_differs_or_nothing_was_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.joinpath("manners.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        assert refold("run", "manners:agent", "Hello", "--log", "a.db", "--session", "s")[0] == 0
        code, said = refold("replay", "a.db", "--agent", "manners:agent")
        assert (code, "input: 1 compared, 0 differ" in said, "level decide: no divergence" in said) == (0, True, True)
        code, said = refold("replay", "a.db", "s", "--agent", "manners:rude", "--level", "decide")
        assert (code, 'session/s@3: input.content[0].text: "Please: Hello" -> "Hello"' in said) == (1, True)
        code, said = refold("replay", "a.db", "--agent", "manners:rude", "--json")
        report = json.loads(said)
        assert (code, report["level"], report["divergences"][0]["differs"]) == (1, "decide", "input")
        assert report["compared"][1] == {"what": "input", "compared": 1, "differ": 1, "not_compared": []}
        code, said = refold("replay", "a.db", "--agent", "manners:tidy")
        tried = "os.remove a.db, at manners.py:12 in Tidy.on_user_message (1 time, first for the input of session/s@3)"
        assert (code, tried in " ".join(said.split())) == (4, True), said
        code, said = refold("replay", "a.db", "--agent", "manners:tidy", "--json", "--jobs", "2")
        assert (code, json.loads(said)["tried"][0]["on"]) == (4, "a.db")
        code, said = refold("replay", "a.db", "--agent", "manners:stranger")
        assert (code, "1 session of the agent 'agent'" in said, "nothing was replayed" in said) == (1, True, True)
        assert refold("replay", "a.db", "--level", "decide")[0] == 2
        assert refold("replay", "a.db", "--agent", "manners:nobody")[0] == 2
    finally:
        sys.modules.pop("manners", None)
