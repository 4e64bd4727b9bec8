"""Any object may be given where a name, a number or a time belongs: the error says so, though it cannot show itself."""

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest

import refold
from refold import Agent, AgentConfig, AgentRuntime, RefoldError, ScriptedProvider, say
from refold.memory import EpisodicStore, GraphStore, SemanticStore, WorkingMemory
from refold.providers import HttpLimits, HttpTimeouts
from refold.resilience import BackpressureGuard, CircuitBreaker, Deduplicator


class NotShown(Exception):
    """What must not be seen outside of the value that raises it."""


class Mute:
    def __repr__(self) -> str:
        raise NotShown

    __str__ = __repr__


class MuteNumber(int):
    __repr__ = Mute.__repr__
    __str__ = Mute.__repr__


SHAPES: list[Any] = [
    Mute(),
    Mute,
    [Mute()],
    {Mute()},
    {"a": Mute()},
    {Mute(): 1},
    MuteNumber(-5),
    10**400,
    10**5_000,  # Python writes no integer of so many digits.
    -(10**5_000),
    float("nan"),
]


def parameters_of(function: Callable[..., object]) -> list[str]:
    names: list[str] = []
    for one in inspect.signature(function).parameters.values():
        if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD):
            names.append(one.name)
        elif one.kind is one.VAR_KEYWORD:  # `**options: Unpack[Options]`
            names += [
                name
                for options in get_args(one.annotation)
                for name in (get_origin(options) or options).__annotations__
            ]
    return names


async def give(function: Callable[..., Any], parameter: str, others: dict[str, Any]) -> int:
    """Give each shape as one argument, and return how many are refused: by errors of ours, or of Python for a type."""
    refused = 0
    for shape in SHAPES:
        try:
            answer = function(**{**others, parameter: shape})
            if inspect.isawaitable(answer):
                await answer
            elif inspect.isasyncgen(answer):
                await anext(answer, None)
        except (RefoldError, TypeError, AttributeError):
            refused += 1
    return refused


def plain() -> str:
    """Answer nothing."""
    return ""


MADE: list[tuple[Callable[..., object], dict[str, Any]]] = [
    (Agent, {"config": AgentConfig(model="m"), "provider": ScriptedProvider([])}),
    (AgentRuntime, {"config": AgentConfig(model="m"), "provider": ScriptedProvider([])}),
    (AgentConfig, {"model": "m"}),
    (refold.RetryPolicy, {}),
    (refold.Budget, {}),
    (refold.TreeBudget, {}),
    (refold.Price, {"input": 1, "output": 1}),
    (refold.TokenWindow, {"max_tokens": 1}),
    (refold.Summarising, {}),
    (refold.DecayPolicy, {}),
    (refold.RecallPolicy, {}),
    (EpisodicStore, {}),
    (SemanticStore, {}),
    (GraphStore, {}),
    (WorkingMemory, {"capacity": 1}),
    (HttpTimeouts, {}),
    (HttpLimits, {}),
    (BackpressureGuard, {"capacity": 1}),
    (CircuitBreaker, {"name": "b"}),
    (Deduplicator, {"name": "d"}),
    (refold.connect, {"log": "events.db"}),
    (partial(refold.tool, plain), {}),
]


@pytest.mark.parametrize(("make", "others"), MADE, ids=lambda each: getattr(each, "__name__", ""))
async def test_a_setting_that_cannot_show_itself_is_refused_as_any_other(
    make: Callable[..., object], others: dict[str, Any]
) -> None:
    assert sum([await give(make, name, others) for name in parameters_of(make)])


METHODS = [
    *("session.send", "session.submit", "session.remind", "session.next_turn", "session.import_history"),
    *("session.events", "session.state_at", "session.take_back", "session.set_aside"),
    *("session.rewind", "session.fork", "session.follow", "session.run", "session.decide", "session.answer"),
    *("session.describe", "session.cancel", "run.stream"),
    *("runtime.session", "runtime.run", "runtime.sessions", "runtime.list_sessions", "runtime.follow"),
    *("runtime.delete", "runtime.delete_user"),
    *("connected.send", "connected.submit", "connected.fork", "connected.answer", "connected.decide"),
    *("connected.events", "connected.run"),
    *("episodes.add_episode", "episodes.add_episodes", "episodes.recall", "episodes.of", "episodes.by_importance"),
    *("facts.put", "facts.put_many", "facts.get", "facts.remove", "facts.similar", "facts.at"),
    *("working.set", "working.get", "working.remove"),
    *("graph.add_entity", "graph.add_relationship", "graph.add_many", "graph.neighbours", "graph.shortest_path"),
    *("graph.get", "graph.bfs", "graph.subgraph", "graph.remove_entity"),
]
OTHERS: dict[str, Any] = {
    "content": "hi",
    "session_id": "t",
    "run_id": "s/run_3",
    "question": "call_1.1",
    "call": "call_1",
    "value": "v",
    "agent": "a",
    "key": "k",
    "query": "q",
    "name": "n",
    "entity": "e",
    "source": "a",
    "target": "b",
    "kind": "is",
    "allow": False,
    "messages": [],
    "version": 1,
    "at": 1,
    "user": "u",
    "items": [],
    "episodes": [],
}


@pytest.mark.parametrize("method", METHODS)
async def test_an_argument_that_cannot_show_itself_is_refused_as_any_other(method: str, tmp_path: Path) -> None:
    episodes, facts, working, graph = EpisodicStore(), SemanticStore(), WorkingMemory(9), GraphStore()
    agent = Agent(
        config=AgentConfig(model="m"),
        provider=ScriptedProvider([say("ok")] * 99),
        memory=episodes,
        semantic=facts,
        working_memory=working,
        graph=graph,
    )
    log = tmp_path / "events.db"
    async with AgentRuntime(agent, log=log) as runtime:
        session = await runtime.session("s")
        await session.send("begin")
        run = await session.submit("more")
        await run.result()
        connected = refold.connect(log).session("s")
        here, _, called = method.partition(".")
        function = getattr(locals()[here], called)
        required = [
            one.name
            for one in inspect.signature(function).parameters.values()
            if one.default is one.empty and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        ]
        others = {one: OTHERS.get(one, "x") for one in required}
        assert sum([await give(function, name, others) for name in parameters_of(function)])
