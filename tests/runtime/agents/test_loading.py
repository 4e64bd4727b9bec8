"""Agents by name: what an error about a name says."""

import os
import re
from pathlib import Path

import pytest

from refold import ConfigError
from refold.agents.loading import load_agent

MODULE = """
from refold import Agent, AgentConfig, ScriptedProvider

def helpdesk() -> Agent:
    return Agent(config=AgentConfig(model="m"), provider=ScriptedProvider([]))

def typed() -> "Agent[None, str]":
    return helpdesk()

def named(name: str) -> Agent:
    return helpdesk()

def title() -> str:
    return "no agent"

made = helpdesk()
"""


@pytest.mark.parametrize(
    ("name", "advice"),
    [("nosuch", "its agents are helpdesk, made, typed"), ("helpdeks", "did you mean 'helpdesk'?")],
)
def test_the_agents_of_a_module_include_functions_that_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, advice: str
) -> None:
    module = f"desk_{os.path.basename(tmp_path).replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=re.escape(advice)):
        load_agent(f"{module}:{name}")
