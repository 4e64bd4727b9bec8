"""The commands of docs/replay.md that lead from a log to a regression test do what the page says."""

import re
import shlex
from pathlib import Path

import pytest

from tests.runtime.command_line import run

PAGE = Path(__file__).parents[3] / "docs" / "replay.md"
COMMANDS, TRIALS = (
    re.findall(r"^\$ (.*)$", PAGE.read_text().partition(f"## {title}")[2].partition("\n## ")[0], re.MULTILINE)
    for title in ("From a log to a regression test", "Was my new prompt worse?")
)

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


DESK_WITH_PRICES = """
from refold import Agent, AgentConfig, ModelRequest, ModelResponse, Price, tool, use

@tool
async def charge(euros: int) -> str:
    "Charge the card."
    return f"charged {euros}"

def desk(prompt, times):
    def answer(request: ModelRequest):
        calls = sum(message.role == "assistant" for message in request.messages)
        return ModelResponse(content=(use("charge", {"euros": 3}),)) if calls < times else "Done."

    config = AgentConfig(model="m", system_prompt=prompt, prices={"m": Price(input=1, output=1)})
    return Agent(config=config, provider=answer, tools=[charge])

agent, changed = desk("Be brief.", 1), desk("Charge at once, and again.", 2)
"""


def test_two_commands_say_whether_a_new_prompt_is_worse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "till.py").write_text(DESK_WITH_PRICES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run("run", "till:agent", "Tea, please", "--log", "events.db", "--session", "ann").exit_code == 0
    results = [run(*shlex.split(command.replace("desk:", "till:"))[1:]) for command in TRIALS]
    assert [result.exit_code for result in results] == [4, 1]
    assert "fails: charge called more (met in 1 of 1 sessions): ann" in results[1].stdout
    assert "Trial of agent on " in Path("trial.html").read_text()
