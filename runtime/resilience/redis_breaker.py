"""Breakers whose state lies in Redis, so that all processes that use one server have one circuit per name.

    shared = RedisBreakerState("redis://localhost:6379/0")
    openai = CircuitBreaker("openai", backend=shared)

It needs the extra `redis`. Each question and each end of a call is one script on the server, so it is atomic among all
callers; the rules are those of `refold.events.kinds.breaker`, by the server's clock. Failures in a row are counted over
all processes. Use one threshold and the same times everywhere: each caller's own hold for what it asks.

The rule: a breaker must not become the fault that it is to protect from. While the server cannot be reached, calls are
let through and a warning is logged.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, cast

from refold.actors.kernel.clock import Clock
from refold.events.core.errors import CircuitOpen, ConfigError, PersistenceError, needed_by
from refold.events.core.event import SECOND_US
from refold.events.kinds.breaker import SHARED_FIELDS, BreakerPhase, BreakerState, CallEnd, Permit
from refold.resilience.breaker import BreakerSettings

with needed_by("breakers in Redis", extra="redis"):
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

log = logging.getLogger("refold.resilience")

_NOW = """
local function now()
  if ARGV[1] ~= '' then return tonumber(ARGV[1]) end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local function whole(number) return string.format('%.0f', number) end
local key = KEYS[1]
local at = now()
local known = redis.call('HMGET', key, 'phase', 'generation', 'probe', 'probe_since', 'opened_at', 'failures', 'streak')
local phase = known[1] or 'closed'
local generation = tonumber(known[2] or '0')
local probe = tonumber(known[3] or '0')
local probe_since = known[4] or ''
local opened_at = tonumber(known[5] or '0')
local failures = tonumber(known[6] or '0')
local streak = tonumber(known[7] or '0')
local function told(of_generation, of_probe, left)
  local fields = redis.call('HMGET', key, 'phase', 'generation', 'probe', 'probe_since', 'opened_at', 'closed_at',
    'failures', 'error', 'streak')
  for place = 1, 9 do fields[place] = fields[place] or '' end
  return {of_generation, of_probe, left, whole(at), unpack(fields)}
end
"""

BEGIN = (
    _NOW
    + """
local recovery_us, probe_us = tonumber(ARGV[2]), tonumber(ARGV[3])
if phase == 'closed' then return told(generation, probe, 0) end
local left = 0
if phase == 'open' then left = recovery_us - math.abs(at - opened_at) end
if probe_since ~= '' then left = probe_us - math.abs(at - tonumber(probe_since)) end
if left > 0 then return told(0, 0, left) end
redis.call('HSET', key, 'phase', 'half_open', 'probe', probe + 1, 'probe_since', whole(at))
return told(generation, probe + 1, 0)
"""
)
"""Gives a permit's generation and probe, in how many microseconds a call may be let through (0 = this one is), and
what is known then."""

SETTLE = (
    _NOW
    + """
local threshold, of_generation, of_probe = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local ending, text = ARGV[5], ARGV[6]
if of_generation ~= generation or of_probe ~= probe then return told(0, 0, 0) end
if ending == 'neither' then
  if probe > 0 then redis.call('HSET', key, 'probe_since', '') end
  return told(0, 0, 0)
end
local next = {'generation', generation + 1, 'probe', 0, 'probe_since', ''}
if ending == 'succeeded' then
  if probe > 0 then
    redis.call('HSET', key, 'phase', 'closed', 'closed_at', whole(at), 'streak', 0, unpack(next))
  elseif streak > 0 then
    redis.call('HSET', key, 'streak', 0)
  end
  return told(0, 0, 0)
end
if probe > 0 then streak = failures end
streak = streak + 1
if probe > 0 or streak >= threshold then
  redis.call('HSET', key, 'phase', 'open', 'opened_at', whole(at), 'failures', streak, 'error', text,
    'streak', streak, unpack(next))
else
  redis.call('HSET', key, 'streak', streak, 'error', text)
end
return told(0, 0, 0)
"""
)
"""Gives three zeros, and what is known then."""

FIELDS = (*SHARED_FIELDS, "streak")
"""What both scripts tell behind the time."""

TIMEOUT_S = 1.0


class RedisBreakerState:
    """Keeps the states of breakers on one Redis server, by name, each in the hash `<prefix><name>`.

    Args:
        url: of the server, such as `redis://localhost:6379/0`.
        prefix: what stands before the names of breakers.
        timeout_s: longest wait for the server, seconds; a call may wait so long before it is let through unasked.
        clock: tells the time instead of the server.

    Raises:
        ConfigError: the URL cannot be one.
    """

    blocking = True

    def __init__(
        self, url: str, *, prefix: str = "refold:breaker:", timeout_s: float = TIMEOUT_S, clock: Clock | None = None
    ) -> None:
        try:
            self._client: redis.Redis = cast("Any", redis.Redis).from_url(  # Its types are known in part only.
                url,
                socket_timeout=timeout_s,
                socket_connect_timeout=timeout_s,
                decode_responses=True,
                # A connection that the server had closed meanwhile is made again at once.
                retry=Retry(NoBackoff(), 1),
            )
        except ValueError as error:
            raise ConfigError(f"{url!r} is no URL of a Redis server: {error}") from error
        self._prefix = prefix
        self._clock = clock
        self._begin: Any = self._client.register_script(BEGIN)
        self._settle: Any = self._client.register_script(SETTLE)
        self._listeners: dict[str, tuple[Callable[[BreakerState, int], object], ...]] = {}

    def close(self) -> None:
        """Close its connections; it makes new ones when it is used again."""
        self._client.close()

    def begin(self, name: str, settings: BreakerSettings, now_us: int) -> Permit | None:
        """Let a call through, also where the server cannot be reached.

        Raises:
            CircuitOpen: it may not be made.
        """
        arguments = [self._now(), settings.recovery_us, settings.probe_us]
        try:
            generation, probe, left, *known = self._begin(keys=[self._prefix + name], args=arguments)
        except redis.RedisError as error:
            log.warning("the breaker %s is not asked, and its call is let through: %s", name, error)
            return None
        self._tell(name, settings, known)
        if left > 0:
            raise CircuitOpen(name, retry_after_s=left / SECOND_US)
        return Permit(generation, probe)

    def settle(
        self, name: str, settings: BreakerSettings, permit: Permit, end: CallEnd, error: str, now_us: int
    ) -> None:
        """Take note of how a call ended, if the server can be reached."""
        arguments = [self._now(), settings.threshold, permit.generation, permit.probe, end, error]
        try:
            _, _, _, *known = self._settle(keys=[self._prefix + name], args=arguments)
        except redis.RedisError as problem:
            log.warning("the breaker %s is not told that a call %s: %s", name, end, problem)
        else:
            self._tell(name, settings, known)

    def listen(self, name: str, seen: Callable[[BreakerState, int], object]) -> None:
        """Have `seen` called with the state of a breaker and the time, whenever a call of it begins or ends here."""
        self._listeners[name] = (*self._listeners.get(name, ()), seen)

    def _tell(self, name: str, settings: BreakerSettings, known: list[str]) -> None:
        at, *values = known
        for seen in self._listeners.get(name, ()):
            seen(_state(settings, dict(zip(FIELDS, values, strict=True))), int(at))

    def known(self, name: str, settings: BreakerSettings) -> BreakerState:
        """Return what is known.

        Raises:
            PersistenceError: the server cannot be reached.
        """
        try:
            found = cast("dict[str, str]", self._client.hgetall(self._prefix + name))
        except redis.RedisError as error:
            raise PersistenceError(f"the breaker {name} cannot be read: {error}") from error
        return _state(settings, found)

    def _now(self) -> int | str:
        return "" if self._clock is None else self._clock.now_us()


def _state(settings: BreakerSettings, found: Mapping[str, str]) -> BreakerState:
    """Return the state that the fields of a hash say; one that is missing or empty says what is so at first."""
    state = settings.begin()
    since = found.get("probe_since")
    state.phase = cast("BreakerPhase", found.get("phase") or "closed")
    state.generation, state.probe = int(found.get("generation") or 0), int(found.get("probe") or 0)
    state.probe_since = int(since) if since else None
    state.opened_at, state.closed_at = int(found.get("opened_at") or 0), int(found.get("closed_at") or 0)
    counted = "streak" if state.phase == "closed" else "failures"
    state.failures, state.error = int(found.get(counted) or 0), found.get("error") or ""
    return state
