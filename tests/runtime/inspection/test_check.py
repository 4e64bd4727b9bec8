"""`check_log`: what raises nothing, grows meanwhile, or cannot be read; the transcripts show each kind of damage."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from refold.events.core.errors import PersistenceError
from refold.events.core.ids import RunId, StreamName
from refold.events.core.records import StreamHead
from refold.events.session.core import SESSION_CODEC
from refold.events.session.events import RunCompleted
from refold.inspection.check import CheckReport, Problem, check_log
from refold.stores import InMemoryStore
from tests.conformance.failing_store import FailingStore
from tests.runtime.log_builder import LogBuilder

ALICE = "stream = (SELECT id FROM streams WHERE name = 'session/alice')"


def checked(path: Path) -> CheckReport:
    return asyncio.run(check_log(path))


def kinds(report: CheckReport) -> list[str]:
    assert report.problems_found == len(report.problems)
    assert report.sound == (not report.problems)
    return [problem.kind for problem in report.problems]


def only(report: CheckReport) -> Problem:
    assert len(kinds(report)) == 1, report.problems
    return report.problems[0]


def test_an_event_of_any_depth_is_named(tampered: Callable[..., Path]) -> None:
    report = checked(tampered(f"UPDATE events SET data = '{'[' * 5_000}' WHERE version = 3 AND {ALICE}"))
    assert [(problem.kind, problem.version) for problem in report.problems] == [("chain", 3), ("event", 3)]


async def test_events_that_cannot_have_happened_break_an_invariant(builder: LogBuilder) -> None:
    await builder.weather_session("alice")
    await builder.append(StreamName("session/alice"), [SESSION_CODEC.encode(RunCompleted(run=RunId("run_3")))])
    report = await check_log(builder.store)
    assert set(kinds(report)) == {"invariant"}
    assert {problem.version for problem in report.problems} == {12}
    assert any(problem.message.startswith("INV2: ") for problem in report.problems)


async def test_invariants_are_not_judged_after_an_event_that_cannot_be_read(builder: LogBuilder) -> None:
    await builder.open("alice")
    run = RunCompleted(run=RunId("run_3"))
    await builder.append(StreamName("session/alice"), [b"{}", SESSION_CODEC.encode(run)])
    assert kinds(await check_log(builder.store)) == ["event"]


async def test_streams_of_tools_and_of_the_runtime_are_decoded(builder: LogBuilder) -> None:
    await builder.append(StreamName("tool/weather"), [b'{"type":"tool.call_abandoned.v1","started":"session/a@7"}'])
    await builder.append(StreamName("runtime/log"), [b'{"type":"runtime.exploded.v1"}'])
    report = await check_log(builder.store)
    assert report.not_decoded == ()
    assert only(report).stream == "runtime/log"


async def test_a_thousand_problems_are_kept_and_all_are_counted(builder: LogBuilder) -> None:
    await builder.append(StreamName("order/1"), [b"nonsense"] * 1_200)
    report = await check_log(builder.store)
    assert (report.problems_found, len(report.problems), report.sound) == (1_200, 1_000, False)


class GrowingStore(InMemoryStore):
    """Appends another batch to alice's stream whenever the list of streams has been read."""

    builder: LogBuilder | None = None

    async def list_streams(
        self, *, prefix: str = "", after: str = "", limit: int | None = None, with_pending: bool = False
    ) -> list[StreamHead]:
        heads = await super().list_streams(prefix=prefix, after=after, limit=limit, with_pending=with_pending)
        assert self.builder is not None
        await self.builder.send("alice", "one more")
        await self.builder.open(f"session {len(heads)}")
        return heads


async def test_a_log_that_grows_under_the_check_is_sound() -> None:
    store = GrowingStore()
    store.builder = LogBuilder(store)
    await store.builder.open("alice")
    report = await check_log(store)
    assert report.problems == ()
    assert report.events > 2


@pytest.mark.parametrize(
    ("broken", "streams"),
    [("list", ["", "session/alice"]), ("all", [""]), ("session", ["session/alice"]), ("payloads", ["session/alice"])],
)
async def test_what_cannot_be_read_is_a_problem_and_the_rest_is_checked(broken: str, streams: Sequence[str]) -> None:
    store = FailingStore(InMemoryStore())
    await LogBuilder(store).open("alice")
    store.fail_reads(lambda: PersistenceError("a page is gone"), of=broken)
    report = await check_log(store)
    assert "unreadable" in kinds(report)
    assert {problem.stream for problem in report.problems} <= set(streams)


async def test_a_stream_that_the_list_of_streams_lacks_is_found() -> None:
    class Forgetful(InMemoryStore):
        async def list_streams(
            self, *, prefix: str = "", after: str = "", limit: int | None = None, with_pending: bool = False
        ) -> list[StreamHead]:
            return []

        async def head(self, stream: str) -> StreamHead | None:
            return None

    store = Forgetful()
    await LogBuilder(store).append(StreamName("session/alice"), [b"{}"] * 3)
    assert str(only(await check_log(store))) == "session/alice@1: the stream is missing from the list of streams"
