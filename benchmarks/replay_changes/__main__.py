"""One-line changes of an agent and of Refold itself: a replay of ten logs finds each where it first matters.

Run: nice python -P benchmarks/replay_changes [NAME ...]          a table of the changes, and a summary
     nice python -P benchmarks/replay_changes --same PYTHON ...   no change, on each Python under four hash seeds

The ten logs (`record.py`) are those of one support desk (`desk.py`). A change (`changes.toml`) is a text of a file and
what takes its place. Each is made in a process of its own, where the code that is loaded is the changed one and no
file is; there the logs are recorded once more, and those that the code of today has recorded are replayed by
`refold replay LOG --agent desk:agent`.

Where a change matters is not taken from the replay: it is the first event that is another one, or is followed by other
effects in flight, in the log that the changed code has recorded. The replay of each log has to name that place, and
exit with 1; or with 4 and what it could not compare, where the data say so; and to be silent on a log that is the same.
"""

import argparse
import asyncio
import contextlib
import functools
import importlib
import importlib.machinery
import io
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import tomllib
import traceback
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SEEDS = ("0", "1", "2", "3")
AGENT = "desk.py"
TOGETHER = 5
"""So many changes of the agent are tried by processes that one process forks."""

LOADED = (
    "refold.agent_runtime",
    "refold.agents.loading",
    "refold.commands.look.replay",
    "refold.commands.cli",
    "refold.life.lifecycle",
    "refold.replay.agent_replay",
    "refold.replay.shadow.process",
    "refold.stores.sqlite.store",
)
"""What a replay and a recording use, so that it is loaded once."""

PART_S = 30
"""Longest time to record one log."""


class Change(NamedTuple):
    """One line of code that is another one."""

    name: str
    file: str
    """From the top of the repository, or in this folder."""
    text: str
    """Stands once in the file."""
    replacement: str
    listed: str = ""
    """What the replay says that it could not compare, where it need not find the place."""
    named: dict[str, str] | None = None
    """The place by log, where the changed code cannot record the logs."""
    level: str = "decide"
    """At which it is found."""

    @property
    def path(self) -> Path:
        """Where the file lies."""
        return HERE / self.file if (HERE / self.file).exists() else ROOT / self.file


def all_changes() -> list[Change]:
    """Return the changes of the data."""
    files = tomllib.loads((HERE / "changes.toml").read_text(encoding="utf-8"))
    return [Change(name, file, *given) for file, changes in files.items() for name, given in changes.items()]


def make(change: Change) -> None:
    """Have this process load the changed code.

    Raises:
        SystemExit: the text does not stand in the file, or not once.
    """
    source = change.path.read_text(encoding="utf-8")
    if (count := source.count(change.text)) != 1:
        sys.exit(f"{change.name}: the text stands {count} times in {change.file}")
    changed = compile(source.replace(change.text, change.replacement), change.path, "exec", dont_inherit=True)
    unchanged = importlib.machinery.SourceFileLoader.get_code

    def get_code(self: importlib.machinery.SourceFileLoader, fullname: str) -> Any:
        return changed if Path(self.path).resolve() == change.path else unchanged(self, fullname)

    setattr(importlib.machinery.SourceFileLoader, "get_code", get_code)  # noqa: B010 - Both checkers know the type.


def record(folder: Path, names: list[str] | None = None) -> dict[str, str]:
    """Record the logs, or some; return how each ended that did not end well."""
    recording: Any = importlib.import_module("record")
    ended: dict[str, str] = {}
    for name, parts in recording.LOGS.items():
        for part in parts if names is None or name in names else ():
            code = apart(functools.partial(part, folder / f"{name}.db"))
            if code != (-signal.SIGKILL if part is recording.dying else 0):
                ended[name] = f"its process ended with {code}"
    return ended


def apart(work: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Do some work in a process of its own; return the code that it ended with, the number of a signal below 0.

    Changed code may do anything, and hang in what ends its work, too.
    """
    if (child := os.fork()) == 0:
        signal.alarm(PART_S)
        code = 1
        try:
            asyncio.run(work())
            code = 0
        finally:
            if code:
                traceback.print_exc()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


Place = tuple[str, int]
"""A stream, and a version in it."""


OF_A_REQUEST = ("session.request_built", "session.model_interrupted")
"""Come while a model call goes on, and of one that is answered the place is its answer."""

OPENING = ("session.opened", "session.agent_configured")
"""Are recorded with the first thing that a session is told, which is the place."""

ANSWERS = ("session.model_responded", "session.model_failed")


class Recorded(NamedTuple):
    """An event of a log."""

    type: str
    said: object
    """When, and what, without what is recorded of configurations, and of the size of requests: no decision."""
    in_flight: Place | None
    """The batch that it ends."""


def events_of(log: Path) -> tuple[dict[Place, Recorded], dict[Place, str]]:
    """Return the events of a log in order, and the effects that are in flight after each batch."""
    with contextlib.closing(sqlite3.connect(log)) as connection:
        rows = connection.execute(
            "SELECT name, events.version, batch, at, data, events.pending FROM events JOIN streams "
            "ON streams.id = stream WHERE name NOT LIKE 'runtime/%' ORDER BY position"
        ).fetchall()
    found: dict[Place, Recorded] = {}
    pending = {(name, batch): keys for name, _, batch, _, _, keys in rows if keys is not None}
    last = {(name, batch): version for name, version, batch, *_ in rows}
    for name, version, batch, at, data, _ in rows:
        event = json.loads(data)
        for key in ("configuration", "spec", "fingerprint", "code", "capacity"):
            event.pop(key, None)
        event.get("request", {}).pop("estimated", None)
        if not event.get("usage"):  # None is the same as one that counts nothing.
            event.pop("usage", None)
        ends = (name, batch) if last[name, batch] == version else None
        found[name, version] = Recorded(event["type"].rpartition(".")[0], (at, event), ends)
    return found, pending


def first_change(then: Path, now: Path) -> str | None:
    """Return where two logs differ first, as `stream@version`; None = nowhere."""
    (recorded, in_flight), (later, in_flight_later) = events_of(then), events_of(now)
    places, streams = list(recorded), {stream for stream, _ in later}
    for place in places:
        if place[0] not in streams and place[0].count("/") > 1:  # A call's session; what kept it away is elsewhere.
            continue
        event, other, batch = recorded[place], later.pop(place, None), recorded[place].in_flight
        if other is not None and other.said == event.said:
            if batch is None or in_flight.get(batch) == in_flight_later.get(batch):
                continue
            if other.in_flight != batch:  # The batch goes on today.
                return f"{place[0]}@{place[1] + 1}"
            return "@".join(map(str, place))
        behind = [each for each in places[places.index(place) :] if each[0] == place[0]]
        if recorded[place].type in OPENING:
            place = next((each for each in behind if recorded[each].type not in OPENING), place)
        if recorded[place].type in OF_A_REQUEST:
            then_came = next((each for each in behind if recorded[each].type not in OF_A_REQUEST), place)
            place = then_came if recorded[then_came].type in ANSWERS else place
        return "@".join(map(str, place))
    return next((f"{stream}@{version}" for stream, version in later), None)


def replayed(log: Path, level: str) -> dict[str, Any]:
    """Return what `refold replay` says of a log, and its exit code."""
    from refold.commands.cli import main

    sys.argv = ["refold", "replay", str(log), "--agent", "desk:agent", "--level", level, "--json"]
    said, code = io.TextIOWrapper(io.BytesIO()), 0
    try:
        with contextlib.redirect_stdout(said):
            main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    try:
        report = json.loads(said.buffer.getvalue())
    except ValueError:
        report = {}
    first = next(iter(report.get("divergences", [])), None)
    missed = [
        f"{each['what']}: {why['why']}" for each in report.get("compared", []) for why in each.get("not_compared", [])
    ]
    return {
        "exit": code,
        "found": f"{first['stream']}@{first['version']}" if first else None,
        "path": first["difference"]["path"] if first else None,
        "missed": missed,
    }


def try_one(change: Change | None, logs: Path) -> dict[str, Any]:
    """Record and replay under a change, in this process; return what was found in each log."""
    if change is not None:
        make(change)
    sys.path.insert(0, str(HERE))
    level = change.level if change is not None else "decide"
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        ended = record(Path(folder), [log.stem for log in logs.glob("*.db")])
        for log in sorted(logs.glob("*.db")):
            again = Path(folder, log.name)
            place = first_change(log, again) if again.exists() else "no log"
            copy = Path(folder, "replayed.db")
            copy.write_bytes(log.read_bytes())
            found[log.stem] = {"expected": place, "recording": ended.get(log.stem), **replayed(copy, level)}
    return found


def try_each(names: list[str], logs: Path) -> None:
    """Try changes of the agent, each in a process that has loaded Refold already; write a line for each."""
    for module in LOADED:
        importlib.import_module(module)
    changes = {each.name: each for each in all_changes()}
    for name in names:
        sys.stdout.flush()
        if (process := os.fork()) == 0:
            code = 1
            with contextlib.suppress(BaseException):
                print(json.dumps(try_one(changes[name], logs)), flush=True)
                code = 0
            os._exit(code)
        if os.waitpid(process, 0)[1] != 0:
            print("null", flush=True)


Found = dict[str, dict[str, Any]]
"""What was found in each log."""


def tried(python: str, logs: Path, names: Sequence[str], seed: str | None = None) -> list[Found]:
    """Return what comes of changes, of which one that is not the agent's is alone; no name = no change."""
    environment = os.environ | ({"PYTHONHASHSEED": seed} if seed is not None else {})
    command = [python, "-P", str(HERE), *names, "--logs", str(logs), "--try"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("{", "null"))]
    failed = {"expected": None, "exit": 70, "found": None, "path": None, "missed": [done.stderr[-2_000:]]}
    return [found or {"all": failed} for found in [*lines, *[None] * (max(1, len(names)) - len(lines))]]


def verdict_of(change: Change, found: dict[str, Any]) -> tuple[str, list[tuple[str, ...]]]:
    """Return how a change was found, and a row for each log that says something."""
    rows: list[tuple[str, ...]] = []
    verdict = "found"
    for log, each in found.items():
        expected = change.named.get(log) if change.named else each["expected"]
        if expected is None and each["exit"] == 0:
            continue
        said = f"{each['found'] or ''} {each['path'] or ''}".strip() or "; ".join(each["missed"])[:60]
        if expected == each["found"] and each["exit"] == 1:
            how = ""
        elif change.listed and each["exit"] == 4 and any(change.listed in why for why in each["missed"]):
            how = "listed"
        elif each["exit"] == 0:
            how = "SILENT"
        else:
            how = "ELSEWHERE"
        rows.append((log, expected or "-", said, str(each["exit"]), how))
        verdict = max(verdict, how or "found", key=("found", "listed", "ELSEWHERE", "SILENT").index)
    return verdict if rows else "NO EFFECT", rows


def main() -> None:
    """Do as the command's line says."""
    parser = argparse.ArgumentParser(description="See the text of this module.")
    parser.add_argument("names", nargs="*", help="only changes with this in their name")
    parser.add_argument("--same", nargs="*", metavar="PYTHON", help="no change, on these Pythons")
    parser.add_argument("--only", nargs="*", metavar="LOG", help="only these logs")
    parser.add_argument("--full", action="store_true", help="a row for each log, not only for the first")
    parser.add_argument("--jobs", type=int, default=1, help="so many processes at a time")
    parser.add_argument("--try", action="store_true", dest="tries", help=argparse.SUPPRESS)
    parser.add_argument("--logs", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.tries:
        of_agent = [each.name for each in all_changes() if each.name in given.names and each.file == AGENT]
        if of_agent:
            try_each(given.names, given.logs)
        else:
            only = next((each for each in all_changes() if each.name in given.names), None)
            print(json.dumps(try_one(only, given.logs)))
        return
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, str(HERE))
        if ended := record(Path(folder), given.only):
            sys.exit(f"recording ended otherwise than it should: {ended}")
        if given.same is not None:
            same(given.same or [sys.executable], Path(folder))
        else:
            wanted = [
                each for each in all_changes() if not given.names or any(name in each.name for name in given.names)
            ]
            table(wanted, Path(folder), full=given.full, jobs=given.jobs)


def table(changes: list[Change], folder: Path, *, full: bool, jobs: int) -> None:
    """Try changes, and print what was found."""
    of_agent = [each for each in changes if each.file == AGENT]
    groups = [of_agent[first : first + TOGETHER] for first in range(0, len(of_agent), TOGETHER)]
    groups += [[each] for each in changes if each.file != AGENT]
    counts: dict[str, int] = {}
    with ThreadPoolExecutor(jobs) as pool:
        results = pool.map(lambda group: tried(sys.executable, folder, [each.name for each in group]), groups)
        each_found = itertools.chain.from_iterable(results)
        for change, found in zip(itertools.chain.from_iterable(groups), each_found, strict=True):
            verdict, rows = verdict_of(change, found)
            counts[verdict] = counts.get(verdict, 0) + 1
            shown = rows if full else sorted(rows, key=lambda row: row[-1] in ("", "listed"))[:1]
            print(f"{verdict:10} {change.name}", flush=True)
            for log, expected, said, code, how in shown:
                print(f"{'':10}   {log:10} expected {expected:22} found {said:45} exit {code} {how}", flush=True)
    print(f"{sum(counts.values())} changes:", ", ".join(f"{count} {name}" for name, count in counts.items()))
    sys.exit(any(name.isupper() for name in counts))


def same(pythons: list[str], folder: Path) -> None:
    """Replay the logs with no change on several Pythons, and record them there."""
    alarms = 0
    for python in pythons:
        for seed in SEEDS:
            [found] = tried(python, folder, (), seed)
            wrong = {log: each for log, each in found.items() if each["exit"] or each["expected"]}
            alarms += len(wrong)
            print(f"{python} seed {seed}: {len(found)} logs, {len(wrong)} alarms", wrong or "", flush=True)
    print(f"{alarms} alarms")
    sys.exit(alarms > 0)


if __name__ == "__main__":
    main()
