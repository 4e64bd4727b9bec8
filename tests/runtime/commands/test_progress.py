"""How far long work is stands on a terminal, in one line that is gone at the end, and nowhere else."""

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest

from refold.commands.output import Progress
from tests.runtime.command_line import run
from tests.runtime.terminal import Terminal

GONE = "\x1b[1A\x1b[2K"
"""Goes up to the line and takes it away."""


class Screen(StringIO):
    def isatty(self) -> bool:
        return True


def screen_of_long_work(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Return what is stderr from now on: a terminal, for work that takes long as soon as it begins."""

    def at_once(after_s: float, begin: Callable[[], None]) -> SimpleNamespace:
        assert after_s == 2
        return SimpleNamespace(start=begin, cancel=lambda: None)

    shown = Screen()
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setattr("threading.Timer", at_once)
    monkeypatch.setenv("TERM", "xterm")
    return shown


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (40, "25% · 0:30 left · 1,000 of 4,000 events…"),
        (80, "25% · 0:30 left · 1,000 of 4,000 events · 100 a second"),
        (120, "25% · 0:30 left · 1,000 of 4,000 events · 100 a second"),
    ],
)
def test_share_remaining_time_count_and_rate_fit_the_terminal_and_are_taken_away(
    columns: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = screen_of_long_work(monkeypatch)
    monkeypatch.setenv("COLUMNS", str(columns))
    times = SimpleNamespace(now=0.0)
    with Progress(clock_s=lambda: times.now) as progress:
        for done in (0, 500, 1_000):
            times.now = done / 100
            progress("events", done, 4_000)
    assert words in screen.getvalue()
    assert screen.getvalue().endswith(GONE)
    assert "\x1b[?25l" not in screen.getvalue(), "a process that is killed would leave the cursor hidden"


def test_other_words_begin_a_new_count_and_what_is_not_counted_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = screen_of_long_work(monkeypatch)
    times = SimpleNamespace(now=0.0)
    with Progress(clock_s=lambda: times.now) as progress:
        for done in range(3):
            times.now += 1
            progress("events", 1_000 * done, 4_000)
        progress("pages are looked through\x1b[31m", 0)
        times.now += 61
    assert screen.getvalue().endswith(GONE)
    assert "pages are looked through · 1:01" in screen.getvalue()
    assert "[31m" not in screen.getvalue().partition("looked through")[2].partition("·")[0]


@pytest.mark.parametrize("why", ["quiet", "dumb", "no terminal"])
def test_nothing_is_shown_beside_json_or_where_no_line_can_be_taken_away(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen: StringIO = screen_of_long_work(monkeypatch)
    if why == "no terminal":
        monkeypatch.setattr("sys.stderr", screen := StringIO())
        monkeypatch.setenv("FORCE_COLOR", "1")
    if why == "dumb":
        monkeypatch.setenv("TERM", "dumb")
    with Progress(quiet=why == "quiet") as progress:
        progress("events", 1, 2)
    assert screen.getvalue() == ""


def test_work_that_is_done_soon_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", screen := Screen())
    monkeypatch.setenv("TERM", "xterm")
    with Progress() as progress:
        progress("events", 1, 2)
    assert screen.getvalue() == ""


def test_ctrl_c_ends_the_work_and_its_line() -> None:
    program = """
import asyncio, itertools, typer
from refold.commands.execution import command
from refold.commands.output import Progress
Progress.AFTER_S = 0
@command
async def work() -> int:
    with Progress() as progress:
        for done in itertools.count():
            progress("events", done, 10**12)
            await asyncio.sleep(0)
typer.run(work)
"""
    with Terminal(Path(), program=program, TERM="xterm", COLUMNS="120") as terminal:
        terminal.until(" of 1,000,000,000,000 events")
        terminal.write("\x03")
        code, shown = terminal.end()
    assert (code, "Traceback" in shown) == (130, False)


def test_every_long_command_tells_what_it_counts_and_reaches_the_total(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, int, int | None]] = []
    quiet: list[bool] = []
    made = Progress.__init__

    def init(progress: Progress, **options: bool) -> None:
        quiet.append(options["quiet"])
        made(progress, quiet=True)

    def called(progress: Progress, what: str, done: int, total: int | None = None) -> None:
        told.append((what, done, total))

    monkeypatch.setattr(Progress, "__init__", init)
    monkeypatch.setattr(Progress, "__call__", called)
    assert run("run", "agents:plain", "hello", "--log", "a.db", "--session", "s").exit_code == 0
    for words, counted in {
        "check a.db --json": {
            "events",
            "events in order",
            "payloads are compared with their names",
            "SQLite looks through its pages",
        },
        "replay a.db": {"events"},
        "export a.db -o a.jsonl": {"payloads", "events"},
        "import a.jsonl b.db": {"bytes"},
        "scan a.db --json": {"events", "payloads", "bytes of a.db", "bytes of a.db.lock"},
        "backup a.db c.db": {"pages"},
        "repair a.db -o d.db": {"pages", "streams", "bytes"},
        "compact b.db": {"bytes are written anew"},
        "retain c.db --older-than 0s --archive .": {"payloads", "events", "streams"},
    }.items():
        told.clear()
        quiet.clear()
        result = run(*words.split())
        assert (result.exit_code, quiet) == (0, ["--json" in words]), (words, result.output)
        last = {what.lstrip("0123456789, "): (done, total) for what, done, total in told}
        assert set(last) >= counted, words
        assert all(total is None or done <= total for _, done, total in told), (words, told)
        assert all(done == total for what, (done, total) in last.items() if total and what != "streams"), last
