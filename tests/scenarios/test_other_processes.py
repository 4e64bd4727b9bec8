"""What other processes ask through the inbox, clients that ask once only, and actors that fail, in scenarios."""

import pytest

from refold import Agent, AgentConfig, RetryPolicy, ScriptedProvider
from refold.events.core.errors import ConfigError
from refold.scenarios import Answer, Call, Decide, Post, Say, Scenario, SimulationReport, Simulator, faults
from refold.scenarios.faults import AnyFault
from refold.scenarios.plan.scenario import AnyAct
from tests.scenarios.rehearsed import look, played, send


def asked(*acts: AnyAct, calls: str = "", planned: tuple[AnyFault, ...] = ()) -> SimulationReport:
    """Return what came of acts; the model calls a tool first, if one is named."""
    first = (Answer(calls=(Call(calls, {"to": "Anna"}),)),) if calls else (Answer(text="Hello."),)
    teller = Agent(
        config=AgentConfig(model="m", retry=RetryPolicy()), provider=ScriptedProvider([]), tools=[look, send]
    )
    report = Simulator(teller).run(Scenario(acts=acts, script=first, faults=planned))
    report.raise_if_broken()
    return report


def test_an_input_of_another_process_becomes_a_run_whatever_becomes_of_the_runtime() -> None:
    crashes = (faults.CrashAtAppend(nth=2), faults.CrashAtAppend(nth=5, committed=True), faults.Crash(at_s=1.5))
    for planned in ((), *((crash,) for crash in crashes), crashes):
        report = asked(Post(session="a"), Post(session="a", at_s=1.0), planned=planned)
        assert report.outcomes == ("Done", "Done")
        assert report.event_kinds["session.run_completed.v1"] == 2


def test_another_process_decides_cancels_and_sets_aside() -> None:
    say, person = Say(session="a"), Decide(session="b")
    allowed = asked(say, person, Post(session="a", at_s=20.0, asks="allow"), calls="send")
    assert (allowed.outcomes[0], allowed.outcomes[2]) == ("Completed", "Done")
    denied = asked(say, person, Post(session="a", at_s=20.0, asks="deny"), calls="send")
    assert denied.event_kinds["session.tool_call_failed.v1"] == 1
    cancelled = asked(say, person, Post(session="a", at_s=20.0, asks="cancel"), calls="send")
    assert (cancelled.outcomes[0], cancelled.outcomes[2]) == ("Cancelled", "Done")
    aside = asked(say, Post(session="a", at_s=20.0, asks="set_aside"), Post(session="b", asks="deny"))
    assert aside.outcomes == ("Completed", "Done", "nothing to ask")
    with pytest.raises(ConfigError, match="asks is one of"):
        Post(session="a", asks="sing")  # type: ignore[arg-type]


def test_a_client_that_asks_once_only_is_not_told_and_its_run_ends() -> None:
    for planned in (faults.AppendFails(nth=3, committed=True), faults.CrashAtAppend(nth=3, committed=True)):
        report = asked(Say(session="a", insists=False), planned=(planned,))
        assert report.outcomes == ("not told",)
        assert report.event_kinds["session.run_completed.v1"] == 1


def test_an_actor_may_fail_before_any_reply() -> None:
    undisturbed = played()
    for nth in range(1, undisturbed.operations["reply"] + 1, 3):
        report = played(faults.ActorFails(nth=nth))
        assert report.happened == (faults.ActorFails(nth=nth),)
        assert report.outcomes == undisturbed.outcomes


def test_calls_that_share_an_index_on_the_wire_are_two() -> None:
    for wire in ("openai", "anthropic"):
        report = played(faults.CallsShareIndex(nth=1), wire=wire)
        assert report.happened == (faults.CallsShareIndex(nth=1),)
