"""Breakers whose state lies in Redis, so that all processes that use one server have one circuit per name.

    shared = RedisBreakerState("redis://localhost:6379/0")
    openai = CircuitBreaker("openai", backend=shared)

It needs the extra `redis`. Each question and each end of a call is one script on the server, so it is atomic among all
callers; the rules are those of `refold.events.breaker_core`, by the server's clock. Failures in a row are counted over
all processes. Use one threshold and the same times everywhere: each caller's own hold for what it asks.

The rule: a breaker must not become the fault that it is to protect from. While the server cannot be reached, calls are
let through and a warning is logged.
"""

import logging
from typing import Any, cast

from refold.actors.clock import Clock
from refold.events.breaker_core import BreakerPhase, Ticket
from refold.events.errors import CircuitOpen, ConfigError, PersistenceError
from refold.events.event import SECOND_US
from refold.resilience.breaker_state import BreakerSettings, CallEnd, KnownState

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as error:
    raise ConfigError("breakers in Redis need the package redis: pip install 'refold[redis]'") from error

log = logging.getLogger("refold.resilience")

_NOW = """
local function now()
  if ARGV[1] ~= '' then return tonumber(ARGV[1]) end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local function whole(number) return string.format('%.0f', number) end
local key = KEYS[1]
local known = redis.call('HMGET', key, 'phase', 'generation', 'probe', 'probe_since', 'opened_at', 'failures', 'streak')
local phase = known[1] or 'closed'
local generation = tonumber(known[2] or '0')
local probe = tonumber(known[3] or '0')
local probe_since = known[4] or ''
local opened_at = tonumber(known[5] or '0')
local failures = tonumber(known[6] or '0')
local streak = tonumber(known[7] or '0')
"""

BEGIN = (
    _NOW
    + """
local recovery_us, probe_us = tonumber(ARGV[2]), tonumber(ARGV[3])
if phase == 'closed' then return {generation, probe, 0} end
local at = now()
local left = 0
if phase == 'open' then left = recovery_us - math.abs(at - opened_at) end
if probe_since ~= '' then left = probe_us - math.abs(at - tonumber(probe_since)) end
if left > 0 then return {0, 0, left} end
redis.call('HSET', key, 'phase', 'half_open', 'probe', probe + 1, 'probe_since', whole(at))
return {generation, probe + 1, 0}
"""
)
"""Gives a ticket's generation and probe, and in how many microseconds a call may be let through; 0 = this one is."""

SETTLE = (
    _NOW
    + """
local threshold, of_generation, of_probe = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local ending, text = ARGV[5], ARGV[6]
if of_generation ~= generation or of_probe ~= probe then return 0 end
if ending == 'neither' then
  if probe > 0 then redis.call('HSET', key, 'probe_since', '') end
  return 0
end
local next = {'generation', generation + 1, 'probe', 0, 'probe_since', ''}
if ending == 'succeeded' then
  if probe > 0 then
    redis.call('HSET', key, 'phase', 'closed', 'closed_at', whole(now()), 'streak', 0, unpack(next))
  elseif streak > 0 then
    redis.call('HSET', key, 'streak', 0)
  end
  return 0
end
if probe > 0 then streak = failures end
streak = streak + 1
if probe > 0 or streak >= threshold then
  redis.call('HSET', key, 'phase', 'open', 'opened_at', whole(now()), 'failures', streak, 'error', text,
    'streak', streak, unpack(next))
else
  redis.call('HSET', key, 'streak', streak)
end
return 0
"""
)

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

    def close(self) -> None:
        """Close its connections; it makes new ones when it is used again."""
        self._client.close()

    def begin(self, name: str, settings: BreakerSettings, now_us: int) -> Ticket | None:
        """Let a call through, also where the server cannot be reached.

        Raises:
            CircuitOpen: it may not be made.
        """
        arguments = [self._now(), settings.recovery_us, settings.probe_us]
        try:
            generation, probe, left = self._begin(keys=[self._prefix + name], args=arguments)
        except redis.RedisError as error:
            log.warning("the breaker %s is not asked, and its call is let through: %s", name, error)
            return None
        if left > 0:
            raise CircuitOpen(name, retry_after_s=left / SECOND_US)
        return Ticket(generation, probe)

    def settle(
        self, name: str, settings: BreakerSettings, ticket: Ticket, end: CallEnd, error: str, now_us: int
    ) -> None:
        """Take note of how a call ended, if the server can be reached."""
        arguments = [self._now(), settings.threshold, ticket.generation, ticket.probe, end, error]
        try:
            self._settle(keys=[self._prefix + name], args=arguments)
        except redis.RedisError as problem:
            log.warning("the breaker %s is not told that a call %s: %s", name, end, problem)

    def known(self, name: str, settings: BreakerSettings) -> KnownState:
        """Return what is known.

        Raises:
            PersistenceError: the server cannot be reached.
        """
        try:
            found = cast("dict[str, str]", self._client.hgetall(self._prefix + name))
        except redis.RedisError as error:
            raise PersistenceError(f"the breaker {name} cannot be read: {error}") from error
        since = found.get("probe_since")
        state = settings.begin()
        state.phase = cast("BreakerPhase", found.get("phase", "closed"))
        state.generation = int(found.get("generation", 0))
        state.probe_since = int(since) if since else None
        state.opened_at, state.closed_at = int(found.get("opened_at", 0)), int(found.get("closed_at", 0))
        state.failures, state.error = int(found.get("failures", 0)), found.get("error", "")
        return KnownState(state, int(found.get("streak", 0)))

    def _now(self) -> int | str:
        return "" if self._clock is None else self._clock.now_us()
