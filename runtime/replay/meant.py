"""Differences that are meant, so that a changed prompt stays green and everything else red.

A place is ignored, or a difference is expected by the line that tells it: `request.system_prompt: "Rule." -> "Reign."`.
The rule: what is meant is looked past, and the comparison goes on behind it; and an expected difference that does not
occur any more is told.
"""

import hashlib
import os
import re
from collections.abc import Iterable
from typing import Final, Self

import msgspec

from refold.events.core.difference import NOTHING, SHOWN_CHARACTERS, Difference
from refold.events.core.errors import ConfigError, PersistenceError
from refold.events.core.word_diff import CHANGE_CHARACTERS, CHANGES_SHOWN, word_changes

EXPECTED_MAX: Final = 10_000
"""So many different differences are kept at most when they are learnt."""

_encode = msgspec.json.Encoder().encode
_INDEX: Final = re.compile(r"\[\d+\]")


def general_path(path: str) -> str:
    """Return a path without its places in arrays: `request.messages[3].content[0].text` without 3 and 0."""
    return _INDEX.sub("[]", path)


def said_of(difference: Difference) -> str:
    """Return both sides of a difference in words; where those are cut, with a digest of what differs."""
    said = str(difference).removeprefix(f"{difference.path}: ")
    left, right = difference.left, difference.right
    if isinstance(left, str) and isinstance(right, str) and difference.is_long:
        changes = word_changes(left, right)
        is_cut = len(changes) > CHANGES_SHOWN or any(
            len(side) > CHANGE_CHARACTERS for change in changes for side in (change.left, change.right)
        )
        whole = _encode([(change.left, change.right) for change in changes])
    else:
        sides = [_encode(side) for side in (left, right) if side is not NOTHING]
        is_cut, whole = any(len(side) > SHOWN_CHARACTERS for side in sides), b"\n".join(sides)
    return f"{said} #{hashlib.sha256(whole).hexdigest()[:12]}" if is_cut else said


class ExpectedDifference(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A difference that is meant, at whichever places of arrays it occurs."""

    path: str
    """As `general_path` returns it."""
    said: str | None = None
    """Both sides, as `said_of` tells them; None = any."""


class AcceptedDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A difference that was looked past."""

    path: str
    said: str
    times: int


class MeantDifferences(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay looks past.

    Args:
        ignored: paths of differences, such as `request.system_prompt` or `request.tools.*.description`; what lies
            below one is ignored as well, `[]` stands for all places of an array, `*` for any name.
        expected: differences that are expected, by the lines that tell them.
        learn: look past every difference, and tell all of them as accepted.
    """

    ignored: tuple[str, ...] = ()
    expected: tuple[ExpectedDifference, ...] = ()
    learn: bool = False

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, ignored: Iterable[str] = ()) -> Self:
        """Return what a file written by `write_expected` holds, and what is ignored beside.

        Raises:
            ConfigError: it is no such file.
            PersistenceError: it cannot be read.
        """
        try:
            with open(path, "rb") as file:
                expected = msgspec.json.decode(file.read(), type=tuple[ExpectedDifference, ...])
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{os.fspath(path)} holds no expected differences: {error}") from None
        except OSError as error:
            raise PersistenceError(f"{os.fspath(path)} cannot be read: {error.strerror}") from error
        return cls(ignored=tuple(ignored), expected=expected)


NOTHING_MEANT: Final = MeantDifferences()


def write_expected(path: str | os.PathLike[str], accepted: Iterable[AcceptedDifference]) -> int:
    """Write differences into a file that `MeantDifferences.read` reads; return how many.

    One that is there is replaced. Lines are in order, so that a change of the file shows what is new.

    Raises:
        PersistenceError: it cannot be written.
    """
    entries = sorted({(each.path, each.said) for each in accepted})
    lines = [msgspec.json.encode(ExpectedDifference(path=where, said=said)) for where, said in entries]
    try:
        with open(path, "wb") as file:
            file.write(b"[\n" + b",\n".join(lines) + b"\n]\n")
    except OSError as error:
        raise PersistenceError(f"{os.fspath(path)} cannot be written: {error.strerror}") from error
    return len(lines)


class Accepting:
    """Says of each difference of one replay whether it is meant, and remembers those."""

    def __init__(self, meant: MeantDifferences) -> None:
        self._ignored = [_pattern(path) for path in meant.ignored]
        self._expected = {(each.path, each.said) for each in meant.expected}
        self._learns = meant.learn
        self._accepted: dict[tuple[str, str], int] = {}
        self._met: set[tuple[str, str | None]] = set()

    def __call__(self, difference: Difference) -> bool:
        """Return whether a difference is meant."""
        path = general_path(difference.path)
        said = said_of(difference)
        met = {(path, said), (path, None)} & self._expected
        self._met |= met
        if not met and not self._learns and not self._is_ignored(difference.path, path):
            return False
        if len(self._accepted) < EXPECTED_MAX or (path, said) in self._accepted:
            self._accepted[path, said] = self._accepted.get((path, said), 0) + 1
            return True
        return not self._learns

    def __reduce__(self) -> tuple[object, ...]:
        """Give what was found, for another process."""
        return Accepting, (NOTHING_MEANT,), {"_accepted": self._accepted, "_met": self._met}

    def merge(self, later: "Accepting") -> None:
        """Add what another one accepted after this one."""
        for each, times in later._accepted.items():
            self._accepted[each] = self._accepted.get(each, 0) + times
        self._met |= later._met

    @property
    def accepted(self) -> tuple[AcceptedDifference, ...]:
        """What was looked past, in order of the first time."""
        return tuple(
            AcceptedDifference(path=path, said=said, times=times) for (path, said), times in self._accepted.items()
        )

    @property
    def unmet(self) -> tuple[ExpectedDifference, ...]:
        """What was expected and did not occur, in order."""
        left = sorted(self._expected - self._met, key=lambda each: (each[0], each[1] or ""))
        return tuple(ExpectedDifference(path=path, said=said) for path, said in left)

    def _is_ignored(self, *paths: str) -> bool:
        return any(pattern.match(path) for pattern in self._ignored for path in paths)


def _pattern(path: str) -> re.Pattern[str]:
    if not path:
        raise ConfigError("a path to be ignored is empty; name one as a divergence does, such as request.system_prompt")
    return re.compile(re.escape(path).replace(r"\*", r"[^.\[]*") + r"(?=[.\[]|$)")
