"""What must be true of sessions, in the plainest words: a list of what was said, and what those who said it were told.

The rules: what was acknowledged is in the log, once, as it was said; who asks again under a key is told the same run
with the same end; the log only grows, and so does each history; and a session looks, as of any version, as it did then.

`Watching` follows a session slowly. Beside the slow reader a prompt one follows the same session from the same moment.
The promises: both see every event once and in order, up to what was the last when they left; and of what passes by and
is not logged, the slow one is told how much it missed: what it saw and what it missed are together what the prompt one
saw. A process that ends takes what waited for a reader with it; at the next one the reader goes on after the last event
that it has seen.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from refold.events.core.codec import RecordedEvent
from refold.events.core.content import Message, TextBlock
from refold.events.core.ids import stream_name
from refold.events.core.records import StoredEvent
from refold.events.session.core import SESSION_CODEC, SESSION_KIND
from refold.events.session.events import InputQueued
from refold.publishing.notifications import Missed, Published
from refold.publishing.subscription import Subscription
from refold.scenarios.plan.scenario import Watch
from refold.sessions.outcome import RunResult
from refold.sessions.session import Session


class Said(msgspec.Struct, kw_only=True, eq=False):
    """An input that a client sent."""

    session: str
    text: str
    key: str
    acknowledged: bool = False
    """Whether a client was told that it is in the log."""
    waiting: int = 0
    """How many wait for what comes of it, in the present process."""
    told: RunResult | None = None


class Expectations:
    """What was said in some sessions and seen of them, and what follows from that."""

    def __init__(self) -> None:
        self.said: list[Said] = []
        self._log: list[StoredEvent] = []
        self._histories: dict[str, tuple[Message, ...]] = {}
        """By session, as it was when nothing went on in it."""
        self._seen: defaultdict[str, dict[int, Sequence[Message]]] = defaultdict(dict)
        """By session and version."""

    def say(self, session: str, text: str) -> Said:
        said = Said(session=session, text=text, key=f"key {len(self.said) + 1}")
        self.said.append(said)
        return said

    def tell(self, said: Said, result: RunResult) -> None:
        """Check what a client is told about an input."""
        said.acknowledged = True
        assert said.told in (None, result), f"{said.key} was told as {said.told}, and again as {result}"
        said.told = result

    def check_log(self, log: Sequence[StoredEvent]) -> None:
        """Check all that the log has."""
        known = len(self._log)
        assert list(log[:known]) == self._log, "the log has lost or changed events that it had"
        self._log.extend(log[known:])
        queued = list(self._inputs())
        for said in self.said:
            found = [text for stream, key, text in queued if (stream, key) == (said.session, said.key)]
            assert len(found) <= 1, f"{said.key} of {said.session} is in the log {len(found)} times"
            assert found or not said.acknowledged, (
                f"{said.key} of {said.session} was acknowledged and is not in the log"
            )
            assert found in ([], [said.text]), f"{said.key} of {said.session} was said as {said.text!r}, not as {found}"
        keys = {(said.session, said.key) for said in self.said}
        for session, key, text in queued:
            assert (session, key) in keys, f"no client said {text!r} in {session}"

    def _inputs(self) -> Iterable[tuple[str, str | None, str]]:
        for stored in self._log:
            kind, _, session = stored.stream.partition("/")
            if kind == SESSION_KIND and b"input_queued" in stored.data:
                event = SESSION_CODEC.decode(stored)
                if isinstance(event, InputQueued):
                    blocks = event.original or event.content
                    yield session, event.key, "".join(block.text for block in blocks if isinstance(block, TextBlock))

    def check_history(self, session: str, history: Sequence[Message], *, idle: bool) -> None:
        """Check that a history begins with what was shown before; of an idle session all of it stays."""
        before = self._histories.get(session, ())
        assert tuple(history[: len(before)]) == before, f"{stream_name(SESSION_KIND, session)} has another history now"
        if idle:
            self._histories[session] = tuple(history)

    def check_version(self, session: str, version: int, messages: Sequence[Message]) -> None:
        """Check what a session looked like as of a version."""
        seen = self._seen[session].setdefault(version, list(messages))
        assert list(messages) == seen, f"{session} at version {version} was something else before"

    def versions(self, session: str) -> list[int]:
        return sorted(self._seen[session])


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """What a client saw that followed a session slowly."""

    session: str
    events: int
    """Of the log."""
    passing: int
    """Pieces of answers and reports of tools."""
    missed: int
    """So many of those were left out, and it was told so."""


class Watching:
    """One reader, over all lives of the process."""

    def __init__(self, act: Watch) -> None:
        self._act = act
        self.version = 0
        """Of the last event that was seen."""
        self.problems: list[str] = []
        """Which promises to the reader were broken."""
        self._passing = 0
        self._missed = 0

    def seen(self) -> Watched:
        session = self._act.session
        return Watched(session=session, events=self.version, passing=self._passing, missed=self._missed)

    async def follow(self, session: Session, for_s: float) -> None:
        """Follow the session for so many virtual seconds, and then read what was there by then."""
        slow = session.follow(after_version=self.version, capacity=self._act.capacity)
        prompt = session.follow(after_version=self.version, capacity=1_000_000)
        passed_by = asyncio.create_task(_count_passing(prompt), name="a prompt reader")
        passing, missed = self._passing, self._missed
        try:
            loop = asyncio.get_running_loop()
            end_s = loop.time() + for_s
            leaving = loop.call_at(end_s, _end_both, slow, prompt)
            try:
                async for item in slow:
                    self._take(item)
                    await asyncio.sleep(min(self._act.pause_s, max(0.0, end_s - loop.time())))
            finally:
                leaving.cancel()
            self._passing += slow.joined
            told = self._passing - passing + self._missed - missed
            there_were, last = await passed_by
            if told != there_were:
                self.problems.append(f"of {there_were} items that passed by the reader was told of {told}")
            if self.version < last:
                self.problems.append(f"the reader left at version {self.version}, before version {last}")
        finally:
            passed_by.cancel()
            slow.close()
            prompt.close()

    def _take(self, item: Published) -> None:
        match item:
            case RecordedEvent(version=version):
                if version != self.version + 1:
                    self.problems.append(f"version {version} followed version {self.version}")
                self.version = version
            case Missed(count=count):
                self._missed += count
            case _:
                self._passing += 1


def _end_both(slow: Subscription, prompt: Subscription) -> None:
    slow.end()
    prompt.end()


async def _count_passing(subscription: Subscription) -> tuple[int, int]:
    """Return how much passed by, and the version of the last event."""
    passed_by = version = 0
    async for item in subscription:
        match item:
            case RecordedEvent():
                version = item.version
            case Missed(count=count):
                passed_by += count
            case _:
                passed_by += 1
    return passed_by + subscription.joined, version
