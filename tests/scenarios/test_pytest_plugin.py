"""The pytest marker `refold_scenarios`, in test runs of their own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

# A test run inside this one forgets afterwards what it has imported first.
import refold.scenarios.failure_artifact
import tests.scenarios.rehearsed
from tests.runtime.command_line import run

pytest_plugins = ["pytester"]
LOADED = (refold.scenarios.failure_artifact, tests.scenarios.rehearsed)
OPTIONS = ("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:asyncio", "--strict-markers")

HEAD = """
import pytest
from refold.scenarios import SimulationReport, Scenario
from tests.scenarios.rehearsed import good, leaky
"""

SEEDS = ("0", "-1", "[]", "'abc'", "None", "1.5", "True", "['x']", "10**9", "__import__('itertools').count()")

SMALL = "sessions=1, acts=3, faults=2"


def ran(pytester: pytest.Pytester, source: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(HEAD + source)
    return pytester.runpytest_inprocess(*OPTIONS, *options)


def test_a_test_is_run_with_each_seed_and_given_what_came_of_it(pytester: pytest.Pytester) -> None:
    result = ran(
        pytester,
        f"""
digests = []

@pytest.mark.refold_scenarios(agent=good, seeds=2, {SMALL})
def test_good(refold_scenario: Scenario, refold_report: SimulationReport) -> None:
    assert refold_report.scenario is refold_scenario
    assert not refold_report.broken
    digests.append(refold_report.digest)

@pytest.mark.refold_scenarios(agent="tests.scenarios.rehearsed:good", seeds=[1], {SMALL})
@pytest.mark.parametrize("word", ["a", "b"])
def test_again(refold_report: SimulationReport, word: str) -> None:
    assert refold_report.digest in digests

@pytest.mark.refold_scenarios(agent=lambda: good, seeds=1, {SMALL})
class TestTogether:
    def test_of_a_class(self) -> None:
        pass
""",
        "-v",
    )
    result.assert_outcomes(passed=5)
    result.stdout.fnmatch_lines(["*::test_good[[]seed 1[]] PASSED*", "*::test_again[[]seed 1-a[]] PASSED*"])


def test_a_broken_promise_fails_the_test_with_the_smallest_scenario_and_its_log(pytester: pytest.Pytester) -> None:
    result = ran(
        pytester,
        f"""
@pytest.mark.refold_scenarios(agent=leaky, seeds=[13, 14], {SMALL})
def test_leaky() -> None:
    print("the test itself was run")
""",
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*test_leaky[[]seed 14[]]*", "INV7 *a closed runtime leaves tasks*", "scenario = Scenario("]
    )
    assert "Traceback" not in result.stdout.str()
    found = re.search(r"Its log is (\S+\.db);", result.stdout.str())
    assert found
    shown = subprocess.run(
        [sys.executable, "-P", "-m", "refold", "check", found[1]], capture_output=True, text=True, check=True
    )
    assert shown.stdout.startswith("sound")


def test_stand_ins_may_take_the_places_of_tools(pytester: pytest.Pytester) -> None:
    result = ran(
        pytester,
        f"""
@pytest.mark.refold_scenarios(agent=leaky, seeds=[14], stand_ins=True, {SMALL})
def test_leaky() -> None:
    pass
""",
    )
    result.assert_outcomes(passed=1)


WORDS_ABOUT = {
    "seeds=3": "is given agent=",
    "agent=good, seed=3": "does not know seed; it knows",
    "good": "is given agent=",
    **{f"agent=good, seeds={seeds}": "is a number from 1 to 100,000 or" for seeds in SEEDS},
    "agent=good, stand_ins='no'": "stand_ins=… of @pytest.mark.refold_scenarios is True or False",
    "agent=good, sessions=0": "sessions is a whole number from 1 to 10,000, and not 0",
    "agent=good, acts='3'": "acts is a whole number from 1 to 10,000, and not '3'",
    "agent=good, faults=-1": "faults_max is a whole number from 0 to 10,000, and not -1",
    "agent=good, store='disk'": "Scenario.store is one of 'memory', 'sqlite', and not 'disk'",
    "agent=good, wire='http'": "Scenario.wire is one of 'none', 'openai', 'anthropic', and not 'http'",
    "agent=dict, seeds=1": "refold_scenarios is a class, dict, and no Agent, nor a function that makes one",
    "agent=lambda: 3, seeds=1": "<lambda>() returned 3, which is no Agent",
    "agent=lambda who: good, seeds=1": "of @pytest.mark.refold_scenarios cannot be called without who",
    "agent=3, seeds=1": "of @pytest.mark.refold_scenarios is of type int and no Agent",
    "agent='tests.scenarios.rehearsed:made_later', seeds=1": "rehearsed:made_later is an async function",
}
"""What is said of a marker that cannot work."""


def test_markers_that_cannot_work_say_what_they_know_and_what_makes_no_agent(pytester: pytest.Pytester) -> None:
    sources = {
        f"test_{place}": f"{HEAD}@pytest.mark.refold_scenarios({marker})\ndef test_it() -> None:\n    pass\n"
        for place, marker in enumerate(WORDS_ABOUT)
    }
    pytester.makepyfile(**sources)
    reports = pytester.inline_run(*OPTIONS, "--continue-on-collection-errors").getreports()
    said = {report.nodeid.partition("::")[0]: str(report.longrepr) for report in reports if report.failed}
    assert {
        marker: said.get(f"test_{place}.py")
        for place, (marker, words) in enumerate(WORDS_ABOUT.items())
        if words not in said.get(f"test_{place}.py", "")
    } == {}
    # A traceback would be Refold's own, but where the user's function was called.
    assert [text for text in said.values() if "pytest_plugin.py" in text and "AgentNotMade" not in text] == []


def test_a_function_makes_an_agent_of_its_own_for_each_life(pytester: pytest.Pytester) -> None:
    result = ran(
        pytester,
        f"""
from tests.scenarios.rehearsed import made
digests = set()

@pytest.mark.refold_scenarios(agent=made, seeds=[4, 4], stand_ins=True, {SMALL})
def test_made(refold_report: SimulationReport) -> None:
    digests.add(refold_report.digest)
    assert len(digests) == 1

@pytest.mark.refold_scenarios(agent="tests.scenarios.rehearsed:made", seeds=[4], stand_ins=True, {SMALL})
def test_named(refold_report: SimulationReport) -> None:
    assert refold_report.digest in digests
""",
    )
    result.assert_outcomes(passed=3)


def test_the_fixtures_are_for_marked_tests(pytester: pytest.Pytester) -> None:
    result = ran(pytester, "def test_it(refold_report: object) -> None:\n    pass\n")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*is for tests with @pytest.mark.refold_scenarios*"])
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")


def test_the_marker_is_listed(pytester: pytest.Pytester) -> None:
    result = ran(pytester, "", "--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.refold_scenarios(agent, seeds=20*"])


def test_a_run_without_marked_tests_loads_no_simulator(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text(
        "import sys\n\n\ndef test_it():\n"
        "    assert 'refold.scenarios.pytest_plugin' in sys.modules\n"
        "    assert not {'refold.agents.agent', 'hypothesis.core', 'refold.scenarios.simulator'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_the_plugin_costs_a_run_that_does_not_use_it_next_to_nothing() -> None:
    code = (
        "import sys, pytest\nbefore = set(sys.modules)\nimport refold.scenarios.pytest_plugin\n"
        "print(sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert "refold" in done.stdout
    assert "asyncio" not in done.stdout


DESKS = """
from refold import Agent, AgentConfig, ScriptedProvider, say

def desk(prompt):
    config = AgentConfig(model="m", system_prompt=prompt)
    return Agent(config=config, provider=ScriptedProvider([say("Hello.")]))

agent, other = desk("Be brief."), desk("Be kind.")
"""


def test_a_bundle_is_a_test(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile(desks=DESKS)
    monkeypatch.syspath_prepend(str(pytester.path))
    assert run("run", "desks:agent", "Hi", "--log", "events.db", "--session", "ann").exit_code == 0
    assert run("bundle", "events.db", "ann", "-o", "bug.refold", "--agent", "desks:agent").exit_code == 0
    with_other = ("-o", "refold_agent=desks:other")

    def tested(*options: str) -> tuple[int, str]:
        result = pytester.runpytest_inprocess(*OPTIONS, *options, "bug.refold")
        return result.ret, result.stdout.str()

    assert tested()[0] == 0
    code, said = tested(*with_other)
    assert (code, 'changed: prompt: "Be brief." -> "Be kind."' in said) == (1, True)
    expecting = ("--agent", "desks:other", "--write-expect", "bug.expected.json")
    assert run("replay", "bug.refold", *expecting).exit_code == 0
    assert tested(*with_other)[0] == 0
    code, said = tested()
    assert (code, "expected, and does not occur any more: request.system_prompt: " in said) == (1, True)
    code, said = tested("-o", "refold_agent=desks:nobody")
    assert (code, "has no attribute" in said or "nobody" in said) == (1, True)
