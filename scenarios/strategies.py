"""Hypothesis strategies for scenarios, and the search for the smallest one that breaks a promise.

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

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from refold.agent import Agent
from refold.scenarios import faults
from refold.scenarios.faults import AnyFault
from refold.scenarios.scenario import Abandon, AnyAct, Cancel, Say, Scenario, WireName
from refold.scenarios.simulator import SimulationReport, Simulator

BUSY_S = 40
"""Within so many virtual seconds everything is said."""


def moments() -> st.SearchStrategy[float]:
    """Virtual seconds, simplest first: whole ones from 0, within the busy time."""
    return st.integers(0, BUSY_S * 2).map(lambda halves: halves / 2)


def acts(sessions: int = 3) -> st.SearchStrategy[AnyAct]:
    """What somebody says or cancels in one of `sessions` sessions."""
    names = st.integers(0, sessions - 1).map(lambda number: f"s{number}")
    return st.one_of(
        st.builds(Say, session=names, at_s=moments(), text=st.sampled_from(["hello", "go on", "pay 3"])),
        st.builds(Cancel, session=names, at_s=moments()),
        st.builds(Abandon, session=names, at_s=moments(), after_s=st.sampled_from([1.0, 0.1, 10.0])),
    )


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
        st.builds(faults.ToolHangs, nth=nth),
        st.builds(faults.ToolReturnsGarbage, nth=nth),
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
        st.builds(faults.Crash, at_s=moments()),
        st.builds(faults.Close, at_s=moments()),
        st.builds(faults.ClockJumps, at_s=moments(), seconds=st.sampled_from([5.0, -5.0, 86_400.0, -86_400.0])),
    )


def message_faults() -> st.SearchStrategy[AnyFault]:
    """What comes twice or late."""
    return st.one_of(
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
        st.builds(faults.CallsShareId, nth=request),
        st.builds(faults.ChunkIsLate, nth=chunk, seconds=st.sampled_from([60.0, 400.0])),
        st.builds(faults.ChunkIsLost, nth=chunk),
        st.builds(faults.NetworkSplit, at_s=moments(), seconds=st.sampled_from([20.0, 1.0, 500.0])),
    )


def any_fault(wire: WireName = "none") -> st.SearchStrategy[AnyFault]:
    """Any fault of any kind that can happen where the model is reached so."""
    common = (process_faults(), store_faults(), tool_faults(), provider_faults(), message_faults())
    return st.one_of(*common) if wire == "none" else st.one_of(*common, network_faults())


def deviations() -> st.SearchStrategy[dict[int, int]]:
    """A few places where a ready task is overtaken; see `SparseSchedule`."""
    return st.dictionaries(st.integers(0, 800), st.integers(1, 4), max_size=4)


def scenarios(
    *, sessions: int = 3, acts_max: int = 8, faults_max: int = 5, wire: WireName = "none"
) -> st.SearchStrategy[Scenario]:
    """Whole scenarios.

    Args:
        sessions: how many sessions are spoken to, >= 1.
        acts_max: most acts, >= 1.
        faults_max: most faults, >= 0.
        wire: how the model is reached.
    """
    return st.builds(
        Scenario,
        acts=st.lists(acts(sessions), min_size=1, max_size=acts_max).map(tuple),
        faults=st.lists(any_fault(wire), max_size=faults_max).map(tuple),
        seed=st.integers(0, 1_000),
        deviations=deviations(),
        wire=st.just(wire),
    )


def smallest_broken(
    agent: Agent, among: st.SearchStrategy[Scenario] | None = None, *, examples_max: int = 200
) -> SimulationReport | None:
    """Return the report of the smallest scenario that is found to break a promise with an agent, or None.

    The same search gives the same scenario in every process.

    Args:
        agent: what is rehearsed.
        among: the scenarios that are tried; None = all kinds.
        examples_max: how many are tried before one that breaks a promise is found, >= 1.
    """
    simulator = Simulator(agent)
    try:
        scenario = find(
            among if among is not None else scenarios(),
            lambda scenario: bool(simulator.run(scenario).broken),
            settings=settings(
                max_examples=examples_max,
                derandomize=True,
                database=None,
                deadline=None,
                phases=(Phase.generate, Phase.shrink),
                suppress_health_check=(HealthCheck.too_slow,),
            ),
        )
    except NoSuchExample:
        return None
    return simulator.run(scenario)
