"""`refold metrics` and `refold stats` agree with the library and with each other; see also the transcripts."""

import asyncio
import json
import operator
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from refold.metrics import MetricsSnapshot, read_metrics
from tests.runtime.command_line import run

GOLDEN = sorted((Path(__file__).parents[3] / "golden").glob("*.db"))


def written(*arguments: object) -> str:
    result = run(*arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def document(*arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(written(*arguments, "--json"))
    return found


def test_the_json_is_the_snapshot_and_its_derived_figures(log_file: Path) -> None:
    found = document("metrics", log_file)
    derived = found.pop("derived")
    assert msgspec.convert(found, MetricsSnapshot) == asyncio.run(read_metrics(log_file))
    assert (derived["tool_calls"], derived["most_called_tool"], derived["tool_failure_rate"]) == (3, "weather", 0.5)


def test_any_past_moment_can_be_counted(log_file: Path) -> None:
    last = document("metrics", log_file)["position"]
    started = [document("metrics", log_file, "--at", at)["runs_started"] for at in range(0, last + 1, 9)]
    assert started[0] == 0
    assert started == sorted(started)
    assert document("metrics", log_file, "--at", last) == document("metrics", log_file)


def test_prometheus_text_is_what_its_own_parser_reads(log_file: Path) -> None:
    families = {
        family.name: family for family in text_string_to_metric_families(written("metrics", log_file, "--prometheus"))
    }
    [sample] = families["refold_tool_calls"].samples
    assert (sample.labels, sample.value) == ({"tool": "weather"}, 3)
    assert families["refold_commits"].samples == [], "no log knows it"


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_golden_logs_give_figures(golden: Path, tmp_path: Path) -> None:
    log = shutil.copy(golden, tmp_path / golden.name)
    found = document("metrics", log)
    assert found["unreadable_events"] == {}
    listed = document("stats", log)["sessions"]
    assert len(listed) == found["sessions"]
    agrees = operator.ge if golden.stem.endswith("forks") else operator.eq  # A fork counts what it began with, too.
    assert agrees(sum(session["steps"] for session in listed), found["steps"])
    assert agrees(sum(session["runs_completed"] for session in listed), found["runs_completed"])
    longest = max(listed, key=lambda session: int(session["steps"]))
    assert len(document("stats", log, longest["session"])["steps"]) == longest["steps"]
    assert written("stats", log, longest["session"]).count(" turn ") == longest["steps"]
