"""Both stores are one store: the same calls give the same answers, in any order and however often it reopens."""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TypeVar

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from refold.events.core.errors import WrongExpectedVersion
from refold.events.core.ids import EventRef, StreamName
from refold.events.core.records import EncodedBatch, Snapshot
from refold.stores import EventStore, InMemoryStore, SQLiteStore
from refold.stores.sample_batches import payload

T = TypeVar("T")

NAMES = ("session/a", "session/a/b", "session/ü%", "model/_", "session/\U0010ffff", "session/\U0010ffff\U0010ffff")
names = st.sampled_from(NAMES)
references = st.none() | st.builds("{}@{}".format, names, st.integers(1, 9)) | st.sampled_from(["session/a", "x@@"])
keys = st.lists(st.text(st.characters(codec="utf-8", exclude_characters=" \0"), min_size=1, max_size=3), max_size=2)
events = st.lists(st.text(st.characters(codec="utf-8"), max_size=5).map(str.encode), min_size=1, max_size=3)
limits = st.none() | st.integers(0, 5)


@st.composite
def batches(draw: st.DrawFn) -> list[tuple[int, EncodedBatch]]:
    """Draw batches whose expected version is a difference from the right one, mostly 0."""
    return [
        (
            draw(st.sampled_from([0, 0, 0, 0, 0, 0, 0, 1, -1])),
            EncodedBatch(
                stream=StreamName(draw(names)),
                expected_version=0,
                at=draw(st.integers(-(2**63), 2**63 - 1)),
                events=tuple(draw(events)),
                pending=tuple(draw(keys)),
                correlation=EventRef(correlation) if (correlation := draw(references)) else None,
                causation=EventRef(causation) if (causation := draw(references)) else None,
            ),
        )
        for _ in range(draw(st.integers(1, 3)))
    ]


class Agreement(RuleBasedStateMachine):
    """Calls a store of each kind, and compares every answer."""

    @initialize()
    def make(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.loop = asyncio.new_event_loop()
        self.memory: EventStore = InMemoryStore()
        self.sqlite = self.loop.run_until_complete(self.open())
        self.versions: dict[str, int] = {}

    async def open(self) -> EventStore:
        return await SQLiteStore.open(self.folder / "events.db", durability="normal", wait_for_log_s=0)

    def teardown(self) -> None:
        self.loop.run_until_complete(self.sqlite.close())
        self.loop.close()
        shutil.rmtree(self.folder)

    def agreed(self, call: Callable[[EventStore], Coroutine[None, None, T]]) -> T | str:
        """Return what both stores answer, or say, to the same call."""
        answers: list[T | str] = []
        for store in (self.memory, self.sqlite):
            try:
                answers.append(self.loop.run_until_complete(call(store)))
            except (WrongExpectedVersion, ValueError) as error:
                answers.append(repr(error))
        assert answers[0] == answers[1]
        return answers[0]

    @rule(drawn=batches(), content=st.none() | st.binary(max_size=3))
    def append(self, drawn: list[tuple[int, EncodedBatch]], content: bytes | None) -> None:
        versions = dict(self.versions)
        given: list[EncodedBatch] = []
        for error, empty in drawn:
            version = versions.get(empty.stream, 0)
            versions[empty.stream] = version + len(empty.events)
            given.append(
                EncodedBatch(
                    stream=empty.stream,
                    expected_version=max(version + error, 0),
                    at=empty.at,
                    events=empty.events,
                    pending=empty.pending,
                    correlation=empty.correlation,
                    causation=empty.causation,
                )
            )
        kept = payload(content) if content is not None else None
        if isinstance(self.agreed(lambda store: store.append(given, kept)), list):
            self.versions = versions

    @rule(name=names, after=st.integers(-1, 9), limit=limits)
    def read_stream(self, name: str, after: int, limit: int | None) -> None:
        self.agreed(lambda store: store.read_stream(name, after_version=after, limit=limit))

    @rule(after=st.integers(-1, 20), limit=st.integers(-1, 9))
    def read_all(self, after: int, limit: int) -> None:
        self.agreed(lambda store: store.read_all(after_position=after, limit=limit))

    @rule(
        prefix=st.sampled_from(["", "s", "session/", *NAMES]),
        after=names | st.just(""),
        limit=limits,
        pending=st.booleans(),
    )
    def list_streams(self, prefix: str, after: str, limit: int | None, pending: bool) -> None:
        self.agreed(lambda store: store.list_streams(prefix=prefix, after=after, limit=limit, with_pending=pending))

    @rule(name=names, version=st.integers(0, 9), state=st.binary(max_size=3))
    def save_snapshot(self, name: str, version: int, state: bytes) -> None:
        snapshot = Snapshot(stream=StreamName(name), version=version, chain=b"c", fold_version=1, state=state)
        self.agreed(lambda store: store.save_snapshot(snapshot))

    @rule(contents=st.lists(st.binary(max_size=3), max_size=3))
    def read_payloads(self, contents: list[bytes]) -> None:
        hashes = [content_hash for content in contents for content_hash in payload(content)]
        self.agreed(lambda store: store.read_payloads(hashes))

    @rule()
    def reopen(self) -> None:
        self.loop.run_until_complete(self.sqlite.close())
        self.sqlite = self.loop.run_until_complete(self.open())

    @rule(name=names)
    def look_at_a_stream(self, name: str) -> None:
        self.agreed(lambda store: store.head(name))
        self.agreed(lambda store: store.load_snapshot(name))

    @invariant()
    def the_logs_are_equal(self) -> None:
        self.agreed(lambda store: store.read_all())


Agreement.TestCase.settings = settings(max_examples=8, stateful_step_count=20, deadline=None)
TestAgreement = Agreement.TestCase
