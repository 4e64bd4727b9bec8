"""Two values of a replay, compared: what was recorded, and what today's code makes of it, but for what is meant.

A place is ignored, or a difference is expected by the line that tells it: `request.system_prompt: "Rule." -> "Reign."`;
so a changed prompt stays green and everything else red. The rules: what is meant is looked past, and hides no other
difference, since the comparison goes on behind it; and an expected difference that does not occur any more is told.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Self, TypeAlias

import msgspec

from refold.actors.calls.recall import Remembered
from refold.events.core.content import Json, Message, is_json_object
from refold.events.core.difference import NOTHING, SHOWN_CHARACTERS, Difference, differences, json_of
from refold.events.core.errors import ConfigError, PersistenceError, RefoldError
from refold.events.core.word_diff import CHANGE_CHARACTERS, CHANGES_SHOWN, word_changes
from refold.events.model.configuration import AgentConfiguration, ToolSpec
from refold.events.model.messages import ModelRequest
from refold.events.secrets.redaction import REDACTED

FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What unfinished code raises."""

CODE_ERRORS = (*FAULTS, RefoldError)
"""What today's code raises on a batch that it has no meaning for."""

Accepts: TypeAlias = Callable[[Difference], bool]
"""Says of a difference whether it is meant."""

_encode = msgspec.json.Encoder().encode


class Mismatch(NamedTuple):
    """The first place where two things differ, and the part of each that it is in."""

    difference: Difference
    recorded: Json
    now: Json


def nothing_accepted(difference: Difference) -> bool:
    return False


class Comparison:
    """Compares values, but for what is accepted."""

    def __init__(self, accepts: Accepts = nothing_accepted) -> None:
        self.accepts = accepts

    def difference(self, recorded: object, now: object, path: str) -> Difference | None:
        """Return where two values differ first. The same JSON is the quick answer, and nearly always the answer."""
        if _encode(recorded) == _encode(now):
            return None
        return next((each for each in differences(recorded, now, path) if not self.accepts(each)), None)

    def mismatch(self, recorded: object, now: object, path: str) -> Mismatch | None:
        """Return the same with both values."""
        difference = self.difference(recorded, now, path)
        return Mismatch(difference, json_of(recorded), json_of(now)) if difference is not None else None

    def requests(self, recorded: ModelRequest, now: ModelRequest, path: str) -> Mismatch | None:
        """Return where two requests differ first, with the message, the tool or the field in which they do."""
        return self._first(self._in_requests(recorded, now, path))

    def recall(self, recorded: Remembered, now: Remembered) -> Mismatch | None:
        """Return where what entered a request of the memories differs first."""
        left, right = msgspec.structs.replace(recorded, notes=()), msgspec.structs.replace(now, notes=())
        return self.mismatch(left, right, "recall")

    def whole(self, recorded: Json, now: Json, path: str) -> Mismatch | None:
        """Return whether two values, of which one may be nothing, are not the same, as one difference."""
        if recorded == now:
            return None
        difference = Difference(path=path, left=recorded, right=now)
        return None if self.accepts(difference) else Mismatch(difference, recorded, now)

    def _first(self, found: Iterable[Mismatch | None]) -> Mismatch | None:
        return next((each for each in found if each is not None), None)

    def _in_requests(self, recorded: ModelRequest, now: ModelRequest, path: str) -> Iterator[Mismatch | None]:
        for field in recorded.__struct_fields__:
            left, right = getattr(recorded, field), getattr(now, field)
            if left is right:
                continue
            if field == "messages":
                yield from self._in_sequences(left, right, f"{path}.{field}")
            elif field == "tools":
                yield from self._in_tools(left, right, f"{path}.{field}")
            else:
                yield self.mismatch(left, right, f"{path}.{field}")

    def _in_sequences(self, left: Sequence[object], right: Sequence[object], path: str) -> Iterator[Mismatch | None]:
        if left == right:
            return
        for place in range(max(len(left), len(right))):
            mine = left[place] if place < len(left) else NOTHING
            other = right[place] if place < len(right) else NOTHING
            if mine is NOTHING or other is NOTHING:
                yield self.whole(json_of(mine), json_of(other), f"{path}[{place}]")
            elif mine != other:
                yield self.mismatch(mine, other, f"{path}[{place}]")

    def _in_tools(self, recorded: Sequence[ToolSpec], now: Sequence[ToolSpec], path: str) -> Iterator[Mismatch | None]:
        """Give where what a model is told of its tools differs, by the tool's name.

        What only people and the runtime read (its shown name, tier, effect, times, retries) is no part of a request.
        """
        left, right = ({tool.name: _as_told(tool) for tool in tools} for tools in (recorded, now))
        for name in [*left, *(name for name in right if name not in left)]:
            mine, other = left.get(name, NOTHING), right.get(name, NOTHING)
            if mine is NOTHING or other is NOTHING:
                yield self.whole(mine, other, f"{path}.{name}")
            else:
                yield self.mismatch(mine, other, f"{path}.{name}")
        if left.keys() == right.keys():
            yield self.mismatch(list(left), list(right), f"{path}.order")


def _as_told(tool: ToolSpec) -> Json:
    return {"description": tool.description, "input_schema": tool.input_schema}


TAKEN_OUT = "what it is about was taken out when the bundle was made"
"""Why something of a bundle is not compared."""

JUDGED = ("recall", "call", "answer.verdicts", "answer.trip", "answer.rejected")
"""What is decided from words: paths of differences that may follow from any of them."""


def is_of_taken_out(found: Mismatch, judged: Sequence[Message] = ()) -> bool:
    """Tell whether a difference may follow from what was taken out of a bundle.

    Args:
        judged: messages that it follows from, beside its sides.
    """
    if is_redacted(judged):
        return True
    if found.difference.path.startswith(JUDGED):
        words = [side.get("content", side) if is_json_object(side) else side for side in (found.recorded, found.now)]
        return any(map(_times_redacted, words))
    left, right = found.difference.left, found.difference.right
    if isinstance(left, str) and isinstance(right, str):
        return any(each.left.count(REDACTED) != each.right.count(REDACTED) for each in word_changes(left, right))
    return _times_redacted(left) != _times_redacted(right)


def is_redacted(value: object) -> bool:
    """Tell whether something was taken out of a value when a bundle was made."""
    return REDACTED.encode() in msgspec.json.encode(value)


def _times_redacted(side: Json) -> int:
    return 0 if side is NOTHING else msgspec.json.encode(side).count(REDACTED.encode())


NOT_SETTINGS = frozenset({"agent", "code", "fingerprint", "system_prompt", "tool_schemas", "tools", "builds_requests"})
"""Fields of a configuration that are compared as what they stand for, or follow from others."""

Configured: TypeAlias = tuple[AgentConfiguration, str, Sequence[ToolSpec]]
"""A configuration, with its prompt and its tools."""


def changed_configuration(recorded: Configured, now: Configured) -> list[Difference]:
    """Return all differences of two configurations; tools are compared by name."""
    (left, prompt, tools), (right, prompt_now, tools_now) = recorded, now
    found = list(differences(prompt, prompt_now, "prompt"))
    mine, other = ({tool.name: json_of(tool) for tool in each} for each in (tools, tools_now))
    for name in [*mine, *(name for name in other if name not in mine)]:
        if name in mine and name in other:
            found += differences(mine[name], other[name], f"tools.{name}")
        else:
            found.append(Difference(path=f"tools.{name}", left=mine.get(name, NOTHING), right=other.get(name, NOTHING)))
    for field in left.__struct_fields__:
        if field not in NOT_SETTINGS:
            found += differences(json_of(getattr(left, field)), json_of(getattr(right, field)), field)
    return found


EXPECTED_MAX: Final = 10_000
"""So many different differences are kept at most when they are learnt."""

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
