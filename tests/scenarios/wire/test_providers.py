"""Scenarios whose models are reached over a network, by the providers of the product."""

from pathlib import Path

import pytest

from refold.scenarios import Say, Scenario, Simulator, faults
from refold.scenarios.faults import AnyFault
from refold.scenarios.report import SimulationReport
from refold.scenarios.wire.messages import Wire
from tests.planted_faults.faults import search
from tests.scenarios import rehearsed
from tests.scenarios.rehearsed import agent

WIRES: tuple[Wire, ...] = ("openai", "anthropic")


def played(wire: Wire, *planned: AnyFault, streaming: bool = True, seed: int = 1) -> SimulationReport:
    acts = (Say(session="a"), Say(session="b", at_s=1.0), Say(session="a", at_s=5.0))
    report = rehearsed.played(*planned, acts=acts, streaming=streaming, seed=seed, wire=wire)
    assert report.happened == planned
    return report


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("wire", WIRES)
def test_over_a_network_the_same_is_said_as_without_one(wire: Wire, streaming: bool) -> None:
    report = played(wire, streaming=streaming)
    acts = report.scenario.acts
    direct = Simulator(agent(streaming=streaming)).run(Scenario(acts=acts, seed=1))
    direct.raise_if_broken()
    assert report.outcomes == direct.outcomes
    assert report.operations["model"] == report.operations["request"] == direct.operations["model"]
    assert {"SECRET", "TYPED"} <= set(report.exercised)
    assert not {"SECRET", "TYPED"} & set(direct.exercised)


ENDURED: list[AnyFault] = [
    faults.HostRefuses(nth=1),
    faults.HostIsSilent(nth=1),
    faults.HostIsFull(nth=1),
    faults.HostFails(nth=1),
    faults.HostFails(nth=1, status=502, page=True),
    faults.ResponseStalls(nth=1),
    faults.ResponseBreaks(nth=1),
    faults.ResponseBreaks(nth=1, reset=False),
    faults.ResponseIsNoText(nth=1),
    faults.ResponseIsNoJson(nth=1),
    faults.ResponseHasNoEnd(nth=1),
    faults.ChunkIsLost(nth=2),
    faults.NetworkSplit(at_s=0.0, seconds=15.0),
    faults.ProviderRefuses(nth=1, kind="rate_limit", retry_after_s=2.0),
    faults.ProviderDrops(nth=1),
    # Only slow or odd:
    faults.ResponseDrips(nth=1),
    faults.ArgumentsAreCut(nth=1),
    faults.CallsShareId(nth=1),
    faults.ChunkIsLate(nth=2),
    faults.ProviderStalls(nth=1, seconds=100),
    faults.ProviderBabbles(nth=1),
    faults.NetworkSplit(at_s=2.0, seconds=3.0),
]
"""After these a request is made again, or has its answer."""

IN_VAIN: list[AnyFault] = [faults.ResponseIsHuge(nth=1), faults.ProviderRefuses(nth=1, kind="auth", retryable=False)]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("fault", [*ENDURED, *IN_VAIN], ids=repr)
def test_a_failed_request_is_made_again_but_for_what_would_fail_again(fault: AnyFault, wire: Wire) -> None:
    failed = ["Failed"] if fault in IN_VAIN else []
    assert sorted(played(wire, fault).outcomes) == ["Completed"] * (3 - len(failed)) + failed


def test_a_crash_takes_the_connections_with_it() -> None:
    for at_s in (0.1, 0.9, 2.2):
        report = played("openai", faults.Crash(at_s=at_s))
        assert report.lives == 2


SEARCH = """
from refold.scenarios import drawn_scenario, Simulator
from tests.scenarios.rehearsed import agent
for seed in range(40):
    for wire in ("openai", "anthropic"):
        report = Simulator(agent()).run(drawn_scenario(seed, wire=wire, faults_max=14))
        if report.broken:
            print(report.broken[0].rule)
            raise SystemExit
print("none")
"""

PLANTED = [
    ("an answer that was cut is taken for whole", "EVIDENCE"),
    ("connections outlive their process", "INV7"),
    ("a key gets into the log", "SECRET"),
    ("results are not sent", "INV0"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "rule"), PLANTED)
def test_a_planted_fault_of_a_provider_is_found(tmp_path: Path, fault: str, rule: str) -> None:
    done = search(tmp_path, SEARCH, faults=[fault])
    assert done.stdout.split() == [rule]
