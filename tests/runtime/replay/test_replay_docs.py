"""The commands of docs/replay.md that lead from a log to a regression test do what the page says."""

import re
import shlex
from pathlib import Path

import pytest

from tests.runtime.command_line import run

PAGE = Path(__file__).parents[3] / "docs" / "replay.md"
COMMANDS = re.findall(r"^\$ (.*)$", PAGE.read_text().partition("## From a log to a regression test")[2], re.MULTILINE)[
    :5
]

DESK = """
from refold import Agent, AgentConfig, ScriptedProvider, say

def desk(prompt):
    config = AgentConfig(model="m", system_prompt=prompt)
    return Agent(config=config, provider=ScriptedProvider([say("Noted.")]))

agent, changed = desk("Be brief."), desk("Be kind.")
"""

pytest_plugins = ["pytester"]


def test_five_commands_lead_from_a_log_to_a_regression_test(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(desk=DESK)
    monkeypatch.syspath_prepend(str(pytester.path))
    assert run("run", "desk:agent", "My card is 4111 1111", "--log", "events.db", "--session", "ann").exit_code == 0
    codes: list[int] = []
    for command in COMMANDS:
        name, *words = shlex.split(command)
        if name == "refold":
            codes.append(run(*words).exit_code)
        else:
            result = pytester.runpytest_inprocess(
                "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:asyncio", *words
            )
            codes.append(result.ret)
    assert codes == [1, 0, 0, 0, 0]
    assert "4111 1111" not in run("export", "ann.refold").stdout
