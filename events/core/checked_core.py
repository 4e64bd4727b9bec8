"""A user's core with the checks around it that hold it to the contract.

Read `refold.events.core.pure_core` first: `CheckedCore` is a `PureCore` around another one. It counts versions, has a
keyed command take effect once, and names the function and what it was given where the user's code fails. The rule
protected here is that of replay: what the live actor evolves is exactly what the log gives back. So every event takes
the way through the codec when it is decided, before anything is made of it: a list that its sender still holds, an
integer where the type says float, can make no difference.

And no function but `evolve` may change the state, since the next actor, folded from the log, would decide by another
one. So the state is encoded before and after `admit`, `react` and `pending`, and compared. That must cost only some
microseconds on average, also where states are large: a state of up to `SMALL_BYTES` is always compared, a larger one
once for each `BYTES_PER_CALL` that it has, and one beyond `LARGE_BYTES` even less often and never at first;
`refold.scenarios.core_exploration` compares always.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from functools import cache
from types import NoneType
from typing import Any, TypeGuard, TypeVar, cast, get_args

import msgspec

from refold.events.core.cleaning import clean_text, error_words
from refold.events.core.codec import EventCodec, Upcasters
from refold.events.core.errors import CommandRejected, ConfigError, CoreFailed, quoted
from refold.events.core.event import Event
from refold.events.core.pure_core import (
    DIGEST_MARK,
    C,
    CommandKey,
    E,
    Effect,
    KeyedCommand,
    KeyedEvent,
    PureCore,
    Recorded,
    RecordedKey,
    State,
    WaitUntil,
    types_of,
)

SMALL_BYTES = 1024
"""A state that takes no more is looked at in every call."""

BYTES_PER_CALL = 256
"""So much of a larger state is written down for a call, on average."""

LARGE_BYTES = 1024 * 1024
"""To write down a state that takes more keeps the loop for long, so it is done the more seldom the longer it takes."""

BYTES_PER_ITEM = 64
"""So much an item of a state takes, at least about; it tells a large state without writing it down."""

UNWRITABLE_REST = 1_000
"""Calls that pass before a state is tried again that could not be written down."""

_encode = msgspec.msgpack.Encoder().encode


class StateWatch:
    """Looks at the states of one kind of actors, where it says `always` however large they are."""

    def __init__(self, state_type: type[State], *, always: bool = False) -> None:
        self._fields = tuple(name for name in state_type.__struct_fields__ if name != "keys")  # Which grow for ever.
        self._always = always
        self._rests: dict[str, int] = {}
        """Calls of each function that pass unseen before the next look."""

    def before(self, function: str, state: State) -> bytes | None:
        """Return what `changed` needs to know of a state before `function` gets it; None = nobody looks this time."""
        rest = self._rests.pop(function, None)
        if rest is None and not self._always and (size := self._least_size(state)) > LARGE_BYTES:
            rest = _rest_of(size)  # It would keep the loop at the first call of a process, too.
        if rest and not self._always:
            self._rests[function] = rest - 1
            return None
        written = self._written(state)
        if written is None:
            self._rests[function] = UNWRITABLE_REST
        elif len(written) > SMALL_BYTES:
            self._rests[function] = _rest_of(len(written))
        return written

    def changed(self, state: State, before: bytes | None) -> bool:
        return before is not None and self._written(state) != before

    def _least_size(self, state: State) -> int:
        values: list[object] = [getattr(state, name) for name in self._fields]
        return BYTES_PER_ITEM * sum(
            len(value) for value in values if isinstance(value, Sized) and not isinstance(value, str | bytes)
        )

    def _written(self, state: State) -> bytes | None:
        try:
            return _encode([getattr(state, name) for name in self._fields])
        except (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError, TypeError, ValueError):
            return None


def _rest_of(size: int) -> int:
    return size // BYTES_PER_CALL * (1 + size // LARGE_BYTES)


R = TypeVar("R")
S = TypeVar("S", bound=State)

DUE_SINCE_US = 946_684_800_000_000
"""The year 2000: a time before it is one in another unit."""


class CheckedCore(PureCore[S, C, E]):
    """A user's core with the checks around it, and the codec of its events.

    Args:
        core: the user's class, or an instance of it.
        always_watched: look after every call whether it left the state alone, also where the state is large.

    Raises:
        ConfigError: its types cannot be read from `PureCore[State, Commands, Events]`, or cannot work.
    """

    def __init__(self, core: type[PureCore[S, C, E]] | PureCore[S, C, E], *, always_watched: bool = False) -> None:
        self.functions: PureCore[S, C, E] = core() if isinstance(core, type) else core
        self.name = type(self.functions).__name__
        self.fold_version = self.functions.fold_version  # type: ignore[misc]
        state, commands, events = types_of(type(self.functions))
        self._state_type: type[S] = _checked_state(self.name, state)
        self.command_types = _structs(self.name, "commands", commands, msgspec.Struct)
        """Every class of command."""
        _check_frozen(self.name, self.command_types)
        event_types: Any = _structs(self.name, "events", events, Event)
        _check_tags(self.name, event_types)
        tags = [str(event.__struct_config__.tag) for event in event_types]
        self.codec: EventCodec[E] = EventCodec(
            event_types,
            Upcasters(self.functions.upcasters, tags),
            unknown=f"the core {self.name} does not know; keep the class of an event that was removed, "
            "and give one that was renamed its old tag or an upcaster",
        )
        self._event_types = event_types
        self._never_reacts = type(self.functions).react is PureCore.react  # pyright: ignore[reportUnknownMemberType]
        self._never_pending = type(self.functions).pending is PureCore.pending  # pyright: ignore[reportUnknownMemberType]
        self._watch = StateWatch(self._state_type, always=always_watched)
        self._mutable = frozenset(event for event in event_types if not _is_immutable(event))

    def initial(self) -> S:
        return self._state_type()

    def admit(self, state: S, command: C) -> E | Recorded:
        """Return the stimulus that `command` becomes, or that it has been recorded before."""
        key = _key_of(command)
        if key is not None and (known := state.keys.get(key.key)) is not None:
            if known.digest == key.digest:
                return Recorded(known.version)
            raise CommandRejected(f"the key {key.key!r} was used for another command, at version {known.version}")
        stimulus = self._shown("admit", command, state, lambda: self.functions.admit(state, command))
        if isinstance(stimulus, Recorded):
            return stimulus
        if isinstance(stimulus, NoneType):
            raise CoreFailed(
                f"{self.name}.admit gave nothing for {quoted(command)}: no event, no Recorded and no refusal"
            )
        if key is not None and isinstance(stimulus, self._event_types):
            if not isinstance(stimulus, KeyedEvent):
                raise CoreFailed(
                    f"{self.name}.admit makes a {type(stimulus).__name__} of a {type(command).__name__} with a key; "
                    f"derive {type(stimulus).__name__} from KeyedEvent"
                )
            stimulus = msgspec.structs.replace(stimulus, command=key)
        return self._recorded(stimulus)

    def evolve(self, state: S, event: E) -> S:
        """Return what is true after `event`, its version counted."""
        version = state.version + 1
        if type(event) in self._mutable:  # The state may keep parts of it, and change them later.
            own = self._recorded(event)
            msgspec.structs.force_setattr(own, "at", event.at)  # Fresh from the decoder.
            event = own
        state.version = version
        before = state
        state = self._called("evolve", event, lambda: self.functions.evolve(before, event), version)
        if not isinstance(state, self._state_type):
            raise CoreFailed(
                f"{self.name}.evolve must return the {self._state_type.__name__}, and returns {quoted(state, 60)}"
            )
        if isinstance(event, KeyedEvent) and event.command is not None:
            state.keys[event.command.key] = RecordedKey(version, event.command.digest)
        if state.version != version:
            raise CoreFailed(
                f"{self.name}.evolve returns a state of version {state.version} where {version} was counted; "
                "change the state that it is given, or replace fields of it"
            )
        return state

    def react(self, state: S, event: E) -> Sequence[E]:
        """Return what follows from `event`, each as the log will give it back."""
        if self._never_reacts:
            return ()
        decided = self._shown(
            "react", event, state, lambda: self._list("react", "events", self.functions.react(state, event))
        )
        return [self._recorded(consequence) for consequence in decided]

    def pending(self, state: S) -> Sequence[Effect]:
        """Return the work that should be in flight."""
        if self._never_pending:
            return ()
        effects = self._shown(
            "pending", state, state, lambda: self._list("pending", "effects", self.functions.pending(state))
        )
        for effect in effects:
            if not isinstance(effect, Effect):
                raise CoreFailed(f"{self.name}.pending must return effects, and returns {quoted(effect, 60)}")
            if isinstance(effect, WaitUntil) and not (type(effect.due_at) is int and effect.due_at >= DUE_SINCE_US):
                raise CoreFailed(
                    f"{self.name}.pending gives {effect.key} the time {effect.due_at!r}; due_at is an int of "
                    "microseconds since the epoch, UTC, such as event.at + 5 * SECOND_US"
                )
        keys = [effect.key for effect in effects]
        if len(set(keys)) < len(keys) or not all(map(_is_key, keys)):
            raise CoreFailed(
                f"{self.name}.pending must give each effect a key of its own without spaces, not {keys}; "
                f"none begins with {DIGEST_MARK!r}"
            )
        return effects

    def due(self, effect: WaitUntil) -> C:
        return self._command("due", self._called("due", effect, lambda: self.functions.due(effect)))

    def failed(self, effect: Effect, error: Exception) -> C | None:
        command = self._called("failed", effect, lambda: self.functions.failed(effect, error))
        return None if command is None else self._command("failed", command)

    def takes(self, message: object) -> TypeGuard[C]:
        return isinstance(message, self.command_types)

    def _shown(self, function: str, given: object, state: S, call: Callable[[], R]) -> R:
        """Call a function that is shown the state and must leave it alone."""
        before = self._watch.before(function, state)
        version = 0 if function == "admit" else state.version
        try:
            answer = self._called(function, given, call, version)
        except CommandRejected as error:  # After any other error the state is folded anew.
            if self._watch.changed(state, before):
                raise self._changed(function, given) from error
            raise
        if self._watch.changed(state, before):
            raise self._changed(function, given)
        return answer

    def _changed(self, function: str, given: object) -> CoreFailed:
        return CoreFailed(
            f"{self.name}.{function} changes the state on the {type(given).__name__}; only evolve may, since all else "
            "is not in the log"
        )

    def _list(self, function: str, what: str, given: Iterable[R]) -> tuple[R, ...]:
        """Return what a function gave, whole: a generator would fail only later, and be empty for the second reader."""
        if not isinstance(given, list | tuple):
            unordered = isinstance(given, set | frozenset | Mapping | str)
            if unordered or not isinstance(given, Iterable):
                raise CoreFailed(f"{self.name}.{function} gave {quoted(cast('object', given))}, not a list of {what}")
        return tuple(given)

    def _command(self, function: str, given: C) -> C:
        if not self.takes(given):
            names = ", ".join(cls.__name__ for cls in self.command_types)
            raise CoreFailed(f"{self.name}.{function} gave {quoted(given)}, which is none of its commands ({names})")
        return given

    def _called(self, function: str, given: object, call: Callable[[], R], version: int = 0) -> R:
        try:
            return call()
        except CommandRejected:
            if function == "admit":
                raise
            raise CoreFailed(f"{self.name}.{function} must not refuse; only admit may") from None
        except CoreFailed:
            raise
        except BaseException as error:  # Of code that awaits nothing: a CancelledError is its own.
            if isinstance(error, KeyboardInterrupt):
                raise
            place = f" of version {version}" if version else ""
            raise CoreFailed(
                f"{self.name}.{function} fails on the {type(given).__name__}{place}: {error_words(error)}"
            ) from error

    def _recorded(self, event: E) -> E:
        """Return a decided event as the log gives it back, which shares nothing with its maker."""
        if not isinstance(event, self._event_types):
            names = ", ".join(cls.__name__ for cls in self._event_types)
            raise CoreFailed(f"{self.name} decides {quoted(event)}, which is none of its events ({names})")
        return self.codec.as_recorded(event)


def _key_of(command: object) -> CommandKey | None:
    """Return the key of a command that has one, with a digest that fields added later with a default do not change."""
    if not isinstance(command, KeyedCommand) or command.key is None:
        return None
    if not isinstance(command.key, str):
        raise CommandRejected(f"a key must be a text, not {quoted(command.key)}")
    if clean_text(command.key) != command.key:
        raise CommandRejected(f"the key {command.key!a:.80} holds a lone surrogate; use valid Unicode text")
    given = {
        name: value
        for name, default in _fields_of(type(command))
        if name != "key" and (value := getattr(command, name)) != default
    }
    try:
        content = msgspec.json.encode((type(command).__name__, given), order="deterministic")
    except (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError, TypeError, ValueError) as error:
        raise CommandRejected(f"a {type(command).__name__} with a key must be plain data: {error}") from None
    return CommandKey(command.key, hashlib.sha256(content).hexdigest()[:32])


@cache
def _fields_of(command: type[KeyedCommand]) -> tuple[tuple[str, object], ...]:
    """Return the name and the default of each field; msgspec works that out anew each time that it is asked."""
    fields = msgspec.structs.fields(command)
    return tuple((field.name, field.default) for field in fields if field.name not in command.beside_content)


def _checked_state(core: str, state: Any) -> Any:
    if not (isinstance(state, type) and issubclass(state, State)):
        raise ConfigError(f"the state of {core}, {state}, must be a class derived from State")
    if state.__struct_config__.frozen:
        raise ConfigError(f"{state.__name__} must not be frozen, since its version is counted in it")
    try:
        state()
    except TypeError as error:
        raise ConfigError(f"every field of {state.__name__} needs a default: {error}") from None
    return state


def _structs(core: str, what: str, types: Any, base: type) -> tuple[type, ...]:
    classes: tuple[Any, ...] = get_args(types) or (types,)
    for cls in classes:
        if not (isinstance(cls, type) and issubclass(cls, base)):
            raise ConfigError(f"the {what} of {core} must be classes derived from {base.__name__}, and {cls} is not")
    return classes


def _check_frozen(core: str, command_types: Sequence[type[Any]]) -> None:
    for command in command_types:
        if not command.__struct_config__.frozen:
            raise ConfigError(
                f"{command.__name__} of {core} must be frozen, since a command is shared with its sender: "
                f"class {command.__name__}(..., frozen=True)"
            )


def _check_tags(core: str, event_types: Sequence[type[Event]]) -> None:
    seen: dict[str, str] = {}
    for event in event_types:
        tag = event.__struct_config__.tag
        if not isinstance(tag, str) or tag == event.__name__:
            raise ConfigError(
                f"{event.__name__} of {core} needs a tag that stays when the class is renamed: "
                f'class {event.__name__}(Event, frozen=True, kw_only=True, tag="{event.__name__.lower()}.v1")'
            )
        if tag in seen:
            raise ConfigError(f"{seen[tag]} and {event.__name__} of {core} have one tag, {tag!r}")
        seen[tag] = event.__name__


def _is_immutable(event: type[Event]) -> bool:
    """Tell whether nothing that the decoder makes for a field of `event` can be changed."""
    return _nothing_can_change(msgspec.inspect.type_info(event), ())


_PLAIN = (
    msgspec.inspect.BoolType,
    msgspec.inspect.BytesType,
    msgspec.inspect.DateTimeType,
    msgspec.inspect.DateType,
    msgspec.inspect.DecimalType,
    msgspec.inspect.EnumType,
    msgspec.inspect.FloatType,
    msgspec.inspect.IntType,
    msgspec.inspect.LiteralType,
    msgspec.inspect.NoneType,
    msgspec.inspect.StrType,
    msgspec.inspect.TimeDeltaType,
    msgspec.inspect.TimeType,
    msgspec.inspect.UUIDType,
)


def _nothing_can_change(info: msgspec.inspect.Type, inside: tuple[type, ...]) -> bool:
    match info:
        case msgspec.inspect.StructType(cls=cls, fields=fields):
            if cls in inside:
                return True
            frozen = bool(cls.__struct_config__.frozen)
            return frozen and all(_nothing_can_change(field.type, (*inside, cls)) for field in fields)
        case msgspec.inspect.UnionType(types=types):
            return all(_nothing_can_change(item, inside) for item in types)
        case msgspec.inspect.VarTupleType(item_type=item) | msgspec.inspect.FrozenSetType(item_type=item):
            return _nothing_can_change(item, inside)
        case msgspec.inspect.TupleType(item_types=items):
            return all(_nothing_can_change(item, inside) for item in items)
        case msgspec.inspect.Metadata(type=inner):
            return _nothing_can_change(inner, inside)
        case _:
            return isinstance(info, _PLAIN)


def _is_key(key: object) -> bool:
    return isinstance(key, str) and len(key.split()) == 1 and not key.startswith(DIGEST_MARK)
