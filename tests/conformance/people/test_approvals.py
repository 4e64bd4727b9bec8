"""Approvals are a durable wait: a call is decided by anyone, however late, once or for always, over any restart.

A handler of the application, `Session.decide` and the end of time compete for each decision, and exactly one of them
makes it. What fails on the way, above all the handler, leaves the call waiting.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import refold
from refold.actors import ManualClock
from refold.actors.agent.approval import StartApproval
from refold.actors.shell.messages import CancelEffect
from refold.events.core.content import CANCELLED_TEXT, CRASHED_TEXT, tool_uses
from refold.events.kinds.runtime import RUNTIME_CODEC, RUNTIME_STREAM, RuntimeClosed
from refold.events.session.events import ToolApprovalDecided
from refold.events.session.react import CALLS_RUNNING_MAX, EXPIRED_TEXT
from refold.stores import InMemoryStore
from tests.conformance.cases import BEGINNING, Bench, Case, Fails, Play, as_tests, play_case, played
from tests.conformance.people.approval_desk import Desk, at_desk, desk_of, desk_says, handled
from tests.conformance.sessions import opened, results_of, runtime_of, tell_twice
from tests.conformance.steps import (
    advance,
    approval_asked,
    awaited,
    begin,
    begun,
    cancel,
    check,
    clear,
    crash_and_restart,
    decide,
    does,
    ends,
    let_go,
    ran,
    recorded,
    refused,
    restart,
    resume,
    send,
    until,
)

PAY = refold.use("pay", {"amount": 1})
GONE = "does not wait for approval"


def pays(*amounts: int) -> list[Any]:
    return [refold.use("pay", {"amount": amount}) for amount in amounts]


def signs(*names: str) -> list[Any]:
    return [refold.use("sign", {"name": name}) for name in names]


async def expiries(play: Play) -> list[float]:
    """Return in how many seconds each call is denied, from the beginning of the case."""
    begun = BEGINNING.timestamp()
    return [event.expires_at / 1e6 - begun for event in await play.events(refold.ToolApprovalRequested)]


def waits_60_s(play: Play) -> bool:
    assert play.clock is not None
    return 60 in [round(due) for due in play.clock.waiting()]


async def change_approval(play: Play) -> None:
    (await play.session.approvals())[0].input["amount"] = 1_000_000


async def begin_deciding(play: Play) -> None:
    """Decide, and go on when that lies in the mailbox."""
    play.kept["deciding"] = asyncio.ensure_future(decide(True, call=0).act(play))
    for _ in range(3):
        await asyncio.sleep(0)


async def kept(play: Play, name: str) -> bool:
    return name in play.kept


async def keep(name: str, play: Play) -> None:
    play.kept[name] = True


# Who decides, and how


def by_the_session(thread: bool) -> Callable[[Play], dict[str, Any]]:
    """A handler that decides by the session itself, and then says something else."""

    def options(play: Play) -> dict[str, Any]:
        async def handler(session: str, request: refold.ToolApprovalRequested) -> Any:
            await (await play.runtime.session(session)).decide(request.call, allow=True, key="from the handler")
            return refold.Deny("too late, by itself")

        loop = asyncio.get_running_loop()

        def in_thread(session: str, request: refold.ToolApprovalRequested) -> Any:
            return asyncio.run_coroutine_threadsafe(handler(session, request), loop).result(30)

        return {"approval": in_thread if thread else handler}

    return options


def cancelling(play: Play) -> dict[str, Any]:
    async def handler(session: str, request: refold.ToolApprovalRequested) -> Any:
        await (await play.runtime.session(session)).cancel(reason="the desk is closed")
        return refold.Allow()

    return {"approval": handler}


async def decide_twice(play: Play) -> None:
    """Let two decide at once, of whom one wins."""
    other = await play.runtime.session("s")
    outcomes = await asyncio.gather(
        play.session.decide("call_6_0", allow=True),
        other.decide("call_6_0", allow=False, reason="no"),
        return_exceptions=True,
    )
    assert outcomes[0] is None
    assert isinstance(outcomes[1], refold.CommandRejected)
    assert "call_6_0 does not wait for approval; it was decided" in str(outcomes[1])


async def decide_before_the_desk(play: Play) -> None:
    deciding = asyncio.create_task(play.session.decide("call_6_0", allow=False, reason="by hand"))
    await asyncio.sleep(0)
    desk_of(play).answers[0].set_result(refold.Allow())
    await deciding


def raising(error: BaseException) -> Callable[[str, refold.ToolApprovalRequested], Any]:
    def handler(session: str, request: refold.ToolApprovalRequested) -> Any:
        raise error

    return handler


ERRORS = (
    RuntimeError("the desk is on fire"),
    *(asyncio.CancelledError(), SystemExit(3), GeneratorExit(), StopIteration(), TimeoutError()),
)

FAILING: dict[str, Callable[..., Any]] = {
    "gives nothing": lambda session, request: None,
    "gives no decision": lambda session, request: True,
    "gives an answer for policies": lambda session, request: refold.Ask("what now?"),
    "gives a class": lambda session, request: refold.Allow,
    "takes too little": lambda session: refold.Allow(),
    **{f"raises {type(error).__name__}": raising(error) for error in ERRORS},
}


def failing(handler: Callable[..., Any], thread: bool) -> Callable[[Play], dict[str, Any]]:
    def options(play: Play) -> dict[str, Any]:
        loop, asked = asyncio.get_running_loop(), partial(play.kept.setdefault, "asked", True)

        async def on_the_loop(session: str, request: refold.ToolApprovalRequested) -> Any:
            asked()
            return handler(session, request)

        def in_thread(session: str, request: refold.ToolApprovalRequested) -> Any:
            loop.call_soon_threadsafe(asked)
            return handler(session, request)

        return {"approval": in_thread if thread else on_the_loop}

    return options


async def handler_has_failed(play: Play) -> None:
    while "asked" not in play.kept:  # noqa: ASYNC110 - A thread may say so.
        await asyncio.sleep(0)
    if asking := [task for task in asyncio.all_tasks() if task.get_name().startswith("approval/agent")]:
        await asyncio.wait(asking)  # Until what it said has been looked at.


DECISIONS = {
    **{
        f"a handler that {what} leaves the call waiting, {'in a thread' if thread else 'on the loop'}": Case(
            [PAY, refold.say("done"), refold.say("other")],
            [
                [begin(), does(handler_has_failed), awaited("call_6_0"), check(lambda play: play.bench.done, [])],
                [decide(True), ends("done"), send("hi", "other")],
            ],
            options=failing(handler, thread),
            done=["paid 1"],
        )
        for what, handler in FAILING.items()
        for thread in (False, True)
    },
    "of two who decide at once one wins and the other is told": Case(
        [PAY, refold.say("done")],
        [begin(), approval_asked(), does(decide_twice), ends("done"), refused(GONE, decide(True, call=0))],
        count={"ToolApprovalDecided": 1},
        done=["paid 1"],
    ),
    "a decision beats the handler, whose answer then does not count": Case(
        [PAY, refold.say("done")],
        [begin(), does(lambda play: desk_of(play).requests()), does(decide_before_the_desk), ends("done")],
        options=at_desk,
        results=["by hand"],
        count={"ToolApprovalDecided": 1},
        done=[],
    ),
    "an async handler allows and denies with a reason that the model sees": Case(
        [pays(1, 2), refold.say("done")],
        [send("go", "done"), recorded(ToolApprovalDecided, "allowed always", (True, False), (False, False))],
        options=handled(
            lambda s, call: refold.Allow() if call.input == {"amount": 1} else refold.Deny(f"{s} may not pay 2")
        ),
        results=["paid 1", "s may not pay 2"],
        kinds=[None, "denied"],
        requests={1: ["...", "result: paid 1", "result: s may not pay 2"]},
        done=["paid 1"],
    ),
    **{
        f"a handler may decide by the session itself, {'from a thread' if thread else 'on the loop'}": Case(
            [PAY, refold.say("done")],
            [send("go", "done"), recorded(ToolApprovalDecided, "key", "from the handler")],
            options=by_the_session(thread),
            done=["paid 1"],
        )
        for thread in (False, True)
    },
    "a handler may cancel the run": Case(
        [PAY, refold.say("after")],
        [send("go", refold.Cancelled()), send("more", "after")],
        options=cancelling,
        results=[CANCELLED_TEXT],
        done=[],
    ),
    **{
        f"A22: a call runs exactly if it is allowed, {allow}, and a key makes the decision one over restarts": Case(
            [PAY, refold.say("done")],
            [
                [begin(), approval_asked(), check(lambda play: play.bench.done, [])],
                [decide(allow, key="click-1", reason="no"), decide(allow, call=0, key="click-1", reason="no")],
                [ends("done"), refused(GONE, decide(not allow, call=0))],
                *[
                    decide(allow, call=0, key="click-1", reason="words do not matter"),
                    refused("'click-1' was used before", decide(not allow, call=0, key="click-1")),
                    refused("'click-1' was used before", decide(True, call=0, always=True, key="click-1")),
                    restart(),
                ]
                * 2,
            ],
            results=["paid 1" if allow else "no"],
            kinds=[None if allow else "denied"],
            count={"ToolApprovalDecided": 1},
            done=["paid 1"] if allow else [],
        )
        for allow in (True, False)
    },
    "a denial cannot hold for always": Case(
        [PAY],
        [
            [begin(), approval_asked(), refused("only an allowance can hold for always", decide(False, always=True))],
            [awaited("call_6_0"), cancel(), ends(refold.Cancelled())],
        ],
    ),
    "a handler that left the call to others is asked no second time in one runtime": Case(
        [pays(1, 2), refold.say("done")],
        [
            [begin(), approval_asked(2), decide(True), decide(True), ends("done")],
            check(lambda play: play.kept["handled"], ["call_6_0", "call_6_1"]),
        ],
        options=handled(lambda _, call: None),
        done=["paid 1", "paid 2"],
    ),
    "observing calls run beside each other behind the decision, and those before it do not wait": Case(
        [[refold.use("look", {"at": "1"}), PAY, refold.use("look", {"at": "2"})], refold.say("done")],
        [
            [begin(), approval_asked(), until("ToolCallCompleted"), check(lambda play: play.bench.done, ["saw 1"])],
            [decide(True), ends("done")],
        ],
        done=["saw 1", "paid 1", "saw 2"],
    ),
    "changing what approvals returns changes nothing": Case(
        [PAY, refold.say("done")],
        [begin(), approval_asked(), does(change_approval), decide(True), ends("done")],
        done=["paid 1"],
    ),
}


# For always

ASKED = ("delete: tmp", {"path": "tmp/a"}), ("delete: home", {"path": "home/c"})

ALWAYS = {
    "allowed always holds for every later call of the tool, also after a restart and a clear": Case(
        [PAY, *pays(2), refold.say("done"), *pays(3), refold.say("more"), *pays(4), refold.say("done")],
        [
            [send("go", "done"), send("again", "more"), restart(), clear(), send("and again", "done")],
            check(lambda play: play.kept["handled"], ["call_6_0"]),
        ],
        options=handled(lambda _, call: refold.Allow(always=True)),
        count={"ToolApprovalRequested": 1},
        done=["paid 1", "paid 2", "paid 3", "paid 4"],
    ),
    "an action says what is allowed always": Case(
        [*(refold.use("delete", {"path": path}) for path in ("tmp/a", "tmp/b", "home/c", "tmp/d")), refold.say("done")],
        [send("go", "done"), recorded(refold.ToolApprovalRequested, "action input", *ASKED)],
        options=handled(
            lambda _, call: refold.Allow(always=True) if call.action == "delete: tmp" else refold.Deny("not there")
        ),
        done=["deleted tmp/a", "deleted tmp/b", "deleted tmp/d"],
    ),
    "two long actions that begin alike are not one": Case(
        [[refold.use("delete", {"path": "x" * 5_000 + end}) for end in "ab"], refold.say("done")],
        [
            [begin(), approval_asked(2), decide(True, call=0, always=True), awaited("call_6_1")],
            [decide(False, call=1), ends("done")],
        ],
        done=["deleted " + "x" * 5_000 + "a"],
    ),
    "allowed always lets the calls that wait beside it run too, and their handlers need not decide any more": Case(
        [[PAY, refold.use("delete", {"path": "home/c"}), *pays(2, 3)], refold.say("done")],
        [
            [begin(), approval_asked(4), does(lambda play: desk_of(play).requests(4))],
            [decide(True, call=2, always=True), awaited("call_6_1")],
            check(lambda play: desk_of(play).answers[0].cancelled()),
            [desk_says(1, refold.Deny("not that")), ends("done")],
            recorded(ToolApprovalDecided, "allowed always", (True, True), *[(True, False)] * 2, (False, False)),
        ],
        options=at_desk,
        results=["paid 1", "not that", "paid 2", "paid 3"],
        done=["paid 1", "paid 2", "paid 3"],
    ),
    "a policy that denies wins over what was allowed always": Case(
        [PAY, pays(2, 3), refold.say("done")],
        [send("go", "done")],
        options=lambda play: {
            "policy": lambda call: refold.Deny("too much") if call.input["amount"] == 2 else None,
            **handled(lambda _, call: refold.Allow(always=True))(play),
        },
        results=["paid 1", "too much", "paid 3"],
        done=["paid 1", "paid 3"],
    ),
    "allowed always decides all that wait in one go": Case(
        [pays(*range(CALLS_RUNNING_MAX + 30)), refold.say("done")],
        [
            [begin(), approval_asked(CALLS_RUNNING_MAX + 30)],
            [decide(True, call=CALLS_RUNNING_MAX + 29, always=True), ends("done")],
        ],
        done=[f"paid {n}" for n in range(CALLS_RUNNING_MAX + 30)],
        crashes=False,
    ),
}


# With other arguments than the model gave


def told(arguments: str, result: str, reason: str = "") -> str:
    said = f" The person said: {reason}" if reason else ""
    return f"A person changed the arguments of this call. It ran with: {arguments}{said}\n{result}"


async def shown(play: Play) -> list[Any]:
    return [waiting.input for waiting in await play.session.approvals()]


async def what_the_model_said(play: Play) -> list[Any]:
    return [
        use.input for request in play.requests for message in request.messages for use in tool_uses(message.content)
    ]


FIVE = {"amount": 5}
MISFITS: tuple[Any, ...] = ({"amount": "much"}, {"amount": 1, "to": "me"}, {"amount": "5"}, {"amount": float("nan")}, 5)

CHANGED = {
    "a person changes the arguments: the tool runs with them, the model keeps what it said and is told": Case(
        [pays(1, 2), refold.say("done")],
        [
            [begin(), approval_asked(2), decide(True, arguments=FIVE, reason="too little", call=0), decide(True)],
            [ends("done"), recorded(ToolApprovalDecided, "input", FIVE, None)],
            check(what_the_model_said, [{"amount": 1}, {"amount": 2}]),
        ],
        results=[told('{"amount":5}', "paid 5", "too little"), "paid 2"],
        done=["paid 5", "paid 2"],
    ),
    "a handler changes the arguments of one call, and the next one of the tool is asked about": Case(
        [PAY, PAY, refold.say("done")],
        [send("go", "done")],
        options=handled(lambda _, call: refold.Allow(arguments={**call.input, "amount": 5})),
        results=[told('{"amount":5}', "paid 5")] * 2,
        done=["paid 5", "paid 5"],
    ),
    "arguments that do not fit are refused, and nothing is lost": Case(
        [PAY, refold.say("done")],
        [
            [begin(), approval_asked()],
            [refused("arguments", decide(True, call=0, arguments=given)) for given in MISFITS],
            refused("int.*amount", decide(True, call=0, arguments=MISFITS[0])),
            refused('would read its new arguments as {"amount":5}', decide(True, call=0, arguments=MISFITS[2])),
            refused("for this time only", decide(True, call=0, arguments=FIVE, always=True)),
            refused("for this time only", decide(False, call=0, arguments=FIVE)),
            [check(shown, [{"amount": 1}]), decide(True, call=0, arguments=FIVE), ends("done")],
        ],
        done=["paid 5"],
        crashes=False,
    ),
    **{
        f"a handler whose arguments are {given!r} leaves the call waiting": Case(
            [PAY, refold.say("done")],
            [begin(), does(handler_has_failed), awaited("call_6_0"), decide(True), ends("done")],
            options=failing(lambda session, request, given=given: refold.Allow(arguments=given), False),
            done=["paid 1"],
        )
        for given in MISFITS
    },
    "a policy may not change arguments": Case(
        [PAY],
        [send("go", Fails("tool_execution", "only a person who approves it may"))],
        options={"policy": lambda call: refold.Allow(arguments=FIVE)},
        done=[],
    ),
    "a decision with a key is one, with the same arguments": Case(
        [PAY, refold.say("done")],
        [
            [begin(), approval_asked(), decide(True, call=0, arguments=FIVE, key="yes"), ends("done")],
            *[
                decide(True, call=0, arguments=FIVE, key="yes"),
                refused("'yes' was used before", decide(True, call=0, arguments={"amount": 6}, key="yes")),
                refused("'yes' was used before", decide(True, call=0, key="yes")),
                restart(),
            ]
            * 2,
        ],
        count={"ToolApprovalDecided": 1},
        done=["paid 5"],
    ),
    "a call that a crash cut is asked about again as it ran, and may be changed again": Case(
        [signs("a"), refold.say("done")],
        [
            [begin("go", key="k"), decide(True, arguments={"name": "b"}), ran(1), crash_and_restart()],
            [check(shown, [{"name": "b"}]), decide(True), ran(2), crash_and_restart()],
            [check(shown, [{"name": "b"}]), decide(True, arguments={"name": "c"}), let_go("c")],
            send("go", "done", key="k"),
        ],
        results=[told('{"name":"c"}', "c returned")],
    ),
    "a model is told nothing where the call did not run": Case(
        [signs("a"), refold.say("after")],
        [
            [begin(), decide(True, arguments={"name": "b"}), begun(1), cancel(), ends(refold.Cancelled())],
            send("more", "after"),
        ],
        results=[CANCELLED_TEXT],
        crashes=False,
    ),
    "secrets in changed arguments are recorded as redacted, and the tool gets what is recorded": Case(
        [refold.use("delete", {"path": "a"}), refold.say("done")],
        [begin(), decide(True, arguments={"path": "hunter2-hunter2/x"}), ends("done")],
        options={"redact": ["hunter2-hunter2"]},
        done=["deleted [redacted]/x"],
    ),
    "arguments of any size and kind run as they are shown": Case(
        [refold.use("delete", {"path": "a"}), refold.say("done")],
        [begin(), decide(True, arguments={"path": "日\ud83d" * 20_000}), ends("done")],
        done=["deleted " + "日\ufffd" * 20_000],
    ),
}


# The end of time, and other ends of the wait

expiring = partial(Case, config={"approval_expiry_s": 60}, clock=True)


def swallowing(play: Play) -> dict[str, Any]:
    async def handler(session: str, request: refold.ToolApprovalRequested) -> Any:
        play.kept["asked"] = True
        play.changed.set()
        while "let go" not in play.kept:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                continue
        return refold.Allow()

    return {"approval": handler}


ENDS = {
    "a call that is not decided in time is denied, and its handler is cancelled": expiring(
        [PAY, refold.say("done")],
        [
            [begin(), does(lambda play: desk_of(play).requests()), check(expiries, [60.0])],
            [advance(59.9), awaited("call_6_0"), advance(0.2), ends("done"), refused(GONE, decide(True, call=0))],
            check(lambda play: desk_of(play).answers[0].cancelled()),
        ],
        options=at_desk,
        results=[EXPIRED_TEXT],
        kinds=["denied"],
        done=[],
    ),
    "a decision in time leaves no timer behind": expiring(
        [PAY, refold.say("done")],
        [
            [begin(), approval_asked(), advance(0), check(waits_60_s, True), decide(True), ends("done")],
            [check(waits_60_s, False), advance(120)],
        ],
        options={"passivate_after_s": None},
        count={"TimerFired": 0},
        done=["paid 1"],
    ),
    "of a decision and the end of time the first wins": expiring(
        [PAY, refold.say("done")],
        [begin(), approval_asked(), does(begin_deciding), advance(61), ends("done")],
        results=["paid 1"],
        done=["paid 1"],
    ),
    **{
        f"time passes while no runtime is there, and no decision counts after it, resumed {auto_resume}": expiring(
            [PAY, refold.say("done")],
            [
                [begin("go", key="k"), approval_asked(), restart(after_s=3_600, auto_resume=auto_resume)],
                [refused(GONE, decide(True, call=0)), send("go", "done", key="k")],
            ],
            results=[EXPIRED_TEXT],
            done=[],
        )
        for auto_resume in (True, False)
    },
    "a run is cancelled while it waits, and its handler with it": Case(
        [PAY, refold.say("after")],
        [
            [begin(), does(lambda play: desk_of(play).requests()), cancel(), ends(refold.Cancelled())],
            [refused(GONE, decide(True, call=0)), awaited(), send("more", "after")],
            check(lambda play: desk_of(play).answers[0].cancelled()),
        ],
        options=at_desk,
        results=[CANCELLED_TEXT],
        kinds=["cancelled"],
        done=[],
    ),
    "a handler that swallows its cancellation holds up no run, though time stands still": Case(
        [PAY, refold.say("after")],
        [
            [begin(), does(lambda play: play.until(partial(kept, play, "asked"))), cancel(), ends(refold.Cancelled())],
            [send("more", "after"), does(partial(keep, "let go"))],
        ],
        clock=True,
        options=swallowing,
        done=[],
    ),
    "after a restart each wait is put to the handler once more": Case(
        [pays(1, 2), refold.say("done")],
        [
            [begin("go", key="k"), does(lambda play: desk_of(play).requests(2))],
            [decide(False, call=0, reason="no"), restart()],
            [desk_says(2, refold.Allow()), send("go", "done", key="k")],
            check(lambda play: [call.call for call in desk_of(play).asked], ["call_6_0", "call_6_1", "call_6_1"]),
        ],
        options=at_desk,
        results=["no", "paid 2"],
        done=["paid 2"],
    ),
    "without auto_resume a wait is put to no handler until the session is resumed": Case(
        [PAY, refold.say("done")],
        [
            [begin("go", key="k"), does(lambda play: desk_of(play).requests()), restart(auto_resume=False)],
            [awaited("call_6_0"), check(lambda play: len(desk_of(play).asked), 1)],
            [resume(), desk_says(1, refold.Allow()), send("go", "done", key="k")],
        ],
        options=at_desk,
        done=["paid 1"],
    ),
    **{
        f"a decision by hand after a restart lets the run go on, which asks once, resumed {auto_resume}": Case(
            [PAY, refold.say("done")],
            [
                [begin("go", key="k"), approval_asked(), restart(auto_resume=auto_resume)],
                [awaited("call_6_0"), decide(True), send("go", "done", key="k")],
            ],
            count={"ToolApprovalRequested": 1},
            done=["paid 1"],
        )
        for auto_resume in (True, False)
    },
}


# Large and strange


def tools_that_note(play: Play) -> list[Any]:
    @refold.tool(tier="confirm", effect="pure")
    async def order(items: list[dict[str, int]]) -> str:
        play.bench.done.append(items)
        return "ordered"

    @refold.tool(tier="confirm", effect="pure")
    async def erase(path: str) -> str:
        play.bench.done.append(path)
        return "erased"

    return [order, erase]


def scribbling(play: Play) -> dict[str, Any]:
    def scribble(call: Any) -> Any:
        call.input["items"][0]["bread"] = 1_000
        call.input["more"] = True
        return refold.Allow()

    return {"policy": lambda call: call.input["items"].append({"caviar": 5}), **handled(lambda _, c: scribble(c))(play)}


REASONS: list[Any] = ["no " * 1_000_000, "\ud83d is no text", 17, None, ""]

STRANGE = {
    "what is shown is what executes": Case(
        [refold.use("order", {"items": [{"bread": 1}]}), refold.say("done")],
        [send("go", "done"), recorded(refold.ToolApprovalRequested, "input", {"items": [{"bread": 1}]})],
        tools=tools_that_note,
        options=scribbling,
        done=[[{"bread": 1}]],
        crashes=False,
    ),
    **{
        f"large and strange inputs are shown and executed alike, {name}": Case(
            [refold.use("erase", {"path": path}), refold.say("done")],
            [send("go", "done"), recorded(refold.ToolApprovalRequested, "input", {"path": cleaned})],
            tools=tools_that_note,
            options=handled(lambda _, call: refold.Allow()),
            done=[cleaned],
        )
        for name, path, cleaned in (
            ("long", "x" * 200_000, "x" * 200_000),
            ("control characters", "\u202egnp.exe/\x00\x1b[31m", "\u202egnp.exe/\x00\x1b[31m"),
            ("other scripts", "日本語/🧾" * 1_000, "日本語/🧾" * 1_000),
            ("half a character", "\ud83d", "\ufffd"),
            ("empty", "", ""),
        )
    },
    "reasons of any size and kind reach the model, and the handler is asked once about each": Case(
        [*[PAY] * len(REASONS), refold.say("done")],
        [send("go", "done"), check(lambda play: len(play.kept["handled"]), len(REASONS))],
        options=lambda play: handled(lambda _, call: refold.Deny(REASONS[len(play.kept["handled"]) - 1]))(play),
        results=[
            *[("no " * 10_000)[:10_000], "\ufffd is no text", "17"],
            *["Denied: the call was not run."] * 2,
        ],
        crashes=False,
    ),
}

# A crash in the body of a call that was allowed and may run once: it goes back to the person


async def asked_again(play: Play) -> list[tuple[str, str]]:
    return [(waiting.call, waiting.reason) for waiting in await play.session.approvals()]


LOST = [crash_and_restart(), check(asked_again, [("call_6_0", CRASHED_TEXT)])]

CRASHES = {
    **{
        f"B20, case A14: after {times} crashes in its body the person is asked again and told why, {allow}": Case(
            [signs("a"), refold.say("done")],
            [
                [begin("go", key="k"), [[decide(True, key=f"yes {n}"), ran(n), LOST] for n in range(1, times + 1)]],
                [decide(True, call=0, key="yes 1"), awaited("call_6_0")],  # An old answer is no new one.
                [decide(allow, call=0), let_go("a"), send("go", "done", key="k")],
            ],
            results=["a returned" if allow else CRASHED_TEXT],
            kinds=[None if allow else "crashed"],
            done=["s/call_6_0"] * (times + allow),
        )
        for times in (1, 3)
        for allow in (True, False)
    },
    **{
        f"what was allowed always is asked again for the call that was lost and no other, always {always}": Case(
            [signs("a", "b"), refold.say("done")],
            [
                [begin("go", key="k"), approval_asked(2), decide(True, call=0, always=True), begun(1)],
                [crash_and_restart(), approval_asked(3), awaited("call_6_0"), decide(True, call=0, always=always)],
                [let_go("a"), begun(2), let_go("b"), send("go", "done", key="k")],
            ],
            results=["a returned", "b returned"],
        )
        for always in (True, False)
    },
    "another call that is allowed always does not let the lost one run again": Case(
        [signs("a", "b"), refold.say("done")],
        [
            [begin("go", key="k"), approval_asked(2), decide(True, call=0), begun(1), crash_and_restart()],
            [
                approval_asked(3),
                awaited("call_6_1", "call_6_0"),
                decide(True, call=1, always=True),
                awaited("call_6_0"),
            ],
            [decide(False, call=0), begun(2), let_go("b"), send("go", "done", key="k")],
        ],
        results=[CRASHED_TEXT, "b returned"],
        kinds=["crashed", None],
    ),
    "case A14: a call that waits for a person is there once after every crash": Case(
        [PAY, refold.say("done")],
        [
            [begin("go", key="k"), approval_asked(), *[crash_and_restart(), awaited("call_6_0")] * 3],
            *[[decide(True, call=0, key="yes"), send("go", "done", key="k")]] * 2,
        ],
        history=["user: go", "use pay", "result: paid 1", "assistant: done"],
        count={"InputQueued": 1, "ModelResponded": 2, "ToolApprovalRequested": 1, "RunResumed": 0},
        done=["paid 1"],
    ),
}

CASES = {**DECISIONS, **ALWAYS, **CHANGED, **ENDS, **STRANGE, **CRASHES}


test_approvals, test_approvals_with_a_crash_after_each_commit = as_tests(CASES, clock=False)


@pytest.mark.parametrize("case", played(CASES, clock=True))
async def test_approvals_in_time(case: Case, memory: InMemoryStore) -> None:
    await play_case(case, memory)


# How handlers are called


async def test_a_plain_handler_runs_in_a_thread_with_the_context_of_its_runtime_and_may_block_there(log: Any) -> None:
    blocked, go_on, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()
    word: contextvars.ContextVar[str] = contextvars.ContextVar("word", default="none")
    found: list[Any] = []

    def handler(session: str, request: refold.ToolApprovalRequested) -> Any:
        found.extend([threading.current_thread(), word.get()])
        loop.call_soon_threadsafe(blocked.set)
        assert go_on.wait(30)
        return refold.Allow()

    bench = Bench()
    word.set("given")
    async with runtime_of(log, PAY, refold.say("done"), tools=bench.tools, approval=handler) as runtime:
        session = await runtime.session("alice")
        sending = asyncio.create_task(session.send("go"))
        await blocked.wait()  # The loop goes on while the handler thinks.
        [request] = await session.approvals()
        assert (request.call, request.tool, request.input) == ("call_6_0", "pay", {"amount": 1})
        go_on.set()
        assert (await sending).outcome == refold.Completed()
    assert bench.done == ["paid 1"]
    assert found[0] != threading.current_thread()
    assert found[1] == "given"


async def test_a_call_decided_elsewhere_starts_at_once_and_leaves_a_blocking_handler_to_itself(
    log: Any, caplog: pytest.LogCaptureFixture
) -> None:
    blocked, go_on, over = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def handler(session: str, request: refold.ToolApprovalRequested) -> Any:
        loop.call_soon_threadsafe(blocked.set)
        if request.input["amount"] == 2:
            return refold.Allow()
        go_on.wait(60)
        over.set()
        return refold.Deny("far too late")

    bench = Bench()
    script = [*pays(1, 2), refold.say("done")]
    async with runtime_of(log, *script, tools=bench.tools, approval=handler, tool_threads=1) as runtime:
        session = await runtime.session("alice")
        sending = asyncio.create_task(session.send("go"))
        await blocked.wait()
        await session.decide("call_6_0", allow=True)
        assert (await sending).outcome == refold.Completed()  # With the thread still blocked, and another in its place.
        assert not over.is_set()
    assert bench.done == ["paid 1", "paid 2"]
    still = [record.getMessage() for record in caplog.records if "still thinks" in record.getMessage()]
    assert still == ["the approval handler still thinks about alice/call_6_0 in its thread"]
    go_on.set()
    assert over.wait(30)


async def test_a_handler_may_be_any_kind_of_function(log: Any) -> None:
    class Office:
        async def __call__(self, session: str, request: refold.ToolApprovalRequested) -> Any:
            return refold.Deny("object")

        async def method(self, session: str, request: refold.ToolApprovalRequested) -> Any:
            return refold.Deny("method")

        def plain(self, word: str, session: str, request: refold.ToolApprovalRequested) -> Any:
            return refold.Deny(word)

        def returns_awaitable(self, session: str, request: refold.ToolApprovalRequested) -> Any:
            return self.method(session, request)

    office = Office()
    told: list[str] = []
    for handler in (office, office.method, partial(office.plain, "partial"), office.returns_awaitable):
        async with runtime_of(log, PAY, refold.say("done"), tools=Bench().tools, approval=handler) as runtime:
            session = await runtime.session()
            await session.send("go")
            told += [block.text for block in await results_of(session)]
    assert told == ["object", "method", "partial", "method"]


async def test_what_is_no_function_is_refused_as_handler() -> None:
    with pytest.raises(refold.ConfigError, match=r"Agent\.approval must be a function, not str"):
        refold.Agent(config=refold.AgentConfig(model="m"), provider=refold.ScriptedProvider([]), approval="yes")  # type: ignore[call-overload]


async def test_a_call_that_a_handler_is_told_of_twice_is_asked_about_once(
    memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk()
    tell_twice(monkeypatch, StartApproval)
    async with runtime_of(memory, PAY, refold.say("done"), tools=Bench().tools, approval=desk) as runtime:
        sending = asyncio.create_task((await runtime.session("s")).send("go"))
        await desk.requests()
        desk.answers[0].set_result(refold.Allow())
        assert (await sending).text == "done"
    assert len(desk.asked) == 1


async def test_a_wait_that_is_cancelled_ends_while_time_stands_still(memory: Any) -> None:
    desk, clock = Desk(), ManualClock()
    options: dict[str, Any] = {"tools": Bench().tools, "approval": desk, "clock": clock, "close_grace_s": 0}
    async with opened(memory, PAY, **options) as (_, session):
        sending = asyncio.create_task(session.send("go"))
        await desk.requests()
        cancelling = asyncio.create_task(session.cancel())
        await clock.settle()
        assert (cancelling.done(), sending.done()) == (True, True)


async def test_where_the_actor_of_handlers_fails_its_calls_are_asked_about_anew(memory: Any) -> None:
    desk, clock, unhashable = Desk(), ManualClock(), list[Any]()
    options: dict[str, Any] = {"tools": Bench().tools, "approval": desk, "clock": clock}
    async with runtime_of(memory, PAY, refold.say("done"), **options) as runtime:
        sending = asyncio.create_task((await runtime.session("s")).send("go"))
        await desk.requests()
        runtime.system.ref("approval/agent").tell(CancelEffect("session/s", unhashable))  # type: ignore[arg-type]
        await clock.advance(1)
        await desk.requests(2)
        assert desk.answers[0].cancelled()
        desk.answers[1].set_result(refold.Allow())
        assert (await sending).text == "done"


async def runtime_facts(log: Any) -> list[Any]:
    return RUNTIME_CODEC.decode_all(await log.read_stream(RUNTIME_STREAM))


@pytest.mark.parametrize("in_a_thread", [False, True])
async def test_closing_waits_for_nobody_who_thinks_and_leaves_the_run_open(in_a_thread: bool, memory: Any) -> None:
    desk, bench, go_on = Desk(), Bench(), threading.Event()
    asked, loop = asyncio.Event(), asyncio.get_running_loop()

    def blocking(session: str, request: refold.ToolApprovalRequested) -> Any:
        loop.call_soon_threadsafe(asked.set)
        go_on.wait(60)

    clock = ManualClock()  # Stands still: a wait for the grace period would never end.
    handler: Any = blocking if in_a_thread else desk
    async with runtime_of(memory, PAY, tools=bench.tools, approval=handler, clock=clock) as runtime:
        session = await runtime.session("alice")
        sending = asyncio.create_task(session.send("go", key="k"))
        await (asked.wait() if in_a_thread else desk.requests())
    with pytest.raises(refold.ActorStopped):
        await sending
    assert (await runtime_facts(memory))[-1] == RuntimeClosed(open_runs=1, at=clock.now_us())
    go_on.set()
    assert bench.done == []


async def test_more_calls_wait_at_once_than_are_put_to_the_handler_beside_each_other(memory: Any) -> None:
    desk, bench, count = Desk(), Bench(), CALLS_RUNNING_MAX + 30
    async with runtime_of(memory, pays(*range(count)), refold.say("done"), tools=bench.tools, approval=desk) as runtime:
        session = await runtime.session("alice")
        sending = asyncio.create_task(session.send("go"))
        await desk.requests(CALLS_RUNNING_MAX)
        assert len(await session.approvals()) == count
        assert len(desk.asked) == CALLS_RUNNING_MAX
        for decided in range(count):
            await desk.requests(decided + 1)
            desk.answers[decided].set_result(refold.Allow() if decided % 2 else refold.Deny("odd"))
        assert (await sending).outcome == refold.Completed()
    assert [request.input["amount"] for request in await desk.requests(count)] == list(range(count))
    assert bench.done == [f"paid {n}" for n in range(1, count, 2)]
