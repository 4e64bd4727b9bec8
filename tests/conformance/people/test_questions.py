"""A tool asks and waits for days, or leaves its result for later: nothing of it stays in memory, and nothing is lost.

A body that asks ends there; with the answer it runs again from its beginning, in this runtime or the next one.
"""

import asyncio
import dataclasses
import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from typer.testing import CliRunner

import refold
from refold.commands.cli import app
from refold.events.core.content import CANCELLED_TEXT, CRASHED_TEXT
from refold.events.session.events import QuestionAsked
from refold.events.session.evolve_calls import NOT_ANSWERED_TEXT
from refold.stores import InMemoryStore
from tests.conformance.cases import Case, Play, Step, as_tests, play_case, played
from tests.conformance.sessions import opened
from tests.conformance.steps import (
    advance,
    begin,
    begun,
    cancel,
    check,
    crash_and_restart,
    does,
    ends,
    let_go,
    ran,
    refused,
    restart,
    resume,
    send,
    step,
    until,
)

Name = Literal["Ann", "Bob"]


class Address(msgspec.Struct):
    street: str
    number: Annotated[int, msgspec.Meta(ge=1)] = 1


@dataclasses.dataclass
class Parcel:
    weight: float


@step
async def answer(play: Play, /, question: int | str, value: Any = None, **options: Any) -> None:
    """Answer what was asked so many questions before, from 0; or what is named."""
    if isinstance(question, int):
        event = (await play.events(QuestionAsked))[question]
        question = f"{event.call}.{event.number}"
    await play.session.answer(question, value, **play.keyed(options))


def asked(count: int = 1) -> Step:
    return until("QuestionAsked", count)


def tools(play: Play) -> list[Any]:
    note = play.bench.note

    @refold.tool(tier="observe", effect="pure")
    async def deliver(context: refold.ToolContext[Any], what: str = "it") -> str:
        """Deliver."""
        note(f"begun {what}")
        address = await context.ask(f"Where does {what} go?", type=Address)
        return note(f"{what} goes to {address.street} {address.number}")

    @refold.tool(tier="act", effect="pure")
    async def wrap(context: refold.ToolContext[Any]) -> str:
        """Wrap, as a person wants it."""
        colour = await context.ask("Which colour?", type=Literal["red", "blue"])
        note("wrapping")
        try:
            name = await context.ask("For whom?", type=Name, expires_s=3_600)
        except refold.NoAnswer as error:
            name = f"nobody ({error.expired})"
        return note(f"{colour} for {name}")

    @refold.tool(tier="observe", effect="pure")
    def weigh(context: refold.ToolContext[Any]) -> str:
        """Weigh, in a thread."""
        return f"{context.ask('How heavy?', type=Parcel).get().weight} kg"

    @refold.tool(tier="observe", effect="pure")
    async def gather(context: refold.ToolContext[Any]) -> str:
        """Ask two things at once."""
        found = await asyncio.gather(context.ask("First?"), context.ask("Second?"), return_exceptions=True)
        return " and ".join(map(str, found))

    @refold.tool(tier="confirm")
    async def insist(context: refold.ToolContext[Any], name: str) -> str:
        """Ask, wait and ask again; a call that was allowed."""
        await context.ask("Sure?", type=bool)
        await play.bench.parked(name)
        return await context.ask("Really?")

    @refold.tool(tier="observe", retries=refold.RetryPolicy(attempts_max=3, jitter=0), effect="pure")
    async def flaky(context: refold.ToolContext[Any]) -> str:
        """Fail once, behind its question."""
        word = await context.ask("Which word?")
        note("tried")
        if play.bench.done.count("tried") == 1:
            raise refold.ToolError("lost", kind="transient")
        return word

    @refold.tool(tier="observe", effect="pure", timeout_s=5)
    async def order(context: refold.ToolContext[Any], wait_s: float | None = None) -> refold.DeferredResult:
        """Order, which takes days."""
        note(context.call)
        return refold.DeferredResult("the parcel", type=Address | str, expires_s=wait_s)

    @refold.tool(tier="observe", effect="pure")
    async def stubborn(context: refold.ToolContext[Any]) -> str:
        """Go on without the answer."""
        try:
            return await context.ask("Well?")
        except asyncio.CancelledError:
            return "never mind"

    @refold.tool(tier="observe", effect="pure")
    async def strange(context: refold.ToolContext[Any], kind: str) -> str:
        """Ask for what cannot be."""
        kinds: dict[str, dict[str, Any]] = {"type": {"type": object()}, "time": {"expires_s": 0}}
        return str(await context.ask("What?", **kinds[kind]))

    return [deliver, wrap, weigh, gather, insist, flaky, order, stubborn, strange]


def use(*names: str, **arguments: Any) -> list[Any]:
    return [refold.use(name, arguments) for name in names]


async def questions(play: Play) -> list[tuple[str, str, str]]:
    found = await play.session.questions()
    for each in found:
        each.answer_schema.clear()  # It is the caller's own.
    return [(each.id, each.tool, each.question) for each in found]


async def count_of_questions(play: Play) -> int:
    return len(await play.session.questions())


async def status(play: Play) -> str:
    return (await play.runtime.list_sessions())[0].status


HOME = {"street": "Main St", "number": 5}
NOWHERE = {"street": "Main St", "number": 0}
WHERE = [("call_6_0.1", "deliver", "Where does it go?")]


asking = partial(Case, tools=tools)

ASKED = {
    "a question waits over restarts and crashes, and the body runs again with its answer": asking(
        [use("deliver"), refold.say("done")],
        [
            [begin("go", key="k"), asked(), check(questions, WHERE), check(status, "waiting")],
            [restart(), check(questions, WHERE), crash_and_restart(), check(status, "waiting")],
            [answer("call_6_0.1", HOME), send("go", "done", key="k"), check(questions, [])],
        ],
        results=["it goes to Main St 5"],
        count={"QuestionAsked": 1, "RunResumed": 0, "ToolCallStarted": 2},
        done=["begun it", "begun it", "it goes to Main St 5"],
    ),
    "a question of a parked run is answered before the run is resumed": asking(
        [[*use("deliver"), refold.use("park", {"name": "b"})], refold.say("done")],
        [
            [begin("go", key="k"), asked(), begun(1), crash_and_restart(), until("RunParked"), check(questions, WHERE)],
            [answer("call_6_0.1", HOME), check(questions, []), check(status, "parked"), restart()],
            [check(status, "parked"), resume(), let_go(), send("go", "done", key="k")],
        ],
        config={"resumes_max": 0},
        results=["it goes to Main St 5", "b returned"],
    ),
    "a call may ask several questions": asking(
        [use("wrap"), refold.say("done")],
        [
            [begin(), asked(), answer(0, "red", key="colour"), asked(2)],
            [answer(1, "Ann", key="name"), ends("done")],
        ],
        results=["red for Ann"],
    ),
    "two calls ask beside each other, and each goes on with its own answer": asking(
        [[refold.use("deliver", {"what": each}) for each in "ab"], refold.say("done")],
        [
            [begin(), asked(2), answer(1, {"street": "B"}), answer(0, {"street": "A"})],
            ends("done"),
        ],
        results=["a goes to A 1", "b goes to B 1"],
    ),
    "calls of acting tools behind one that asks wait for its answer": asking(
        [use("wrap", "wrap"), refold.say("done")],
        [
            [begin(), asked(), check(count_of_questions, 1)],
            [answer(0, "red"), asked(2), answer(1, "Ann"), asked(3)],
            [answer(2, "blue"), asked(4), answer(3, "Bob"), ends("done")],
        ],
        results=["red for Ann", "blue for Bob"],
    ),
    "a plain tool asks in its thread": asking(
        [use("weigh"), refold.say("done")],
        [begin(), asked(), answer(0, Parcel(2)), ends("done")],
        results=["2.0 kg"],
    ),
    "questions that are asked at once are asked one after another": asking(
        [use("gather"), refold.say("done")],
        [begin(), asked(), answer(0, "1"), asked(2), answer(1, "2"), ends("done")],
        results=["1 and 2"],
    ),
    "an answer that does not fit is refused with the schema, and nothing is lost": asking(
        [use("deliver"), refold.say("done")],
        [
            [begin(), asked(), check(questions, WHERE)],
            [refused("waits on.*street.*Its schema: {", answer("call_6_0.1", {"number": 5}))],
            [
                refused("waits on, since", answer("call_6_0", given))
                for given in ("x", 5, {"street": 5}, [HOME], NOWHERE)
            ],
            [refused("answer", answer("call_6_0", given)) for given in (object(), float("nan"), "x" * 300_000)],
            refused("not both", answer("call_6_0", HOME, error="no")),
            [
                refused("does not wait", answer(name, HOME))
                for name in ("call_6_0.2", "call_6_1", "", "\ud83d", "x" * 9_999)
            ],
            [check(questions, WHERE), answer("call_6_0.1", Address("Main St")), ends("done")],
            refused("does not wait for an answer; it was answered", answer("call_6_0.1", HOME)),
        ],
        results=["it goes to Main St 1"],
        crashes=False,
    ),
    "an answer with a key is one, and another one with it is refused": asking(
        [use("deliver"), refold.say("done")],
        [
            [begin(), asked(), *[answer("call_6_0.1", HOME, key="k")] * 2, ends("done")],
            *[
                answer("call_6_0.1", HOME, key="k"),
                refused("'k' was used before", answer("call_6_0.1", {"street": "Other"}, key="k")),
                restart(),
            ]
            * 2,
        ],
        count={"QuestionAnswered": 1},
        results=["it goes to Main St 5"],
    ),
    "an answer that is given again while the call waits for another one is the one that was given": asking(
        [use("wrap"), refold.say("done")],
        [
            [begin(), asked(), answer("call_6_0", "red", key="k"), asked(2)],
            [answer("call_6_0", "red", key="k"), answer("call_6_0", "Ann"), ends("done")],
        ],
        results=["red for Ann"],
        crashes=False,
    ),
    "of two who answer at once one wins": asking(
        [use("deliver"), refold.say("done")],
        [begin(), asked(), does(lambda play: answer_twice(play)), ends("done")],
        count={"QuestionAnswered": 1},
        results=["it goes to A 1"],
        crashes=False,
    ),
    "a person may say that there is no answer": asking(
        [use("deliver"), use("wrap"), refold.say("done")],
        [
            [begin(), asked(), answer("call_6_0.1", error="I do not know."), asked(2)],
            [answer("call_13_0.1", "red"), asked(3), answer("call_13_0", error=""), ends("done")],
        ],
        results=["I do not know.", "red for nobody (False)"],
        kinds=["permanent", None],
        crashes=False,
    ),
    "a run that waits for an answer is cancelled": asking(
        [use("deliver"), refold.say("after")],
        [begin(), asked(), cancel(), ends(refold.Cancelled()), send("more", "after"), check(questions, [])],
        results=[CANCELLED_TEXT],
    ),
    "a call that was allowed asks without another approval, and a crash behind its question is one of its body": asking(
        [use("insist", name="a"), refold.say("done")],
        [
            [begin("go", key="k"), until("ToolApprovalRequested"), does(lambda play: allow(play)), asked()],
            [crash_and_restart(), answer("call_6_0.1", value=True), ran(1), crash_and_restart()],
            [until("ToolApprovalRequested", 2), does(lambda play: allow(play)), let_go("a"), asked(2)],
            [answer("call_6_0.2", "yes"), send("go", "done", key="k")],
        ],
        results=["yes"],
        count={"QuestionAnswered": 2, "ToolApprovalRequested": 2},
    ),
    "a crash behind the answer of a tool that runs once leaves its outcome unknown": asking(
        [use("once_more"), refold.say("done")],
        [
            [begin("go", key="k"), asked(), answer("call_6_0.1", "x"), begun(1), crash_and_restart()],
            send("go", "done", key="k"),
        ],
        tools=lambda play: [*tools(play), once_more(play)],
        results=[CRASHED_TEXT],
    ),
    "another attempt has the answers of the one before": asking(
        [use("flaky"), refold.say("done")],
        [begin(), asked(), answer("call_6_0.1", "word"), until("RetryScheduled"), advance(120), ends("done")],
        clock=True,
        results=["word"],
        count={"QuestionAsked": 1, "ToolCallStarted": 3},
    ),
    "neither the tool's silence nor the run's time goes on while a question waits, and its own does": asking(
        [use("wrap"), refold.say("done")],
        [
            [begin(), asked(), advance(90_000), check(status, "waiting"), answer("call_6_0.1", "red"), asked(2)],
            [advance(3_599), check(status, "waiting"), advance(2), ends("done")],
        ],
        config={"run_timeout_s": 60},
        clock=True,
        results=["red for nobody (True)"],
    ),
    "the time of a question passes while no runtime is there": asking(
        [use("wrap"), refold.say("done")],
        [
            [begin("go", key="k"), asked(), answer("call_6_0.1", "red"), asked(2), restart(after_s=3_600)],
            send("go", "done", key="k"),
        ],
        clock=True,
        results=["red for nobody (True)"],
    ),
    "a body that swallows its end goes on without the answer": asking(
        [use("stubborn"), refold.say("done")],
        [send("go", "done")],
        results=["never mind"],
        count={"QuestionAsked": 0},
    ),
    "a question of no type, or without time, fails its call": asking(
        [[refold.use("strange", {"kind": kind}) for kind in ("type", "time")], refold.say("done")],
        [send("go", "done")],
        kinds=["permanent", "permanent"],
        count={"QuestionAsked": 0},
    ),
    "a secret in an answer is recorded as redacted, and the tool gets what is recorded": asking(
        [use("deliver"), refold.say("done")],
        [begin(), asked(), answer(0, {"street": "hunter2-hunter2"}), ends("done")],
        options={"redact": ["hunter2-hunter2"]},
        results=["it goes to [redacted] 1"],
    ),
    "a question of a tool that nobody needs is no work of a turn": asking(
        [use("look"), refold.say("done")],
        [send("go", "done")],
        events=[
            *("SessionOpened", "AgentConfigured", "InputQueued", "RunStarted", "ModelRequested", "ModelResponded"),
            *("ToolCallStarted", "ToolCallCompleted", "ModelRequested", "ModelResponded", "RunCompleted"),
        ],
    ),
}

DEFERRED = {
    **{
        f"a result comes later, as {type(value).__name__}": asking(
            [use("order"), refold.say("done")],
            [
                [begin("go", key="k"), asked(), check(questions, [("call_6_0.1", "order", "the parcel")])],
                [restart(), check(status, "waiting"), crash_and_restart()],
                [answer("call_6_0", value), send("go", "done", key="k")],
            ],
            results=[result],
            count={"ToolCallStarted": 1, "ToolCallCompleted": 1},
            done=["call_6_0"],
        )
        for value, result in (("it is here", "it is here"), (Address("Main St"), '{"street":"Main St","number":1}'))
    },
    "a result that does not fit is refused, and one that failed is an error": asking(
        [use("order"), refold.say("done")],
        [
            [begin(), asked(), refused("waits on", answer("call_6_0", 5))],
            [answer("call_6_0", error="lost at sea", key="k"), answer("call_6_0", error="lost at sea", key="k")],
            [ends("done"), refused("does not wait", answer("call_6_0", "late"))],
        ],
        results=["lost at sea"],
        kinds=["permanent"],
        crashes=False,
    ),
    "a result that does not come in time is a timeout, also where no runtime is there": asking(
        [use("order", wait_s=60), refold.say("done"), use("order", wait_s=60), refold.say("again")],
        [
            [begin("go", key="k"), asked(), advance(59), check(status, "waiting"), advance(2), ends("done")],
            [begin("more", key="l"), asked(2), restart(after_s=60), send("more", "again", key="l")],
        ],
        clock=True,
        results=[NOT_ANSWERED_TEXT] * 2,
        kinds=["timeout"] * 2,
    ),
}


def once_more(play: Play) -> Any:
    @refold.tool(tier="observe", effect="once")
    async def once_more(context: refold.ToolContext[Any]) -> str:
        """Ask, then work for long."""
        await context.ask("Which?")
        return await play.bench.parked("once more")

    return once_more


async def answer_twice(play: Play) -> None:
    outcomes = await asyncio.gather(
        *(play.session.answer("call_6_0.1", {"street": each}) for each in "AB"), return_exceptions=True
    )
    assert outcomes[0] is None
    assert isinstance(outcomes[1], refold.CommandRejected)


async def allow(play: Play) -> None:
    for waiting in await play.session.approvals():
        await play.session.decide(waiting, allow=True)


CASES = {**ASKED, **DEFERRED}

test_questions, test_questions_with_a_crash_after_each_commit = as_tests(CASES, clock=False)


@pytest.mark.parametrize("case", played(CASES, clock=True))
async def test_questions_in_time(case: Case, memory: InMemoryStore) -> None:
    await play_case(case, memory)


# From other processes, and of subagents


@refold.tool(tier="observe", effect="pure")
async def parcel(context: refold.ToolContext[Any]) -> refold.DeferredResult:
    """Ask, then leave the result for later."""
    return refold.DeferredResult(f"for {await context.ask('For whom?')}", type=int)


def parcels(log: Path, *script: Any) -> refold.AgentRuntime[Any]:
    provider = refold.ScriptedProvider(list(script) or [refold.use("parcel", {}), refold.say("done")])
    return refold.AgentRuntime(refold.AgentConfig(model="m"), provider=provider, tools=[parcel], log=log)


def refold_command(*words: object) -> Any:
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_threads_of_other_processes_answer_through_a_connection(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    with parcels(log), refold.connect(log) as connection:
        session = connection.session("s")
        waiting = session.send("go")
        assert isinstance(waiting, refold.Unfinished)
        assert waiting.why == "run_3 waits for an answer to call_6_0"
        [question] = connection.questions()
        assert session.questions() == [question]
        assert session.approvals() == connection.approvals() == []
        with pytest.raises(refold.CommandRejected, match=r'call_6_0.1 waits on.*Its schema: {"type":"string"}'):
            session.answer(question, 5)
        assert session.answer(question, "Ann", key="k")
        assert session.answer(question, "Ann", key="k")
        assert isinstance(session.send("go", key=waiting.key), refold.Unfinished)
        [later] = session.questions()
        assert (later.question, later.id, later.answer_schema) == ("for Ann", "call_6_0.2", {"type": "integer"})
        assert session.answer("call_6_0", 7)
        result = session.send("go", key=waiting.key)
        assert isinstance(result, refold.RunResult)
        assert result.text == "done"


@pytest.mark.parametrize(
    ("answer", "given"),
    [
        (refold.DeferredResult(), "VALUE"),
        (refold.DeferredResult(type=Literal["red", "green"]), "VALUE"),
        (refold.DeferredResult(type=Literal[1, 2]), "--value JSON"),
        (refold.DeferredResult(type=str | None), "--value JSON"),
    ],
)
def test_an_answer_that_may_be_text_is_asked_for_as_text(
    answer: refold.DeferredResult, given: str, tmp_path: Path
) -> None:
    @refold.tool
    def paint() -> refold.DeferredResult:
        return answer

    agent = refold.Agent(
        config=refold.AgentConfig(model="m"), provider=refold.ScriptedProvider([refold.use("paint")]), tools=[paint]
    )
    with refold.AgentRuntime(agent, log=tmp_path / "events.db") as runtime:
        runtime.session("s").submit("go")
        while not runtime.session("s").questions():
            pass
    assert f"  refold answer {tmp_path / 'events.db'} s call_6_0.1 {given}\n" in (
        refold_command("approve", tmp_path / "events.db").stdout
    )


def test_the_command_lists_and_answers_where_no_runtime_owns_the_log(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    with parcels(log) as runtime:
        runtime.session("s").submit("go", key="k")
        while not runtime.session("s").questions():
            pass
    listed = refold_command("approve", log).stdout
    assert listed.splitlines() == [
        "s: parcel() asks: For whom?",
        f"  refold answer {log} s call_6_0.1 VALUE",
        '  # an answer that fits {"type":"string"}',
    ]
    assert "waits for an answer to For whom?" in refold_command("show", log, "s").stdout
    for words in ([], ["Ann", "--error", "no"], ["Ann", "--value", "1"], ["--value", "{"]):
        assert refold_command("answer", log, "s", "call_6_0.1", *words).exit_code == 2
    wrong = refold_command("answer", log, "s", "call_6_0.1", "--value", "5")
    assert (wrong.exit_code, "does not fit" in wrong.stderr) == (1, True)
    assert "it waits in the inbox" in refold_command("answer", log, "s", "call_6_0.1", "Ann").stdout
    [waiting] = json.loads(refold_command("approve", log, "--json").stdout)["waiting"]
    assert (waiting["id"], waiting["question"], waiting["decided"]) == ("call_6_0.1", "For whom?", True)
    with parcels(log) as runtime:
        while [question.number for question in runtime.session("s").questions()] != [2]:
            pass
    assert f"  refold answer {log} s call_6_0.2 --value JSON\n" in refold_command("approve", log).stdout
    assert refold_command("answer", log, "s", "call_6_0", "--value", "7").exit_code == 0
    assert refold_command("answer", log, "s", "call_6_0", "--value", "7").exit_code == 1
    with parcels(log, refold.say("done")) as runtime:
        assert runtime.session("s").send("go", key="k").text == "done"
    assert refold_command("check", log).exit_code == 0
    assert refold_command("replay", log).exit_code == 0


async def test_a_tool_of_a_subagent_asks_and_its_parents_session_answers(memory: InMemoryStore) -> None:
    helper = refold.Agent(
        config=refold.AgentConfig(model="m"),
        provider=refold.ScriptedProvider([refold.use("parcel", {}), refold.say("sent")]),
        tools=[parcel],
        name="helper",
    )
    script = refold.use("helper", {"task": "send it"}), refold.say("done")
    async with opened(memory, *script, tools=[helper.as_tool()]) as (_, session):
        run = await session.submit("go")
        for answer_given in ("Ann", 7):
            while not (found := await session.questions()):  # noqa: ASYNC110 - It is asked soon.
                await asyncio.sleep(0)
            assert found[0].session != session.id
            assert await session.questions(below=False) == []
            await session.answer(found[0], answer_given)
        assert (await run.result()).text == "done"
