"""Sessions of a log, tried again with today's agent: its real model, recorded results, and rules that judge it."""

import asyncio
import json
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refold import (
    Agent,
    AgentConfig,
    AgentRuntime,
    Allow,
    Deny,
    Middleware,
    ModelRequest,
    ModelResponse,
    Price,
    ScriptedProvider,
    Skill,
    Summarising,
    ToolContext,
    TreeBudget,
    Usage,
    say,
    tool,
    use,
)
from refold.events.core.content import TextBlock
from refold.events.core.errors import ConfigError, ProviderError
from refold.events.core.ids import SessionId
from refold.lineage.session_diff import DiffPart
from refold.memory import EpisodicStore
from refold.replay import TrialReport, TriedSession, try_agent
from refold.replay.trial.page import page_of
from refold.replay.trial.report import CallMade, TriedSide
from refold.replay.trial.rules import judged, rule_of
from refold.stores import InMemoryStore
from tests.providers.letter_format import KEY, served
from tests.providers.loopback import json_answer
from tests.runtime.command_line import error_of, run, started

PRICES = {"m": Price(input=1_000, output=10_000)}
BUDGET = TreeBudget(cost=100)
acted: list[object] = []


@tool(effect="once")
async def charge(amount: int) -> str:
    """Charge a card."""
    acted.append(amount)
    return f"charged {amount}"


@tool(tier="confirm")
async def pay(amount: int) -> str:
    """Pay."""
    acted.append(amount)
    return f"paid {amount}"


@tool
async def ask(context: ToolContext[None]) -> str:
    """Ask."""
    return f"for {await context.ask('For whom?')}"


@tool(effect="pure")
async def stock(item: str) -> str:
    """How many there are."""
    acted.append(item)
    return f"{item}: 3"


def paid(answer: Any, tokens: int = 10) -> ModelResponse:
    """Return an answer that took tokens."""
    content = (TextBlock(text=answer) if isinstance(answer, str) else answer,)
    return ModelResponse(content=content, usage=Usage(input_tokens=tokens, output_tokens=1))


def desk(*script: Any, prompt: str = "Be brief.", tools: Sequence[Any] = (charge, stock), **parts: Any) -> Agent:
    config = parts.pop("config", {})
    return Agent(
        name=parts.pop("name", "desk"),
        config=AgentConfig(model="m", system_prompt=prompt, prices=PRICES, **config),
        provider=ScriptedProvider(list(script)),
        tools=list(tools),
        **parts,
    )


async def recorded(agent: Agent, *inputs: str, session: str = "ann", log: InMemoryStore | None = None) -> InMemoryStore:
    log = InMemoryStore() if log is None else log
    async with AgentRuntime(agent, log=log) as runtime:
        for said in inputs:
            await (await runtime.session(session)).send(said)
    return log


async def retold(*script: Any, log: InMemoryStore, budget: TreeBudget = BUDGET, **parts: Any) -> TrialReport:
    """Return the report on today's agent with another prompt, whose model gives these answers."""
    return await try_agent(log, agent=desk(*script, **{"prompt": "Be kind.", **parts}), budget=budget)


def told(report: TrialReport) -> list[tuple[str, str, list[str]]]:
    """Return of each session that was tried how far it went, its last answer, and the calls of now."""
    return [
        (each.status, (each.now.answers or ("",))[-1], [call.tool for call in each.now.calls]) for each in report.tried
    ]


async def test_a_prompt_by_which_a_card_is_charged_twice_fails_by_a_rule_and_charges_nothing() -> None:
    log = await recorded(desk(use("charge", {"amount": 3}), say("Done."), say("Bye.")), "Charge 3", "Thanks")
    before, done = await log.read_all(limit=1000), list(acted)
    now = desk(use("charge", {"amount": 3}), use("charge", {"amount": 3}), prompt="Charge twice.")
    report = await try_agent(log, agent=now, budget=BUDGET, fail_if=["charge called more", "charge called never"])
    [tried] = report.tried
    assert (tried.status, tried.why) == ("stopped", 'the log has no result for charge with {"amount":3}')
    assert [len(side.calls) for side in (tried.then, tried.now)] == [1, 2]
    assert tried.first.endswith('request.system_prompt: "Be brief." -> "Charge twice."')
    assert [rule.holds for rule in report.rules] == [True, False]
    assert (report.failed, report.calls, report.missing()) == (True, 2, [f"ann: stopped: {tried.why}"])
    assert (acted, await log.read_all(limit=1000)) == (done, before)


async def test_a_session_that_goes_on_to_its_end_is_told_beside_what_it_was() -> None:
    log = await recorded(desk(paid(use("stock", {"item": "tea"})), paid("Three."), paid("Bye.")), "How many?", "Thanks")
    now = [paid(use("stock", {"item": "milk"}), 20), paid("Three!", 20), paid("Bye.", 20)]
    report = await retold(*now, log=log)
    [tried] = report.tried
    assert (tried.status, tried.at, tried.guessed) == ("ended", 5, 1)
    assert (tried.outcome_differs, tried.calls_differ, tried.arguments_differ, tried.answer_differs) == (
        False, False, True, True,
    )  # fmt: skip
    assert [(side.turns, side.usage.input_tokens, round(side.cost, 6)) for side in (tried.then, tried.now)] == [
        (3, 30, 0.06), (3, 60, 0.09),
    ]  # fmt: skip
    assert [(part.what, part.words) for part in tried.parts] == [
        ("arguments", 'stock.item: "tea" -> "milk"'),
        ("answer", "[-Three.-] {+Three!+}"),
    ]
    assert (report.usage.input_tokens, round(report.cost, 6), report.ended) == (60, 0.09, "")


@pytest.mark.parametrize(
    ("budget", "calls", "words"),
    [
        (TreeBudget(cost=0.03), 2, "The budget of 0.03 for model calls is spent: they have cost 0.04."),
        (TreeBudget(tokens=12), 2, "The budget of 12 tokens is spent: 22 were used."),
        (TreeBudget(turns=2), 2, "The budget of 2 model calls is spent."),
    ],
)
async def test_a_budget_counts_over_all_sessions_and_what_is_left_out_is_told(
    budget: TreeBudget, calls: int, words: str
) -> None:
    log = await recorded(desk(paid("A")), "Hi")
    for name in ("bob", "eve"):
        await recorded(desk(paid("A")), "Hi", session=name, log=log)
    report = await retold(paid("A"), paid("B"), paid("C"), log=log, budget=budget)
    assert [each.status for each in report.tried] == ["ended", "ended", "stopped"]
    assert (report.calls, report.ended, report.tried[2].why) == (calls, "budget", words)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"budget": TreeBudget()}, "a trial needs a budget"),
        ({"sessions": 0}, "at least 1 session is tried, not 0"),
        ({"jobs": 0}, "jobs must be at least 1, not 0"),
        ({"session": "bob"}, "no session 'bob' in"),
        ({"fail_if": ["charge called moar"]}, "'charge called moar' is no rule; a rule is 'TOOL called more"),
        ({"fail_if": ["chrage called more"]}, "names chrage, which is no tool of the agent; did you mean charge?"),
        ({"fail_if": ["cost above 120% in more than 100% of sessions"]}, "never holds"),
        ({"agent": desk(name="other")}, "has no session of the agent 'other'; there are those of 'desk'"),
        (
            {"agent": Agent(config=AgentConfig(model="x"), provider=ScriptedProvider([]), name="desk")},
            "AgentConfig.prices of the agent 'desk' has no price for 'x'",
        ),
    ],
)
async def test_what_cannot_be_tried_is_refused_in_words(changes: dict[str, Any], words: str) -> None:
    log = await recorded(desk(say("A")), "Hi")
    with pytest.raises(ConfigError, match=re.escape(words)):
        await try_agent(log, **{"agent": desk(prompt="New."), "budget": BUDGET, **changes})


async def test_one_session_of_each_kind_of_path_is_first_and_in_the_same_order_with_several_processes() -> None:
    log, calls = InMemoryStore(), [use("stock", {"item": "tea"}), say("3")]
    scripts: dict[str, list[Any]] = {
        "a": [say("Hi")],
        "b": calls,
        "c": [say("Hello")],
        "d": [say("Yes")],
        "e": [*calls, say("Bye")],
    }
    for name, script in scripts.items():
        inputs = ["Go", "On"] if name == "e" else ["Go"]
        await recorded(desk(*script), *inputs, session=name, log=log)
    async with AgentRuntime(desk(say("forked")), log=log) as runtime:
        await (await (await runtime.session("a")).fork()).send("And?")

    def answer(request: ModelRequest) -> ModelResponse:
        return say("same")

    agent = Agent(
        name="desk", provider=answer, tools=[charge, stock],
        config=AgentConfig(model="m", system_prompt="New", prices=PRICES),
    )  # fmt: skip
    reports = [
        await try_agent(log, agent=agent, budget=BUDGET, sessions=4, jobs=jobs) for jobs in (1, 3)
    ]  # fmt: skip
    assert reports[0] == reports[1]
    assert [(each.session, each.path, each.like) for each in reports[0].tried] == [
        ("a", 1, 3), ("b", 2, 1), ("e", 3, 1), ("c", 1, 3),
    ]  # fmt: skip
    assert (reports[0].sessions, reports[0].paths, reports[0].forks) == (5, 3, 1)
    assert reports[0].tried[1].words == "input, stock, answer"


class Louder(Middleware):
    def on_user_message(self, context: Any, content: Any) -> str:
        return f"LOUD {content[0].text}"


class Emptying(Middleware):
    def on_tool_result(self, context: Any, result: Any) -> Any:
        return msgspec.structs.replace(result, content=(TextBlock(text="none"),))


@pytest.mark.parametrize(
    ("parts", "at", "calls", "first"),
    [
        ({}, 0, 0, None),
        ({"policy": lambda call: Deny("no")}, 5, 1, "answer.verdicts[0].verdict"),
        ({"middleware": [Emptying()]}, 5, 1, "result.content[0].text"),
        ({"middleware": [Louder()]}, 2, 2, "input.content[0].text"),
        ({"config": {"max_turns": 1}}, 5, 0, "consequences"),
    ],
)
async def test_a_model_is_asked_only_behind_the_first_difference(
    parts: dict[str, Any], at: int, calls: int, first: str | None
) -> None:
    log = await recorded(desk(use("stock", {"item": "tea"}), say("Three.")), "How many?")
    script = [use("stock", {"item": "tea"}), say("None.")][2 - calls :] if calls else []
    report = await retold(*script, log=log, prompt="Be brief.", **parts)
    assert (report.calls, report.unchanged, len(report.tried)) == (calls, int(first is None), int(first is not None))
    if first is not None:
        [tried] = report.tried
        assert (tried.at, tried.status) == (at, "ended")
        assert first in tried.first


async def test_people_decide_as_they_did_about_the_same_call_and_else_the_trial_stops() -> None:
    log, script = InMemoryStore(), [use("pay", {"amount": 3}), use("pay", {"amount": 4}), say("Done")]
    agent = desk(*script, tools=[pay], approval=lambda _, asked: Allow() if asked.input["amount"] == 3 else Deny("No"))
    await recorded(agent, "Pay", log=log)
    same = await retold(*script, log=log, tools=[pay])
    assert told(same) == [("ended", "Done", ["pay", "pay"])]
    assert same.tried[0].found == 0
    other = await retold(use("pay", {"amount": 5}), log=log, tools=[pay])
    assert other.tried[0].why == 'pay with {"amount":5} waits for approval, about which nobody decided then'


async def test_what_a_person_answered_to_a_tool_is_in_its_recorded_result() -> None:
    log = InMemoryStore()
    async with AgentRuntime(desk(use("ask"), say("Ok"), tools=[ask]), log=log) as runtime:
        session = await runtime.session("ann")
        handle = await session.submit("Go")
        async for _ in handle.stream():
            if asked := await session.questions():
                await session.answer(asked[0], "Bob")
                break
        await handle.result()
    report = await retold(use("ask"), lambda request: say(request.messages[-1].content[0].text), log=log, tools=[ask])
    assert told(report) == [("ended", "for Bob", ["ask"])]


def pair(main: Sequence[Any], sub: Sequence[Any], prompts: tuple[str, str] = ("M", "S")) -> Agent:
    """Return an agent with a subagent, a handoff to another one, and a skill."""
    counter = desk(*sub, prompt=prompts[1], name="counter", tools=[stock])
    skills = [Skill(name="care", description="How to care.", instructions="Take care.")]
    return desk(*main, prompt=prompts[0], tools=[counter.as_tool(), charge], handoffs=[counter], skills=skills)


async def test_subagents_are_not_run_and_their_sessions_are_tried_by_themselves() -> None:
    script = [use("counter", {"task": "Count"}), say("3 it is")]
    log = await recorded(pair(script, [use("stock", {"item": "tea"}), say("three")]), "How many?")
    report = await try_agent(log, agent=pair(script, [], ("M2", "S")), budget=BUDGET)
    assert (told(report), report.unchanged) == ([("ended", "3 it is", ["counter"])], 1)
    report = await try_agent(
        log, agent=pair([], [use("stock", {"item": "tea"}), say("drei")], ("M", "S2")), budget=BUDGET
    )
    assert (report.tried[0].session, told(report)) == ("ann/call_6_0", [("ended", "drei", ["stock"])])


async def test_a_skill_is_read_and_a_conversation_handed_over_as_ever() -> None:
    main = [use("load_skill", {"name": "care"}), use("transfer_to_counter", {})]
    log = await recorded(pair(main, [use("stock", {"item": "tea"}), say("Hi"), say("Yes")]), "Go", "Sure?")
    report = await try_agent(
        log,
        agent=pair(main, [use("stock", {"item": "tea"}), say("Ho"), say("Yes")], ("M2", "S")),
        budget=BUDGET,
        fail_if=["answer differs", "stock called less"],
    )
    assert told(report) == [("ended", "Yes", ["load_skill", "transfer_to_counter", "stock"])]
    assert (report.tried[0].now.answers, [rule.holds for rule in report.rules]) == (("Ho", "Yes"), [True, False])


async def test_summaries_are_asked_for_streams_and_huge_texts_are_whole() -> None:
    huge = "\U0001f600\u00e9\x00 " * 40_000
    parts: dict[str, Any] = {"context": Summarising(60), "config": {"streaming": True}, "tools": ()}
    log = await recorded(desk(say("x" * 400), say("A story."), say("Yes."), **parts), "Tell me", "Is it true?")
    report = await retold(say("x" * 400), say("A tale."), say(huge), log=log, **parts)
    assert (told(report), report.calls) == ([("ended", huge.strip(), [])], 3)
    summaries = ScriptedProvider([say("A tale.")])
    report = await retold(
        say("x" * 400), say("Yes."), log=log, **parts | {"context": Summarising(60, provider=summaries)}
    )
    assert (told(report), report.calls, len(summaries.requests)) == ([("ended", "Yes.", [])], 3, 1)
    log = await recorded(desk(use("stock", {"item": huge}), say(huge)), huge)
    report = await retold(use("stock", {"item": huge}), say("short"), log=log)
    assert told(report) == [("ended", "short", ["stock"])]
    assert report.tried[0].guessed == 0


async def test_what_is_remembered_is_what_was_then() -> None:
    def remembering(*script: Any, prompt: str) -> Agent:
        return desk(*script, prompt=prompt, memory=EpisodicStore())

    agent, log = remembering(say("Green."), prompt="P"), InMemoryStore()
    async with AgentRuntime(agent, log=log) as runtime:
        assert isinstance(agent.memory, EpisodicStore)
        memory = agent.memory.of(user="u")
        await memory.add_episode("desk", "tea is green")
        await (await runtime.session("ann", user="u")).send("tea?")
        await memory.add_episode("desk", "tea is black")
    shown = remembering(lambda request: say(request.system_prompt), prompt="Q")
    [tried] = (await try_agent(log, agent=shown, budget=BUDGET)).tried
    assert "tea is green" in tried.now.answers[0]
    assert "black" not in tried.now.answers[0]


class Acting(Middleware):
    """Writes a file when a model says something new."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_post_llm(self, context: Any, response: ModelResponse) -> None:
        if response.content[0] == TextBlock(text="New"):
            try:
                self.path.write_text("acted")
            except OSError:
                return


class Hanging(Middleware):
    """Gives no answer when a model says something new; with `blocks`, its loop does not either."""

    def __init__(self, *, blocks: bool) -> None:
        self.blocks = blocks

    async def on_post_llm(self, context: Any, response: ModelResponse) -> None:
        while response.content[0] == TextBlock(text="New"):
            if not self.blocks:
                await asyncio.get_running_loop().create_future()


async def test_code_that_acts_or_hangs_is_refused_and_told_and_other_sessions_go_on(tmp_path: Path) -> None:
    log = await recorded(desk(say("A")), "Hi")
    await recorded(desk(say("A")), "Ho", session="bob", log=log)
    report = await retold(say("New"), say("Old"), log=log, middleware=[Acting(tmp_path / "acted")])
    assert [each.status for each in report.tried] == ["stopped", "ended"]
    assert report.tried[0].why.startswith("the agent's code needs something outside: open for writing")
    assert report.tried[0].acts[0].endswith("acted")
    assert not os.listdir(tmp_path)
    for blocks, why in ((False, "nothing happened for 1 seconds"), (True, "it gave no answer within 1 seconds")):
        agent = desk(say("New"), say("Old"), prompt="New", middleware=[Hanging(blocks=blocks)])
        report = await try_agent(log, agent=agent, budget=BUDGET, answer_s=1.0)
        assert [(each.status, each.why) for each in report.tried] == [
            ("not begun" if blocks else "stopped", why), ("ended", ""),
        ]  # fmt: skip
        assert report.calls == 2


async def test_a_model_that_cannot_be_asked_is_no_other_outcome() -> None:
    log = await recorded(desk(say("A")), "Hi")
    report = await retold(ProviderError("no such key", kind="auth", status=401), log=log)
    [tried] = report.tried
    assert (tried.status, tried.outcome_differs) == ("stopped", False)
    assert "no such key" in tried.why


async def test_a_provider_over_the_network_is_asked_by_the_parent_and_its_key_is_in_no_report() -> None:
    log = await recorded(desk(say("A")), "Hi")
    await recorded(desk(say("A")), "Hi", session="bob", log=log)
    async with served(*[json_answer({"text": f"My key is {KEY}."})] * 2) as (server, provider):
        agent = msgspec.structs.replace(desk(prompt="New"), provider=provider)
        report = await try_agent(log, agent=agent, budget=BUDGET, jobs=2)
    assert [each.status for each in report.tried] == ["ended", "ended"]
    assert len(server.requests) == 2
    assert KEY not in page_of(report)
    assert KEY not in msgspec.json.encode(report).decode()


def side(*calls: tuple[str, int], outcome: str = "completed", answer: str = "A", cost: float = 1.0) -> TriedSide:
    made = tuple(CallMade(name, {"n": number}) for name, number in calls)
    return TriedSide(outcomes=(outcome,), answers=(answer,), calls=made, turns=1, usage=Usage(), cost=cost)


def tried(then: TriedSide, now: TriedSide, status: Any = "ended") -> TriedSession:
    return TriedSession(
        session=SessionId("s"), path=1, like=1, words="", first="", at=5, status=status, then=then, now=now
    )


ONE, TWO, NONE = side(("charge", 1)), side(("charge", 1), ("charge", 2)), side()


@pytest.mark.parametrize(
    ("rule", "then", "now", "holds", "when_stopped"),
    [
        ("charge called more", ONE, TWO, True, True),
        ("charge called more", TWO, ONE, False, False),
        ("charge called less", TWO, ONE, True, False),
        ("charge called never", ONE, NONE, True, False),
        ("charge called never", NONE, NONE, False, False),
        ("charge called at all", NONE, ONE, True, True),
        ("charge called at all", ONE, NONE, False, False),
        ("charge called with other arguments", ONE, side(("charge", 2)), True, True),
        ("charge called with other arguments", ONE, TWO, False, False),
        ("any  tool called more", ONE, TWO, True, True),
        ("outcome differs", ONE, side(("charge", 1), outcome="failed (budget)"), True, False),
        ("answer differs", ONE, side(("charge", 1), answer="B"), True, False),
        ("calls differ", ONE, TWO, True, True),
        ("calls differ", TWO, ONE, True, False),
        ("session stopped", ONE, ONE, False, True),
        ("cost above 120%", ONE, side(cost=1.3), True, False),
        ("cost above 130%", ONE, side(cost=1.3), False, False),
        ("cost above 1.2", ONE, side(cost=1.3), True, True),
        ("turns above 1", ONE, ONE, False, False),
        ("answer differs in more than 0 sessions", ONE, side(answer="B"), True, False),
        ("answer differs in more than 1 session", ONE, side(answer="B"), False, False),
        ("cost above 120% in more than 50% of sessions", ONE, side(cost=1.3), True, False),
    ],
)
def test_a_rule_holds_where_what_it_says_is_known(
    rule: str, then: TriedSide, now: TriedSide, holds: bool, when_stopped: bool
) -> None:
    found = [judged(rule_of(rule), [tried(then, now, status)]).holds for status in ("ended", "stopped")]
    assert found == [holds, when_stopped]


@pytest.mark.parametrize(
    "rule",
    [
        "",
        "charge",
        "charge called",
        "called more",
        "charge called more!",
        "answer differ",
        "cost above",
        "cost above -1%",
        "cost above 10 %",
        "charge called more in more than sessions",
        "a b called more",
        "charge CALLED more",
    ],
)
def test_what_is_no_rule_is_refused_with_the_forms_that_there_are(rule: str) -> None:
    with pytest.raises(ConfigError, match="is no rule; a rule is 'TOOL called more"):
        rule_of(rule)


def test_the_command_writes_a_page_that_does_nothing(folder: Path) -> None:
    assert run("run", "stalls:charged", "Go", "--log", "e.db", "--session", "ann").exit_code == 0
    trial = (
        "replay",
        "e.db",
        "--try",
        20,
        "--agent",
        "stalls:charged_kindly",
        "--budget",
        "2.00",
        "--html",
        "trial.html",
    )
    green = run(*trial, "--json")
    assert (green.exit_code, json.loads(green.stdout)["tried"][0]["status"]) == (0, "ended")
    html = Path("trial.html").read_text()
    assert "<ins>&lt;script&gt;alert(1)&lt;/script&gt;.</ins>" in html
    assert "default-src &#x27;none&#x27;" in html
    assert not re.search(r"<script|src=|https?://", html)
    assert "is there already" in error_of(run(*trial))


def test_an_interrupted_command_writes_what_there_is(folder: Path) -> None:
    assert run("run", "stalls:charged", "Go", "--log", "e.db", "--session", "ann").exit_code == 0
    command = ("replay", "e.db", "--try", 2, "--requests", 9, "--agent", "stalls:hanging")
    with started(*command, cwd=folder) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "asked\n"
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "")
    assert "interrupted: the sessions that follow were not tried" in out
    assert "1 model call, 0 tokens; limit: 9 model calls" in out


def test_a_page_marks_what_is_gone_and_new_and_takes_no_text_for_html() -> None:
    part = DiffPart(what="answer", words="a [-<i>-] {+</body>+} & b")
    one = msgspec.structs.replace(tried(ONE, TWO), parts=(part,), found=1, words="<u>\u202e\x1b[2J\u200b\nlög")
    report = TrialReport(
        log="<x>", agent="a", wanted=1, sessions=1, paths=1, forks=0, unchanged=0, tried=(one,), limits="1"
    )
    html = page_of(report)
    assert "a <del>&lt;i&gt;</del> <ins>&lt;/body&gt;</ins> &amp; b" in html
    assert (html.count("</body>"), html.count("<u>"), html.count("<x>")) == (1, 0, 0)
    assert "&lt;u&gt;\\u202e\\u001b[2J\\u200b\nlög" in html
