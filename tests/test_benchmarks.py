"""`benchmarks/all.py` with tiny sizes: the shape of its table and plots, not how fast anything is."""

import json
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from pathlib import Path

import pytest

from benchmarks import chart
from benchmarks.all import Part, read, write
from benchmarks.growth import GROWTH
from benchmarks.rows import ROWS, Row, Sizes, with_peers

ROOT = Path(__file__).parents[1]
QUICKLY = ("folds", "handlers", "appended", "log_bytes", "readers", "open_runs")
"""Rows that need no process of their own and no many rounds."""


TINY = Sizes(
    rounds=1,
    turns=2,
    at_once=2,
    crowd=(1, 2),
    folds=(18, 9),
    idle=3,
    messages=1_000,
    appends=128,
    kilobyte_turns=1,
    readers=2,
    vectors=20,
    open_runs=2,
    replays=(9, 18),
)


def measured(names: Iterable[str]) -> list[Row]:
    return [row for name in names for row in ROWS[name](TINY)]


def points_of(svg: str) -> list[tuple[float, float]]:
    line = ET.fromstring(svg).find(".//{*}polyline")  # noqa: S314 # It is our own picture.
    assert line is not None
    left_tops = (point.split(",") for point in line.attrib["points"].split())
    return [(float(left), float(top)) for left, top in left_tops]


def check(rows: list[Row], folder: Path) -> None:
    """Write the rows, and look at what is written."""
    run = {"command": "c", "python": "p", "sqlite": "s", "system": "s", "cpus": 2, "load": [1.0, 2.0], "cpu_s": 3.0}
    growth = {name: Part(run, [], {1: {"Refold": 0.5}, 10: {"Refold": 20.0}}) for name in GROWTH}
    lines = write(folder, {**growth, "turn": Part(run, rows, {})}).splitlines()
    assert [line.count("|") for line in lines if line.startswith("|")] == [7] * (len(rows) + 2)
    assert read(folder)["turn"].rows == rows
    for row in json.loads((folder / "table.json").read_text(encoding="utf-8"))["turn"]["rows"]:
        # Memory may be free that was taken before, and with few vectors nothing may stall.
        assert row["measured"] > 0 or row["unit"] == "B" or ("stall" in row["work"] and row["measured"] == 0), row
        assert row["limit"] is None or row["limit"] > 0, row
        value = row["measured"] if row["limit"] is None else row["ratio"]
        assert row["reached"] == (value >= row["goal"] if row["at_least"] else value <= row["goal"])
    page = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    for name in growth:
        assert points_of((folder / f"{name}.svg").read_text(encoding="utf-8"))
        assert f"(pictures/performance/{name}.svg)" in page


def test_rows_are_written_with_their_limits(tmp_path: Path) -> None:
    rows = measured(QUICKLY)
    peers = with_peers(
        [Row(work="one tool turn in a session", measured=2, unit="ms", limit=1, beside="by hand", goal=1)],
        {"another": {"in a session": 4.0}},
    )
    assert [(row.beside, row.ratio, row.reached) for row in peers] == [("another", 0.5, True)]
    check(rows + peers, tmp_path)


@pytest.mark.parametrize("values", [[0, 0], [3, 3], [0, 5], [0.02, 900], [99, 101], [1, 1_000]])
def test_a_line_stays_inside_of_its_picture(values: list[float]) -> None:
    svg = chart.drawn("<title>", "size", "ms", [1, 10], {"a & b": values})
    for left, top in points_of(svg):
        assert chart.LEFT <= left <= chart.WIDTH - chart.RIGHT
        assert chart.TOP <= top <= chart.HEIGHT - chart.BOTTOM


@pytest.mark.slow
def test_every_row_and_plot_can_be_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])  # For the processes that measure.
    check(measured(ROWS), tmp_path)
    for plot in GROWTH.values():
        assert min(plot.measure(20).values()) >= 0, plot.title
