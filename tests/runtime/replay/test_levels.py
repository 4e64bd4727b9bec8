"""The levels of a replay above `decide`: from where the answers of models and the results of tools come."""

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refold import (
    Agent,
    AgentConfig,
    AgentRuntime,
    DeferredResult,
    Middleware,
    ModelRequest,
    ModelResponse,
    Price,
    ScriptedProvider,
    Summarising,
    TextBlock,
    ToolContext,
    ToolError,
    TreeBudget,
    Usage,
    say,
    tool,
    use,
)
from refold.events.core.codec import RecordedEvent
from refold.events.core.errors import ConfigError, DivergenceError, ProviderError
from refold.events.session.events import QuestionAsked
from refold.replay import MeantDifferences, model_requests, replay
from refold.stores import InMemoryStore
from tests.providers.letter_format import served
from tests.providers.loopback import json_answer

CONFIG = AgentConfig(model="m", prices={"m": Price(input=1, output=1)})
REQUESTS = TreeBudget(turns=100)


@tool(effect="pure", tier="observe")
async def stock(item: str) -> str:
    """How many there are."""
    return f"{item}: {len(item)}"


@tool(effect="pure")
def order(context: ToolContext[object], item: str) -> str:
    """Has a number of its own by the session."""
    if item == "nothing":
        raise ToolError("nothing is not sold")
    return f"{context.session} wants {item}"


@tool(effect="pure")
def sizes(context: ToolContext[object]) -> str:
    """Asks a person."""
    return "size " + context.ask("Which size?").get()


@tool
async def pay(amount: int) -> str:
    """Acts."""
    return f"paid {amount}"


SCRIPT: list[Any] = [
    [use("stock", {"item": "tea"}), use("stock", {"item": "milk"})],
    use("order", {"item": "nothing"}),
    use("order", {"item": "tea"}),
    use("sizes", {}),
    use("pay", {"amount": 3}),
    say("Done."),
]


def agent(*tools: Any, script: list[Any] | None = None, provider: Any = None, **options: Any) -> Agent:
    by_name = {each.name: each for each in (stock, order, sizes, pay, *tools)}
    given = provider or ScriptedProvider(SCRIPT if script is None else script)
    return Agent(config=options.pop("config", CONFIG), provider=given, tools=list(by_name.values()), **options)


@pytest.fixture(scope="module")
def log() -> InMemoryStore:
    """One session of six turns; nothing here changes it."""

    async def talk() -> None:
        async with AgentRuntime(agent(), log=store) as runtime:
            session = await runtime.session("s")
            async for item in session.stream("Go"):
                event = item.event if isinstance(item, RecordedEvent) else None
                if isinstance(event, QuestionAsked):
                    await session.answer(f"{event.call}.{event.number}", "M")

    store = InMemoryStore()
    asyncio.run(talk())
    return store


def changed(name: str, body: Callable[..., Any], **options: Any) -> Any:
    """Return a tool with another body."""
    old = {each.name: each for each in (stock, order, sizes, pay)}[name]
    given: dict[str, Any] = {"effect": old.spec.effect, "tier": old.spec.tier, "description": old.spec.description}
    return tool(name=name, **{**given, **options})(body)


def test_the_same_bodies_give_the_same_results(log: InMemoryStore) -> None:
    report = asyncio.run(replay(log, agent=agent(), level="tools"))
    report.raise_for_divergence()
    came = [(each.tool, each.effect, each.today, each.recorded) for each in report.results]
    assert came == [("order", "pure", 2, 0), ("pay", "once", 0, 1), ("sizes", "pure", 1, 0), ("stock", "pure", 2, 0)]
    assert {each.what: each.compared for each in report.compared}["result"] == 6


async def other_stock(item: str) -> str:
    return f"{item}: {len(item) + (item == 'milk')}"


async def failing(item: str) -> str:
    raise ToolError("closed")


def selling(item: str) -> str:
    return f"s wants {item}" if item == "tea" else "sold"


def asking_more(context: ToolContext[object]) -> str:
    return context.ask("Which size?").get() + context.ask("And which colour?").get()


async def other_pay(amount: int) -> str:
    raise AssertionError("it acts")


async def undecided(item: str) -> DeferredResult:
    return DeferredResult("later")


async def connecting(item: str) -> str:
    with suppress(Exception):
        socket.create_connection(("127.0.0.1", 9))
    return f"{item}: {len(item)}"


def writing(context: ToolContext[object], item: str) -> str:
    Path("ordered").write_text(item)
    return f"{context.session} wants {item}"


async def by_another(item: str) -> str:
    return await stock(item)


def for_ever(context: ToolContext[object]) -> str:
    threading.Event().wait()
    return ""


def ends_process(context: ToolContext[object]) -> str:
    os._exit(3)


SAID = "content[0].text"


@pytest.mark.parametrize(
    ("tools", "differs", "missed"),
    [
        # The first call gives the same; of the session the first other result is told.
        (
            [changed("stock", other_stock), changed("order", selling), changed("pay", other_pay, effect="idempotent")],
            [f'session/s@10: result.{SAID}: "milk: 4" -> "milk: 5"'],
            [],
        ),
        ([changed("stock", failing)], ["session/s@9: result.type: "], []),
        ([changed("order", selling)], ["session/s@14: result.type: "], []),
        (
            [changed("stock", connecting), changed("order", writing), changed("sizes", asking_more)],
            [],
            [
                "it needs something outside: socket.getaddrinfo",
                "it needs something outside: open for writing",
                "it asks something to which the log has no answer at this place",
            ],
        ),
        (
            [changed("stock", by_another), changed("sizes", for_ever)],
            [],
            ["it needs something outside: the tool stock", "it gave no answer within 0.5 seconds"],
        ),
        (
            [changed("stock", undecided), changed("sizes", ends_process)],
            [],
            ["its result came later, from outside", "it ended its process (exit code 3)"],
        ),
    ],
)
def test_a_changed_body_is_found_at_its_first_other_result(
    log: InMemoryStore, tools: list[Any], differs: list[str], missed: list[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    report = asyncio.run(replay(log, agent=agent(*tools), level="tools", answer_s=0.5))
    results = [each for each in report.divergences if each.differs == "result"]
    assert [str(each)[: len(told)] for each, told in zip(results, differs, strict=True)] == differs
    why = [each.why for compared in report.compared for each in compared.not_compared if compared.what == "result"]
    assert [text[: len(told)] for text, told in zip(why, missed, strict=True)] == missed
    assert list(tmp_path.iterdir()) == []
    as_recorded = sum(each.recorded for each in report.results)
    assert as_recorded == 1 + sum(each.times for c in report.compared for each in c.not_compared), "pay is never run"


def test_level_decide_runs_no_body(log: InMemoryStore) -> None:
    report = asyncio.run(replay(log, agent=agent(changed("stock", other_stock), changed("pay", other_pay))))
    report.raise_for_divergence()
    assert report.results == ()


class Shown(Middleware):
    """Changes what a tool gave."""

    def on_tool_result(self, context: Any, result: Any) -> Any:
        return msgspec.structs.replace(result, content=(TextBlock(text=result.content[0].text.upper()),))


def test_hooks_see_what_the_body_gives_today_and_the_recorded_result_of_others() -> None:
    async def talk() -> None:
        async with AgentRuntime(agent(script=SCRIPT[:1] + SCRIPT[-2:], middleware=[Shown()]), log=store) as runtime:
            await (await runtime.session("s")).send("Go")

    store = InMemoryStore()
    asyncio.run(talk())
    same = asyncio.run(replay(store, agent=agent(middleware=[Shown()]), level="tools"))
    assert same.divergence is None
    assert ["middleware changed what the tool gave" in line for line in same.missing()] == [True], "of pay"
    other = asyncio.run(replay(store, agent=agent(changed("stock", other_stock), middleware=[Shown()]), level="tools"))
    assert str(other.divergence) == f'session/s@10: result.{SAID}: "MILK: 4" -> "MILK: 5"'


class Model:
    """A provider that answers by position, and counts; `others` are answers to the n-th requests, from 0."""

    def __init__(self, others: dict[int, Any] | None = None, tokens: int = 1_000_000) -> None:
        self.asked: list[ModelRequest] = []
        self._others = others or {}
        self._tokens = tokens

    async def complete(self, request: ModelRequest) -> ModelResponse:
        place = len(self.asked)
        self.asked.append(request)
        given = self._others.get(place, SCRIPT[place])
        if isinstance(given, BaseException):
            raise given
        response = await ScriptedProvider([given]).complete(request)
        return msgspec.structs.replace(response, usage=Usage(output_tokens=self._tokens))


TWO = [use("stock", {"item": "tea"}), use("stock", {"item": "soy milk"})]
GONE = ProviderError("no route", kind="connection", retryable=True)


@pytest.mark.parametrize(
    ("others", "differs", "missed"),
    [
        ({5: say("Done.\n")}, [], []),
        (
            {0: TWO, 2: say("Sold."), 5: ModelResponse(content=(TextBlock(text="Well."),), stop_reason="max_tokens")},
            [
                'session/s@6: model.arguments.stock.item: "milk" -> "soy milk"',
                'session/s@16: model.calls: ["order"] -> []',
                'session/s@31: model.end: "end_turn" -> "max_tokens"',
            ],
            [],
        ),
        (
            {
                0: GONE,
                1: RuntimeError("oh"),
                2: asyncio.CancelledError(),
                3: ModelResponse(content=3),  # type: ignore[arg-type]
                4: ProviderError("too long", kind="context_too_long"),
                5: say("Well done."),
            },
            [
                'session/s@27: model.failure: (nothing) -> "ProviderError: too long"',
                'session/s@31: model.text: "Done." -> "Well done."',
            ],
            [
                "ProviderError: no route",
                "RuntimeError: oh",
                "the provider let out a CancelledError of its own",
                "ProviderError: the provider gave an answer that cannot be used",
            ],
        ),
    ],
)
async def test_the_model_of_today_is_asked_at_each_place_and_answers_are_told_by_kind(
    log: InMemoryStore, others: dict[int, Any], differs: list[str], missed: list[str]
) -> None:
    model = Model(others)
    report = await replay(log, agent=agent(provider=model), level="model", budget=REQUESTS)
    assert [str(each)[: len(told)] for each, told in zip(report.divergences, differs, strict=True)] == differs
    why = [each.why for compared in report.compared for each in compared.not_compared]
    assert [text[: len(told)] for text, told in zip(why, missed, strict=True)] == missed
    assert len(model.asked) == len(SCRIPT)
    assert [len(request.messages) for request in model.asked] == [1, 3, 5, 7, 9, 11], (
        "each goes on from what is recorded"
    )
    if not differs:
        report.raise_for_divergence()
        assert report.asked is not None
        assert (report.asked.requests, report.asked.cost, report.results) == (6, 6.0, ())


@pytest.mark.parametrize(
    ("summary", "differs"),
    [
        ("Then.", []),
        ("Now.", ['model.summary: "Then." -> "Now."']),
        ("", ['model.failure: (nothing) -> "the summary says nothing"']),
        ("long " * 300, ['model.failure: (nothing) -> "the summary is no shorter than what it is of"']),
        (ProviderError("no", kind="invalid_request"), ['model.failure: (nothing) -> "ProviderError: no"']),
    ],
)
async def test_summaries_are_asked_for_again_of_whom_the_window_names(summary: Any, differs: list[str]) -> None:
    def windowed(summaries: Any, config: AgentConfig = CONFIG) -> Agent:
        answers = ScriptedProvider([say("Well, " * 30), say("So, " * 30), say("Done.")])
        return Agent(config=config, provider=answers, context=Summarising(60, provider=summaries, model="n"))

    store = InMemoryStore()
    async with AgentRuntime(windowed(ScriptedProvider([say("Then.")])), log=store) as runtime:
        for text in ("Go", "And?", "More"):
            await (await runtime.session("s")).send(text)
    today = ScriptedProvider([summary if isinstance(summary, ProviderError) else say(summary)])
    report = await replay(store, agent=windowed(today), level="model", budget=REQUESTS)
    assert [str(each).partition(": ")[2] for each in report.divergences] == differs
    assert [request.model for request in today.requests] == ["n"]
    assert report.missing() == []
    assert (await model_requests(store, agent=windowed(today))).requests == 4
    assert report.asked is not None
    assert report.asked.requests == 4
    with pytest.raises(ConfigError, match="no price for 'n'"):
        await replay(store, agent=windowed(today), level="model", budget=TreeBudget(cost=1))


async def test_a_model_that_never_answers_holds_no_replay(log: InMemoryStore) -> None:
    class Hangs(Model):
        async def complete(self, request: ModelRequest) -> ModelResponse:
            answer = await super().complete(request)
            if len(self.asked) != 2:
                await asyncio.Event().wait()
            return answer

    model = Hangs()
    today = agent(provider=model, config=msgspec.structs.replace(CONFIG, run_timeout_s=0.05))
    report = await replay(log, agent=today, level="model", budget=REQUESTS)
    missed = [missed for each in report.compared if each.what == "model" for missed in each.not_compared]
    assert [(each.times, each.why) for each in missed] == [
        (4, "ProviderError: the model gave no answer within 0.05 seconds"),
        (1, "ProviderError: it is not asked any more: 3 times in a row the model gave no answer within 0.05 seconds"),
    ]
    assert len(model.asked) == 5


async def test_no_request_is_sent_once_the_budget_is_spent(log: InMemoryStore) -> None:
    for budget in (TreeBudget(turns=2), TreeBudget(cost=1.5), TreeBudget(tokens=2_000_000)):
        model = Model()
        report = await replay(log, agent=agent(provider=model), level="model", budget=budget)
        assert (len(model.asked), report.asked is not None and report.asked.requests) == (2, 2)
        assert report.divergence is None
        assert ["model: 4 not compared" in line and "is spent" in line for line in report.missing()] == [True]
        with pytest.raises(DivergenceError, match="not everything was compared"):
            report.raise_for_divergence()


async def test_how_much_would_be_asked_is_known_before(log: InMemoryStore) -> None:
    found = await model_requests(log, agent=agent())
    assert (found.requests, found.sessions, found.unpriced) == (6, 1, 0)
    assert await model_requests(log, agent=agent(), session="s") == found
    other = msgspec.structs.replace(CONFIG, model="x")
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"level": "model"}, "asks models, which costs; give budget="),
        ({"level": "decide", "budget": REQUESTS}, "asks no model; leave budget out"),
        ({"level": "live", "budget": TreeBudget(cost=1), "agent": agent(config=other)}, "no price for 'x'"),
        ({"level": "tools", "agent": None}, "needs the agent"),
    ]
    for options, words in refusals:
        with pytest.raises(ConfigError, match=words):
            await replay(log, **{"agent": agent(), **options})


async def test_a_changed_agent_is_asked_with_its_own_request_and_differences_can_be_meant(log: InMemoryStore) -> None:
    model = Model({5: say("Finished.")})
    polite = msgspec.structs.replace(CONFIG, system_prompt="Be polite.")
    meant = MeantDifferences(ignored=("request", "model.text", "pending"))
    changed_agent = agent(changed("stock", other_stock), provider=model, config=polite)
    report = await replay(log, agent=changed_agent, level="live", budget=REQUESTS, meant=meant, jobs=2)
    assert {request.system_prompt for request in model.asked} == {"Be polite."}
    assert [each.differs for each in report.divergences] == ["result"]
    assert "model.text" in {each.path for each in report.accepted}


class Acting(Middleware):
    """Tries to act on what comes of a model, and before it is asked."""

    def on_pre_llm(self, context: Any, request: ModelRequest) -> None:
        Path("before").write_text("")

    def on_post_llm(self, context: Any, response: ModelResponse) -> None:
        Path("after").write_text("")


async def test_the_provider_alone_reaches_the_network_and_hooks_and_tools_act_at_no_level(
    log: InMemoryStore, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    before = os.listdir(tmp_path)
    async with served(*[json_answer({"text": "Well."})] * 6) as (server, provider):
        tools = changed("stock", connecting), changed("order", writing), changed("pay", other_pay)
        asked = await replay(log, agent=agent(*tools, provider=provider), level="live", budget=REQUESTS)
        assert len(server.requests) == 6
        assert [each.differs for each in asked.divergences if each.differs == "model"] == ["model"] * 2
        acting = agent(provider=provider, middleware=[Acting()])
        refused = await replay(log, agent=acting, level="live", budget=REQUESTS)
        assert len(server.requests) == 6, "a request that could not be made is not sent"
    assert {each.what for each in refused.tried} == {"open for writing"}
    assert any("the request could not be made again" in line for line in refused.missing())
    assert os.listdir(tmp_path) == before == []
