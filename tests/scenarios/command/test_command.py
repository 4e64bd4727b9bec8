"""`refold simulate`: what it plays, what it shows, what it saves, and which exit code it leaves with."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from refold.scenarios import SimulationError
from refold.scenarios.command.output import closing_sentence
from refold.scenarios.monitors.monitor import PROMISES
from tests.runtime.command_line import run
from tests.runtime.page.blocks import blocks
from tests.runtime.terminal import Terminal

ON_A_WIRE = {"SECRET", "TYPED"}
SMALL = ("--sessions", 1, "--acts", 3, "--faults", 2)
GOOD, LEAKY = "tests.scenarios.rehearsed:good", "tests.scenarios.rehearsed:leaky"
MADE = "tests.scenarios.rehearsed:made"
CHANCY, THREADED = "tests.scenarios.rehearsed:chancy", "tests.scenarios.rehearsed:threaded"
IN_A_THREAD = "work was to be done in a thread"
ROOT = Path(__file__).resolve().parents[3]


def simulated(*arguments: object) -> dict[str, Any]:
    result = run("simulate", *arguments, "--json")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def test_a_sweep_shows_what_met_what_and_the_verdict_on_each_promise() -> None:
    result = run("simulate", GOOD, "--seeds", 4, "--jobs", 1)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("4 seeds from 0 in ")
    heads = r"^FAULT +PLANNED +HAPPENED +IDLE +MODEL CALL +TOOL +APPROVAL +ANSWER +RETRY "
    assert re.search(heads, result.stdout, re.M)
    for rule in PROMISES:
        verdict = "not exercised +0" if rule in ON_A_WIRE else r"holds +\d+"
        if rule in ("APPROVAL", "CANCEL"):
            verdict = r"(holds|not exercised) +\d+"
        assert re.search(rf"^{rule} +{verdict} +0  ", result.stdout, re.M), rule
    assert re.search(r"^Crash\w+ +\d+ +\d+ .* 0 ", result.stdout, re.M), "what never met is shown as 0"
    last = result.stdout.splitlines()[-1]
    assert re.match(rf"In 4 seeds, \d+ of {len(PROMISES)} promises held and .+ were not exercised; next, ", last)
    again = f"`refold simulate {GOOD} --store sqlite --wire openai`"
    assert f"{again} plays more of what this left out, and --own-tools" in last


@pytest.mark.slow
def test_what_comes_of_the_seeds_does_not_depend_on_the_number_of_processes() -> None:
    one, two = (simulated(GOOD, "--seeds", 6, "--jobs", jobs, "--acts", 4) for jobs in (1, 2))
    del one["seconds"], two["seconds"]
    assert one == two
    assert one["seeds"] == 6
    assert sum(fault["happened"] for fault in one["faults"].values()) > 0


def test_the_model_may_be_reached_over_a_wire() -> None:
    document = simulated(GOOD, "--seeds", 2, "--wire", "openai", "--faults", 0, "--jobs", 1)
    assert {document["promises"][rule]["verdict"] for rule in ON_A_WIRE} == {"hold"}
    assert (document["repeats"], document["refused"]) == (True, [])


def test_a_seed_is_repeated_exactly_and_reported_on(tmp_path: Path) -> None:
    played, again, other = (simulated(GOOD, "--seed", seed) for seed in (17, 17, 18))
    first = played["report"]
    assert (first, played["repeats"], first["refused"]) == (again["report"], True, [])
    assert first["digest"] != other["report"]["digest"]
    page = tmp_path / "kept.html"
    shown = run("simulate", GOOD, "--seed", 17, "--save", tmp_path / "kept", "--html", page)
    data = blocks(page.read_text())
    assert (data["refold-data"]["reports"][0]["verdict"], "s0-0" in data) == ("hold", True)
    assert first["digest"] in shown.stdout
    assert re.search(rf"\nIn seed 17, .* not exercised; next, `refold simulate {GOOD}` plays .*\n\Z", shown.stdout)
    assert re.search(r"AT +SESSION +ACT +OUTCOME", shown.stdout)
    log = tmp_path / "kept" / "seed-17-whole.db"
    assert f"its log: {log}" in shown.stdout
    assert run("check", log).exit_code == run("replay", log).exit_code == 0
    assert f"{first['events']} events" in run("check", log).stdout


@pytest.mark.parametrize(
    ("verdicts", "faults", "words"),
    [
        ({"A": "hold", "B": "hold"}, (), "2 of 2 promises held and nothing was left out"),
        ({"A": "hold", "B": "violated"}, (), "1 of 2 promises held, B was violated, and nothing was left out"),
        (
            {"A": "violated", "B": "violated", "C": "not exercised"},
            ("DiskFills",),
            "0 of 3 promises held, A and B were violated, and C and the fault DiskFills were not exercised",
        ),
        (
            dict.fromkeys("ABCDEFGH", "not exercised"),
            (),
            "0 of 8 promises held and A, B, C, D, E, F and 2 more were not exercised",
        ),
    ],
)
def test_one_sentence_says_what_held_what_was_left_out_and_what_to_do(
    verdicts: dict[str, Any], faults: tuple[str, ...], words: str
) -> None:
    assert closing_sentence("5 seeds", verdicts, "next", faults_without=faults) == f"In 5 seeds, {words}; next."


def test_without_seeds_nothing_was_exercised() -> None:
    document = simulated(GOOD, "--time", 0)
    assert document["seeds"] == 0
    assert {promise["verdict"] for promise in document["promises"].values()} == {"not exercised"}


def test_stand_ins_take_the_places_of_tools_unless_asked_otherwise(tmp_path: Path) -> None:
    for options, said in (((), b"was rehearsed with"), (("--own-tools",), b"is fine")):
        folder = tmp_path / str(len(options))
        assert run("simulate", GOOD, "--seed", 3, *SMALL, "--save", folder, *options).exit_code == 0
        assert said in (folder / "seed-3-whole.db").read_bytes()


def test_a_broken_promise_is_shrunk_shown_as_code_and_saved(tmp_path: Path) -> None:
    folder, page = tmp_path / "found", tmp_path / "found.html"
    sweep = ("--first", 13, "--seeds", 3, *SMALL, "--own-tools", "--save", folder, "--jobs", 1, "--html", page)
    result = run("simulate", LEAKY, *sweep)
    assert result.exit_code == 1
    assert re.search(r"^INV7 +violated +\d+ +[1-9]", result.stdout, re.M)
    found = re.search(r"INV7 is violated by seed (\d+)", result.stdout)
    assert found
    seed = found[1]
    assert "violated: INV7" in result.stdout
    assert f"refold simulate {LEAKY} --seed {seed} --sessions 1 --acts 3 --faults 2 --own-tools" in result.stdout
    log, file, test = (folder / name for name in (f"seed-{seed}.db", f"seed-{seed}.json", f"test_seed_{seed}.py"))
    assert run("replay", log).exit_code == run("check", log).exit_code == 0
    assert run("show", log, "s0").exit_code == 0
    data = blocks(page.read_text())
    [told] = data["refold-data"]["reports"]
    assert (told["verdict"], told["title"]) == ("violated", f"{LEAKY}, seed {seed}")
    assert told["words"][0].endswith(f"the promise: {PROMISES['INV7']}.")
    assert [side["name"].partition(":")[0] for side in told["sides"]] == ["Played", "Enough"]
    assert all("scenario = Scenario(" in side["value"] for side in told["sides"])
    assert f"refold check {log}" in told["commands"]
    assert data["s0-0"]["frames"]
    taken = run("simulate", GOOD, "--seed", 1, "--html", page)
    assert (taken.exit_code, taken.stdout, "is there already" in taken.stderr) == (2, "", True)
    again = run("simulate", LEAKY, "--scenario", file, "--own-tools", "--json")
    assert again.exit_code == 1
    assert json.loads(again.stdout)["report"]["broken"][0]["rule"] == "INV7"

    scope: dict[str, Any] = {}
    exec(compile(test.read_text(), test, "exec"), scope)
    with pytest.raises(SimulationError, match="INV7"):
        scope[f"test_seed_{seed}"]()


def test_files_that_are_there_are_not_written_over(tmp_path: Path) -> None:
    for _ in range(2):
        assert run("simulate", GOOD, "--seed", 1, *SMALL, "--save", tmp_path).exit_code == 0
    assert {path.name for path in tmp_path.glob("*.db")} == {"seed-1-whole.db", "seed-1-whole-2.db"}


def test_an_agent_that_depends_on_more_than_the_seed_is_told_so() -> None:
    result = run("simulate", "tests.scenarios.rehearsed:forgetful", "--seeds", 4, "--own-tools", "--jobs", 1)
    assert result.exit_code == 2
    assert "depends on more than the seed" in result.stderr


def test_a_function_makes_an_agent_of_its_own_for_each_life() -> None:
    arguments = (MADE, *SMALL, "--own-tools", "--seed", 3)
    first, again = (run("simulate", *arguments, "--json") for _ in range(2))
    report = json.loads(first.stdout)["report"]
    assert report == json.loads(again.stdout)["report"]
    assert report["operations"]["tool"] > 0


def test_what_a_function_has_made_is_shrunk_and_tested_too(tmp_path: Path) -> None:
    arguments = (MADE, *SMALL, "--own-tools", "--jobs", 1, "--save", tmp_path)
    result = run("simulate", *arguments, "--seeds", 2)
    assert result.exit_code == 1, result.output
    assert "violated: INV7" in result.stdout
    (test,) = tmp_path.glob("test_*.py")
    assert "Simulator(made).run(scenario)" in test.read_text()
    scope: dict[str, Any] = {}
    exec(compile(test.read_text(), test, "exec"), scope)
    with pytest.raises(SimulationError, match="INV7"):
        scope[test.stem]()


def test_tools_of_an_agent_that_a_function_makes_have_stand_ins_too() -> None:
    document = simulated(MADE, *SMALL, "--seeds", 2, "--jobs", 1)
    assert document["promises"]["INV7"]["verdict"] == "hold"


@pytest.mark.slow
def test_what_goes_wrong_in_a_function_is_one_line_in_several_processes_too() -> None:
    result = run("simulate", "tests.scenarios.rehearsed:made_of_nothing", "--seeds", 3, "--jobs", 2)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "making an agent with tests.scenarios.rehearsed.made_of_nothing() fails at " in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_ready_scenario_is_played_with_ones_own_agent(tmp_path: Path) -> None:
    shown = run("simulate", GOOD, "--ready", "disk-full", "--save", tmp_path).stdout
    assert shown.startswith("disk_full: 1 life, ")
    assert re.search(r"^yes +DiskIsFull\(", shown, re.M)
    assert f"its log: {tmp_path / 'disk_full-whole.db'}" in shown
    report = simulated(GOOD, "--ready", "disk_full")["report"]
    assert report["outcomes"] == ["Completed"] * 3
    assert report["digest"] in shown


def test_what_many_acts_came_to_is_counted() -> None:
    shown = run("simulate", GOOD, "--seed", 1, "--acts", 60, "--faults", 0, "--sessions", 4).stdout
    assert re.search(r"^and 10 further acts: \w+ \d+", shown, re.M)


def test_a_broken_promise_in_a_ready_scenario_says_how_to_play_it_again(tmp_path: Path) -> None:
    result = run("simulate", MADE, "--own-tools", "--ready", "clock_backwards", "--save", tmp_path)
    assert result.exit_code == 1
    assert f"refold simulate {MADE} --ready clock_backwards --own-tools" in result.stdout


@pytest.mark.parametrize("options", [("--seeds", 2, "--jobs", 1), ("--seed", 3)])
@pytest.mark.parametrize(
    ("agent", "words", "repeats", "refused"),
    [
        (CHANCY, f"gives another log each time; something in {CHANCY} depends on more than ", False, []),
        (THREADED, f"refused: {IN_A_THREAD}", True, [IN_A_THREAD]),
    ],
)
def test_a_log_that_is_not_repeated_is_told_and_what_is_refused(
    agent: str, words: str, repeats: bool, refused: list[str], options: tuple[object, ...]
) -> None:
    arguments = (agent, *SMALL, "--own-tools", *options)
    result = run("simulate", *arguments)
    assert (result.exit_code, words in result.stdout) == (0, True)
    document = simulated(*arguments)
    assert (document["repeats"], (document.get("report") or document)["refused"]) == (repeats, refused)


@pytest.mark.parametrize("options", [("--seeds", 2, "--jobs", 1), ("--seed", 1, "--save", "{folder}")])
def test_what_tools_print_is_no_part_of_the_answer(tmp_path: Path, options: tuple[object, ...]) -> None:
    arguments = [str(option).format(folder=tmp_path) for option in options]
    result = run("simulate", "tests.scenarios.rehearsed:loudly", *SMALL, "--own-tools", *arguments, "--json")
    assert result.exit_code == 0
    assert "a tool prints" in result.stderr
    json.loads(result.stdout)


@pytest.mark.slow
def test_a_process_that_a_tool_ends_is_told_with_the_seeds_that_it_played() -> None:
    result = run("simulate", "tests.scenarios.rehearsed:ending", "--own-tools", "--seeds", 4, "--jobs", 2)
    assert (result.exit_code, result.stdout) == (2, "")
    assert re.search(r"played the seeds 0 to 3 ended with exit code 7, .* --jobs 1 --first 0 --seeds 4", result.stderr)
    assert result.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_signals_end_a_tool_that_holds_its_process_for_ever(number: signal.Signals, code: int, jobs: int) -> None:
    program = [sys.executable, "-P", "-c", "from refold.commands.cli import main; main()", "simulate"]
    arguments = ["tests.scenarios.rehearsed:staying", "--own-tools", "--seeds", "100", "--jobs", str(jobs), "--json"]
    with subprocess.Popen(
        [*program, *arguments], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        line = process.stderr.readline()
        told = re.fullmatch(r"stays in process (\d+)\n", line)
        assert told, line
        process.send_signal(number)
        # The end of both pipes says that none of the processes is left that hold them.
        answer, rest = process.stdout.read(), process.stderr.read()
        assert process.wait() == code
    assert (int(told[1]) == process.pid) == (jobs == 1)
    assert "Traceback" not in rest
    if number != signal.SIGKILL:
        assert json.loads(answer)["seeds"] == 0


@pytest.mark.slow
def test_a_line_tells_how_far_it_is_and_ctrl_c_shows_what_there_is(tmp_path: Path) -> None:
    with Terminal(ROOT, "simulate", GOOD, "--seeds", "100000", "--jobs", "2", TERM="xterm", COLUMNS="200") as terminal:
        terminal.until(" of 100,000 seeds, ")
        terminal.until(" lives, ")
        terminal.write("\x03")
        code, shown = terminal.end()
    assert code == 130
    assert "of virtual time" in shown
    assert "Traceback" not in shown


def test_the_help_of_the_command_loads_no_simulator() -> None:
    program = (
        "import sys\nfrom refold.commands.cli import main\nsys.argv = ['refold', 'simulate', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    print(sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert "Exit codes:" in done.stdout
    loaded = done.stdout.splitlines()[-1]
    assert not re.search(r"'(rich|aiosqlite|hypothesis|refold\.(events|stores|actors|scenarios\.simulator))'", loaded)


@pytest.mark.parametrize("wire", ["none", "openai", "anthropic"])
@pytest.mark.parametrize("name", ["changed", "in_text"])
def test_an_agent_that_changes_what_is_shown_and_said_breaks_no_promise_by_that(name: str, wire: str) -> None:
    result = run("simulate", f"tests.scenarios.rehearsed:{name}", "--seeds", 3, "--wire", wire, "--jobs", 1, "--json")
    assert (result.exit_code, json.loads(result.stdout)["violation"]) == (0, None)
