"""Hypothesis strategies for scenarios.

    from hypothesis import given
    from refold.scenarios import Simulator, strategies

    @given(strategies.scenarios())
    def test_my_agent(scenario):
        Simulator(agent).run(scenario).raise_if_broken()

What is drawn is the plan and not each choice in it: who says what and when, which faults there are, and the few places
where the order of ready tasks is not the fair one. So an example costs little to draw, and shrinking it leaves the
acts, the faults and the overtakings without which the promise holds. It needs hypothesis, which the extra `rehearsal`
installs.
"""

from collections.abc import Sequence
from typing import get_args

import msgspec

from refold.agents.agent import AnyAgent
from refold.events.core.errors import needed_by
from refold.events.model.configuration import AgentConfig, RetryPolicy
from refold.events.model.spending import Budget
from refold.scenarios import faults
from refold.scenarios.faults import AnyFault, CountedFault
from refold.scenarios.plan.agent_plan import AgentPlan, Behaviour, Kind, PolicyKind, ToolPlan
from refold.scenarios.plan.scenario import (
    Abandon,
    Answer,
    AnyAct,
    Call,
    Cancel,
    Clear,
    Post,
    PostWord,
    Say,
    Scenario,
    StoreName,
    Watch,
    WireName,
)
from refold.tools.tool import Tool

with needed_by("rehearsals", extra="rehearsal"):
    from hypothesis import strategies as st

BUSY_S = 40
"""Within so many virtual seconds everything is said."""


def moments() -> st.SearchStrategy[float]:
    """Virtual seconds, simplest first: whole ones from 0, within the busy time."""
    return st.integers(0, BUSY_S * 2).map(lambda halves: halves / 2)


def acts(sessions: int = 3) -> st.SearchStrategy[AnyAct]:
    """An input or a cancellation in one of `sessions` sessions."""
    names = st.integers(0, sessions - 1).map(lambda number: f"s{number}")
    return st.one_of(
        st.builds(Say, session=names, at_s=moments(), text=inputs(), times=st.sampled_from([1, 1, 1, 5_000])),
        st.builds(Cancel, session=names, at_s=moments()),
        st.builds(Abandon, session=names, at_s=moments(), after_s=st.sampled_from([1.0, 0.1, 10.0])),
        st.builds(Clear, session=names, at_s=moments()),
        st.builds(Watch, session=names, at_s=moments(), pause_s=st.sampled_from([1.0, 20.0])),
        st.builds(Post, session=names, at_s=moments(), asks=st.sampled_from(get_args(PostWord))),
    )


def inputs() -> st.SearchStrategy[str]:
    """What people say: plain things first, then any text, also none, which is refused."""
    return st.one_of(
        st.sampled_from(["hello", "go on", "pay 3", "\u202e\0 \U0001f469\u200d\U0001f680", ""]), st.text(max_size=9)
    )


def scripts(tools: Sequence[str] = ()) -> st.SearchStrategy[tuple[Answer, ...]]:
    """Answers of a model, in order; see `Scenario.script`.

    Args:
        tools: names that are called, beside one that there is not.
    """
    scalars = st.one_of(st.integers(-3, 3), st.text(max_size=3), st.booleans(), st.none(), st.floats(0, 1))
    arguments = st.dictionaries(st.sampled_from(["p0", "p1", "p2", "other"]), scalars | st.lists(scalars, max_size=2))
    calls = st.builds(Call, st.sampled_from([*tools, "no_such_tool"]), arguments)
    answers = st.builds(
        Answer, text=st.sampled_from(["", "Let me see.", "word " * 200]), calls=st.lists(calls, max_size=3).map(tuple)
    )
    return st.lists(answers, max_size=6).map(tuple)


def tool_plans(name: str = "tool_a") -> st.SearchStrategy[ToolPlan]:
    """Tools as data, of one name: any signature, effect, tier and behaviour."""
    return st.builds(
        ToolPlan,
        name=st.just(name),
        parameters=st.lists(st.sampled_from(get_args(Kind)), max_size=3).map(tuple),
        tier=st.sampled_from(["act", "observe", "confirm"]),
        effect=st.sampled_from(["once", "idempotent", "pure"]),
        behaviour=st.sampled_from(get_args(Behaviour)),
        plain=st.booleans(),
        attempts=st.sampled_from([1, 1, 3]),
    )


def tools(name: str = "tool_a") -> st.SearchStrategy[Tool[..., object]]:
    """Tools of one name."""
    return tool_plans(name).map(ToolPlan.built)


def configurations() -> st.SearchStrategy[AgentConfig]:
    """Configurations of agents: streaming or not, with retries, budgets and limits or without."""
    return st.builds(
        AgentConfig,
        model=st.just("m"),
        streaming=st.booleans(),
        max_turns=st.sampled_from([20, 2, 1]),
        retry=st.sampled_from([None, RetryPolicy(), RetryPolicy(attempts_max=2, base_s=20.0, jitter=0.0)]),
        budget=st.sampled_from([None, None, Budget(tokens=300), Budget(tool_calls=3)]),
        run_timeout_s=st.sampled_from([None, None, 30.0]),
        approval_expiry_s=st.sampled_from([None, None, 10.0]),
        error_recovery=st.sampled_from(["stop", "retry"]),
        resumes_max=st.sampled_from([3, 0]),
    )


def agent_plans(tools_max: int = 3) -> st.SearchStrategy[AgentPlan]:
    """Agents as data, of up to `tools_max` tools."""
    names = [f"tool_{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"[:tools_max]]
    return st.builds(
        AgentPlan,
        tools=st.integers(0, tools_max).flatmap(lambda size: st.tuples(*map(tool_plans, names[:size]))),
        config=configurations(),
        policy=st.sampled_from(get_args(PolicyKind)),
        offers_all=st.sampled_from([True, True, False]),
    )


def agents(tools_max: int = 3) -> st.SearchStrategy[AnyAgent]:
    """Agents to be simulated: `@given(strategies.agents(), strategies.scenarios())`."""
    return agent_plans(tools_max).map(AgentPlan.built)


def provider_faults() -> st.SearchStrategy[AnyFault]:
    """What goes wrong with model calls."""
    nth = st.integers(1, 20)
    return st.one_of(
        st.builds(
            faults.ProviderRefuses,
            nth=nth,
            kind=st.sampled_from(["connection", "rate_limit", "overloaded", "server", "timeout", "auth"]),
            retryable=st.booleans(),
        ),
        st.builds(faults.ProviderDrops, nth=nth),
        st.builds(faults.ProviderStalls, nth=nth, seconds=st.sampled_from([5.0, 100.0, 900.0])),
        st.builds(faults.ProviderBabbles, nth=nth),
    )


def tool_faults() -> st.SearchStrategy[AnyFault]:
    """What goes wrong with tools' bodies."""
    nth = st.integers(1, 15)
    return st.one_of(
        st.builds(faults.ToolRaises, nth=nth),
        st.builds(faults.ToolIsSlow, nth=nth, seconds=st.sampled_from([10.0, 100.0, 300.0])),
        st.builds(faults.ToolHangs, nth=nth, seconds=st.sampled_from([3_600.0, 8.0])),
        st.builds(faults.ToolReturnsGarbage, nth=nth),
        st.builds(faults.ToolReturnsHuge, nth=nth, characters=st.just(200_000)),
        st.builds(faults.ToolReturnsOddText, nth=nth),
    )


def store_faults() -> st.SearchStrategy[AnyFault]:
    """What goes wrong with the log."""
    nth = st.integers(1, 60)
    return st.one_of(
        st.builds(faults.AppendFails, nth=nth, committed=st.booleans(), appends=st.sampled_from([1, 2, 10])),
        st.builds(faults.AppendIsSlow, nth=nth, seconds=st.sampled_from([0.5, 5.0, 20.0])),
        st.builds(faults.ReadFails, nth=nth),
    )


def process_faults() -> st.SearchStrategy[AnyFault]:
    """How the process ends, and what the clock does to it."""
    return st.one_of(
        st.builds(faults.CrashAtAppend, nth=st.integers(1, 60), committed=st.booleans()),
        st.builds(faults.CrashAtStep, nth=st.integers(1, 1_500)),
        st.builds(faults.CrashInTool, nth=st.integers(1, 15)),
        st.builds(faults.ActorFails, nth=st.integers(1, 30)),
        st.builds(faults.Crash, at_s=moments()),
        st.builds(faults.Close, at_s=moments()),
        st.builds(faults.ClockJumps, at_s=moments(), seconds=st.sampled_from([5.0, -5.0, 86_400.0, -86_400.0])),
        st.builds(faults.SecondRuntime, at_s=moments()),
        st.builds(faults.SessionFails, at_s=moments(), session=st.sampled_from(["s0", "s1", "s2"])),
    )


def lasting_faults() -> st.SearchStrategy[AnyFault]:
    """What goes wrong for a while."""
    times = {"at_s": moments(), "for_s": st.sampled_from([5.0, 60.0])}
    return st.one_of(
        st.builds(faults.ProviderBrownOut, share=st.sampled_from([1.0, 0.5]), **times),
        st.builds(faults.DiskIsFull, **times),
        st.builds(faults.LogIsGone, committed=st.booleans(), reads_only=st.booleans(), **times),
    )


def message_faults() -> st.SearchStrategy[AnyFault]:
    """What comes twice or late, or at any step."""
    names = st.integers(0, 2).map(lambda number: f"s{number}")
    return st.one_of(
        st.builds(faults.CancelAtStep, nth=st.integers(1, 1_500), session=names),
        st.builds(faults.DuplicateReply, nth=st.integers(1, 40), after_s=st.sampled_from([0.0, 10.0, 120.0])),
        st.builds(faults.LateReply, nth=st.integers(1, 40), seconds=st.sampled_from([10.0, 2.0, 60.0, 300.0])),
        st.builds(faults.DuplicateInput, nth=st.integers(1, 8), after_s=st.sampled_from([0.0, 20.0, 400.0])),
    )


def network_faults() -> st.SearchStrategy[AnyFault]:
    """What goes wrong with a network, in scenarios that have one."""
    connection, request, chunk = st.integers(1, 8), st.integers(1, 20), st.integers(1, 300)
    return st.one_of(
        st.builds(faults.HostRefuses, nth=connection),
        st.builds(faults.HostIsSilent, nth=connection),
        st.builds(faults.HostIsFull, nth=request, retry_after_s=st.sampled_from([None, 0, 60])),
        st.builds(faults.HostFails, nth=request, status=st.sampled_from([503, 500, 502, 529]), page=st.booleans()),
        st.builds(faults.ResponseStalls, nth=request, seconds=st.sampled_from([30.0, 400.0]), begun=st.booleans()),
        st.builds(faults.ResponseBreaks, nth=request, reset=st.booleans(), begun=st.booleans()),
        st.builds(faults.ResponseDrips, nth=request),
        st.builds(faults.ResponseIsNoText, nth=request),
        st.builds(faults.ResponseIsNoJson, nth=request),
        st.builds(faults.ResponseHasNoEnd, nth=request, marker_only=st.booleans()),
        st.builds(faults.ResponseIsHuge, nth=request),
        st.builds(faults.ArgumentsAreCut, nth=request),
        st.builds(faults.CallsShareIndex, nth=request),
        st.builds(faults.CallsShareId, nth=request),
        st.builds(faults.ChunkIsLate, nth=chunk, seconds=st.sampled_from([60.0, 400.0])),
        st.builds(faults.ChunkIsLost, nth=chunk),
        st.builds(faults.NetworkSplit, at_s=moments(), seconds=st.sampled_from([20.0, 1.0, 500.0])),
    )


def disk_faults() -> st.SearchStrategy[AnyFault]:
    """What goes wrong with the disk under a log in an SQLite file."""
    nth = st.integers(1, 400)
    return st.one_of(
        st.builds(faults.PowerCut, nth=nth, damage=st.sampled_from(get_args(faults.Damage))),
        st.builds(
            faults.DiskError, nth=nth, kind=st.sampled_from(["EIO", "ENOSPC"]), operations=st.sampled_from([1, 3, 30])
        ),
    )


def any_fault(wire: WireName = "none", store: StoreName = "memory") -> st.SearchStrategy[AnyFault]:
    """Any fault of any kind that can happen where the model is reached so and the log is there.

    Of a log in a file, every second one is a fault of its disk.
    """
    if store != "memory":
        return st.booleans().flatmap(lambda of_disk: disk_faults() if of_disk else any_fault(wire))
    common = (process_faults(), store_faults(), tool_faults(), provider_faults(), lasting_faults(), message_faults())
    return st.one_of(*common) if wire == "none" else st.one_of(*common, network_faults())


def counted_faults(nth_max: int) -> st.SearchStrategy[AnyFault]:
    """Those that count, at one of the first `nth_max` operations of their kind."""

    def sooner(fault: AnyFault) -> AnyFault:
        assert isinstance(fault, CountedFault)
        return msgspec.structs.replace(fault, nth=1 + (fault.nth - 1) % nth_max)

    every = st.one_of(process_faults(), store_faults(), tool_faults(), provider_faults())
    return every.filter(lambda fault: isinstance(fault, CountedFault)).map(sooner)


def deviations() -> st.SearchStrategy[dict[int, int]]:
    """A few places where a ready task is overtaken; see `SparseSchedule`."""
    return st.dictionaries(st.integers(0, 800), st.integers(1, 4), max_size=4)


def scenarios(
    *,
    sessions: int = 3,
    acts_max: int = 8,
    faults_max: int = 5,
    script: st.SearchStrategy[tuple[Answer, ...]] | None = None,
    store: StoreName = "memory",
    wire: WireName = "none",
) -> st.SearchStrategy[Scenario]:
    """Whole scenarios.

    Args:
        script: what the model answers, such as `scripts(["pay"])`; None = what is drawn from the scenario's seed.
        sessions: how many sessions are spoken to, >= 1.
        acts_max: most acts, >= 1.
        faults_max: most faults, >= 0.
        store: where the log is.
        wire: how the model is reached.
    """
    return st.builds(
        Scenario,
        acts=st.lists(acts(sessions), min_size=1, max_size=acts_max).map(tuple),
        faults=st.lists(any_fault(wire, store), max_size=faults_max).map(tuple),
        script=st.just(()) if script is None else script,
        seed=st.integers(0, 1_000),
        deviations=deviations(),
        store=st.just(store),
        wire=st.just(wire),
    )
