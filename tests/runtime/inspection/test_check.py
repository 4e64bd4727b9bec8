"""`check_log`: each kind of damage is found, named with its place, and raises nothing."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random

import pytest
from msgspec import structs

from refold.events.core.errors import LogFormatError, PersistenceError
from refold.events.core.ids import PayloadHash, RunId, StreamName
from refold.events.core.records import StoredEvent, StreamHead
from refold.events.session.core import SESSION_CODEC
from refold.events.session.events import RunCompleted
from refold.inspection.check import CheckReport, NotDecoded, check_log
from refold.inspection.stream_check import Problem
from refold.stores import InMemoryStore, SQLiteStore
from tests.runtime.conftest import LogBuilder

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


def test_a_log_as_it_was_written_is_sound(log_file: Path) -> None:
    report = checked(log_file)
    assert report.problems == ()
    assert (report.streams, report.batches, report.events, report.payloads) == (3, 15, 28, 2)


async def test_an_empty_store_is_sound() -> None:
    report = await check_log(InMemoryStore())
    assert (report.sound, report.streams, report.events) == (True, 0, 0)


def test_a_changed_event_breaks_the_chain_of_its_batch_only(tampered: Callable[..., Path]) -> None:
    path = tampered(f"UPDATE events SET data = replace(data, 'Lisbon', 'Madrid') WHERE version = 3 AND {ALICE}")
    problem = only(checked(path))
    assert (problem.kind, problem.stream, problem.version) == ("chain", "session/alice", 3)
    assert str(problem).startswith("session/alice@3: the batch of versions 3 to 5 is not what was appended")


@pytest.mark.parametrize(
    ("column", "value"), [("pending", "''"), ("correlation", "'session/bob@3'"), ("causation", "'@1'")]
)
def test_every_column_of_a_batch_is_part_of_the_chain(tampered: Callable[..., Path], column: str, value: str) -> None:
    problem = only(checked(tampered(f"UPDATE events SET {column} = {value} WHERE version = 3 AND {ALICE}")))
    assert (problem.kind, problem.version) == ("chain", 3)


def test_a_changed_digest_is_found_in_its_batch_and_in_the_next(tampered: Callable[..., Path]) -> None:
    report = checked(tampered(f"UPDATE events SET chain = x'00' WHERE version = 6 AND {ALICE}"))
    assert [(problem.kind, problem.version) for problem in report.problems] == [("chain", 6), ("chain", 8)]


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


def test_a_row_without_its_digest_is_a_problem(tampered: Callable[..., Path]) -> None:
    assert not checked(tampered(f"UPDATE events SET chain = NULL WHERE version = 3 AND {ALICE}")).sound


def test_events_cannot_change_streams(tampered: Callable[..., Path]) -> None:
    path = tampered("UPDATE streams SET name = 'session/mallory' WHERE name = 'session/alice'")
    assert ("chain", 1) in [(problem.kind, problem.version) for problem in checked(path).problems]


def test_a_missing_batch_is_a_gap_and_breaks_the_chain(tampered: Callable[..., Path]) -> None:
    report = checked(tampered(f"DELETE FROM events WHERE version IN (6, 7) AND {ALICE}"))
    assert [(problem.kind, problem.version) for problem in report.problems] == [("version", 8), ("chain", 8)]
    assert report.problems[0].message == "comes after version 5: events are missing"


def test_a_missing_beginning_is_a_gap(tampered: Callable[..., Path]) -> None:
    report = checked(tampered(f"DELETE FROM events WHERE version = 1 AND {ALICE}"))
    assert [(problem.kind, problem.version) for problem in report.problems] == [("version", 2), ("chain", 2)]


def test_a_batch_without_its_stimulus_is_found(tampered: Callable[..., Path]) -> None:
    report = checked(tampered(f"DELETE FROM events WHERE version = 3 AND {ALICE}"))
    assert ("batch", 4) in [(problem.kind, problem.version) for problem in report.problems]


def test_an_event_that_says_it_is_of_another_batch_is_found(tampered: Callable[..., Path]) -> None:
    report = checked(tampered(f"UPDATE events SET batch = 4 WHERE version = 5 AND {ALICE}"))
    assert ("batch", 5) in [(problem.kind, problem.version) for problem in report.problems]


def test_an_event_that_says_it_is_of_a_batch_after_it_is_found(tampered: Callable[..., Path]) -> None:
    report = checked(tampered(f"UPDATE events SET batch = 9 WHERE version = 6 AND {ALICE}"))
    problem = next(problem for problem in report.problems if problem.kind == "batch")
    assert str(problem) == "session/alice@6: belongs to the batch of version 9, which begins after it"


@pytest.mark.slow
@pytest.mark.parametrize("further", [-(2**62), -12, -2, -1, 1, 2, 12, 2**62])
@pytest.mark.parametrize("version", range(1, 12))
def test_an_event_of_any_other_batch_is_a_problem(tampered: Callable[..., Path], version: int, further: int) -> None:
    path = tampered(f"UPDATE events SET batch = batch + {further} WHERE version = {version} AND {ALICE}")
    assert {"batch", "chain", "unreadable"} & set(kinds(checked(path)))


def test_a_stream_without_a_name_is_found(tampered: Callable[..., Path]) -> None:
    problem = only(checked(tampered("UPDATE streams SET name = '' WHERE name = 'session/carol'")))
    assert (problem.kind, problem.version) == ("head", 1)
    assert "no name" in str(problem)


@pytest.mark.parametrize("version", [0, -3])
def test_an_event_before_the_first_version_is_found(tampered: Callable[..., Path], version: int) -> None:
    path = tampered(
        f"INSERT INTO events (position, stream, version, batch, at, data, chain, pending) "
        f"SELECT 900, stream, {version}, {version}, at, data, chain, pending FROM events WHERE version = 3 AND {ALICE}"
    )
    problem = only(checked(path))
    assert str(problem) == f"session/alice@{version}: has version {version}; versions begin at 1"


def test_a_cut_end_is_found_by_the_list_of_streams(tampered: Callable[..., Path]) -> None:
    problem = only(checked(tampered(f"DELETE FROM events WHERE version >= 10 AND {ALICE}")))
    assert (problem.kind, problem.stream, problem.version) == ("head", "session/alice", 0)
    assert problem.message == "ends at version 11 according to the list of streams, at 9 here"
    assert str(problem).startswith("session/alice: ends at version 11")


def test_a_listed_end_that_is_too_early_is_found(tampered: Callable[..., Path]) -> None:
    report = checked(tampered("UPDATE streams SET version = 9 WHERE name = 'session/alice'"))
    assert set(kinds(report)) == {"head"}
    assert "ends at version 9 according to the list of streams, at 11 here" in [p.message for p in report.problems]


def test_a_listed_end_inside_of_a_batch_is_found(tampered: Callable[..., Path]) -> None:
    report = checked(tampered("UPDATE streams SET version = 4 WHERE name = 'session/alice'"))
    assert any("where no batch ends" in problem.message for problem in report.problems)


@pytest.mark.parametrize(("column", "value"), [("chain", "x'00'"), ("pending", "'model:5'")])
def test_a_listed_end_with_other_content_is_found(tampered: Callable[..., Path], column: str, value: str) -> None:
    problem = only(checked(tampered(f"UPDATE streams SET {column} = {value} WHERE name = 'session/alice'")))
    assert (problem.kind, problem.stream) == ("head", "session/alice")


def test_time_that_goes_back_is_found(tampered: Callable[..., Path]) -> None:
    report = checked(tampered(f"UPDATE events SET at = at - 2000000 WHERE version IN (8, 9) AND {ALICE}"))
    assert [(problem.kind, problem.version) for problem in report.problems] == [("time", 8), ("chain", 8)]


def test_an_event_with_another_time_than_its_batch_is_found(tampered: Callable[..., Path]) -> None:
    problem = only(checked(tampered(f"UPDATE events SET at = at + 1 WHERE version = 5 AND {ALICE}")))
    assert (problem.kind, problem.version) == ("time", 5)


def test_a_position_out_of_order_is_found(tampered: Callable[..., Path]) -> None:
    report = checked(tampered(f"UPDATE events SET position = 1000 WHERE version = 2 AND {ALICE}"))
    assert [(problem.kind, problem.version) for problem in report.problems] == [("position", 3)]


@pytest.mark.parametrize(
    "data", ["", "{", "null", "[]", '{"type":7}', '{"type":"session.input_queued.v1","content":7}', "[" * 5_000]
)
def test_an_event_that_cannot_be_decoded_is_named(tampered: Callable[..., Path], data: str) -> None:
    report = checked(tampered(f"UPDATE events SET data = '{data}' WHERE version = 3 AND {ALICE}"))
    assert [(problem.kind, problem.version) for problem in report.problems] == [("chain", 3), ("event", 3)]
    assert "session/alice@3" in report.problems[1].message
    assert report.problems[1].position == 3


def test_an_unknown_type_is_named_with_its_place(tampered: Callable[..., Path]) -> None:
    path = tampered(f"UPDATE events SET data = replace(data, '.v1', '.v99') WHERE version = 3 AND {ALICE}")
    problem = checked(path).problems[1]
    assert (problem.kind, problem.version) == ("event", 3)
    assert "'session.input_queued.v99'" in problem.message


def test_text_that_is_no_unicode_is_a_problem_of_its_stream_and_hides_no_other(tampered: Callable[..., Path]) -> None:
    report = checked(
        tampered(
            f"UPDATE events SET pending = CAST(x'ff' AS TEXT) WHERE version = 3 AND {ALICE}",
            "DELETE FROM payloads",
        )
    )
    found = [(problem.kind, problem.stream) for problem in report.problems]
    assert ("unreadable", "session/alice") in found
    assert ("payload", "session/bob") in found


def test_a_missing_payload_is_named_once_where_it_is_first_needed(tampered: Callable[..., Path]) -> None:
    report = checked(tampered("DELETE FROM payloads"))
    assert [(problem.kind, problem.stream, problem.version) for problem in report.problems] == [
        ("payload", "session/alice", 2),
        ("payload", "session/alice", 2),
    ]
    assert all("is missing" in problem.message for problem in report.problems)


def test_a_changed_payload_is_named(tampered: Callable[..., Path]) -> None:
    problem = only(checked(tampered("UPDATE payloads SET data = CAST(data || ' ' AS BLOB) WHERE rowid = 1")))
    assert (problem.kind, "hash to something else" in problem.message) == ("payload", True)


def test_a_large_tool_result_is_a_payload_that_is_checked(tmp_path: Path) -> None:
    async def build() -> CheckReport:
        async with await SQLiteStore.open(tmp_path / "large.db") as store:
            await LogBuilder(store).weather_session("alice", result="x" * 100_000)
            return await check_log(store)

    report = asyncio.run(build())
    assert (report.sound, report.payloads) == (True, 3)


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


def test_a_file_that_is_no_log_raises(tmp_path: Path) -> None:
    with pytest.raises(PersistenceError, match="does not exist"):
        checked(tmp_path / "nothing.db")
    (tmp_path / "text.db").write_text("hello, world, this is not a database")
    with pytest.raises(LogFormatError):
        checked(tmp_path / "text.db")


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


class BrokenStore(InMemoryStore):
    """Cannot do one of the things that a check needs."""

    broken = ""

    async def list_streams(
        self, *, prefix: str = "", after: str = "", limit: int | None = None, with_pending: bool = False
    ) -> list[StreamHead]:
        if self.broken == "list":
            raise PersistenceError("the streams are gone")
        return await super().list_streams(prefix=prefix, after=after, limit=limit, with_pending=with_pending)

    async def read_all(self, *, after_position: int = 0, limit: int = 1000) -> list[StoredEvent]:
        if self.broken == "all":
            raise PersistenceError("the log is gone")
        return await super().read_all(after_position=after_position, limit=limit)

    async def read_stream(self, stream: str, *, after_version: int = 0, limit: int | None = None) -> list[StoredEvent]:
        if self.broken == "stream" and stream == "session/alice":
            raise PersistenceError("a page is gone")
        return await super().read_stream(stream, after_version=after_version, limit=limit)

    async def read_payloads(self, hashes: Iterable[PayloadHash]) -> dict[PayloadHash, bytes]:
        if self.broken == "payloads":
            raise PersistenceError("the payloads are gone")
        return await super().read_payloads(hashes)


@pytest.mark.parametrize(
    ("broken", "streams"),
    [("list", ["", "session/alice"]), ("all", [""]), ("stream", ["session/alice"]), ("payloads", ["session/alice"])],
)
async def test_what_cannot_be_read_is_a_problem_and_the_rest_is_checked(broken: str, streams: Sequence[str]) -> None:
    store = BrokenStore()
    await LogBuilder(store).open("alice")
    store.broken = broken
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


async def test_events_whose_stream_was_taken_off_the_list_are_found(tampered: Callable[..., Path]) -> None:
    report = await check_log(tampered("DELETE FROM streams WHERE name = 'session/alice'"))
    assert not report.sound
    assert any("its stream has no name among the streams" in problem.message for problem in report.problems)
