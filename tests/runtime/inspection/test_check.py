"""`check_log`: what raises nothing, grows meanwhile, or cannot be read; the transcripts show each kind of damage."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest
from msgspec import structs

from refold.events.core.errors import LogFormatError, PersistenceError
from refold.events.core.ids import RunId, StreamName
from refold.events.core.records import StoredEvent, StreamHead
from refold.events.session.core import SESSION_CODEC
from refold.events.session.events import RunCompleted
from refold.inspection.check import CheckReport, NotDecoded, check_log
from refold.inspection.export import export_to_file
from refold.inspection.stream_check import Problem
from refold.stores import InMemoryStore
from refold.stores.jsonl.importing import open_to_read
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


async def test_an_empty_store_is_sound() -> None:
    report = await check_log(InMemoryStore())
    assert (report.sound, report.streams, report.events) == (True, 0, 0)


async def test_a_missing_digest_is_found() -> None:
    class WithoutDigest(InMemoryStore):
        async def read_stream(
            self, stream: str, *, after_version: int = 0, limit: int | None = None
        ) -> list[StoredEvent]:
            events = await super().read_stream(stream, after_version=after_version, limit=limit)
            return [structs.replace(event, chain=None) if event.version == 3 else event for event in events]

    store = WithoutDigest()
    await LogBuilder(store).weather_session("alice")
    problem = only(await check_log(store))
    assert str(problem) == "session/alice@3: has no digest, which the first event of a batch must have"


@pytest.mark.slow
@pytest.mark.parametrize("further", [-(2**62), -12, -2, -1, 1, 2, 12, 2**62])
@pytest.mark.parametrize("version", range(1, 12))
def test_an_event_of_any_other_batch_is_a_problem(tampered: Callable[..., Path], version: int, further: int) -> None:
    path = tampered(f"UPDATE events SET batch = batch + {further} WHERE version = {version} AND {ALICE}")
    assert {"batch", "chain", "unreadable"} & set(kinds(checked(path)))


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


async def test_streams_of_unknown_kinds_are_checked_as_far_as_they_can_be(builder: LogBuilder) -> None:
    await builder.append(StreamName("order/1"), [b'{"type":"order.placed.v1"}'])
    report = await check_log(builder.store)
    assert report.sound
    assert report.not_decoded == (NotDecoded(kind="order", streams=1),)
    await builder.append(StreamName("order/1"), [b"nonsense"])
    assert [(p.kind, p.version) for p in (await check_log(builder.store)).problems] == [("event", 2)]


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
    problem = only(await check_log(store))
    assert (problem.kind, problem.stream) == ("head", "session/alice")


@pytest.mark.parametrize("seed", range(40))
def test_any_edit_of_a_row_is_found_and_raises_nothing(tampered: Callable[..., Path], seed: int) -> None:
    random = Random(seed)
    column = random.choice(["position", "stream", "version", "batch", "at", "data", "correlation", "chain", "pending"])
    value = {
        "data": "CAST(randomblob(20) AS TEXT)",
        "chain": "randomblob(32)",
        "correlation": "CAST(randomblob(8) AS TEXT)",
        "pending": "'model:99'",
    }.get(column, str(random.choice([-(2**63), -1, 0, 77, 2**62])))
    row = "chain IS NOT NULL" if column in ("correlation", "chain", "pending") else "1"
    edit = f"SELECT position FROM events WHERE {row} ORDER BY position LIMIT 1 OFFSET {random.randrange(10)}"
    report = checked(tampered(f"UPDATE events SET {column} = {value} WHERE position = ({edit})"))
    assert not report.sound


@pytest.mark.parametrize("seed", range(40))
def test_a_file_damaged_anywhere_is_refused_or_reported_and_never_more(log_file: Path, seed: int) -> None:
    random = Random(seed)
    damaged = bytearray(log_file.read_bytes())
    for _ in range(random.choice([1, 8, 64])):
        damaged[random.randrange(len(damaged))] = random.randrange(256)
    log_file.write_bytes(damaged)
    refusal, events, problems = "", 0, 0
    try:
        report = checked(log_file)
        events, problems = report.events, report.problems_found
    except PersistenceError as error:
        refusal = str(error)
    assert str(log_file) in refusal or events + problems > 0


async def test_the_library_reports_what_opening_an_edited_export_raises(log_file: Path, tmp_path: Path) -> None:
    lines = tmp_path / "events.jsonl"
    await export_to_file(log_file, lines)
    lines.write_bytes(lines.read_bytes().replace(b"sunny", b"rainy"))
    with pytest.raises(LogFormatError):
        async with open_to_read(lines):
            pass
    report = await check_log(lines)
    assert (report.sound, report.problems_found, report.streams) == (False, 1, 3)
