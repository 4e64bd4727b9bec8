"""Policies judge each call before a person approves it, and an offer says which tools a model is shown.

What they say is recorded: a log that they made replays without them. A policy that breaks, or a runner that does,
breaks calls and never a session; what becomes of the run then is the agent's `error_recovery`.
"""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from refold import (
    AgentConfig,
    AgentRuntime,
    Allow,
    Ask,
    Cancelled,
    ConfigError,
    Deny,
    ProposedCall,
    RunId,
    ScriptedProvider,
    SessionId,
    say,
    tool,
    use,
)
from refold.actors.calls.middleware import ResultLost
from refold.events.session.events import ModelResponded, ToolApprovalRequested, ToolCallFailed
from refold.events.session.react import BROKEN_TEXT
from refold.stores import EventStore
from tests.conformance.cases import Case, Fails, Play, Step, as_tests
from tests.conformance.people.approval_desk import handled
from tests.conformance.sessions import events_of, requests_of, runtime_of
from tests.conformance.steps import begin, cancel, check, decide, does, ends, recorded, restart, send

LOOK = use("look", {"at": "1"})


def looks(*places: str) -> list[Any]:
    return [use("look", {"at": place}) for place in places]


def judged_by(judge: Callable[[Any], Any], **options: Any) -> Callable[[Play], dict[str, Any]]:
    """Options with a policy, which notes what it is asked about as `judged`."""

    def made(play: Play) -> dict[str, Any]:
        def policy(call: ProposedCall) -> Any:
            play.kept.setdefault("judged", []).append(call)
            return judge(call)

        return {"policy": policy, **options}

    return made


def kinds_of_calls(play: Play) -> list[tuple[str, str, str]]:
    return [(call.tool, call.tier, call.effect) for call in play.kept["judged"][3:]]


def judged(play: Play) -> list[tuple[str, Any]]:
    return [(call.tool, call.input) for call in play.kept["judged"]]


FIRST = ProposedCall(
    session=SessionId("s"), run=RunId("run_3"), turn=1, tool="look", input={"at": "1"}, tier="observe", effect="pure"
)


# What a policy says


def of_kind(kind: str) -> Callable[[Play], dict[str, Any]]:
    """Options with a policy of a kind, that gives each decision there is, and with a handler."""
    says = {"1": Allow(), "2": Deny("not two"), "3": None, "4": Ask("three?")}

    def options(play: Play) -> dict[str, Any]:
        judge = judged_by(lambda call: says.get(call.input.get("at"), Allow(always=True)))(play)["policy"]

        class Office:
            async def __call__(self, call: ProposedCall) -> Any:
                await asyncio.sleep(0)
                return judge(call)

        policies = {"plain": judge, "async": Office().__call__, "an object": Office()}
        return {"policy": policies[kind], **handled(lambda _, request: Deny(f"asked: {request.reason}"))(play)}

    return options


def thinking(answer: Any = None) -> Callable[[Play], dict[str, Any]]:
    """Options with a policy that thinks until it is cancelled; it says something then, or is cancelled."""

    def options(play: Play) -> dict[str, Any]:
        async def policy(call: ProposedCall) -> Any:
            play.kept["thinking"] = True
            play.changed.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                play.kept["gone"] = True
                if answer is None:
                    raise
                return answer

        return {"policy": policy}

    return options


async def policy_thinks(play: Play) -> None:
    async def found() -> bool:
        return "thinking" in play.kept

    await play.until(found)


def change(call: ProposedCall) -> None:
    assert call.input == {"amount": 7}
    call.input["amount"] = 99
    call.input.clear()


JUDGED = {
    **{
        f"a policy judges each call of an answer in order; it is {kind}": Case(
            [[*looks("1", "2", "3", "4"), use("pay", {"amount": 5})], say("done")],
            [
                [send("go", "done"), check(lambda play: play.kept["judged"][0], FIRST)],
                check(kinds_of_calls, [("look", "observe", "pure"), ("pay", "confirm", "pure")]),
            ],
            options=of_kind(kind),
            results=["saw 1", "not two", "saw 3", "asked: three?", "asked: "],
            kinds=[None, "denied", None, "denied", "denied"],
            done=["saw 1", "saw 3"],
        )
        for kind in ("plain", "async", "an object")
    },
    "a policy comes before approval": Case(
        [[use("pay", {"amount": n}) for n in (1, 2)], say("done")],
        [begin(), decide(True), ends("done"), recorded(ToolApprovalRequested, "input", {"amount": 1})],
        options={"policy": lambda call: Deny("never") if call.input["amount"] == 2 else None},
        results=["paid 1", "never"],
    ),
    "a policy is asked only about calls that could run": Case(
        [[use("nothing"), use("park", {"name": 5}), use("look", "no json"), LOOK], say("done")],
        [send("go", "done"), check(judged, [("look", {"at": "1"})])],
        options=judged_by(lambda call: None),
        kinds=["not_found", "invalid_arguments", "invalid_arguments", None],
    ),
    "a policy sees the arguments that would run, after repair, and cannot change them": Case(
        [use("pay", {"amount": 7.0}), say("done")],
        [begin(), decide(True), ends("done"), recorded(ToolApprovalRequested, "input", {"amount": 7})],
        options=judged_by(change),
        done=["paid 7"],
    ),
    "reasons of a policy are kept within bounds": Case(
        [looks("1", "2"), say("done")],
        [send("go", "done")],
        options={"policy": lambda call: Deny("no " * 1_000_000 if call.input["at"] == "1" else "")},
        results=[("no " * 10_000)[:10_000], "Denied: the call was not run."],
    ),
    "a run is cancelled while its policy thinks, and of the answer nothing is kept": Case(
        [LOOK, say("after")],
        [
            [begin(), does(policy_thinks), cancel(), ends(Cancelled()), send("more", "after")],
            check(lambda play: play.kept["gone"], True),
        ],
        options=thinking(),
        history=["user: go", "user: more", "assistant: after"],
        done=[],
    ),
    "a policy that swallows its cancellation lets no call run": Case(
        [LOOK, say("after")],
        [begin(), does(policy_thinks), cancel(), ends(Cancelled()), send("more", "after")],
        options=thinking(Allow()),
        done=[],
    ),
    "closing while a policy thinks leaves the call to be made again": Case(
        [LOOK, say("done")],
        [begin("go", key="k"), does(policy_thinks), restart(policy=None), send("go", "done", key="k")],
        options=thinking(),
        done=["saw 1"],
    ),
}


# A policy that breaks, and a runner that does


def raising(error: BaseException) -> Callable[[ProposedCall], Any]:
    def policy(call: ProposedCall) -> Any:
        raise error

    return policy


BREAKAGES: dict[str, Callable[..., Any]] = {
    "gives True": lambda call: True,
    "gives a text": lambda call: "allow",
    "gives a class": lambda call: Allow,
    "takes too little": lambda: Allow(),
    **{
        f"raises {type(error).__name__}": raising(error)
        for error in (RuntimeError("boom"), asyncio.CancelledError(), SystemExit(3), GeneratorExit())
    },
}


def breaking(policy: Callable[..., Any], later: bool) -> dict[str, Any]:
    """Options with a policy that breaks on the first look of the first run; `later` makes it asynchronous."""

    def plain(call: ProposedCall) -> Any:
        return policy(call) if call.run == "run_3" and call.input == {"at": "1"} else Allow()

    async def asynchronous(call: ProposedCall) -> Any:
        return plain(call)

    return {"policy": asynchronous if later else plain}


def odd(call: ProposedCall) -> None:
    if call.input["at"] == "1":
        raise RuntimeError("odd")


def unnamed(play: Play) -> list[Any]:
    """Tools whose actions have no name."""

    def named(path: str) -> Any:
        if path == "raises":
            raise RuntimeError(f"no {object()}")
        return {"none": object(), "blank": " "}[path]

    async def action() -> str:
        return "an action"

    def later() -> Any:
        return action()

    @tool(tier="confirm", action=named)
    async def remove(path: str) -> str:
        play.bench.done.append(path)
        return path

    @tool(tier="confirm", action=later)
    async def wipe() -> str:
        play.bench.done.append("all")
        return "all"

    return [remove, wipe]


async def verdicts(play: Play) -> list[str]:
    (responded, _) = await play.events(ModelResponded)
    return [f"{verdict.verdict}: {verdict.reason}" for verdict in responded.verdicts]


NOT_KNOWN = [
    f"broken: The action of {name} is not known: {why}"
    for name, why in (
        ("remove", "its `action` returned an object of type object; it must return text"),
        ("remove", "its `action` returned an empty text"),
        ("remove", "RuntimeError: no <object object>"),
        ("wipe", "its `action` returned a coroutine; it must return text"),
    )
]


@tool(tier="observe", effect="pure")
async def work(n: int) -> str:
    if n == 1:
        raise ResultLost("the machine is out of order")
    return f"worked {n}"


@tool(tier="observe", effect="pure")
async def finish_work() -> str:
    return "finished"


WORK = [use("work", {"n": n}) for n in (1, 2)]
BROKEN_MACHINE = "The tool ran, and its result is lost: the machine is out of order"


RECOVERIES: list[tuple[str, list[Step], dict[str, Any]]] = [
    (
        "stop",
        [send("go", Fails("tool_execution", "policy")), send("again", "done")],
        {"kinds": ["denied", "denied", None], "done": ["saw 1"]},
    ),
    (
        "retry",
        [send("go", "done")],
        {"results": [BROKEN_TEXT, "saw 2", BROKEN_TEXT], "kinds": ["denied", None, "denied"]},
    ),
]


def deciding(said: Any, *tools: str, later: bool = False) -> Any:
    """Return a function for `error_recovery` that looks at what it is given."""

    def recovery(session: str, names: tuple[str, ...], error: Exception) -> Any:
        assert (session, names, isinstance(error, Exception)) == ("s", tools, True)
        if isinstance(said, Exception):
            raise said
        return said

    async def recovery_later(session: str, names: tuple[str, ...], error: Exception) -> Any:
        return recovery(session, names, error)

    return recovery_later if later else recovery


BROKEN = {
    **{
        f"a function says that the run goes on after a failing policy: {said!r}, {later}": Case(
            [[LOOK, use("pay")], say("done")],
            [send("go", "done")],
            config={"error_recovery": deciding(said, "look", "pay", later=later)},
            options={"policy": raising(RuntimeError("always"))},
            results=[told, told],
            kinds=["denied", "denied"],
        )
        for said, told in (
            ("One at a time.", "One at a time."),
            ("retry", BROKEN_TEXT),
            ("", BROKEN_TEXT),
            (" \n", BROKEN_TEXT),
        )
        for later in (False, True)
    },
    **{
        f"a function says that the run ends after a failing {what}: {said!r}": Case(
            [calls, say("after")],
            [send("go", Fails("tool_execution", words)), send("more", "after")],
            config={"error_recovery": deciding(said, tool_name)},
            options=options,
            tools=[work],
        )
        for what, calls, words, tool_name, options in (
            ("policy", LOOK, "always", "look", {"policy": raising(RuntimeError("always"))}),
            ("tool", WORK[:1], "the machine is out of order", "work", {}),
        )
        for said in (None, "stop", 5, ValueError("no idea"))
    },
    "a function's text is told beside what is known of a tool that could not be carried out": Case(
        [WORK, say("done")],
        [send("go", "done"), recorded(ToolCallFailed, "recovery", "Ask for less.")],
        config={"error_recovery": deciding("Ask for less.", "work", later=True)},
        tools=[work],
        results=[f"{BROKEN_MACHINE}\nAsk for less.", "worked 2"],
    ),
    "what a function lets go on is bounded too": Case(
        [LOOK] * 10,
        [send("go", Fails("tool_execution", message="The policy failed: RuntimeError: always"), turns=2)],
        config={"error_recovery": deciding("Again.", "look"), "recoveries_max": 1},
        options={"policy": raising(RuntimeError("always"))},
    ),
    **{
        f"a policy that {what} fails its run, or with retry the model is told: {recovery}, {how}": Case(
            [looks("1", "2"), LOOK, say("done")],
            do,
            config={"error_recovery": recovery},
            options=breaking(policy, how == "async"),
            **seen,
            crashes=what == "gives True",
        )
        for what, policy in BREAKAGES.items()
        for how in ("async", "plain")
        for recovery, do, seen in RECOVERIES
    },
    **{
        f"recoveries in a row are bounded by {most}": Case(
            [LOOK] * 10,
            [send("go", Fails("tool_execution", message="The policy failed: RuntimeError: always"), turns=most + 1)],
            config={"error_recovery": "retry", "recoveries_max": most},
            options={"policy": raising(RuntimeError("always"))},
        )
        for most in (0, 2)
    },
    "a turn without breakage begins the count of recoveries anew": Case(
        [*looks("1", "1", "0", "1", "1", "0"), say("done")],
        [send("go", "done")],
        config={"error_recovery": "retry", "recoveries_max": 2},
        options={"policy": odd},
    ),
    "an action that cannot be named breaks its call and asks nobody": Case(
        [[*(use("remove", {"path": path}) for path in ("none", "blank", "raises")), use("wipe")], say("done")],
        [send("go", "done"), check(verdicts, NOT_KNOWN)],
        config={"error_recovery": "retry"},
        tools=unnamed,
        results=[BROKEN_TEXT] * 4,
        count={"ToolApprovalRequested": 0},
        done=[],
    ),
    "a run fails where its tools cannot be carried out": Case(
        [WORK, say("after")],
        [send("go", Fails("tool_execution", "the machine is out of order")), send("more", "after")],
        tools=[work],
        results=[BROKEN_MACHINE] * 2,
        kinds=["crashed"] * 2,
    ),
    "with retry the model is told that its tools could not be carried out": Case(
        [WORK, say("done")],
        [send("go", "done"), recorded(ToolCallFailed, "broken", True)],
        config={"error_recovery": "retry"},
        tools=[work],
        results=[BROKEN_MACHINE, "worked 2"],
        kinds=["crashed", None],
    ),
}


# What is offered


async def offers(play: Play) -> list[Any]:
    """Return what was offered with each request, of the tools that matter here."""
    found = [event.request.offered for event in await play.events(ModelResponded)]
    return [each if each is None else [name for name in each if name in ("look", "pay")] for each in found]


async def later(session: str, spec: Any) -> bool:
    return False


NOT_HERE = "The tool {} is not to be used here."

OFFERED = {
    "a call of a tool that was not offered does not run and no policy is asked": Case(
        [[LOOK, use("pay", {"amount": 1})], say("done")],
        [send("go", "done"), check(judged, [("look", {"at": "1"})])],
        options=lambda play: {
            **judged_by(lambda call: None)(play),
            "offer": lambda session, spec: spec.name != "pay",
        },
        results=["saw 1", NOT_HERE.format("pay")],
        kinds=[None, "denied"],
        done=["saw 1"],
    ),
    "what is offered may change from turn to turn": Case(
        [LOOK, LOOK, say("done")],
        [send("go", "done"), check(offers, [None, ["pay"], ["pay"]])],
        options=lambda play: {"offer": lambda _, spec: spec.name != "look" or not play.bench.done, "alike": False},
        results=["saw 1", NOT_HERE.format("look")],
    ),
    "nothing at all may be offered": Case(
        [LOOK, say("done")],
        [send("go", "done"), check(offers, [[], []])],
        options={"offer": lambda session, spec: False},
    ),
    **{
        f"an offer that {what} fails the run before the model is asked": Case(
            [LOOK], [send("go", Fails(words=words))], options={"offer": offer}, asked=0
        )
        for what, offer, words in (
            ("raises", lambda session, spec: raising(RuntimeError("boom"))(spec), "failed on act: RuntimeError: boom"),
            ("cancels", lambda session, spec: raising(asyncio.CancelledError())(spec), "failed on act"),
            ("would end the process", lambda session, spec: raising(SystemExit(2))(spec), "failed on act"),
            ("gives nothing", lambda session, spec: None, "gave NoneType for act"),
            ("gives a coroutine", lambda session, spec: later(session, spec), "gave coroutine for act"),
        )
    },
}

CASES = {**JUDGED, **BROKEN, **OFFERED}


test_policies, test_policies_with_a_crash_after_each_commit = as_tests(CASES)


FEW_THREADS = """
import asyncio, resource, sys
from refold import AgentConfig, AgentRuntime, ScriptedProvider, ToolResultBlock, say, tool, use

recovery, after, until, *calls = sys.argv[1:]
ran = []

@tool(tier="observe")
def work(n: int) -> str:
    ran.append(n)
    return f"worked {n}"

async def main():
    script = [[use("work", {"n": int(n)}) for n in call.split(",")] for call in calls]
    config = AgentConfig(model="m", error_recovery=recovery)
    async with AgentRuntime(config, provider=ScriptedProvider([*script, say("done")]), tools=[work]) as runtime:
        session = await runtime.session("alice")
        limits = resource.getrlimit(resource.RLIMIT_AS)
        def limit(recorded):
            # A thread's stack does not fit into what is left of the address space.
            if type(recorded.event).__name__ == after:
                resource.setrlimit(resource.RLIMIT_AS, (1, limits[1]))
            if type(recorded.event).__name__ == until:
                resource.setrlimit(resource.RLIMIT_AS, limits)
        runtime.subscribe(limit)
        result = await session.send("go")
        resource.setrlimit(resource.RLIMIT_AS, limits)
        blocks = [b for m in await session.history() for b in m.content if isinstance(b, ToolResultBlock)]
        print(type(result.outcome).__name__, [block.kind or block.text for block in blocks], sorted(ran))

asyncio.run(main())
"""

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        pytest.param(
            ["stop", "InputQueued", "ToolCallFailed", "1", "2"],
            "Failed ['denied'] []",
            id="a thread that cannot be started breaks the call, which never runs later",
            marks=SLOW,
        ),
        pytest.param(
            ["retry", "InputQueued", "ToolCallFailed", "1", "2"],
            "Completed ['denied', 'worked 2'] [2]",
            id="with retry the model is told and its next call runs",
            marks=SLOW,
        ),
        pytest.param(
            ["stop", "ToolCallCompleted", "RunCompleted", "0", "1,2,3,4,5,6,7,8"],
            f"Completed {[f'worked {n}' for n in range(9)]} {list(range(9))}",
            id="where no further thread can be started those that there are do the work",
        ),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="the address space is limited by setrlimit")
def test_threads_that_cannot_be_started(arguments: list[str], printed: str) -> None:
    command = [sys.executable, "-P", "-c", FEW_THREADS, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.stdout.strip(), done.returncode) == (printed, 0), done.stderr


async def test_a_model_is_shown_what_is_offered_and_that_is_recorded(log: EventStore) -> None:
    asked: list[tuple[str, str]] = []

    def offer(session: str, spec: Any) -> bool:
        asked.append((session, spec.name))
        return spec.name != "work" or session == "alice"

    async with runtime_of(log, say("hers"), say("his"), tools=[work, finish_work], offer=offer) as runtime:
        alice, bob = await runtime.session("alice"), await runtime.session("bob")
        await alice.send("go")
        await bob.send("go")
        [hers], [his] = await events_of(alice, ModelResponded), await events_of(bob, ModelResponded)
        offered = [[spec.name for spec in request.tools] for request in requests_of(runtime)]
    assert offered == [["finish_work", "work"], ["finish_work"]]
    assert (hers.request.offered, his.request.offered) == (None, ("finish_work",))
    assert asked[:2] == [("alice", "finish_work"), ("alice", "work")]


@pytest.mark.parametrize("field", ["policy", "offer"])
def test_what_is_no_function_is_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=rf"Agent\.{field} must be a function, not str"):
        AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([]), **{field: "all"})  # type: ignore[call-overload]


def test_an_async_offer_is_refused() -> None:
    async def offer(session: str, spec: Any) -> bool:
        return True

    with pytest.raises(ConfigError, match="must be a plain function"):
        AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([]), offer=offer)  # type: ignore[arg-type]
