"""People who answer what tools ask, and who change the arguments of calls that they allow, in scenarios."""

from collections import Counter
from typing import Any

import msgspec
import pytest

from refold import Agent, AgentConfig, DeferredResult, RetryPolicy, ScriptedProvider, ToolContext, tool
from refold.events.core.errors import ConfigError
from refold.scenarios import (
    Answer,
    Call,
    Decide,
    Post,
    Respond,
    Say,
    Scenario,
    SimulationReport,
    Simulator,
    drawn_scenario,
    faults,
)
from refold.scenarios.faults import AnyFault
from refold.scenarios.monitors.results import ResultsMonitor
from refold.scenarios.plan.scenario import AnyAct, StoreName
from tests.scenarios.rehearsed import send


class Address(msgspec.Struct):
    street: str
    number: int


@tool(tier="observe", effect="pure")
async def deliver(context: ToolContext[Any]) -> str:
    """Deliver."""
    address = await context.ask("Where to?", type=Address)
    return f"to {address.street}, {await context.ask('Which floor?', type=int)}"


@tool
async def order(context: ToolContext[Any], what: str) -> str:
    """Order."""
    return f"{what} for {await context.ask('Who?', type=str)}"


@tool(tier="observe", effect="pure")
async def weigh() -> DeferredResult:
    """Weigh."""
    return DeferredResult("the weight", float)


def clerk() -> Agent:
    config = AgentConfig(model="m", retry=RetryPolicy(), max_turns=8)
    return Agent(config=config, provider=ScriptedProvider([]), tools=[deliver, order, weigh, send])


def played(*acts: AnyAct, calls: tuple[Call, ...], planned: tuple[AnyFault, ...] = ()) -> SimulationReport:
    script = (Answer(calls=calls), Answer(text="Done."))
    report = Simulator(clerk).run(Scenario(acts=acts, script=script, faults=planned))
    report.raise_if_broken()
    return report


def counted(report: SimulationReport) -> tuple[int, int, int]:
    """Return how often a call asked, was answered, and ended well."""
    kinds = report.event_kinds
    names = ("question_asked", "question_answered", "tool_call_completed")
    asked, answered, completed = (kinds.get(f"session.{name}.v1", 0) for name in names)
    return asked, answered, completed


ALL_ASK = (Call("deliver"), Call("order", {"what": "tea"}), Call("weigh"))

CRASHES = (faults.Crash(at_s=15.0), faults.CrashAtAppend(nth=7), faults.CrashAtAppend(nth=8, committed=True))


@pytest.mark.parametrize("planned", [(), *((crash,) for crash in CRASHES), CRASHES])
def test_what_is_asked_is_answered_whatever_becomes_of_the_process(planned: tuple[AnyFault, ...]) -> None:
    report = played(Say(session="a"), calls=ALL_ASK, planned=planned)
    asked, answered, _ = counted(report)
    assert (report.outcomes, asked) == (("Completed",), answered)


@pytest.mark.parametrize(("how", "completed", "answered"), [("fits", 3, 4), ("misfits", 3, 4), ("error", 0, 3)])
def test_an_act_answers_what_is_asked_by_then(how: Any, completed: int, answered: int) -> None:
    acts = [Respond(session="a", at_s=20.0 * number, how=how) for number in range(1, 5)]
    report = played(Say(session="a"), *acts, calls=ALL_ASK)
    assert report.outcomes == ("Completed", *["done"] * 4)
    assert counted(report) == (answered, answered, completed)


def test_another_process_answers_through_the_inbox() -> None:
    person = Respond(session="b")
    posts = [Post(session="a", at_s=at_s, asks="answer") for at_s in (20.0, 40.0)]
    report = played(Say(session="a"), person, *posts, calls=(Call("deliver"),))
    assert report.outcomes == ("Completed", "done", "Done", "Done")
    assert counted(report) == (2, 2, 1)


def test_a_call_runs_with_the_arguments_that_a_person_gave_it() -> None:
    call = Call("send", {"to": "Anna"})
    report = played(Say(session="a"), Decide(session="a", at_s=20.0, edit=True), calls=(call,))
    assert report.outcomes == ("Completed", "done")
    assert "APPROVAL" in report.exercised


def test_an_answer_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="how is one of"):
        Respond(session="a", how="shout")  # type: ignore[arg-type]


def swept(seeds: range, store: StoreName = "memory") -> Counter[str]:
    """Return which promises were exercised how often over seeds, all of which hold."""
    simulator, exercised = Simulator(clerk), Counter[str]()
    for seed in seeds:
        report = simulator.run(drawn_scenario(seed, store=store))
        report.raise_if_broken()
        asked, answered, _ = counted(report)
        exercised.update(report.exercised)
        exercised.update(asked=asked, answered=answered)
        exercised.update(meeting.situation for meeting in report.met)
    return exercised


def test_promises_hold_where_people_answer_and_change_arguments() -> None:
    exercised = swept(range(6))
    assert exercised["asked"] >= exercised["answered"] > 10
    assert {"awaiting answer", "APPROVAL", "EVIDENCE", "ONCE", "EFFECTS", "LIVENESS"} <= exercised.keys()


@pytest.mark.slow
def test_promises_hold_over_many_seeds_where_people_answer_and_change_arguments() -> None:
    assert swept(range(100, 115))["answered"] > 20
    swept(range(2), "sqlite")


@pytest.mark.parametrize(
    ("forgets", "rule", "calls"),
    [("gives", "EVIDENCE", (Call("weigh"),)), ("decided", "APPROVAL", (Call("send", {"to": "Anna"}),))],
)
def test_an_answer_and_arguments_that_nobody_gave_are_found(
    monkeypatch: pytest.MonkeyPatch, forgets: str, rule: str, calls: tuple[Call, ...]
) -> None:
    monkeypatch.setattr(ResultsMonitor, forgets, lambda *_, **__: None)
    acts = (Say(session="a"), Decide(session="a", at_s=20.0, edit=True))
    report = Simulator(clerk).run(Scenario(acts=acts, script=(Answer(calls=calls),)))
    assert [broken.rule for broken in report.broken] == [rule]
