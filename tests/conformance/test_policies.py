"""Policies judge each call before anybody approves it, and an offer says which tools a model is shown.

What they say is recorded: a log that they made replays without them. A policy that breaks, or a runner that does,
breaks calls and never a session; what becomes of the run then is the agent's `error_recovery`.
"""

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from refold import (
    AgentConfig,
    AgentRuntime,
    Allow,
    Ask,
    Cancelled,
    Completed,
    ConfigError,
    Deny,
    Failed,
    ProposedCall,
    ScriptedProvider,
    ToolApprovalRequested,
    say,
    tool,
    use,
)
from refold.events.core.content import CRASHED_TEXT
from refold.events.core.errors import AgentLoopError
from refold.events.session.react import BROKEN_TEXT
from tests.conformance.approval_desk import Ledger, recorded, result_blocks, results, runtime_of

LOOK = use("look", {"n": 1})


def looks(*numbers: int) -> list[Any]:
    return [use("look", {"n": n}) for n in numbers]


# What a policy says


@pytest.mark.parametrize("kind", ["plain", "async", "object"])
async def test_a_policy_judges_each_call_of_an_answer_in_order(kind: str, log: Any) -> None:
    judged: list[ProposedCall] = []

    def policy(call: ProposedCall) -> Any:
        judged.append(call)
        return [Allow(), Deny("not two"), None, Ask("three?"), Allow(always=True)][len(judged) - 1]

    async def async_policy(call: ProposedCall) -> Any:
        await asyncio.sleep(0)
        return policy(call)

    class Office:
        async def __call__(self, call: ProposedCall) -> Any:
            return policy(call)

    async def handler(session: str, request: ToolApprovalRequested) -> Any:
        return Deny(f"asked: {request.reason}")

    ledger = Ledger()
    given: Any = {"plain": policy, "async": async_policy, "object": Office()}[kind]
    script = [[*looks(1, 2, 3, 4), use("pay", {"amount": 5})], say("done")]
    async with runtime_of(log, ledger, script, policy=given, approval=handler) as runtime:
        session = await runtime.session("alice")
        assert (await session.send("go")).outcome == Completed()
        blocks = await result_blocks(session)

    assert [block.text for block in blocks] == ["saw 1", "not two", "saw 3", "asked: three?", "asked: "]
    assert [block.kind for block in blocks] == [None, "denied", None, "denied", "denied"]
    assert ledger.done == ["saw 1", "saw 3"]
    assert judged[0] == ProposedCall(
        session="alice",  # type: ignore[arg-type]
        run=judged[0].run,
        turn=1,
        tool="look",
        input={"n": 1},
        tier="observe",
        effect="pure",
    )
    assert [(call.tool, call.tier, call.effect) for call in judged[3:]] == [
        ("look", "observe", "pure"),
        ("pay", "confirm", "once"),
    ]


async def test_a_policy_comes_before_approval(log: Any) -> None:
    order: list[str] = []

    def policy(call: ProposedCall) -> Any:
        order.append(f"judged {call.input['amount']}")
        return Deny("never") if call.input["amount"] == 2 else None

    async def handler(session: str, request: ToolApprovalRequested) -> Any:
        order.append(f"asked {request.input['amount']}")
        return Allow()

    script = [[use("pay", {"amount": n}) for n in (1, 2)], say("done")]
    async with runtime_of(log, Ledger(), script, policy=policy, approval=handler) as runtime:
        session = await runtime.session("alice")
        await session.send("go")
        assert await results(session) == ["paid 1", "never"]
        assert [event.input for event in await recorded(session, "ToolApprovalRequested")] == [{"amount": 1}]
    assert order == ["judged 1", "judged 2", "asked 1"]


async def test_a_policy_is_asked_only_about_calls_that_could_run(log: Any) -> None:
    judged: list[str] = []

    def policy(call: ProposedCall) -> Any:
        judged.append(call.tool)

    script = [[use("nothing"), use("look", {"n": "many"}), use("look", "no json"), LOOK], say("done")]
    async with runtime_of(log, Ledger(), script, policy=policy) as runtime:
        session = await runtime.session("alice")
        await session.send("go")
        kinds = [block.kind for block in await result_blocks(session)]
    assert kinds == ["not_found", "invalid_arguments", "invalid_arguments", None]
    assert judged == ["look"]


async def test_a_policy_sees_the_arguments_that_would_run_and_cannot_change_them(log: Any) -> None:
    seen: list[Any] = []

    def policy(call: ProposedCall) -> Any:
        seen.append(dict(call.input))
        call.input["n"] = 99
        call.input.clear()

    ledger = Ledger()
    script = [use("look", {"n": 7.0}), say("done")]  # A float where an integer is wanted is repaired.
    async with runtime_of(log, ledger, script, policy=policy) as runtime:
        session = await runtime.session("alice")
        await session.send("go")
        [responded, _] = await recorded(session, "ModelResponded")
    assert seen == [responded.content[0].input] == [{"n": 7}]
    assert ledger.done == ["saw 7"]


async def test_reasons_of_a_policy_are_kept_within_bounds(log: Any) -> None:
    def policy(call: ProposedCall) -> Any:
        return Deny("no " * 1_000_000) if call.input["n"] == 1 else Deny("")

    async with runtime_of(log, Ledger(), [looks(1, 2), say("done")], policy=policy) as runtime:
        session = await runtime.session("alice")
        assert (await session.send("go")).outcome == Completed()
        first, second = await results(session)
    assert first == ("no " * 10_000)[:10_000]
    assert second == "Denied: the call was not run."


async def test_a_run_is_cancelled_while_its_policy_thinks(log: Any) -> None:
    thinking = asyncio.Event()
    gone: list[str] = []

    async def policy(call: ProposedCall) -> Any:
        if call.input["n"] == 2:
            return None
        thinking.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            gone.append(call.tool)
            raise

    ledger = Ledger()
    script = [LOOK, say("after")]
    async with runtime_of(log, ledger, script, policy=policy) as runtime:
        session = await runtime.session("alice")
        sending = asyncio.create_task(session.send("go"))
        await thinking.wait()
        await session.cancel()
        assert (await sending).outcome == Cancelled()
        assert [message.text for message in await session.history()] == ["go"]  # Of the answer nothing is kept.
        assert (await session.send("more")).text == "after"
    assert (gone, ledger.done) == (["look"], [])


async def test_a_policy_that_swallows_its_cancellation_lets_no_call_run(log: Any) -> None:
    thinking = asyncio.Event()

    async def policy(call: ProposedCall) -> Any:
        thinking.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return Allow()

    ledger = Ledger()
    async with runtime_of(log, ledger, [LOOK, say("after")], policy=policy) as runtime:
        session = await runtime.session("alice")
        sending = asyncio.create_task(session.send("go"))
        await thinking.wait()
        await session.cancel()
        assert (await sending).outcome == Cancelled()
        assert (await session.send("more")).text == "after"
    assert ledger.done == []


async def test_closing_while_a_policy_thinks_leaves_the_call_to_be_made_again(memory: Any) -> None:
    thinking = asyncio.Event()

    async def policy(call: ProposedCall) -> Any:
        thinking.set()
        await asyncio.Event().wait()

    ledger = Ledger()
    async with runtime_of(memory, ledger, [LOOK], policy=policy, close_grace_s=0) as runtime:
        session = await runtime.session("alice")
        sending = asyncio.create_task(session.send("go", key="k"))
        await thinking.wait()
        sending.add_done_callback(lambda done: done.exception())
    async with runtime_of(memory, ledger, [LOOK, say("done")]) as runtime:
        session = await runtime.session("alice")
        assert (await session.send("go", key="k")).text == "done"
    assert ledger.done == ["saw 1"]


# A policy that breaks


def breakages() -> list[Any]:
    def raising(error: BaseException) -> Any:
        def policy(call: ProposedCall) -> Any:
            raise error

        async def async_policy(call: ProposedCall) -> Any:
            raise error

        kind = type(error).__name__
        return [pytest.param(policy, id=kind), pytest.param(async_policy, id=f"async {kind}")]

    def giving(value: object) -> Any:
        return pytest.param(lambda call: value, id=repr(value))

    return [
        *raising(RuntimeError("boom")),
        *raising(asyncio.CancelledError()),
        *raising(SystemExit(3)),
        *raising(GeneratorExit()),
        giving(True),
        giving("allow"),
        giving(Allow),
        pytest.param(lambda: Allow(), id="too few parameters"),
    ]


@pytest.mark.parametrize("policy", breakages())
async def test_a_run_whose_policy_breaks_fails_and_the_next_one_runs(policy: Any, memory: Any) -> None:
    broken = True

    def first_broken(call: ProposedCall) -> Any:
        return policy(call) if broken and call.input == {"n": 1} else Allow()

    ledger = Ledger()
    script = [looks(1, 2), LOOK, say("done")]
    async with runtime_of(memory, ledger, script, policy=first_broken) as runtime:
        session = await runtime.session("alice")
        result = await session.send("go")
        assert isinstance(result.outcome, Failed)
        assert result.outcome.error.kind == "tool_execution"
        assert "policy" in result.outcome.error.message
        blocks = await result_blocks(session)
        broken = False
        assert (await session.send("again")).outcome == Completed()
    assert [block.is_error for block in blocks] == [True, True]
    assert ledger.done == ["saw 1"]


@pytest.mark.parametrize("policy", breakages())
async def test_with_retry_the_model_is_told_and_the_other_calls_run(policy: Any, memory: Any) -> None:
    def first_broken(call: ProposedCall) -> Any:
        return policy(call) if call.input == {"n": 1} else Allow()

    ledger = Ledger()
    script = [looks(1, 2), say("done")]
    async with runtime_of(memory, ledger, script, policy=first_broken, error_recovery="retry") as runtime:
        session = await runtime.session("alice")
        assert (await session.send("go")).outcome == Completed()
        first, second = await result_blocks(session)
    assert (first.text, first.kind) == (BROKEN_TEXT, "denied")
    assert second.text == "saw 2"


@pytest.mark.parametrize("recoveries_max", [0, 2])
async def test_recoveries_in_a_row_are_bounded(recoveries_max: int, log: Any) -> None:
    def policy(call: ProposedCall) -> Any:
        raise RuntimeError("always")

    options: dict[str, Any] = {"error_recovery": "retry", "recoveries_max": recoveries_max}
    async with runtime_of(log, Ledger(), [LOOK] * 10, policy=policy, **options) as runtime:
        result = await (await runtime.session("alice")).send("go")
    assert isinstance(result.outcome, Failed)
    assert (result.outcome.error.kind, result.outcome.error.message) == ("tool_execution", "The policy failed: always")
    assert result.turns == recoveries_max + 1


async def test_a_turn_without_breakage_begins_the_count_of_recoveries_anew(log: Any) -> None:
    def policy(call: ProposedCall) -> Any:
        if call.input["n"]:
            raise RuntimeError("odd")

    script = [*looks(1, 1, 0, 1, 1, 0), say("done")]
    async with runtime_of(log, Ledger(), script, policy=policy, error_recovery="retry", recoveries_max=2) as runtime:
        assert (await (await runtime.session("alice")).send("go")).outcome == Completed()


async def test_an_action_that_cannot_be_named_breaks_its_call_and_asks_nobody(log: Any) -> None:
    ran: list[str] = []

    def named(path: str) -> Any:
        return {"none": None, "blank": " "}[path]  # And for every other path it raises.

    async def later() -> str:
        return "an action"

    @tool(tier="confirm", action=named)
    async def delete(path: str) -> str:
        """Delete."""
        ran.append(path)
        return path

    def named_later() -> Any:
        return later()

    @tool(tier="confirm", action=named_later)
    async def wipe() -> str:
        """Wipe."""
        ran.append("all")
        return "all"

    asked: list[str] = []

    async def handler(session: str, request: ToolApprovalRequested) -> Any:
        asked.append(request.tool)
        return Allow()

    script = [[*[use("delete", {"path": path}) for path in ("none", "blank", "raises")], use("wipe")], say("done")]
    async with runtime_of(log, None, script, tools=[delete, wipe], approval=handler, error_recovery="retry") as runtime:
        session = await runtime.session("alice")
        assert (await session.send("go")).outcome == Completed()
        assert await results(session) == [BROKEN_TEXT] * 4
        [responded, _] = await recorded(session, "ModelResponded")
    assert [verdict.verdict for verdict in responded.verdicts] == ["broken"] * 4
    assert "The action of delete is not known" in responded.verdicts[0].reason
    assert (asked, ran) == ([], [])


# A runner that breaks


class Machine:
    """Stands for what carries tools out: a body can have it break down."""

    def __init__(self) -> None:
        self.ran: list[int] = []

        @tool(tier="observe")
        async def work(n: int) -> str:
            """Work, if the machine does."""
            self.ran.append(n)
            if n == 1:
                raise AgentLoopError("the machine is out of order")
            return f"worked {n}"

        self.tools = [work]


async def test_a_run_fails_where_its_tools_cannot_be_carried_out(log: Any) -> None:
    script = [[use("work", {"n": n}) for n in (1, 2)], say("after")]
    async with runtime_of(log, None, script, tools=Machine().tools) as runtime:
        session = await runtime.session("alice")
        result = await session.send("go")
        assert isinstance(result.outcome, Failed)
        assert result.outcome.error.kind == "tool_execution"
        assert "the machine is out of order" in result.outcome.error.message
        first, _ = await result_blocks(session)
        assert (first.kind, first.text) == ("crashed", f"{CRASHED_TEXT} (the machine is out of order)")
        assert (await session.send("more")).text == "after"


async def test_with_retry_the_model_is_told_that_its_tools_could_not_be_carried_out(log: Any) -> None:
    script = [[use("work", {"n": n}) for n in (1, 2)], say("done")]
    async with runtime_of(log, None, script, tools=Machine().tools, error_recovery="retry") as runtime:
        session = await runtime.session("alice")
        assert (await session.send("go")).outcome == Completed()
        first, second = await result_blocks(session)
        [failed] = await recorded(session, "ToolCallFailed")
    assert failed.broken
    assert (first.kind, second.text) == ("crashed", "worked 2")


NO_THREADS = """
import asyncio, resource, sys
from refold import AgentConfig, AgentRuntime, Completed, Failed, ScriptedProvider, ToolResultBlock, say, tool, use

recovery = sys.argv[1]
ran = []

@tool(tier="observe")
def work(n: int) -> str:
    ran.append(n)
    return f"worked {n}"

async def main():
    script = [use("work", {"n": 1}), use("work", {"n": 2}), say("done")]
    config = AgentConfig(model="m", error_recovery=recovery)
    async with AgentRuntime(config, provider=ScriptedProvider(script), tools=[work]) as runtime:
        session = await runtime.session("alice")
        limits = resource.getrlimit(resource.RLIMIT_AS)
        # A thread's stack does not fit into what is left of the address space.
        resource.setrlimit(resource.RLIMIT_AS, (1, limits[1]))
        restored = []
        def restore(recorded):
            if type(recorded.event).__name__ == "ToolCallFailed" and not restored:
                restored.append(True)
                resource.setrlimit(resource.RLIMIT_AS, limits)
        runtime.subscribe(restore)
        result = await session.send("go")
        resource.setrlimit(resource.RLIMIT_AS, limits)
        blocks = [b for m in await session.history() for b in m.content if isinstance(b, ToolResultBlock)]
        print(type(result.outcome).__name__, [block.kind for block in blocks], ran)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recovery", "printed"),
    [("stop", "Failed ['crashed'] []"), ("retry", "Completed ['crashed', None] [2]")],
)
@pytest.mark.skipif(sys.platform != "linux", reason="the address space is limited by setrlimit")
def test_a_thread_that_cannot_be_started_breaks_the_call_which_never_runs_later(recovery: str, printed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", NO_THREADS, recovery], capture_output=True, text=True, timeout=120
    )
    assert (done.stdout.strip(), done.returncode) == (printed, 0), done.stderr


FEW_THREADS = """
import asyncio, resource
from refold import AgentConfig, AgentRuntime, ScriptedProvider, ToolResultBlock, say, tool, use

@tool(tier="observe")
def work(n: int) -> str:
    return f"worked {n}"

async def main():
    script = [use("work", {"n": 0}), [use("work", {"n": n}) for n in range(1, 9)], say("done")]
    async with AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider(script), tools=[work]) as runtime:
        session = await runtime.session("alice")
        limits = resource.getrlimit(resource.RLIMIT_AS)
        def limit(recorded):
            if type(recorded.event).__name__ == "ToolCallCompleted":
                resource.setrlimit(resource.RLIMIT_AS, (1, limits[1]))
        runtime.subscribe(limit)
        result = await session.send("go")
        resource.setrlimit(resource.RLIMIT_AS, limits)
        blocks = [b for m in await session.history() for b in m.content if isinstance(b, ToolResultBlock)]
        print(type(result.outcome).__name__, [int(block.text.split()[-1]) for block in blocks])

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the address space is limited by setrlimit")
def test_where_no_further_thread_can_be_started_those_that_there_are_do_the_work() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", FEW_THREADS], capture_output=True, text=True, timeout=120)
    assert (done.stdout.strip(), done.returncode) == ("Completed [0, 1, 2, 3, 4, 5, 6, 7, 8]", 0), done.stderr


# What is offered


async def test_a_model_is_shown_what_is_offered_and_that_is_recorded(log: Any) -> None:
    asked: list[tuple[str, str]] = []

    def offer(session: str, spec: Any) -> bool:
        asked.append((session, spec.name))
        return spec.name != "pay" or session == "alice"

    async with runtime_of(log, Ledger(), [say("hers"), say("his")], offer=offer) as runtime:
        alice, bob = await runtime.session("alice"), await runtime.session("bob")
        await alice.send("go")
        await bob.send("go")
        [hers], [his] = await recorded(alice, "ModelResponded"), await recorded(bob, "ModelResponded")
        provider = runtime.agent.provider
    assert isinstance(provider, ScriptedProvider)
    assert [[spec.name for spec in request.tools] for request in provider.requests] == [
        ["delete", "look", "pay"],
        ["delete", "look"],
    ]
    assert (hers.request.offered, his.request.offered) == (None, ("delete", "look"))
    assert asked[:3] == [("alice", "delete"), ("alice", "look"), ("alice", "pay")]


async def test_a_call_of_a_tool_that_was_not_offered_does_not_run_and_no_policy_is_asked(log: Any) -> None:
    judged: list[str] = []

    def policy(call: ProposedCall) -> Any:
        judged.append(call.tool)

    ledger = Ledger()
    script = [[LOOK, use("pay", {"amount": 1})], say("done")]
    async with runtime_of(
        log, ledger, script, policy=policy, offer=lambda session, spec: spec.name != "pay"
    ) as runtime:
        session = await runtime.session("alice")
        assert (await session.send("go")).outcome == Completed()
        blocks = await result_blocks(session)
    assert [(block.text, block.kind) for block in blocks] == [
        ("saw 1", None),
        ("The tool pay is not to be used here.", "denied"),
    ]
    assert (judged, ledger.done) == (["look"], ["saw 1"])


async def test_what_is_offered_may_change_from_turn_to_turn(log: Any) -> None:
    ledger = Ledger()
    script = [LOOK, LOOK, say("done")]
    async with runtime_of(
        log, ledger, script, offer=lambda session, spec: spec.name != "look" or not ledger.done
    ) as runtime:
        session = await runtime.session("alice")
        await session.send("go")
        assert await results(session) == ["saw 1", "The tool look is not to be used here."]
        offered = [event.request.offered for event in await recorded(session, "ModelResponded")]
    assert offered == [None, ("delete", "pay"), ("delete", "pay")]


async def test_nothing_at_all_may_be_offered(log: Any) -> None:
    async with runtime_of(log, Ledger(), [LOOK, say("done")], offer=lambda session, spec: False) as runtime:
        session = await runtime.session("alice")
        assert (await session.send("go")).outcome == Completed()
        [first, _] = await recorded(session, "ModelResponded")
    assert first.request.offered == ()


def bad_offers() -> list[Any]:
    def raises(session: str, spec: Any) -> bool:
        raise RuntimeError("boom")

    def cancels(session: str, spec: Any) -> bool:
        raise asyncio.CancelledError

    async def later(session: str, spec: Any) -> bool:
        return False

    return [
        pytest.param(raises, "failed on delete: boom", id="raises"),
        pytest.param(cancels, "failed on delete", id="cancels"),
        pytest.param(lambda session, spec: None, "gave NoneType for delete", id="None"),
        pytest.param(lambda session, spec: later(session, spec), "gave coroutine for delete", id="coroutine"),
    ]


@pytest.mark.parametrize(("offer", "says"), bad_offers())
async def test_an_offer_that_breaks_fails_the_run_before_the_model_is_asked(offer: Any, says: str, memory: Any) -> None:
    async with runtime_of(memory, Ledger(), [LOOK], offer=offer) as runtime:
        result = await (await runtime.session("alice")).send("go")
        assert isinstance(result.outcome, Failed)
        assert says in result.outcome.error.message
        assert isinstance(runtime.agent.provider, ScriptedProvider)
        assert runtime.agent.provider.requests == []


@pytest.mark.parametrize("field", ["policy", "offer"])
def test_what_is_no_function_is_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=rf"Agent\.{field} must be a function, not str"):
        AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([]), **{field: "all"})  # type: ignore[call-overload]


def test_an_async_offer_is_refused() -> None:
    async def offer(session: str, spec: Any) -> bool:
        return True

    with pytest.raises(ConfigError, match="must be a plain function"):
        AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([]), offer=offer)  # type: ignore[arg-type]
