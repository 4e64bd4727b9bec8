"""What an agent is made of: bounds that are checked at once, and what the log records."""

import math
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from refold.events.core.errors import ConfigError
from refold.events.core.ids import AgentId
from refold.events.model.configuration import (
    AgentConfig,
    AgentConfiguration,
    CodeIdentity,
    RetryPolicy,
    ToolPolicy,
    ToolSpec,
    configuration_of,
    payload_hash,
)
from refold.events.model.spending import Budget, Price, TreeBudget
from tests.events.conftest import CODE
from tests.selfcheck.exhaustive.scope import TOOLS

MODEL = AgentConfig(model="test-model")


def recorded(config: AgentConfig = MODEL, tools: tuple[ToolSpec, ...] = TOOLS) -> AgentConfiguration:
    return configuration_of(config, agent=AgentId("agent"), tools=tools, code=CODE)[0]


def test_the_defaults_are_these() -> None:
    assert msgspec.to_builtins(MODEL) == {
        "model": "test-model",
        "system_prompt": "You are a helpful AI agent.",
        "max_turns": 50,
        "max_tokens": None,
        "temperature": None,
        "stop_sequences": (),
        "max_memory_recalls": 3,
        "max_memory_tokens": None,
        "run_timeout_s": None,
        "approval_expiry_s": None,
        "retry": {},
        "rejections_max": 2,
        "empty_answers_max": 2,
        "budget": None,
        "tree_budget": None,
        "prices": {},
        "error_recovery": "stop",
        "recoveries_max": 2,
        "resumes_max": 3,
        "on_code_change": "continue",
        "streaming": False,
        "protocol": "native",
    }


def test_a_model_is_required() -> None:
    missing: Any = AgentConfig
    with pytest.raises(TypeError, match="model"):
        missing()


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("model", ["", None, 5]),
        ("system_prompt", [None, b"x"]),
        ("max_turns", [0, -1, 1.5, True, "5", None]),
        ("max_tokens", [0, -1, 1.5, True]),
        ("temperature", [-0.1, 2.1, math.nan, math.inf, True, "1"]),
        ("stop_sequences", [["x"], ("",), "x", (1,)]),
        ("max_memory_recalls", [-1, 1.5, None, True]),
        ("max_memory_tokens", [-1, 0.5]),
        ("run_timeout_s", [0, -1, math.nan, math.inf, True, 1e9]),
        ("approval_expiry_s", [0, -1, math.nan, math.inf, True, 1e9]),
        ("retry", [3, "twice", {"attempts_max": 3}]),
        ("rejections_max", [-1, None, True, 1.5]),
        ("empty_answers_max", [-1, None, True, 1.5]),
        ("budget", [100, {"tokens": 100}]),
        ("tree_budget", [100, Budget(tokens=100)]),
        ("prices", [None, {"m": 3}, {1: Price(input=1, output=1)}]),
        ("error_recovery", ["go on", None, True, 5]),
        ("recoveries_max", [-1, None, True, 1.5]),
        ("resumes_max", [-1, None, True]),
        ("on_code_change", ["stop", None, 1]),
        ("streaming", [1, None]),
        ("protocol", ["xml", None, ["native"]]),
    ],
)
def test_a_value_outside_its_bounds_is_refused_at_once_by_its_name(field: str, values: list[object]) -> None:
    for value in values:
        arguments: dict[str, Any] = {"model": "test-model", field: value}
        with pytest.raises(ConfigError, match=f"AgentConfig.{field} must be "):
            AgentConfig(**arguments)


AT_THEIR_BOUNDS: dict[str, Any] = {
    "model": "m",
    "system_prompt": "",
    "max_turns": 1,
    "max_tokens": 1,
    "temperature": 2.0,
    "stop_sequences": ("END",),
    "max_memory_recalls": 0,
    "max_memory_tokens": 0,
    "run_timeout_s": 0.001,
    "approval_expiry_s": 0.001,
    "retry": RetryPolicy(attempts_max=1),
    "rejections_max": 0,
    "empty_answers_max": 0,
    "budget": Budget(tokens=1),
    "tree_budget": TreeBudget(tokens=1),
    "prices": {"test-model": Price(input=1, output=1)},
    "error_recovery": "retry",
    "recoveries_max": 0,
    "resumes_max": 0,
    "on_code_change": "park",
    "streaming": True,
    "protocol": "react",
}


def test_every_setting_is_accepted_at_its_bound_recorded_and_changes_the_fingerprint() -> None:
    assert set(AT_THEIR_BOUNDS) == set(AgentConfig.__struct_fields__)
    prints = {recorded().fingerprint, recorded(AgentConfig(model="test-model", temperature=0)).fingerprint}
    for field, value in AT_THEIR_BOUNDS.items():
        configuration = recorded(AgentConfig(**{"model": "test-model", field: value}))
        if field != "system_prompt":
            assert getattr(configuration, field) == value
        prints.add(configuration.fingerprint)
    assert len(prints) == len(AT_THEIR_BOUNDS) + 2


def test_a_whole_number_is_the_same_setting_as_its_fraction() -> None:
    whole = AgentConfig(model="test-model", temperature=1, run_timeout_s=60)
    fraction = AgentConfig(model="test-model", temperature=1.0, run_timeout_s=60.0)
    assert recorded(whole).fingerprint == recorded(fraction).fingerprint
    assert type(recorded(whole).run_timeout_s) is type(recorded(whole).temperature) is float
    patient = msgspec.structs.replace(TOOLS[0], timeout_s=120)
    assert recorded(tools=(patient,)).tool_schemas == recorded(tools=(TOOLS[0],)).tool_schemas


def test_the_agents_name_and_its_tools_change_the_fingerprint_and_the_code_does_not() -> None:
    base = recorded().fingerprint
    other = CodeIdentity(refold="9.9", core=9, app="x")
    same = configuration_of(MODEL, agent=AgentId("agent"), tools=TOOLS, code=other)[0]
    renamed = configuration_of(MODEL, agent=AgentId("other"), tools=TOOLS, code=CODE)[0]
    assert same.fingerprint == base
    assert same != recorded()
    assert renamed.fingerprint != base
    assert recorded(tools=TOOLS[1:]).fingerprint != base
    described = msgspec.structs.replace(TOOLS[0], description="Looks twice.")
    assert recorded(tools=(described, *TOOLS[1:])).fingerprint != base


def test_case_b11_tools_are_recorded_in_the_order_of_their_names() -> None:
    assert recorded(tools=tuple(reversed(TOOLS))) == recorded()
    assert msgspec.json.decode(msgspec.json.encode(recorded()), type=AgentConfiguration) == recorded()
    policies = recorded().tools
    assert [policy.name for policy in policies] == sorted(policy.name for policy in policies)
    assert ToolPolicy("pay", "confirm", "once") in policies


def test_prompt_and_schemas_are_payloads_under_their_hash() -> None:
    configuration, payloads = configuration_of(MODEL, agent=AgentId("agent"), tools=TOOLS, code=CODE)
    assert payloads[configuration.system_prompt] == b"You are a helpful AI agent."
    schemas = msgspec.json.decode(payloads[configuration.tool_schemas], type=tuple[ToolSpec, ...])
    assert schemas == tuple(sorted(TOOLS, key=lambda spec: spec.name))
    assert all(payload_hash(data) == name for name, data in payloads.items())
    assert payload_hash(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_the_fingerprint_is_the_same_in_every_process() -> None:
    program = (
        "from refold.events.model.configuration import *\n"
        "spec = ToolSpec(name='t', description='', input_schema={'type': 'object', 'a': 1, 'b': 2})\n"
        "code = CodeIdentity(refold='', core=1)\n"
        "print(configuration_of(AgentConfig(model='m'), agent='a', tools=(spec,), code=code)[0].fingerprint)\n"
    )
    prints = {
        subprocess.run(
            [sys.executable, "-P", "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PATH": ""},
        ).stdout
        for seed in ("0", "1")
    }
    assert len(prints) == 1
    assert len(prints.pop().strip()) == 16
