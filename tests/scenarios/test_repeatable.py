"""One seed is one log, byte for byte: in one process played twice, and in two that hash otherwise and lie elsewhere."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import hashlib, importlib, json, sys
import msgspec
from refold.scenarios import Simulator, drawn_scenario
for agent, seeds, drawing in json.loads(sys.argv[1]):
    module, _, name = agent.partition(":")
    simulator = Simulator(getattr(importlib.import_module(f"tests.scenarios.{module}"), name))
    for seed in seeds:
        for _ in range(int(sys.argv[2])):
            report = simulator.run(drawn_scenario(seed, **drawing))
            print(agent, seed, drawing, report.digest, hashlib.sha256(msgspec.json.encode(report)).hexdigest())
"""
"""Plays seeds of agents, each so many times in a row, and prints what came of them."""


def said(seeds: object, *, times: int = 1) -> list[str]:
    """Return what the program prints, which must be the same under each seed of Python's hashes, and each time."""
    playing = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", PROGRAM, msgspec.json.encode(seeds).decode(), played],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT), "PYTHONASYNCIODEBUG": ""},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed, played in (("1", str(times)), ("2", "1"))
    ]
    first, second = (process.communicate()[0].splitlines() for process in playing)
    assert [process.returncode for process in playing] == [0, 0]
    for time in range(times):
        assert first[time::times] == second
    return second


GOOD, FULL = "rehearsed:good", "full_agent:full_agent"

EVERYDAY: tuple[tuple[str, tuple[int, ...], dict[str, str | bool]], ...] = (
    (GOOD, (127,), {}),  # Two follow a session, and wake in the order in which they came.
    (GOOD, (2,), {"store": "sqlite"}),
    (GOOD, (11,), {"wire": "anthropic"}),
    (GOOD, (3,), {"snapshots": True}),
    (FULL, (50,), {}),
    (FULL, (5,), {"store": "sqlite"}),  # A tool tells that its file cannot be written.
)


def test_a_seed_gives_the_same_log_twice_and_in_two_processes() -> None:
    lines = said(EVERYDAY, times=2)
    assert len(set(lines)) == sum(len(seeds) for _, seeds, _ in EVERYDAY)


@pytest.mark.slow(seconds=60)
@pytest.mark.parametrize(
    ("agent", "seeds", "drawing"),
    [
        (GOOD, 60, {}),
        (GOOD, 20, {"store": "sqlite"}),
        (GOOD, 20, {"wire": "openai"}),
        (GOOD, 10, {"wire": "anthropic"}),
        (GOOD, 10, {"snapshots": True}),
        ("rehearsed:parent", 20, {}),
        ("rehearsed:in_text", 10, {}),
        (FULL, 20, {}),
        (FULL, 10, {"store": "sqlite"}),
        (FULL, 10, {"wire": "anthropic"}),
    ],
)
def test_many_seeds_give_the_same_logs_in_two_processes(agent: str, seeds: int, drawing: dict[str, object]) -> None:
    assert len(said([(agent, tuple(range(seeds)), drawing)])) == seeds
