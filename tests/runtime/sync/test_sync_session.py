"""What a plain program does with a runtime: `with`, ordinary calls, ordinary loops."""

import asyncio
import contextvars
import gc
import threading
from pathlib import Path
from typing import Any, assert_type

import pytest

import refold
from refold.actors import Actor
from refold.stores import InMemoryStore
from tests.conformance.failing_store import FailingStore
from tests.conformance.sessions import TERMINAL
from tests.conformance.threads import Held, InThread


def runtime_of(*script: Any, tools: Any = (), **options: Any) -> refold.AgentRuntime:
    config = options.pop("config", refold.AgentConfig(model="m"))
    return refold.AgentRuntime(config, provider=refold.ScriptedProvider(script), tools=tools, **options)


def kinds_of(session: refold.SyncSession) -> list[str]:
    return [type(recorded.event).__name__ for recorded in session.events()]


def test_a_session_is_used_without_a_loop(tmp_path: Path) -> None:
    with runtime_of(
        refold.say("Sunny."), refold.ProviderError("no credit", kind="auth"), log=tmp_path / "events.db"
    ) as runtime:
        assert isinstance(runtime, refold.SyncRuntime)
        session = runtime.session("alice")
        result = assert_type(session.send("Weather in Lisbon?", key="req-17"), refold.RunResult)
        assert (result.text, result.outcome) == ("Sunny.", refold.Completed())
        assert session.send("Weather in Lisbon?", key="req-17") == result
        messages = assert_type(session.history(), list[refold.Message])
        assert [message.text for message in messages] == ["Weather in Lisbon?", "Sunny."]
        assert assert_type(runtime.sessions(), list[refold.SessionId]) == [session.id] == ["alice"]
        assert runtime.commits == 4
        assert runtime.tools.names() == ()
        assert type(session.send("And in Porto?").outcome).__name__ == "Failed"
    with runtime_of(log=tmp_path / "events.db") as runtime:
        session = runtime.session("alice", restore=True)
        assert [message.text for message in session.history()][:2] == ["Weather in Lisbon?", "Sunny."]
        with pytest.raises(refold.ConfigError, match="no session 'bob'"):
            runtime.session("bob", restore=True)


def test_events_are_yielded_over_the_bounds_of_pages_and_from_a_version_on() -> None:
    with runtime_of(*[refold.say("yes")] * 250) as runtime:
        session = runtime.session("s")
        for number in range(250):
            session.send(f"{number}")
        versions = [recorded.version for recorded in session.events()]
        assert len(versions) > 1000
        assert versions == list(range(1, len(versions) + 1))
        assert [recorded.version for recorded in session.events(after_version=1000)] == versions[1000:]
        assert session.state_at(3).version == 3


def test_every_argument_of_send_reaches_the_run() -> None:
    seen, token = list[str](), refold.CancellationToken()
    token.cancel("no longer wanted")
    with runtime_of(refold.say("yes")) as runtime:
        session = runtime.session("s")
        assert session.send("go", cancel=token).outcome == refold.Cancelled()
        threads = set[str]()

        def see(recorded: Any) -> None:
            seen.append(kind_of(recorded))
            threads.add(threading.current_thread().name)

        assert session.send("go", on_event=see).text == "yes"
        assert (seen[0], seen[-1]) == ("InputQueued", "RunCompleted")
        assert threads == {"refold-loop"}


def test_what_on_event_raises_is_raised_to_the_caller() -> None:
    with runtime_of(refold.say("no"), refold.say("yes")) as runtime:
        session = runtime.session("s")

        def use_the_session(recorded: Any) -> None:
            session.history()

        with pytest.raises(refold.WouldDeadlock, match="on_event"):
            session.send("go", on_event=use_the_session)
        assert session.send("go").text == "yes"


# Streams


def test_a_run_is_read_as_a_stream() -> None:
    config = refold.AgentConfig(model="m", streaming=True)
    with runtime_of(refold.say("one two three"), refold.say("again"), config=config) as runtime:
        session = runtime.session("s")
        with session.stream("go", key="k") as stream:
            with pytest.raises(refold.ConfigError, match="has not ended"):
                _ = stream.result
            items = list(stream)
            assert next(stream, None) is None
        text = "".join(getattr(item.delta, "text", "") for item in items if isinstance(item, refold.Streamed))
        assert text == "one two three"
        assert kind_of(items[-1]) == "RunCompleted"
        assert stream.result.text == "one two three"
        assert stream.run == stream.result.run
        recorded = [item for item in session.stream("go", key="k") if isinstance(item, refold.RecordedEvent)]
        assert recorded == [item for item in items if isinstance(item, refold.RecordedEvent)]


@pytest.mark.parametrize("how", ["left", "closed", "dropped", "left by an error"])
def test_a_stream_that_is_not_read_to_its_end_cancels_its_run_before_its_caller_goes_on(how: str) -> None:
    with runtime_of(Held(), refold.say("yes")) as runtime:
        session = runtime.session("s")
        if how == "left":
            with session.stream("go") as stream:
                assert kind_of(next(stream)) == "InputQueued"
            assert stream.result.outcome == refold.Cancelled()
        elif how == "closed":
            stream = session.stream("go")
            next(stream)
            stream.close()
        elif how == "dropped":
            for _ in session.stream("go"):
                break
            gc.collect()
        else:
            with pytest.raises(KeyError, match="mine"), session.stream("go"):
                raise KeyError("mine")
        if how != "dropped":
            assert kinds_of(session)[-1] == "RunCancelled"
        assert session.send("go").text == "yes"
        assert [kind for kind in kinds_of(session) if kind in TERMINAL] == ["RunCancelled", "RunCompleted"]


def test_a_stream_that_is_never_begun_sends_nothing() -> None:
    with runtime_of() as runtime:
        session = runtime.session("s")
        session.stream("go")
        session.stream("go").close()
        assert kinds_of(session) == []


def test_sessions_are_followed_by_a_thread_until_it_leaves_or_the_runtime_closes() -> None:
    with runtime_of(refold.say("yes"), refold.say("yes")) as runtime:
        following = runtime.follow()
        seen = InThread(lambda: [item.stream for item in following if isinstance(item, refold.RecordedEvent)])
        left = runtime.follow(capacity=1)
        reader = InThread(lambda: list(left))
        runtime.session("a").send("go")
        runtime.session("b").send("go")
        left.close()
        assert [item for item in reader.result() if not isinstance(item, refold.Missed | refold.RecordedEvent)] == []
        with pytest.raises(refold.ConfigError, match="capacity"):
            runtime.follow(capacity=0)
    assert set(seen.result()) == {"session/a", "session/b"}
    assert list(following) == []


def test_a_subscriber_is_called_until_it_is_taken_back() -> None:
    with runtime_of(refold.say("one"), refold.say("two"), refold.say("three")) as runtime:
        session, seen = runtime.session("s"), list[str]()

        def see(recorded: Any) -> None:
            seen.append(kind_of(recorded))
            if seen[-1] == "RunCompleted":
                end()  # On the loop's thread, where it is called.

        end = runtime.subscribe(see, session="s")
        session.send("go")
        session.send("go")
        assert seen.count("RunCompleted") == 1
        end()
        other = runtime.subscribe(see)
        other()
        session.send("go")
        assert seen.count("RunCompleted") == 1
    end()


# Errors, and who may call


def test_an_error_carries_the_way_from_the_caller_to_where_it_arose() -> None:
    with runtime_of() as runtime, pytest.raises(refold.CommandRejected) as raised:
        runtime.session("s").decide("none", allow=True)
    names = [entry.name for entry in raised.traceback]
    assert names[0] == "test_an_error_carries_the_way_from_the_caller_to_where_it_arose"
    assert names.index("run") < names.index("decide") < names.index("admit")


def test_a_runtime_that_cannot_open_says_why_and_leaves_no_thread(tmp_path: Path) -> None:
    before, broken = set(threading.enumerate()), FailingStore(InMemoryStore())
    broken.fail_reads(lambda: refold.PersistenceError("the disk is gone"))
    with pytest.raises(refold.PersistenceError, match="the disk is gone"):
        runtime_of(log=broken).__enter__()
    assert set(threading.enumerate()) <= before
    with pytest.raises(refold.ConfigError, match="open already"), runtime_of() as runtime:
        runtime.asynchronous.__enter__()
    assert set(threading.enumerate()) <= before


def test_a_closed_runtime_refuses_everything_and_is_closed_again_without_effect() -> None:
    with runtime_of(refold.say("yes")) as runtime:
        session = runtime.session("s")
        session.send("go")
        stream = session.stream("go")
        runtime.close()
        for call in (
            lambda: session.send("go"),
            lambda: session.history(),
            lambda: list(session.events()),
            lambda: session.follow(),
            lambda: runtime.session("t"),
            lambda: runtime.subscribe(print),
            lambda: next(stream),
        ):
            with pytest.raises(refold.ActorStopped) as raised:
                call()
            assert str(raised.value) == "the runtime is closed; open a new one on the same log"
        runtime.close(cancel=True)
    runtime.close()


def test_a_runtime_that_is_not_open_or_lives_on_another_loop_says_what_to_use() -> None:
    runtime = runtime_of(refold.say("yes"))
    with pytest.raises(refold.ConfigError, match="not open; use it inside `async with`, or `with`"):
        runtime.follow()
    with runtime, pytest.raises(refold.ConfigError, match="use it there, or what its `with` gives"):
        runtime.follow()


async def test_with_is_refused_where_a_loop_runs() -> None:
    before = set(threading.enumerate())
    with pytest.raises(refold.WouldDeadlock, match="async with"):
        runtime_of().__enter__()
    assert set(threading.enumerate()) <= before
    async with runtime_of(refold.say("yes")) as runtime:
        assert (await (await runtime.session("s")).send("go")).text == "yes"


def test_a_blocking_call_is_refused_where_another_loop_would_stand_still() -> None:
    with runtime_of(refold.say("yes"), refold.say("yes")) as runtime:
        session = runtime.session("s")

        async def in_a_web_server() -> str:
            with pytest.raises(refold.WouldDeadlock, match="to_thread"):
                session.send("go")
            return (await asyncio.to_thread(session.send, "go")).text

        assert asyncio.run(in_a_web_server()) == "yes"


# Tools


def test_a_plain_tool_uses_another_session_and_is_refused_its_own() -> None:
    outcomes = list[str]()

    @refold.tool
    def delegate(to: str) -> str:
        try:
            outcomes.append(runtime.session(to).send("help").text)
        except refold.AskCycle as error:
            outcomes.append(str(error))
        return outcomes[-1]

    script = [
        refold.use("delegate", {"to": "b"}),
        refold.say("from b"),
        refold.use("delegate", {"to": "a"}),
        refold.say("done"),
    ]
    with runtime_of(*script, tools=[delegate]) as runtime:
        assert runtime.session("a").send("go").text == "done"
    assert outcomes[0] == "from b"
    assert outcomes[1].startswith("waiting here would never end: session/a -> its tool -> session/a. Return what")
    assert "tell()" not in outcomes[1]


def test_a_plain_tool_may_submit_to_its_own_session_and_cannot_wait_for_that_run() -> None:
    submitted: list[refold.SyncRunHandle] = []

    @refold.tool
    def go_on(context: refold.ToolContext[Any]) -> str:
        submitted.append(runtime.session(context.session).submit("and then?"))
        with pytest.raises(refold.AskCycle, match="session/a -> its tool -> session/a"):
            submitted[0].result()
        with pytest.raises(refold.AskCycle, match="session/a -> its tool -> session/a"):
            list(submitted[0].stream())
        return "submitted"

    with runtime_of(refold.use("go_on"), refold.say("done"), refold.say("then"), tools=[go_on]) as runtime:
        assert runtime.session("a").send("go").text == "done"
        assert submitted[0].result().text == "then"


def test_an_async_tool_is_told_to_await_and_can() -> None:
    @refold.tool
    async def delegate() -> str:
        with pytest.raises(refold.WouldDeadlock, match="asynchronous"):
            runtime.session("b")
        other = await runtime.asynchronous.session("b")
        return (await other.send("help")).text

    with runtime_of(refold.use("delegate"), refold.say("from b"), refold.say("done"), tools=[delegate]) as runtime:
        session = runtime.session("a")
        assert session.send("go").text == "done"
        assert session.history()[2].content[0].content == (refold.TextBlock(text="from b"),)  # type: ignore[union-attr]


request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="none")


def saw(seen: list[str]) -> refold.Tool[[], str]:
    @refold.tool
    def look() -> str:
        """Look at a context variable."""
        seen.append(request_id.get())
        return "looked"

    return look


async def test_tools_see_the_context_variables_of_where_the_runtime_was_opened_in_both_faces() -> None:
    seen = list[str]()

    def in_threads() -> None:
        request_id.set("opened")
        with runtime_of(refold.use("look"), refold.say("done"), tools=[saw(seen)]) as runtime:
            request_id.set("sent")
            runtime.session("s").send("go")

    await asyncio.to_thread(in_threads)
    request_id.set("opened")
    async with runtime_of(refold.use("look"), refold.say("done"), tools=[saw(seen)]) as runtime:
        request_id.set("sent")
        await (await runtime.session("s")).send("go")
    assert seen == ["opened", "opened"]


def test_an_actor_beside_the_sessions_is_asked_from_this_thread() -> None:
    class Echo(Actor):
        async def on_receive(self, message: Any) -> Any:
            return message

    with runtime_of() as runtime:
        runtime.system.register("echo", lambda _: Echo())
        assert runtime.system.ref("echo/1").ask("hello") == "hello"


def kind_of(recorded: Any) -> str:
    return type(getattr(recorded, "event", recorded)).__name__
