"""What the rehearsal of storage says of each promise: that it holds, that it is violated, or that it was not exercised.

The last two promises are the rehearsal's own: where it is known that something must be lost or damaged, it sees that.
A rehearsal that found nothing would prove nothing if it could not.
"""

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from tests.selfcheck.storage.disk_errors import ErrorTally
from tests.selfcheck.storage.power_loss import LossTally
from tests.selfcheck.storage.power_loss_images import PowerLossResult
from tests.selfcheck.storage.tally import Tally

Verdict: TypeAlias = Literal["hold", "violated", "not exercised"]

PROMISES: Final[Mapping[str, str]] = {
    "power-kept": "after a power cut every acknowledged append is in the log",
    "power-whole": "after a power cut each append is in it whole or not at all, in order, with its hash chain",
    "power-usable": "after a power cut the store opens the log, finds it sound, and writes on",
    "power-again": "all of that also after a second power cut while the log recovers from the first",
    "normal-whole": "with durability='normal' a power cut may cost the last appends, and nothing else",
    "error-typed": "a failing disk gives a PersistenceError, and is never told as damage of the log",
    "error-outcome": "an append that failed is not in the log, unless the error said that it may be",
    "error-kept": "what was acknowledged before or after an error stays",
    "error-goes-on": "after an error that came once the store works again by itself",
    "error-clean": "on a sound disk the log is whole afterwards",
    "error-forgotten": "what is acknowledged after syncs have failed is in the log after a power cut, too",
    "sees-loss": "the rehearsal sees that durability='normal' loses acknowledged appends",
    "sees-damage": "the rehearsal sees that a disk which only says that it synced damages a log",
}


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out about one promise."""

    promise: str
    verdict: Verdict
    judged: int
    """How often it was put to the test."""
    broken: int
    says: str


class StorageFindings(Tally, kw_only=True):
    """Everything that was found."""

    power: PowerLossResult = msgspec.field(default_factory=PowerLossResult)
    normal: PowerLossResult = msgspec.field(default_factory=PowerLossResult)
    """With `durability="normal"`."""
    lying: PowerLossResult = msgspec.field(default_factory=PowerLossResult)
    """On a disk that says that it has synced, and has not."""
    errors: ErrorTally = msgspec.field(default_factory=ErrorTally)
    forgotten: LossTally = msgspec.field(default_factory=LossTally)
    """Of power cuts after syncs that failed."""

    @property
    def images(self) -> int:
        """How many images were made and opened."""
        return self.power.images + self.normal.images + self.lying.images

    @property
    def cuts(self) -> int:
        """How many moments and damages were judged; some leave an image that was looked at already."""
        return sum(part.first.cuts + part.recovering.cuts for part in (self.power, self.normal, self.lying))

    def judgements(self) -> list[Judgement]:
        """Return what is said of each promise."""
        power, again, normal = self.power.first, self.power.recovering, self.normal.first
        errors, forgotten = self.errors, self.forgotten
        counts = {
            "power-kept": (power.cuts, power.lost),
            "power-whole": (power.images, power.damaged + power.unasked),
            "power-usable": (self.power.reopened, self.power.not_usable),
            "power-again": (again.cuts, again.lost + again.damaged + again.unasked),
            "normal-whole": (normal.images, normal.damaged + normal.unasked),
            "error-typed": (errors.told, errors.broken["typed"]),
            "error-outcome": (errors.told - errors.unknown, errors.broken["outcome"]),
            "error-kept": (errors.acknowledged, errors.broken["kept"]),
            "error-goes-on": (errors.met_once, errors.broken["goes-on"]),
            "error-clean": (errors.met, errors.broken["clean"]),
            "error-forgotten": (forgotten.cuts, forgotten.lost + forgotten.damaged + forgotten.unasked),
            # One moment alone need not show it.
            "sees-loss": (normal.cuts if self.normal.runs else 0, int(not normal.lost)),
            "sees-damage": (self.lying.first.images if self.lying.runs else 0, int(not self.lying.first.damaged)),
        }
        return [_judgement(promise, *counts[promise]) for promise in PROMISES]

    def all_problems(self) -> list[str]:
        """Return the first few problems of each kind."""
        power = self.power
        normal = self.normal.first
        return [
            *power.first.problems,
            *power.problems,
            *power.recovering.problems,
            *(normal.problems if normal.damaged or normal.unasked else ()),
            *self.errors.problems,
            *self.forgotten.problems,
        ]


def _judgement(promise: str, judged: int, broken: int) -> Judgement:
    verdict: Verdict = "not exercised" if not judged else "violated" if broken else "hold"
    return Judgement(
        promise=promise, verdict=verdict, judged=judged, broken=broken if judged else 0, says=PROMISES[promise]
    )
