"""What a caller sends, in its recorded form: content, options of the run, keys, and when it is due.

The rules: what cannot be recorded is refused at once. Of due times that have passed, as while no runtime was open, one
input comes and not one for each, and no due time comes twice, even where the clock of the machine is set back.
"""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias, TypedDict, TypeGuard, cast

import msgspec

from refold.actors.calls.validation import checked_block, checked_messages
from refold.actors.cancellation import CancellationToken
from refold.events.core.cleaning import clean_text
from refold.events.core.content import (
    DocumentBlock,
    GivenContent,
    ImageBlock,
    Message,
    StoredBlock,
    TextBlock,
    UserContent,
)
from refold.events.core.errors import CommandRejected, ConfigError, needed_by, quoted
from refold.events.core.ids import PayloadHash
from refold.events.model.configuration import AgentConfig, RunOptions, well_formed
from refold.events.model.payloads import spill
from refold.events.session.commands import ImportHistory
from refold.events.session.events import Repeat
from refold.sessions.structured_output import output_schema, run_instruction

Input: TypeAlias = str | GivenContent | Sequence[str | GivenContent]
"""What can be sent: text, a block, or several of them."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

KEY_BYTES_MAX = 512
"""Longest idempotency key, in UTF-8 bytes."""


def input_content(content: Input) -> tuple[tuple[UserContent, ...], dict[PayloadHash, bytes]]:
    """Return what is recorded of an input, and the payloads of what is large in it; raises as `input_blocks`."""
    return spill(input_blocks(content))


def require_size(content: Sequence[UserContent], bytes_max: int | None) -> None:
    """Refuse an input that is too large."""
    size = sum(map(_size_of, content))
    if bytes_max is not None and size > bytes_max:
        raise CommandRejected(
            f"the input has {size:,} bytes; {bytes_max:,} are accepted (the runtime's `input_bytes_max`)"
        )


def _size_of(block: UserContent) -> int:
    match block:
        case TextBlock(text=text):
            return len(text) if text.isascii() else len(text.encode())
        case StoredBlock(bytes=size):
            return size
        case _:
            return len(block.data)


def input_blocks(content: Input) -> list[GivenContent]:
    """Return the blocks of an input, checked and clean; raise CommandRejected if it is empty, or not text or blocks."""
    if isinstance(content, str | GivenContent):
        parts: Sequence[object] = [content]
    elif isinstance(content, Sequence) and not isinstance(content, bytes | bytearray):
        parts = content
    else:
        raise CommandRejected(f"an input is text or blocks, not {type(content).__name__}")
    blocks: list[GivenContent] = []
    for place, part in enumerate(parts):
        if isinstance(part, ImageBlock | DocumentBlock):
            blocks.append(checked_block(part, f"content[{place}]"))
        elif isinstance(part, str | TextBlock):
            text = part if isinstance(part, str) else checked_block(part, f"content[{place}]").text
            if text.strip():
                blocks.append(TextBlock(text=clean_text(str.__str__(text))))
        else:
            raise CommandRejected(f"an input is text or blocks, not {type(part).__name__}")
    if not blocks:
        raise CommandRejected("the input is empty; send some text")
    return blocks


class RunOverrides(TypedDict, total=False):
    """What `Session.send` and the like take for one run, recorded with its input; None = as the agent has it.

    The run keeps it when it is resumed, also by another process. A reply to a key counts it to the content.
    """

    model: str | None
    """The provider's name of the model."""
    max_turns: int | None
    """Most model calls of the run, >= 1."""
    max_tokens: int | None
    """Most output tokens of one answer, >= 1."""
    temperature: float | None
    """0 to 2."""
    tools: Collection[str] | None
    """Names of those of the agent's tools that the model is offered, and may call."""
    traceparent: str | None
    """The caller's trace, as W3C's header has it; one that is malformed is left out, as it may come from outside."""


class InputOptions(RunOverrides, total=False):
    """What `Session.next_turn` takes by keyword beside `output_type`; this and what follows is for type checkers."""

    key: str | None
    deps: object


class StreamOptions(InputOptions, total=False):
    """The same of `Session.stream`."""

    cancel: CancellationToken | None


class SubmitOptions(InputOptions, total=False):
    """The same of `Session.submit`."""

    at: datetime | None
    now: bool


class SendOptions(StreamOptions, SubmitOptions, total=False):
    """The same of `Session.send`, but for `on_event`."""


def run_options(given: RunOverrides, output_type: type[object] | None = None) -> RunOptions | None:
    """Return what is recorded of overrides and of what the final answer must be, None of none."""
    fields: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    if not fields and output_type is None:
        return None
    unknown = sorted(fields.keys() - RunOverrides.__annotations__.keys())
    if unknown:
        known = ", ".join(sorted([*RunOverrides.__annotations__, "output_type"]))
        raise ConfigError(f"a run has no option {quoted(unknown[0])}; it has {known}")
    more: dict[str, object] = {"traceparent": well_formed(fields.pop("traceparent", None))}
    if output_type is not None:
        more |= {"output_schema": output_schema(output_type), "output_instruction": run_instruction(output_type)}
    tools = fields.pop("tools", None)
    if tools is not None:
        if not _are_texts(tools):
            raise ConfigError(f"tools must be names of the agent's tools, not {quoted(tools)}")
        more["tools"] = tuple(sorted(set(tools)))
    try:
        checked = AgentConfig(**cast("dict[str, Any]", {"model": "any", **fields}))
    except ConfigError as error:
        raise ConfigError(str(error).removeprefix("AgentConfig.")) from None
    # As the log gives it back: a temperature of 1 is 1.0, in the first request too.
    options = msgspec.convert({name: getattr(checked, name) for name in fields} | more, RunOptions)
    return options if options != RunOptions() else None


def _are_texts(given: object) -> TypeGuard[Collection[str]]:
    if not isinstance(given, Collection) or isinstance(given, str):
        return False
    return all(isinstance(each, str) for each in cast("Collection[object]", given))


def import_command(messages: Sequence[Message], key: str | None) -> tuple[ImportHistory, dict[PayloadHash, bytes]]:
    """Return the command that imports messages, and the payloads of what is large in them; or raise CommandRejected."""
    kept: list[Message] = []
    payloads: dict[PayloadHash, bytes] = {}
    for message in checked_messages(messages):
        content, large = spill(message.content)
        kept.append(Message(message.role, content))
        payloads.update(large)
    return ImportHistory(messages=tuple(kept), key=checked_key(key)), payloads


def checked_key(key: str | None) -> str | None:
    """Return an idempotency key in its recorded form, or raise CommandRejected."""
    if key is None:
        return None
    if not isinstance(key, str) or not key or len(clean_text(key).encode()) > KEY_BYTES_MAX:
        raise CommandRejected(f"a key is text of 1 to {KEY_BYTES_MAX} UTF-8 bytes, not {quoted(key, 60)}")
    return clean_text(key)


def checked_time(at: datetime) -> int:
    """Return a moment in microseconds since the epoch, or raise ConfigError."""
    if not isinstance(at, datetime) or at.utcoffset() is None:
        raise ConfigError(f"a time must be a datetime with a time zone, such as datetime.now(UTC), not {quoted(at)}")
    return (at - _EPOCH) // timedelta(microseconds=1)


INTERVAL_MAX = timedelta(days=3660)
"""The longest interval."""


def due_times(
    at: datetime | None, every: timedelta | str | None, zone: str, now_us: int
) -> tuple[Repeat | None, int | None]:
    """Return what is recorded of the times of a reminder, and when it is due first, in microseconds since the epoch."""
    if at is None and every is None:
        raise ConfigError("a reminder has a time (`at`), an interval or a cron line (`every`), or both")
    repeat = repeat_of(every, zone) if every is not None else None
    due_at = checked_time(at) if at is not None else None
    if due_at is None and repeat is not None:
        due_at = first_time(repeat, now_us)
    return repeat, due_at


def repeat_of(every: timedelta | str, zone: str) -> Repeat:
    """Return what is recorded of an interval or a cron line."""
    if isinstance(every, timedelta):
        if not timedelta(seconds=1) <= every <= INTERVAL_MAX:
            raise ConfigError(f"an interval is from one second to ten years, not {every}")
        return Repeat(interval_us=every // timedelta(microseconds=1))
    if not isinstance(every, str):
        raise ConfigError(f"every is a timedelta or a cron line such as '0 9 * * 1-5', not {quoted(every)}")
    repeat = Repeat(cron=" ".join(every.split()), zone=zone)
    if len(every.split()) != 5 or next_time(repeat, 0, 0) is None:
        raise ConfigError(f"a cron line has five fields, as '0 9 * * 1-5', and comes some time: {quoted(every)}")
    return repeat


def first_time(repeat: Repeat, now_us: int) -> int:
    """Return when an input is due first that is accepted now."""
    found = now_us + repeat.interval_us if repeat.interval_us else next_time(repeat, now_us, now_us)
    if found is None:
        raise ConfigError(f"the cron line {repeat.cron!r} is never due any more")
    return found


def next_time(repeat: Repeat, due_at: int, after: int) -> int | None:
    """Return when an input is due next after a time; None = never.

    Args:
        repeat: when it is due.
        due_at: when it was due, in microseconds since the epoch, as all times here.
        after: not before that.
    """
    if repeat.interval_us:
        return due_at + ((after - due_at) // repeat.interval_us + 1) * repeat.interval_us
    from zoneinfo import ZoneInfo

    with needed_by("cron lines", extra="cron"):
        from cronsim import CronSim, CronSimError
    try:
        begin = (_EPOCH + timedelta(microseconds=after)).astimezone(ZoneInfo(repeat.zone))
        found = next(CronSim(repeat.cron, begin))
    except (CronSimError, KeyError, ValueError, OSError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"the cron line {quoted(repeat.cron)} in {quoted(repeat.zone)} cannot be read: {why}"
        ) from error
    except StopIteration:
        return None
    return (found.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
