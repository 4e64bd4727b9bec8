"""All that is measured, each in a process of its own, as one table and as plots of growth.

Run: nice python -P benchmarks/all.py --quick|--full [--peers PYTHON] [--page] [NAME ...]

The table has a line for each row of `rows.py`, with what the same run measured of the least that could do the work, or
of a peer; `growth.py` has the plots. `--quick` takes smaller sizes, and less than three minutes of CPU. `--peers` names
the Python of an environment that has langgraph or strands in it. With names, only those rows and plots are
measured, and the others stay what they were.

Everything is written into `build/performance/`: `table.md`, `table.json` and a picture for each plot. With `--page` it
goes to `docs/pictures/performance/`, and the table into `docs/performance.md`.
"""

import argparse
import json
import os
import platform
import re
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if "benchmarks" not in sys.modules:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec

from benchmarks import chart
from benchmarks.growth import GROWTH
from benchmarks.rows import FULL, QUICK, ROWS, Row, apart, spent_s, with_peers

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/performance.md"
PICTURES = ROOT / "docs/pictures/performance"
BETWEEN = "<!-- what benchmarks/all.py writes -->\n"
"""Stands before and behind the table in the page."""

Points = dict[int, dict[str, float]]


def shown(value: float | None) -> str:
    """Return a number with three digits that count, or as a whole one."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def outcome(row: Row) -> str:
    return ("yes" if row.reached else "no") + (", at this size" if row.smaller else "")


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table in Markdown."""
    lines = [
        "| work | measured | limit or peer of the same run | ratio | goal | reached |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        goal = f"{'at least' if row.at_least else 'at most'} {shown(row.goal)}{'x' if row.limit is not None else ''}"
        limit = f"{shown(row.limit)} ({row.beside})" if row.limit is not None else ""
        ratio = f"{shown(row.ratio)}x" if row.ratio is not None else ""
        lines.append(f"| {row.work} | {shown(row.measured)} {row.unit} | {limit} | {ratio} | {goal} | {outcome(row)} |")
    return "\n".join([*lines, ""])


class Part(msgspec.Struct):
    """What was measured under one name, and the run that did it."""

    run: dict[str, Any]
    rows: list[Row]
    points: Points


def as_json(parts: dict[str, Part]) -> str:
    """Return everything for programs, with what follows from a row."""
    found: dict[str, Any] = msgspec.to_builtins(parts, str_keys=True)
    for name, part in parts.items():
        found[name]["rows"] = [
            {**each, "ratio": row.ratio, "reached": row.reached}
            for each, row in zip(found[name]["rows"], part.rows, strict=True)
        ]
    return json.dumps(found, indent=1) + "\n"


def read(folder: Path) -> dict[str, Part]:
    """Return what was written before."""
    file = folder / "table.json"
    return msgspec.json.decode(file.read_bytes(), type=dict[str, Part]) if file.exists() else {}


def picture(name: str, points: Points) -> str:
    """Return the plot of a growth."""
    plot = GROWTH[name]
    lines = {line: [each[line] for each in points.values()] for line in next(iter(points.values()))}
    return chart.drawn(plot.title, plot.along, plot.unit, list(points), lines)


def described(run: dict[str, Any]) -> str:
    """Return the words about a run that stand above its table."""
    load = " to ".join(f"{load:.1f}" for load in run["load"])
    return (
        f"Measured by `{run['command']}`: {run['python']}, SQLite {run['sqlite']}, {run['system']}, {run['cpus']} "
        f"cores, shared with other programs (load {load}); {run['cpu_s']:.0f} s of CPU in all.\n"
    )


def write(folder: Path, parts: dict[str, Part]) -> str:
    """Write the figures and the plots, and return the table with the runs that it is of."""
    ordered = {name: parts[name] for name in [*ROWS, *GROWTH] if name in parts}
    runs = dict.fromkeys(described(part.run) for part in ordered.values())
    text = "\n".join([*runs, table([row for part in ordered.values() for row in part.rows])])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.json").write_text(as_json(ordered), encoding="utf-8")
    for name, part in ordered.items():
        if part.points:
            (folder / f"{name}.svg").write_text(picture(name, part.points), encoding="utf-8")
    return text


def of_peers(python: str, turns: int, sessions: int) -> dict[str, dict[str, float]]:
    command = [python, "-P", str(Path(__file__).with_name("peers.py")), str(turns), str(sessions)]
    found: dict[str, dict[str, float]] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


def main(arguments: Sequence[str]) -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="all.py", description="Measure everything.")
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--quick", action="store_true", help="smaller sizes, below three minutes of CPU")
    mode.add_argument("--full", action="store_true", help="the sizes of the goals")
    parser.add_argument("--peers", metavar="PYTHON", help="of an environment that has other libraries")
    parser.add_argument("--page", action="store_true", help="write into docs/")
    parser.add_argument("names", nargs="*", help=f"of {', '.join([*ROWS, *GROWTH])}; a name may be both")
    given = parser.parse_args(arguments)
    if unknown := set(given.names) - {*ROWS, *GROWTH}:
        parser.error(f"nothing is named {', '.join(sorted(unknown))}")
    sizes, chosen = QUICK if given.quick else FULL, given.names or [*ROWS, *GROWTH]
    load = os.getloadavg()[0]
    parts: dict[str, Part] = {}
    for name in dict.fromkeys(name for name in [*ROWS, *GROWTH] if name in chosen):
        rows = apart(ROWS[name], sizes) if name in ROWS else []
        if name == "turn" and given.peers:
            rows += with_peers(rows, of_peers(given.peers, sizes.turns, sizes.at_once))
        if rows:
            print(table(rows).split("\n", 2)[2], end="", flush=True)
        points: Points = {}
        if name in GROWTH:
            plot = GROWTH[name]
            points = {size: apart(plot.measure, size) for size in (plot.quick if given.quick else plot.full)}
            print(name, json.dumps(points), flush=True)
        parts[name] = Part({}, rows, points)
    run = {
        "command": " ".join(
            ["python -P benchmarks/all.py", *re.sub(r"\S+/python\S*", "PYTHON", " ".join(arguments)).split()]
        ),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "load": [load, os.getloadavg()[0]],
        "cpu_s": round(spent_s(), 1),
    }
    for part in parts.values():
        part.run = run
    folder = PICTURES if given.page else ROOT / "build/performance"
    text = write(folder, (read(folder) if given.names else {}) | parts)
    if given.page:
        before, _, behind = PAGE.read_text(encoding="utf-8").split(BETWEEN)
        PAGE.write_text(BETWEEN.join([before, f"{text}\n", behind]), encoding="utf-8")
    else:
        (folder / "table.md").write_text(text, encoding="utf-8")
    print(described(run), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
