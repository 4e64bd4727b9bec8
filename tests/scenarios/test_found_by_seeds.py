"""Scenarios that once broke a promise, as small as they became; each names what was wrong."""

import pytest

from refold.scenarios import Abandon, Cancel, Say, Scenario, Simulator, faults, with_stand_ins
from refold.scenarios.plan.scenario import Answer, Call
from tests.planted_faults.sweep import rehearsed_agent
from tests.scenarios.rehearsed import parent

FOUND = {
    "an input that the log takes after its caller has gone is cancelled": Scenario(
        acts=(
            *(Say(session="s2", at_s=at_s) for at_s in (2.0, 2.4, 3.0, 36.0)),
            *(Say(session="s0", at_s=at_s) for at_s in (4.0, 5.0, 30.0)),
            Cancel(session="s0", at_s=21.0),
            Say(session="s1", at_s=37.0),
            Abandon(session="s2", at_s=38.0),
        ),
        faults=(faults.AppendIsSlow(nth=43, seconds=20.0), faults.ToolHangs(nth=10)),
        seed=13,
        deviations={},
    ),
    "a call that waits for its tool's limit does not begin where another runtime has the log": Scenario(
        acts=(Say(session="s0", at_s=3.0), Abandon(session="s1", at_s=3.7, after_s=5.49), Say(session="s2", at_s=4.0)),
        faults=(faults.SecondRuntime(at_s=31.0), faults.ToolHangs(nth=6), faults.AppendIsSlow(nth=13)),
        seed=131,
        deviations={},
    ),
    "a body of the run before is none of the run that its end began": Scenario(
        acts=(Say(session="s0"), Say(session="s0"), Cancel(session="s0", at_s=4.0), Cancel(session="s0", at_s=7.0)),
        faults=(faults.ToolHangs(nth=1),),
        deviations={},
    ),
    "a session that failed too often goes on when the process starts again": Scenario(
        acts=tuple(Say(session="s0", at_s=float(second)) for second in range(9)),
        faults=tuple(faults.ActorFails(nth=nth) for nth in range(1, 8)),
    ),
    "what a model said to an earlier process overtakes the answer to this one": Scenario(
        acts=(Say(session="s0"),),
        script=(Answer(calls=(Call(tool="look", input={"city": "Lisbon"}),)),),
        faults=(
            faults.LateReply(nth=1, seconds=20.0),
            faults.Crash(at_s=6.0),
            faults.ProviderStalls(nth=2, seconds=60.0),
        ),
    ),
    "what an append that failed left in the log is told of by the next instance of the session's actor": Scenario(
        acts=(Say(session="s0"), Say(session="s0", at_s=1), Say(session="s1", insists=False, at_s=0.5)),
        faults=(
            faults.LogIsGone(at_s=2, for_s=3, committed=True),
            faults.SessionFails(at_s=2.5, session="s0"),
            faults.SessionFails(at_s=4.5, session="s0"),
        ),
    ),
    "a body that was given up when its time was over has no grace when its run is cancelled later": Scenario(
        acts=(Say(session="s0"), Cancel(session="s0", at_s=124.0)),
        script=(Answer(calls=(Call(tool="look", input={"city": "Lisbon"}),)),),
        faults=(faults.ToolHangs(nth=1, seconds=3600.0), faults.ProviderStalls(nth=2, seconds=60.0)),
        deviations={},
    ),
}


@pytest.mark.parametrize("what", FOUND)
def test_what_a_seed_has_found_is_mended(what: str) -> None:
    report = Simulator(rehearsed_agent(streaming=False)).run(FOUND[what])
    report.raise_if_broken()
    assert set(report.happened) == set(FOUND[what].faults)


def test_a_caller_does_not_wait_longer_than_the_grace_for_a_subagent_whose_log_is_slow() -> None:
    scenario = Scenario(
        acts=(Say(session="a"), Cancel(session="a", at_s=8.0)),
        script=(Answer(calls=(Call(tool="child", input={"task": "tell"}),)),),
        faults=(faults.ProviderStalls(nth=2, seconds=60.0), faults.AppendIsSlow(nth=8, seconds=20.0)),
        deviations={},
    )
    report = Simulator(with_stand_ins(parent)).run(scenario)
    report.raise_if_broken()
    assert set(report.happened) == set(scenario.faults)
