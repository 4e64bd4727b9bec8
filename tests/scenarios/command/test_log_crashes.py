"""A recorded log is crashed at every commit and every effect, and what is left of it recovers."""

import asyncio
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from refold import Agent, AgentRuntime, Completed, ScriptedProvider, say, tool, use
from refold.events.core.errors import ConfigError
from refold.events.session import events as ev
from refold.inspection.check import check_log
from refold.scenarios import Say, Scenario, Simulator, faults
from refold.scenarios.command.log_crashes import (
    Boundary,
    CrashSummary,
    boundaries,
    boundary_at,
    crashed_everywhere,
    sampled,
)
from refold.scenarios.command.log_prefixes import Prefix, RecordedLog, read_recorded_log, recorded_log
from refold.scenarios.monitors.monitor import PROMISES
from refold.stores import InMemoryStore
from tests.planted_faults.faults import search
from tests.planted_faults.planting import ROOT
from tests.runtime.command_line import run
from tests.runtime.page.blocks import blocks
from tests.scenarios.rehearsed import agent, good

GOLDEN = ROOT / "tests" / "golden"
STUCK = "tests.scenarios.rehearsed:stuck"


@pytest.fixture(scope="module")
def log_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of a real runtime: two sessions, parallel and single calls, and a plain answer."""
    path = tmp_path_factory.mktemp("recorded") / "events.db"
    provider = ScriptedProvider(
        [
            [use("look", {"city": "Lisbon"}), use("pay", {"amount": 3})],
            use("pay", {"amount": 4}),
            say("Done."),
            say("Hi."),
        ]
    )

    async def record() -> None:
        async with AgentRuntime(good.config, provider=provider, tools=good.tools, log=path) as runtime:
            for name in ("alice", "bob"):
                result = await (await runtime.session(name)).send("Pay 3, then 4")
                assert isinstance(result.outcome, Completed)

    asyncio.run(record())
    return path


def summary_of(path: Path, *, most: int | None = None) -> CrashSummary:
    log = asyncio.run(read_recorded_log(path))
    summary = CrashSummary()
    for trial in crashed_everywhere(log, good, sampled(boundaries(log), most)):
        summary.add(trial)
    return summary


def test_every_commit_and_every_effect_is_a_boundary(log_file: Path) -> None:
    log = asyncio.run(read_recorded_log(log_file))
    found = boundaries(log)
    of_alice = [(it.kind, it.version) for it in found if it.stream == "session/alice"]
    # The input, the answer with two calls, their results, an answer with one, its result, the last answer.
    commits = [version for kind, version in of_alice if kind == "commit"]
    assert len(commits) == 7
    assert [version for kind, version in of_alice if kind == "effect"] == commits[:-1]
    assert found[-1].position == log.batches[-1][-1].position


@tool(tier="confirm")
async def wire(amount: int) -> str:
    """Wire money."""
    return f"wired {amount}"


def test_sessions_of_other_agents_are_left_out_since_nobody_goes_on_with_them(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    asking = Agent(
        name="asking", config=good.config, provider=ScriptedProvider([use("wire", {"amount": 3})]), tools=[wire]
    )
    answering = Agent(name="answering", config=good.config, provider=ScriptedProvider([say("Hi.")]))

    async def record() -> None:
        async with AgentRuntime(asking, log=path) as runtime:
            handle = await (await runtime.session("waits")).submit("Wire 3")
            async for item in handle.stream():
                if isinstance(getattr(item, "event", None), ev.ToolApprovalRequested):
                    break
        async with AgentRuntime(answering, log=path) as runtime:
            await (await runtime.session("answered")).send("Hello")

    asyncio.run(record())
    log = asyncio.run(read_recorded_log(path))
    last = boundaries(log)[-1:]
    for rehearsed, played in ((None, "answered"), (answering, "answered"), (asking, "waits")):
        (trial,) = crashed_everywhere(log, rehearsed, last)
        assert trial.broken == ()
        sessions = {head.stream for head in asyncio.run(trial.log.list_streams(prefix="session/"))}
        assert sessions & {"session/waits", "session/answered"} == {f"session/{played}"}


@pytest.mark.slow
def test_a_real_log_recovers_everywhere_and_is_not_changed(log_file: Path) -> None:
    before = log_file.read_bytes()
    summary = summary_of(log_file)
    assert summary.broken == {}
    not_exercised = {rule for rule, verdict in summary.verdicts().items() if verdict != "hold"}
    assert not_exercised <= {
        "APPROVAL",
        "CANCEL",
        "SECRET",
        "TYPED",
    }  # Nobody decides or gives up, and it is no wire.
    assert summary.situations["tool running"] > 0
    assert summary.situations["model call open"] > 0
    assert summary.lives > summary.tried.total()
    assert log_file.read_bytes() == before


def test_bodies_that_the_log_says_to_have_begun_count(log_file: Path) -> None:
    log = asyncio.run(read_recorded_log(log_file))
    prefix = Prefix(log)
    prefix.grow(len(log.batches))
    beginning = asyncio.run(prefix.beginning(prefix.sessions))
    assert [(body.session, body.tool.name, body.tool.effect) for body in beginning.begun] == [
        ("alice", "look", "pure"),
        ("alice", "pay", "once"),
        ("alice", "pay", "once"),
    ]
    assert not any(body.running for body in beginning.begun)


def test_no_prefix_ends_within_an_append() -> None:
    async def filled() -> RecordedLog:
        store = InMemoryStore()
        async with AgentRuntime(good.config, provider=ScriptedProvider([say("Hi.")]), log=store) as runtime:
            await (await runtime.session("a")).send("Hello")
        return await recorded_log(store)

    log = asyncio.run(filled())
    assert log.boundaries()[-1] == len(log.batches)
    assert len(log.boundaries()) < len(log.batches)
    for length in log.boundaries()[:-1]:
        before, after = log.batches[length - 1][0], log.batches[length][0]
        assert (before.stream, before.at) != (after.stream, after.at)
        assert before.stream != after.stream or b"session.opened" not in before.data


def test_boundaries_are_sampled_evenly_with_both_ends() -> None:
    every = [Boundary(kind="commit", position=number, stream="session/a", version=number) for number in range(1, 101)]
    assert [it.position for it in sampled(every, 5)] == [1, 26, 51, 75, 100]
    assert sampled(every, 5)[0] is every[0]
    assert sampled(every, 5)[-1] is every[-1]
    assert sampled(every, 1) == [every[-1]]
    assert sampled(every, None) == sampled(every, 100) == sampled(every, 1_000) == every
    assert boundary_at(every, 7) == [every[6]]
    with pytest.raises(ConfigError, match="near it: 100, 99, 98"):
        boundary_at(every, 200)


@pytest.mark.parametrize("core", [1, *(pytest.param(core, marks=pytest.mark.slow) for core in (2, 3, 4))])
def test_logs_of_earlier_commits_recover_with_an_agent_made_of_what_they_say(tmp_path: Path, core: int) -> None:
    path = tmp_path / "golden.db"
    shutil.copy(GOLDEN / f"format-1-core-{core}.db", path)
    result = run("simulate", "--from", path, "--boundaries", 6, "--json")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    assert document["agent"] is None
    assert 0 < sum(document["tried"].values()) <= 6
    assert document["promises"]["LIVENESS"] == {
        "verdict": "hold",
        "exercised": sum(document["tried"].values()),
        "boundaries": [],
    }


def test_what_does_not_recover_is_told_saved_and_done_again(log_file: Path, tmp_path: Path) -> None:
    result = run("simulate", STUCK, "--from", log_file, "--boundaries", 4, "--save", tmp_path)
    assert result.exit_code == 1
    assert re.search(r"^LIVENESS +violated +\d+ +[1-9]", result.stdout, re.M)
    found = re.search(rf"refold simulate --from {log_file} {STUCK} --at (\d+)", result.stdout)
    assert found
    assert re.search(r"\nIn 4 boundaries, .* LIVENESS was violated, .*; find the cause .*\n\Z", result.stdout)
    page = tmp_path / "found.html"
    again = run("simulate", STUCK, "--from", log_file, "--at", found[1], "--json", "--save", tmp_path, "--html", page)
    document = json.loads(again.stdout)
    assert again.exit_code == 1
    assert document["violation"]["boundary"]["position"] == int(found[1])
    assert document["violation"]["broken"][0]["rule"] == "LIVENESS"
    assert asyncio.run(check_log(document["violation"]["log"])).sound
    data = blocks(page.read_text())
    [told] = data["refold-data"]["reports"]
    assert told["place"]["version"] == sum(
        len(part.get("frames", ())) for name, part in data.items() if name.startswith("s0-")
    )
    assert (told["verdict"], PROMISES["LIVENESS"] in told["words"][0]) == ("violated", True)
    assert len(list(tmp_path.glob(f"crashed-at-{found[1]}*.db"))) == 2


def test_a_simulated_log_is_crashed_too(tmp_path: Path) -> None:
    path = tmp_path / "simulated.db"
    scenario = Scenario(acts=(Say(session="s0"),), faults=(faults.ProviderRefuses(nth=2, kind="overloaded"),), seed=5)
    Simulator(agent()).save_log(scenario, path)
    result = run("simulate", "--from", path, "--boundaries", 10)
    assert result.exit_code == 0, result.output
    assert "the agent is made of what the log says of it" in result.stdout
    assert re.search(r"^INV5 +holds +9 +0", result.stdout, re.M)
    assert re.search(r"\nIn 9 boundaries, .*; next, `--boundaries 19` tries them all\.\n\Z", result.stdout)


SEARCH = """
import asyncio, sys
from pathlib import Path
from refold.scenarios.command.log_crashes import CrashSummary, boundaries, crashed_everywhere
from refold.scenarios.command.log_prefixes import read_recorded_log
log = asyncio.run(read_recorded_log(Path(sys.argv[1])))
summary = CrashSummary()
for trial in crashed_everywhere(log):
    summary.add(trial)
print(sorted(summary.broken))
"""


@pytest.mark.slow
def test_a_recovery_that_runs_again_what_it_must_not_is_found(log_file: Path, tmp_path: Path) -> None:
    done = search(tmp_path, SEARCH, str(log_file), faults=["what a crash interrupted is run again without a word"])
    assert "ONCE" in done.stdout
