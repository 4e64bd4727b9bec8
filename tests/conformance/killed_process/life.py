"""One life of the child: started, watched, and ended by SIGKILL at the moment that was drawn for it.

Real processes do not repeat themselves to the instruction: a seed repeats which word of the child is waited for, and
how long after it the kill comes; what the child is in the middle of then may differ a little from run to run.
"""

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Literal

import msgspec

from tests.conformance.killed_process.witness import BodyBegan, BodyEnded, Testimony, testimonies

ROOT = Path(__file__).resolve().parents[3]

LIFE_S_MAX = 60.0
"""A life that lasts so long hangs; what is planned takes a second or two."""

ORDER_DESK = "tests.conformance.killed_process.order_desk"

Means = Literal["kill", "close", "kill while it closes", "nothing"]


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """What ends a life: once the child has said `word` so many times, and then `delay_s` later."""

    means: Means
    word: Literal["start", "opening", "open", "body", "approval"] = "start"
    """`start`: the process was started, which it need not say."""
    times: int = 1
    delay_s: float = 0.0
    closing_s: float = 0.0
    """How long a child that closes is left alive."""

    @property
    def kills(self) -> bool:
        """Whether it ends by SIGKILL."""
        return self.means in ("kill", "kill while it closes")


LEFT_ALONE = Ending(means="nothing")


def drawn_ending(random: Random, *, first: bool) -> Ending:
    """Draw how a life ends; most are short, and the more often hit phases are those where much can go wrong.
    `first`: it is the first life on its log, which has to make it.
    """
    chance = random.random()
    if chance < (0.5 if first else 0.08):
        return Ending(means="kill", word="opening", delay_s=random.uniform(0.0, 0.05))
    if chance < 0.14:
        return Ending(means="kill", word="start", delay_s=random.uniform(0.0, 0.5))
    if chance < 0.36:
        return Ending(means="kill", word="open", delay_s=random.uniform(0.0, 0.25))
    if chance < 0.62:
        return Ending(means="kill", word="body", times=random.randint(1, 25), delay_s=random.uniform(0.0, 0.012))
    if chance < 0.80:
        return Ending(means="kill", word="approval", times=random.randint(1, 3), delay_s=random.uniform(0.0, 0.01))
    by_closing: Means = "kill while it closes" if chance < 0.92 else "close"
    delay_s, closing_s = random.uniform(0.0, 0.15), random.uniform(0.0, 0.02)
    return Ending(means=by_closing, word="open", delay_s=delay_s, closing_s=closing_s)


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """A life, from its start to its end."""

    number: int
    """From 1, on one log."""
    ending: Ending
    exit_code: int
    """Negative: the number of the signal that it died of."""
    words: Counter[str]
    """What it announced, and how often."""
    witness: list[Testimony]
    complaints: str
    """What it wrote to stderr."""

    @property
    def killed(self) -> bool:
        """Whether SIGKILL hit it alive."""
        return self.exit_code == -signal.SIGKILL

    @property
    def done(self) -> bool:
        """Whether everything that was planned is done."""
        return self._left and self.words["done"] == 1

    @property
    def closed(self) -> bool:
        """Whether it closed in order before that, as in a deploy."""
        return self._left and self.words["closing"] == 1 and self.words["closed"] == 1

    @property
    def _left(self) -> bool:
        """Whether it ended by itself; SIGTERM may still come when it is on its way out."""
        return self.exit_code in (0, -signal.SIGTERM)

    @property
    def fault(self) -> str | None:
        """What is wrong with how it ended, if anything."""
        if self.complaints:
            return f"life {self.number} complains: {self.complaints}"
        if not (self.done or self.closed or (self.killed and self.ending.kills)):
            return f"life {self.number} ended with exit code {self.exit_code} after it had said {dict(self.words)}"
        return None

    def bodies_under_way(self) -> int:
        """Return how many bodies of tools had begun and not ended."""
        began = {testimony.key for testimony in self.witness if isinstance(testimony, BodyBegan)}
        return len(began.difference(testimony.key for testimony in self.witness if isinstance(testimony, BodyEnded)))


async def live(child: Sequence[str], folder: Path, number: int, ending: Ending) -> Life:
    """Start the child, end it as was drawn, and return what its life was like.

    `child`: its module and its arguments, but for the path of its witness in `folder`, which is the last one.
    """
    witness, errors = folder / f"witness-{number}.jsonl", folder / f"stderr-{number}.txt"
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with errors.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", *child, str(witness)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            # asyncio's debug mode complains of slow callbacks, which here tell of the machine only.
            env={**os.environ, "PYTHONPATH": path, "PYTHONASYNCIODEBUG": ""},
        )
    words: Counter[str] = Counter()
    reaper = asyncio.create_task(_end(process, ending, ending.delay_s)) if ending.word == "start" else None
    closing: asyncio.Task[None] | None = None
    try:
        async with asyncio.timeout(LIFE_S_MAX):
            assert process.stdout is not None
            async for line in process.stdout:
                word = line.decode().strip()
                words[word] += 1
                if word == ending.word and words[word] == ending.times:
                    reaper = asyncio.create_task(_end(process, ending, ending.delay_s))
                if word == "closing" and ending.means == "kill while it closes":
                    closing = asyncio.create_task(_kill(process, ending.closing_s))
            await process.wait()
    except TimeoutError:
        words["hung"] += 1
    finally:
        for task in (reaper, closing):
            if task is not None:
                task.cancel()
        await _kill(process, 0.0)
        exit_code = await process.wait()
    return Life(
        number=number,
        ending=ending,
        exit_code=exit_code if not words["hung"] else -signal.SIGALRM,
        words=words,
        witness=testimonies(witness),
        complaints=errors.read_text(encoding="utf-8", errors="replace").strip(),
    )


async def _end(process: asyncio.subprocess.Process, ending: Ending, delay_s: float) -> None:
    if ending.means == "kill":
        await _kill(process, delay_s)
    elif ending.means != "nothing":
        await asyncio.sleep(delay_s)
        if process.returncode is None:
            process.terminate()


async def _kill(process: asyncio.subprocess.Process, delay_s: float) -> None:
    await asyncio.sleep(delay_s)
    if process.returncode is None:
        process.kill()
