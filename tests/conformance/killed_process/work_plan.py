"""What the order desk has to do, drawn from a seed: who sends what, and which of it is called off, and when.

The plan is written to a file before the first life, and each life does all of it again from its beginning. That costs
nothing, since every command has a key: what is in the log already is answered with its first outcome.
"""

from pathlib import Path
from random import Random
from typing import Literal

import msgspec

from refold.stores.sqlite.file import Durability as Durability

CallOff = Literal["never", "before it is sent", "when a call starts", "when a call ends", "by its caller"]
"""Whether and when an errand is cancelled, if it comes so far in a life that lasts so long.

`before it is sent`: its token is cancelled already. `when a call starts`: by `session.cancel`. `when a call ends`: by
its token. `by its caller`: the task that waits for the result is cancelled when the model has answered.
"""

STEPS: tuple[tuple[str, ...], ...] = (
    ("look_up",),
    ("look_up", "weigh"),
    ("photograph", "weigh", "look_up"),
    ("photograph", "photograph"),
    ("label",),
    ("label", "ship"),
    ("ship",),
    ("look_up", "ship", "weigh"),
    ("refund",),
    ("refund", "insure"),
    ("photograph", "insure"),
)
"""What the model may ask for in one answer; the tools are those of `order_desk`."""


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    """One input."""

    key: str
    """Names the parcel that it is about, and is the idempotency key under which it is sent."""
    steps: tuple[tuple[str, ...], ...]
    """Names of the tools that are called, by answer of the model; those of one answer may run side by side."""
    call_off: CallOff = "never"

    @property
    def text(self) -> str:
        """The input; the model reads its steps out of it, and has no other knowledge."""
        return f"parcel {self.key}: " + "; ".join(", ".join(step) for step in self.steps)


class Counter(msgspec.Struct, frozen=True, kw_only=True):
    """One session's inputs."""

    session: str
    bursts: tuple[tuple[Errand, ...], ...]
    """Those of one burst are sent at once and wait in the queue for each other; the next burst comes after them."""

    @property
    def errands(self) -> list[Errand]:
        """All inputs in the order in which they are sent."""
        return [errand for burst in self.bursts for errand in burst]


class WorkPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is to be done on one log."""

    durability: Durability
    counters: tuple[Counter, ...]


def drawn_plan(random: Random, *, durability: Durability, counters: int, errands: int) -> WorkPlan:
    """Return a plan with `counters` sessions of `errands` inputs each."""
    return WorkPlan(
        durability=durability,
        counters=tuple(_drawn_counter(random, f"counter-{place}", errands) for place in range(1, counters + 1)),
    )


def _drawn_counter(random: Random, session: str, errands: int) -> Counter:
    drawn = [_drawn_errand(random, f"{session}.{place}") for place in range(1, errands + 1)]
    bursts: list[tuple[Errand, ...]] = []
    while drawn:
        size = random.randint(1, 3)
        bursts.append(tuple(drawn[:size]))
        del drawn[:size]
    return Counter(session=session, bursts=tuple(bursts))


def _drawn_errand(random: Random, key: str) -> Errand:
    call_offs: tuple[CallOff, ...] = ("before it is sent", "when a call starts", "when a call ends", "by its caller")
    return Errand(
        key=key,
        steps=tuple(random.choices(STEPS, k=random.randint(1, 3))),
        call_off=random.choice(call_offs) if random.random() < 0.3 else "never",
    )


def write_plan(plan: WorkPlan, path: Path) -> None:
    """Write a plan for the child, into a folder that is made for it."""
    path.parent.mkdir(parents=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(plan)))


def read_plan(path: Path) -> WorkPlan:
    """Read what `write_plan` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=WorkPlan)
