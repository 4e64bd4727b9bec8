"""What is to be seen of a session: its line in a list, and everything at one version."""

from collections.abc import Callable

import pytest

from refold.events.core.content import Message, TextBlock, ThinkingBlock, ToolUseBlock
from refold.events.core.errors import ConfigError, LogFormatError
from refold.events.core.ids import StreamName, ToolCallId
from refold.events.core.records import StoredEvent, StreamHead
from refold.events.model.configuration import AgentConfiguration
from refold.events.session.commands import (
    CancelRun,
    Configure,
    DecideApproval,
    ImportHistory,
    RecordModelFailure,
    ResumeRun,
)
from refold.inspection.session_view import EffectInFlight, checked_version, list_sessions, view_session
from refold.inspection.transcript import Ended, Noted, Said
from refold.stores import InMemoryStore
from tests.runtime.conftest import LogBuilder


def call(name: str, **arguments: object) -> ToolUseBlock:
    return ToolUseBlock(id=ToolCallId(""), name=name, input=dict(arguments))


async def statuses(builder: LogBuilder) -> dict[str, str]:
    return {listed.session: listed.status for listed in await list_sessions(builder.store)}


async def test_sessions_are_listed_by_name_with_what_they_began_with(builder: LogBuilder) -> None:
    await builder.weather_session("bob")
    await builder.cancelled_session("alice")
    alice, bob = await list_sessions(builder.store)
    assert (alice.session, alice.version, alice.first_input) == ("alice", 10, "Weather in Porto?")
    assert (bob.session, bob.version, bob.pending) == ("bob", 11, ())
    assert bob.began_at < bob.at < alice.began_at


async def test_a_status_says_how_the_last_run_ended_or_what_a_session_waits_for(builder: LogBuilder) -> None:
    await builder.open("idle")
    await builder.weather_session("completed")
    await builder.cancelled_session("cancelled")
    await builder.open_session("open")
    await builder.open("failed", max_turns=1)
    await builder.send("failed", "go")
    await builder.answer("failed", call("weather"))
    await builder.result("failed", "call_6_0", "rain")
    await builder.open("waiting", run_timeout_s=60.0)
    await builder.send("waiting", "pay")
    await builder.answer("waiting", call("pay", amount=64))
    await builder.append(StreamName("session/damaged"), [b"{}"])
    await builder.open("parked", resumes_max=0)
    await builder.send("parked", "go")
    await builder.tell("parked", ResumeRun())
    assert await statuses(builder) == {
        name: name for name in ("cancelled", "completed", "damaged", "failed", "idle", "open", "parked", "waiting")
    }


async def test_a_status_is_the_same_in_the_list_and_in_the_view(builder: LogBuilder) -> None:
    await builder.weather_session("completed")
    await builder.cancelled_session("cancelled")
    await builder.open_session("open")
    await builder.open("idle")
    for name, status in (await statuses(builder)).items():
        assert (await view_session(builder.store, name)).status == status == name


async def test_an_ended_session_stays_ended_when_something_follows_its_last_run(builder: LogBuilder) -> None:
    await builder.weather_session("alice")
    await builder.tell("alice", ImportHistory(messages=(Message("user", (TextBlock(text="hi"),)),)))
    assert await statuses(builder) == {"alice": "completed"}


async def test_a_conversation_has_each_result_beside_its_call(builder: LogBuilder) -> None:
    await builder.weather_session("alice")
    view = await view_session(builder.store, "alice")
    asked, called, answered, ended = view.transcript
    assert isinstance(asked, Said)
    assert (asked.role, asked.content, asked.run) == ("user", (TextBlock(text="Weather in Lisbon?"),), "run_3")
    assert isinstance(called, Said)
    assert called.content == ()
    [shown] = called.calls
    assert (shown.tool, shown.input, shown.result) == (
        "weather",
        {"city": "Lisbon"},
        (TextBlock(text="Lisbon: sunny"),),
    )
    assert shown.ended_at - shown.started_at == 1_000_000
    assert isinstance(answered, Said)
    assert answered.content == (TextBlock(text="Sunny."),)
    assert isinstance(ended, Ended)
    assert (ended.run, ended.outcome, ended.turns, ended.usage.input_tokens) == ("run_3", "completed", 2, 20)
    assert ended.at - ended.started_at == 3_000_000


async def test_an_earlier_version_is_shown_as_it_was(builder: LogBuilder) -> None:
    await builder.weather_session("alice")
    view = await view_session(builder.store, "alice", at=7)
    assert (view.version, view.last_version, view.status) == (7, 11, "open")
    assert view.run is not None
    assert (view.run.run, view.run.phase) == ("run_3", "tools")
    assert view.pending == (EffectInFlight(key="tool:call_6_0", causation=7, what='weather(city="Lisbon")'),)
    assert len(view.transcript) == 2


@pytest.mark.parametrize("version", range(1, 12))
async def test_every_version_can_be_shown_also_inside_a_batch(builder: LogBuilder, version: int) -> None:
    await builder.weather_session("alice")
    assert (await view_session(builder.store, "alice", at=version)).version == version


@pytest.mark.parametrize("version", [-1, 0, 12])
async def test_a_version_that_is_not_there_is_refused(builder: LogBuilder, version: int) -> None:
    await builder.weather_session("alice")
    with pytest.raises(ConfigError, match=f"^session 'alice' has no version {version}; its versions are 1 to 11$"):
        await view_session(builder.store, "alice", at=version)


@pytest.mark.parametrize("version", [None, 1])
def test_a_session_that_is_listed_without_an_event_is_damaged(version: int | None) -> None:
    head = StreamHead(stream=StreamName("session/alice"), version=-7, chain=b"", pending=())
    with pytest.raises(LogFormatError, match="session 'alice' ends at version -7 according to the list of streams"):
        checked_version(head, version)


async def test_a_session_whose_rows_make_no_sense_is_damaged_and_hides_no_other() -> None:
    class DamagedStore(InMemoryStore):
        async def read_stream(
            self, stream: str, *, after_version: int = 0, limit: int | None = None
        ) -> list[StoredEvent]:
            if stream == "session/bob":
                raise LogFormatError("a row of session/bob has a text for a version")
            return await super().read_stream(stream, after_version=after_version, limit=limit)

    builder = LogBuilder(DamagedStore())
    await builder.weather_session("alice")
    await builder.append(StreamName("session/bob"), [b"{}"])
    assert await statuses(builder) == {"alice": "completed", "bob": "damaged"}


async def test_what_lies_before_the_damage_can_be_shown(builder: LogBuilder) -> None:
    await builder.open("alice")
    await builder.append(StreamName("session/alice"), [b"{}"])
    assert (await view_session(builder.store, "alice", at=2)).model == "test-model"
    with pytest.raises(LogFormatError, match="session/alice@3"):
        await view_session(builder.store, "alice")


async def test_a_cancelled_call_a_decision_and_a_refusal_are_told(builder: LogBuilder) -> None:
    await builder.open("alice")
    await builder.send("alice", "pay")
    await builder.answer("alice", call("pay", amount=64))
    await builder.tell("alice", DecideApproval(call=ToolCallId("call_6_0"), allowed=False, reason="too much"))
    await builder.tell("alice", CancelRun(reason="enough"))
    _, said, cancelled, ended = (await view_session(builder.store, "alice")).transcript
    assert isinstance(said, Said)
    [shown] = said.calls
    assert (shown.approval, shown.approval_reason, shown.kind) == ("denied", "too much", "denied")
    assert shown.started_at == 0
    assert isinstance(cancelled, Noted)
    assert cancelled.what == "run_3 is to end as cancelled: enough"
    assert isinstance(ended, Ended)
    assert ended.outcome == "cancelled"


async def test_a_failed_run_says_why(builder: LogBuilder) -> None:
    await builder.open("alice")
    await builder.send("alice", "hi")
    failure = RecordModelFailure(run="run_3", turn=1, kind="auth", message="bad key", status=401)  # type: ignore[arg-type]
    await builder.tell("alice", failure)
    _, noted, ended = (await view_session(builder.store, "alice")).transcript
    assert isinstance(noted, Noted)
    assert noted.what == "the model call failed (auth, HTTP 401): bad key"
    assert isinstance(ended, Ended)
    assert (ended.outcome, ended.kind, ended.message) == ("failed", "provider", "bad key")


async def test_waiting_inputs_are_shown(builder: LogBuilder) -> None:
    await builder.open_session("alice")
    await builder.send("alice", "And tomorrow?")
    view = await view_session(builder.store, "alice")
    assert [(waiting.run, waiting.content) for waiting in view.queue] == [("run_8", (TextBlock(text="And tomorrow?"),))]


async def test_a_new_configuration_is_noted_and_the_first_is_not(
    builder: LogBuilder, configuration_with: Callable[..., AgentConfiguration]
) -> None:
    await builder.weather_session("alice")
    await builder.tell("alice", Configure(configuration=configuration_with(max_turns=3)))
    notes = [entry for entry in (await view_session(builder.store, "alice")).transcript if isinstance(entry, Noted)]
    assert [note.what for note in notes] == ["agent: test-model; pay, weather"]


async def test_an_imported_history_is_a_conversation_too(builder: LogBuilder) -> None:
    await builder.open("alice")
    call_id = ToolCallId("toolu_1")
    await builder.tell(
        "alice",
        ImportHistory(
            messages=(
                Message("user", (TextBlock(text="hi"),)),
                Message(
                    "assistant",
                    (ThinkingBlock(thinking="hm"), ToolUseBlock(id=call_id, name="weather", input={"city": "Rome"})),
                ),
            )
        ),
    )
    asked, called = (await view_session(builder.store, "alice")).transcript
    assert isinstance(asked, Said)
    assert isinstance(called, Said)
    assert asked.imported
    assert called.content == (ThinkingBlock(thinking="hm"),)
    assert called.calls[0].kind == "crashed"
