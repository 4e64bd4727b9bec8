"""The made-up server logs that the demonstration's agent looks into, and how they were made.

`logs/access.log` and `logs/deploys.log` ship with the package, so that anybody can look at them. This module makes the
same bytes again: `python -P -m refold.demo.server_log FOLDER`. The rule: one fixed seed and whole numbers only, so that
every Python on every machine writes the same files.

What is hidden in them: release r119 breaks the checkout from its deploy at 14:05 until it is rolled back at 14:31; and
one client, which has nothing to do with that, asks for searches until it is turned away, over and over.
"""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

LOGS = Path(__file__).with_name("logs")
"""The folder that ships with the package."""

SEED = 20260303
BEGINNING = datetime(2026, 3, 3, 13, 0, tzinfo=UTC)
SECONDS = 2 * 60 * 60
DEPLOYED_AT = BEGINNING + timedelta(minutes=65)
ROLLED_BACK_AT = BEGINNING + timedelta(minutes=91)

ENDPOINTS = (
    # share of the requests, method, path, usual milliseconds
    (38, "GET", "/api/products", 24),
    (18, "GET", "/api/search", 61),
    (15, "GET", "/api/cart", 18),
    (9, "POST", "/api/cart", 33),
    (9, "POST", "/api/checkout", 118),
    (6, "POST", "/api/login", 72),
    (5, "GET", "/health", 2),
)
CLIENTS = tuple(f"203.0.113.{number}" for number in range(2, 82))
CRAWLER = "198.51.100.23"


def access_log() -> str:
    """Return the access log: one line for each request, in order of time."""
    random = Random(SEED)
    moments = [*((_milliseconds(random, SECONDS), "") for _ in range(5_000)), *_crawler_moments(random)]
    return "".join(f"{_request(random, at, client)}\n" for at, client in sorted(moments))


def deploy_log() -> str:
    """Return the log of deploys."""
    return "".join(
        f"{_time_words(at)} shop-api {words}\n"
        for at, words in (
            (BEGINNING - timedelta(days=6, hours=2), "deployed r117, pipeline 4398"),
            (BEGINNING - timedelta(days=1, hours=4), "deployed r118, pipeline 4411"),
            (DEPLOYED_AT, "deployed r119, pipeline 4427"),
            (ROLLED_BACK_AT, "rolled back to r118, by on-call"),
        )
    )


def _crawler_moments(random: Random) -> list[tuple[int, str]]:
    begins, seconds = 40 * 60 * 1000, 70 * 60
    return [(begins + _milliseconds(random, seconds), CRAWLER) for _ in range(620)]


def _request(random: Random, at: int, client: str) -> str:
    time = BEGINNING + timedelta(milliseconds=at)
    release = "r119" if DEPLOYED_AT <= time < ROLLED_BACK_AT else "r118"
    method, path, usual = ("GET", "/api/search", 61) if client else _endpoint(random)
    status, milliseconds = _outcome(random, path, client, release, usual)
    address = client or CLIENTS[_whole(random, len(CLIENTS))]
    return f"{_time_words(time)} {address} {method} {path} {status} {milliseconds}ms {release}"


def _endpoint(random: Random) -> tuple[str, str, int]:
    place = _whole(random, 100)
    for share, method, path, usual in ENDPOINTS:
        if place < share:
            return method, path, usual
        place -= share
    raise AssertionError("the shares add up to 100")


def _outcome(random: Random, path: str, client: str, release: str, usual: int) -> tuple[int, int]:
    """Return the status and the milliseconds of one request."""
    chance = _whole(random, 1_000)
    milliseconds = usual * (60 + _whole(random, 80)) // 100 + usual * (_whole(random, 20) ** 3) // 4_000
    if client:
        return (200, milliseconds) if chance < 180 else (429, 1 + _whole(random, 3))
    if path == "/api/checkout" and release == "r119" and chance < 720:
        return (504, 5_000 + _whole(random, 40)) if chance < 240 else (502, 2_400 + _whole(random, 1_900))
    if path == "/api/login" and chance < 80:
        return 401, milliseconds
    if path == "/api/products" and chance < 12:
        return 404, milliseconds
    if path in ("/api/search", "/api/products") and chance > 996:
        return 503, 1_000 + _whole(random, 250)
    return 200, milliseconds


def _milliseconds(random: Random, seconds: int) -> int:
    return _whole(random, seconds * 1_000)


def _whole(random: Random, below: int) -> int:
    """Return a whole number; `random()` alone is promised to give the same numbers in every Python."""
    return int(random.random() * below)


def _time_words(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z"


def write_logs(folder: Path) -> None:
    """Write both logs into `folder`, which is there."""
    folder.joinpath("access.log").write_text(access_log(), encoding="ascii", newline="\n")
    folder.joinpath("deploys.log").write_text(deploy_log(), encoding="ascii", newline="\n")


if __name__ == "__main__":
    write_logs(Path(sys.argv[1]))
