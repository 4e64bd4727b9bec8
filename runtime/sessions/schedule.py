"""When an input is due that comes again and again: after an interval, or at the times of a cron line.

The rule: of due times that have passed, as while no runtime was open, one input comes and not one for each, and no due
time comes twice, even where the clock of the machine is set back.
"""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from refold.events.core.errors import ConfigError
from refold.events.session.events import Repeat

INTERVAL_MAX = timedelta(days=3660)
"""The longest interval."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def repeat_of(every: timedelta | str, zone: str) -> Repeat:
    """Return what is recorded of an interval or a cron line.

    Raises:
        ConfigError: it is none, or never due; or the package for cron lines, or the time zone, is not installed.
    """
    if isinstance(every, timedelta):
        if not timedelta(seconds=1) <= every <= INTERVAL_MAX:
            raise ConfigError(f"an interval is from one second to ten years, not {every}")
        return Repeat(interval_us=every // timedelta(microseconds=1))
    if not isinstance(every, str):
        raise ConfigError(f"every is a timedelta or a cron line such as '0 9 * * 1-5', not {every!r:.80}")
    repeat = Repeat(cron=" ".join(every.split()), zone=zone)
    if len(every.split()) != 5 or next_time(repeat, 0, 0) is None:
        raise ConfigError(f"a cron line has five fields, as '0 9 * * 1-5', and comes some time: {every!r:.80}")
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

    Raises:
        ConfigError: the cron line or its zone cannot be read on this machine.
    """
    if repeat.interval_us:
        return due_at + ((after - due_at) // repeat.interval_us + 1) * repeat.interval_us
    try:
        from cronsim import CronSim, CronSimError
    except ImportError as error:
        raise ConfigError("cron lines need the package cronsim: pip install 'refold[cron]'") from error
    try:
        begin = (_EPOCH + timedelta(microseconds=after)).astimezone(ZoneInfo(repeat.zone))
        found = next(CronSim(repeat.cron, begin))
    except (CronSimError, KeyError, ValueError, OSError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ConfigError(f"the cron line {repeat.cron!r:.80} in {repeat.zone!r:.80} cannot be read: {why}") from error
    except StopIteration:
        return None
    return (found.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
