"""Somebody who follows a session slowly, and what is promised to such a reader.

Beside the slow one a prompt one follows the same session from the same moment. The promises: both see every event once
and in order, up to what was the last when they left; and of what passes by and is not logged, the slow one is told how
much it missed: what it saw and what it missed are together what the prompt one saw. A process that ends takes what
waited for a reader with it; at the next one the reader goes on after the last event that it has seen.
"""

import asyncio

import msgspec

from refold.events.codec import RecordedEvent
from refold.published import Missed, Published
from refold.scenarios.scenario import Watch
from refold.session import Session
from refold.subscription import Subscription


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody saw who followed a session slowly."""

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
        """Return what was seen so far."""
        session = self._act.session
        return Watched(session=session, events=self.version, passing=self._passing, missed=self._missed)

    async def follow(self, session: Session, for_s: float) -> None:
        """Follow the session for so many virtual seconds, and then read what was there by then.

        Raises:
            ActorStopped: the runtime closed before.
        """
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
    return passed_by, version
