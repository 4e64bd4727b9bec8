"""The contract of `EventStore` as tests that any store can run.

    class TestMyStore(EventStoreConformance):
        async def make_store(self) -> EventStore:
            return MyStore()

That is all: pytest collects the subclass, no plugin is needed, and each test makes and closes its own store and
event loop. A durable store also gives `reopen_store`. Read `refold.stores.event_store` beside it: every sentence
there has its test here.
"""

import asyncio
import contextlib
import functools
import hashlib
import unittest
from collections.abc import Callable, Coroutine
from typing import TypeVar

from refold.events.core.errors import PersistenceError, WrongExpectedVersion
from refold.events.core.ids import PayloadHash, StreamName
from refold.events.core.records import EncodedBatch, Snapshot, StoredEvent, StreamHead, first_chain, next_chain
from refold.stores.event_store import EventStore
from refold.stores.sample_batches import batch, expected_events, fork, payload

ODD_NAMES = (
    "session/a/b//c",
    'session/it\'s "quoted" -- ;',
    "session/100%_done\\",
    "session/ü𝄞\u202eß",
    "session/\U0010ffff",
    "session/ spaces ",
    "session/line\nbreak",
    "session/a@b@3",
    "session/" + "é" * 252,
)
"""Names that are rare and legal; the last has 512 UTF-8 bytes."""

Suite = TypeVar("Suite", bound="EventStoreConformance")


def with_store(test: Callable[[Suite, EventStore], Coroutine[None, None, None]]) -> Callable[[Suite], None]:
    """Make a test that gets a new store into one that needs neither an argument nor a pytest plugin."""

    @functools.wraps(test)
    def run(suite: Suite) -> None:
        async def run_with_store() -> None:
            store = await suite.make_store()
            try:
                await test(suite, store)
            finally:
                await store.close()

        asyncio.run(run_with_store())

    del run.__wrapped__  # pytest would take the store for a fixture
    return run


async def refused(append: Coroutine[None, None, object], *errors: type[Exception]) -> Exception:
    """Await `append`, which must raise one of `errors`, and return what it raised."""
    try:
        await append
    except errors as error:
        return error
    raise AssertionError(f"nothing was raised where {' or '.join(kind.__name__ for kind in errors)} was due")


class EventStoreConformance:
    """Tests of the contract; subclass it, give `make_store`, and let pytest collect the subclass."""

    knows_forks = True
    """Whether a stream can go on from another one (`refold.stores.forked`); a store that has it False refuses forks."""

    async def make_store(self) -> EventStore:
        """Return a new, empty store."""
        raise NotImplementedError

    async def reopen_store(self, store: EventStore) -> EventStore:
        """Close `store` and return another over the same contents; only durable stores give this."""
        raise unittest.SkipTest(f"{type(store).__name__} is not durable")

    # What is appended is read back.

    @with_store
    async def test_a_new_store_is_empty(self, store: EventStore) -> None:
        assert await store.read_all() == []
        assert await store.read_stream("session/a") == []
        assert await store.head("session/a") is None
        assert await store.list_streams() == []
        assert await store.load_snapshot("session/a") is None
        assert store.name

    @with_store
    async def test_a_batch_is_read_back_exactly_as_it_was_given(self, store: EventStore) -> None:
        given = batch(
            "session/a", 0, 3, pending=("model:1", "tool:x"), correlation="timer/t@4", causation="session/a@1"
        )
        appended = await store.append([given])
        events = expected_events([given], appended)
        assert [(place.stream, place.version) for place in appended] == [("session/a", 3)]
        assert await store.read_stream("session/a") == events
        assert await store.read_all() == events

    @with_store
    async def test_references_and_times_come_back_exactly(self, store: EventStore) -> None:
        references = (None, "session/a@1", "session/a@007", "session/ab@2", "session/a@b@3", "s@", "ü/é@9", "session/a")
        version = 0
        for correlation in references:
            for causation in references:
                at = (version - 5) * 2**57
                given = batch("session/a", version, at=at, correlation=correlation, causation=causation)
                (place,) = await store.append([given])
                assert await store.read_stream("session/a", after_version=version) == expected_events([given], [place])
                version += 1

    @with_store
    async def test_the_bytes_of_an_event_are_kept(self, store: EventStore) -> None:
        texts = ('{"type":"t"}', ' {"é":"𝄞"} ', '{"a":"' + "x" * 100_000 + '"}', '{"n":123456789012345678901234567890}')
        given = EncodedBatch(
            stream=StreamName("session/a"), expected_version=0, at=0, events=tuple(text.encode() for text in texts)
        )
        await store.append([given])
        assert [event.data for event in await store.read_stream("session/a")] == list(given.events)

    @with_store
    async def test_odd_stream_names_are_kept_apart(self, store: EventStore) -> None:
        await store.append([batch(name, 0, index + 1) for index, name in enumerate(ODD_NAMES)])
        for index, name in enumerate(ODD_NAMES):
            assert len(await store.read_stream(name)) == index + 1
            head = await store.head(name)
            assert head is not None
            assert (head.stream, head.version) == (name, index + 1)
        assert [head.stream for head in await store.list_streams()] == sorted(ODD_NAMES)

    # Versions, positions and chains.

    @with_store
    async def test_the_chain_covers_every_batch_of_a_stream(self, store: EventStore) -> None:
        batches = [batch("session/a", 0, 2), batch("session/a", 2, pending=("model",)), batch("session/a", 3)]
        chain = first_chain("session/a")
        for given in batches:
            chain = next_chain(chain, given)
            (place,) = await store.append([given])
            assert place.chain == chain
            head = await store.head("session/a")
            assert head == StreamHead(stream=given.stream, version=place.version, chain=chain, pending=given.pending)

    @with_store
    async def test_positions_increase_over_all_streams_in_the_order_given(self, store: EventStore) -> None:
        first = await store.append([batch("session/b", 0, 2), batch("session/a", 0, 3)])
        second = await store.append([batch("session/b", 2), batch("session/c", 0)])
        places = [place.position for place in (*first, *second)]
        assert places[0] > 0
        assert places == sorted(set(places))
        events = await store.read_all()
        assert [(event.stream, event.version) for event in events] == [
            ("session/b", 1),
            ("session/b", 2),
            ("session/a", 1),
            ("session/a", 2),
            ("session/a", 3),
            ("session/b", 3),
            ("session/c", 1),
        ]
        positions = [event.position for event in events]
        assert positions == sorted(set(positions))
        assert [event.position for event in events if event.version == event.batch] == places

    @with_store
    async def test_order_is_by_position_and_never_by_time(self, store: EventStore) -> None:
        await store.append([batch("session/a", 0, at=3_000_000)])
        await store.append([batch("session/b", 0, at=1_000_000)])
        await store.append([batch("session/a", 1, at=2_000_000)])
        assert [event.at for event in await store.read_all()] == [3_000_000, 1_000_000, 2_000_000]
        assert [event.at for event in await store.read_stream("session/a")] == [3_000_000, 2_000_000]

    @with_store
    async def test_several_batches_of_one_stream_each_expect_what_the_one_before_leaves(
        self, store: EventStore
    ) -> None:
        batches = [
            batch("session/a", 0, 2, pending=("model",)),
            batch("session/b", 0),
            batch("session/a", 2, 3),
            batch("session/a", 5, pending=("tool:1", "tool:2")),
        ]
        appended = await store.append(batches)
        assert [place.version for place in appended] == [2, 1, 5, 6]
        assert await store.read_all() == expected_events(batches, appended)
        head = await store.head("session/a")
        assert head == StreamHead(
            stream=StreamName("session/a"), version=6, chain=appended[3].chain, pending=("tool:1", "tool:2")
        )

    @with_store
    async def test_appending_again_and_again_keeps_only_what_was_given(self, store: EventStore) -> None:
        for version in range(3):
            await store.append([batch("session/a", version)])
        assert [event.version for event in await store.read_stream("session/a")] == [1, 2, 3]
        assert len(await store.read_all()) == 3

    # Forks.

    @with_store
    async def test_a_fork_begins_with_its_prefix_under_the_origins_name(self, store: EventStore) -> None:
        """Or it is refused by a store that does not know forks, and nothing is left."""
        await store.append([batch("session/a", 0, 3), batch("session/a", 3, 2)])
        given = [fork("session/b", "session/a", 3, 2), batch("session/b", 5), fork("session/c", "session/b", 5)]
        if not self.knows_forks:
            await refused(store.append(given), WrongExpectedVersion)
            assert await store.read_stream("session/b") == []
            return
        appended = [*await store.append(given[:2]), *await store.append(given[2:])]
        assert [place.version for place in appended] == [5, 6, 6]
        assert appended[0].chain == next_chain(first_chain("session/b"), given[0]), "what it begins with is only named"
        own = expected_events(given, appended)
        prefix = (await store.read_stream("session/a"))[:3]
        assert await store.read_stream("session/b") == [*prefix, *own[:3]]
        assert await store.read_stream("session/c") == [*prefix, *own[:2], own[3]]
        assert (await store.read_all())[5:] == own, "each event is in the log once"
        assert [head.version for head in await store.list_streams()] == [5, 6, 6]
        whole = await store.read_stream("session/c")
        for after in range(7):
            for limit in (0, 1, 2, 4, None):
                page = await store.read_stream("session/c", after_version=after, limit=limit)
                assert page == whole[after:][:limit], (after, limit)
        await store.append([batch("session/a", 5), batch("session/c", 6)])
        assert (await store.read_stream("session/c"))[:6] == whole, "what an origin gets later is not its forks'"

    @with_store
    async def test_a_fork_of_what_is_not_there_is_refused(self, store: EventStore) -> None:
        if not self.knows_forks:
            raise unittest.SkipTest(f"{type(store).__name__} does not know forks")
        await store.append([batch("session/a", 0, 2), batch("session/b", 0, 2)])
        kept = await store.read_all()
        for given in (
            fork("session/new", "session/a", 3),
            fork("session/new", "session/gone", 1),
            fork("session/b", "session/a", 2),
            fork("session/new", "session/new", 1),
        ):
            await refused(store.append([batch("session/other", 0), given]), WrongExpectedVersion, ValueError)
            assert await store.read_all() == kept
        await store.append([fork("session/new", "session/a", 2)])
        assert len(await store.read_stream("session/new")) == 3

    # What is refused leaves nothing.

    @with_store
    async def test_a_wrong_expected_version_is_refused_and_named(self, store: EventStore) -> None:
        await store.append([batch("session/a", 0, 2)])
        for expected in (0, 1, 3):
            error = await refused(store.append([batch("session/a", expected)]), WrongExpectedVersion)
            assert isinstance(error, WrongExpectedVersion)
            assert (error.stream, error.expected, error.actual) == ("session/a", expected, 2)
            assert not error.outcome_unknown
        error = await refused(store.append([batch("session/new", 1)]), WrongExpectedVersion)
        assert isinstance(error, WrongExpectedVersion)
        assert (error.expected, error.actual) == (1, 0)
        assert len(await store.read_all()) == 2
        assert [head.stream for head in await store.list_streams()] == ["session/a"]

    @with_store
    async def test_one_refused_batch_takes_all_others_and_the_payloads_with_it(self, store: EventStore) -> None:
        await store.append([batch("session/a", 0)])
        kept = payload(b"large")
        batches = [batch("session/new", 0), batch("session/a", 1, pending=("model",)), batch("session/b", 7)]
        await refused(store.append(batches, kept), WrongExpectedVersion)
        assert [event.stream for event in await store.read_all()] == ["session/a"]
        assert await store.head("session/new") is None
        assert await store.list_streams(with_pending=True) == []
        assert await store.read_payloads(kept) == {}
        appended = await store.append(batches[:2], kept)
        assert [place.version for place in appended] == [1, 2]

    @with_store
    async def test_the_second_batch_of_a_stream_in_one_call_is_checked_too(self, store: EventStore) -> None:
        for second in (0, 1, 3):
            await refused(store.append([batch("session/a", 0, 2), batch("session/a", second)]), WrongExpectedVersion)
        assert await store.read_all() == []

    @with_store
    async def test_what_cannot_be_kept_is_refused(self, store: EventStore) -> None:
        good = {"stream": "session/a", "expected_version": 0, "at": 0, "events": (b"{}",)}
        bad: tuple[dict[str, object], ...] = (
            {"events": ()},
            {"events": (b"{}", b'"\xff"')},
            {"events": ("{}",)},
            {"at": 2**63},
            {"at": -(2**63) - 1},
            {"at": 1.5},
            {"at": "now"},
            {"expected_version": -1},
            {"expected_version": 2**63 - 1},
            {"expected_version": 2**70},
            {"expected_version": None},
            {"stream": ""},
            {"stream": "session/\0"},
            {"stream": "session/\ud83d"},
            {"stream": b"session/a"},
            {"pending": ("a b",)},
            {"pending": ("",)},
            {"pending": ("a\ud83d",)},
            {"pending": (1,)},
            {"correlation": "@1"},
            {"correlation": ""},
            {"causation": "session/\ud83d@1"},
            {"causation": 7},
        )
        for change in bad:
            given = EncodedBatch(**{**good, **change})  # type: ignore[arg-type]
            await refused(store.append([batch("session/other", 0), given]), ValueError, TypeError)
        assert await store.read_all() == []
        await store.append([EncodedBatch(**good)])  # type: ignore[arg-type]

    @with_store
    async def test_nothing_to_append_is_no_append(self, store: EventStore) -> None:
        assert await store.append([]) == []
        assert await store.append([], {}) == []
        assert await store.read_all() == []

    # Pages.

    @with_store
    async def test_a_stream_is_read_in_pages(self, store: EventStore) -> None:
        await store.append([batch("session/a", 0, 5), batch("session/b", 0, 2)])
        assert await _versions(store, after_version=3) == [4, 5]
        assert await _versions(store, limit=2) == [1, 2]
        assert await _versions(store, after_version=2, limit=2) == [3, 4]
        assert await _versions(store, after_version=5) == []
        assert await _versions(store, after_version=2**63) == []
        assert await _versions(store, after_version=-1) == [1, 2, 3, 4, 5]
        assert await _versions(store, limit=0) == []
        assert await _versions(store, limit=2**63) == [1, 2, 3, 4, 5]
        await refused(store.read_stream("session/a", limit=-1), ValueError)

    @with_store
    async def test_names_that_differ_in_case_only_are_different_streams(self, store: EventStore) -> None:
        await store.append([batch("session/a", 0, 2), batch("session/A", 0, 1)])
        assert [event.stream for event in await store.read_stream("session/a")] == ["session/a"] * 2
        assert [event.stream for event in await store.read_stream("session/A")] == ["session/A"]
        ends = [await store.head("session/a"), await store.head("session/A")]
        assert [end.version for end in ends if end is not None] == [2, 1]
        assert [end.stream for end in await store.list_streams(prefix="session/a")] == ["session/a"]

    @with_store
    async def test_the_log_is_read_in_pages(self, store: EventStore) -> None:
        await store.append([batch("session/a", 0, 4), batch("session/b", 0, 3)])
        everything = await store.read_all()
        paged: list[StoredEvent] = []
        while page := await store.read_all(after_position=paged[-1].position if paged else 0, limit=2):
            assert len(page) <= 2
            assert page[0].position > (paged[-1].position if paged else 0), "a page goes back, so reading never ends"
            paged += page
        assert paged == everything
        assert await store.read_all(after_position=everything[-1].position) == []
        assert await store.read_all(limit=0) == []
        await refused(store.read_all(limit=-1), ValueError)

    @with_store
    async def test_the_log_is_read_a_thousand_at_a_time_unless_told(self, store: EventStore) -> None:
        await store.append([batch("session/a", 0, 1001)])
        assert len(await store.read_all()) == 1000
        assert len(await store.read_stream("session/a")) == 1001

    # Listing streams.

    @with_store
    async def test_streams_are_listed_in_order_of_code_points(self, store: EventStore) -> None:
        names = ["session/Z", "session/a", "session/é", "session/\uffff", "session/\U0001f600", "session/", "model/a"]
        await store.append([batch(name, 0) for name in names])
        assert [head.stream for head in await store.list_streams()] == sorted(names)

    @with_store
    async def test_streams_are_listed_by_prefix_and_in_pages(self, store: EventStore) -> None:
        names = ["m", "s%", "s%a", "s_", "sa", "sab", "sa\U0010ffff", "sa\U0010ffffz", "sb", "S%"]
        await store.append([batch(name, 0) for name in names])

        async def listed(prefix: str = "", after: str = "", limit: int | None = None) -> list[str]:
            return [head.stream for head in await store.list_streams(prefix=prefix, after=after, limit=limit)]

        for prefix in ("", "s", "s%", "s_", "sa", "sa\U0010ffff", "z", "S", "sab", "sabc", "\ud83d"):
            assert await listed(prefix) == sorted(name for name in names if name.startswith(prefix))
        for after in ("", "s%", "sa", "saa", "zzz", "\ud83d"):
            assert await listed(after=after) == sorted(name for name in names if name > after)
        assert await listed("s", "sa", 2) == ["sab", "sa\U0010ffff"][:2]
        assert await listed(limit=0) == []
        await refused(store.list_streams(limit=-1), ValueError)

    @with_store
    async def test_streams_with_pending_effects_are_those_whose_last_batch_left_some(self, store: EventStore) -> None:
        await store.append([batch("session/a", 0, pending=("model",)), batch("session/b", 0), batch("session/c", 0)])
        await store.append([batch("session/c", 1, 2, pending=("tool:1", "tool:2"))])
        pending = await store.list_streams(with_pending=True)
        assert [(head.stream, head.pending) for head in pending] == [
            ("session/a", ("model",)),
            ("session/c", ("tool:1", "tool:2")),
        ]
        await store.append([batch("session/a", 1)])
        assert [head.stream for head in await store.list_streams(with_pending=True)] == ["session/c"]
        assert await store.list_streams(with_pending=True, prefix="session/a") == []
        assert await store.list_streams(with_pending=True, after="session/c") == []
        assert len(await store.list_streams()) == 3

    # Payloads and snapshots.

    @with_store
    async def test_payloads_are_kept_once_under_their_hash(self, store: EventStore) -> None:
        first, second = payload(b"\0binary\xff"), payload(b"")
        await store.append([batch("session/a", 0)], first | second)
        await store.append([batch("session/a", 1)], first)
        missing = PayloadHash("0" * 64)
        assert await store.read_payloads([*first, *second, missing, *first]) == first | second
        assert await store.read_payloads([]) == {}
        assert await store.read_payloads(iter(first)) == first

    @with_store
    async def test_payloads_may_come_without_a_batch(self, store: EventStore) -> None:
        given = payload(b"prompt")
        assert await store.append([], given) == []
        assert await store.read_payloads(given) == given

    @with_store
    async def test_a_payload_that_does_not_hash_to_its_key_is_refused(self, store: EventStore) -> None:
        right = hashlib.sha256(b"right").hexdigest()
        for key, data in ((right, b"wrong"), (right.upper(), b"right"), ("", b"right")):
            await refused(store.append([batch("session/a", 0)], {PayloadHash(key): data}), ValueError)
        await refused(store.append([], {PayloadHash(right): "right"}), TypeError)  # type: ignore[dict-item]
        assert await store.read_all() == []

    @with_store
    async def test_a_snapshot_replaces_the_one_before(self, store: EventStore) -> None:
        name = StreamName("session/a")
        (place,) = await store.append([batch(name, 0, 2)])
        first = Snapshot(stream=name, version=2, chain=place.chain, fold_version=3, state=b"\0\xff state")
        second = Snapshot(stream=name, version=1, chain=b"other", fold_version=4, state=b"")
        await store.save_snapshot(first)
        assert await store.load_snapshot(name) == first
        await store.save_snapshot(second)
        assert await store.load_snapshot(name) == second
        await store.append([batch(StreamName("session/b"), 0, 1)])
        for length in (1_000_000, 2_000_000, 300_000, 1):
            state = bytes(place % 251 for place in range(length))
            long = Snapshot(stream=name, version=2, chain=place.chain, fold_version=3, state=state)
            await store.save_snapshot(long)
            assert await store.load_snapshot(name) == long
        assert await store.load_snapshot("session/b") is None

    @with_store
    async def test_a_snapshot_of_a_stream_without_events_is_not_kept(self, store: EventStore) -> None:
        await store.save_snapshot(
            Snapshot(stream=StreamName("session/a"), version=1, chain=b"", fold_version=1, state=b"")
        )
        assert await store.load_snapshot("session/a") is None

    @with_store
    async def test_a_snapshot_that_cannot_be_kept_is_refused(self, store: EventStore) -> None:
        await store.append([batch("session/a", 0)])
        good = {"stream": "session/a", "version": 1, "chain": b"", "fold_version": 1, "state": b""}
        for change in ({"version": 2**63}, {"fold_version": 2**63}, {"state": "text"}, {"chain": None}):
            snapshot = Snapshot(**{**good, **change})  # type: ignore[arg-type]
            await refused(store.save_snapshot(snapshot), ValueError, TypeError)
        assert await store.load_snapshot("session/a") is None

    # Other callers at the same time.

    @with_store
    async def test_readers_beside_an_append_see_only_whole_batches(self, store: EventStore) -> None:
        done = asyncio.Event()

        async def write() -> None:
            for count in range(40):
                await store.append([batch("session/a", 3 * count, 3), batch("session/b", 3 * count, 3)])
            done.set()

        async def read() -> None:
            while not done.is_set():
                events = await store.read_all()
                assert len(events) % 6 == 0
                assert len(await store.read_stream("session/a")) % 3 == 0
                head = await store.head("session/b")
                assert head is None or head.version % 3 == 0
                await asyncio.sleep(0)

        await asyncio.gather(write(), read(), read())
        assert len(await store.read_all()) == 240

    @with_store
    async def test_a_cancelled_append_is_settled_when_the_caller_is_told(self, store: EventStore) -> None:
        version = 0
        for steps in range(12):
            task = asyncio.ensure_future(store.append([batch("session/a", version, 2), batch("session/b", version, 2)]))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):  # It may have been done before.
                await task
            heads = [await store.head("session/a"), await store.head("session/b")]
            versions = {head.version if head else 0 for head in heads}
            assert len(versions) == 1
            assert versions <= {version, version + 2}
            version = versions.pop()
        (place,) = await store.append([batch("session/a", version)])
        assert place.version == version + 1

    # The end.

    @with_store
    async def test_a_closed_store_refuses_everything(self, store: EventStore) -> None:
        await store.append([batch("session/a", 0)])
        await store.close()
        await store.close()
        snapshot = Snapshot(stream=StreamName("session/a"), version=1, chain=b"", fold_version=1, state=b"")
        await refused(store.append([batch("session/a", 1)]), PersistenceError)
        await refused(store.read_stream("session/a"), PersistenceError)
        await refused(store.read_all(), PersistenceError)
        await refused(store.head("session/a"), PersistenceError)
        await refused(store.list_streams(), PersistenceError)
        await refused(store.read_payloads([]), PersistenceError)
        await refused(store.save_snapshot(snapshot), PersistenceError)
        await refused(store.load_snapshot("session/a"), PersistenceError)

    @with_store
    async def test_a_durable_store_keeps_everything_when_it_is_opened_again(self, store: EventStore) -> None:
        kept = payload(b"prompt")
        batches = [batch("session/a", 0, 2, pending=("model",)), batch(ODD_NAMES[3], 0, causation="session/a@1")]
        appended = await store.append(batches, kept)
        if self.knows_forks:
            batches.append(fork("session/b", "session/a", 1))
            appended += await store.append(batches[-1:])
        snapshot = Snapshot(
            stream=StreamName("session/a"), version=2, chain=appended[0].chain, fold_version=1, state=b"state"
        )
        await store.save_snapshot(snapshot)
        heads = await store.list_streams()
        again = await self.reopen_store(store)
        try:
            assert await again.read_all() == expected_events(batches, appended)
            assert await again.list_streams() == heads
            assert [event.stream for event in await again.read_stream("session/b")] == (
                ["session/a", "session/b"] if self.knows_forks else []
            )
            assert [head.stream for head in await again.list_streams(with_pending=True)] == ["session/a"]
            assert await again.read_payloads(kept) == kept
            assert await again.load_snapshot("session/a") == snapshot
            (place,) = await again.append([batch("session/a", 2)])
            assert place.position > appended[-1].position
            assert place.chain == next_chain(appended[0].chain, batch("session/a", 2))
        finally:
            await again.close()


async def _versions(store: EventStore, *, after_version: int = 0, limit: int | None = None) -> list[int]:
    events = await store.read_stream("session/a", after_version=after_version, limit=limit)
    return [event.version for event in events]
