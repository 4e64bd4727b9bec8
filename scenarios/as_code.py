"""A scenario as Python code to paste into a test: with its imports, and without the fields that have their default."""

from collections.abc import Iterator
from typing import cast

import msgspec

from refold.scenarios import faults
from refold.scenarios.plan.scenario import Scenario

_TEST = """\
{imports}


def test_{name}() -> None:
    {scenario}
    Simulator({rehearsed}).run(scenario).raise_if_broken()
"""


def scenario_as_code(scenario: Scenario) -> str:
    """Return statements that import what is needed and assign the scenario to `scenario`."""
    return f"{_imports(scenario)}\n\n{_assignment(scenario, margin='')}\n"


def scenario_as_test(scenario: Scenario, agent: str, name: str = "promises_hold", *, own_tools: bool = True) -> str:
    """Return a module with a test that plays the scenario.

    Args:
        scenario: what is played.
        agent: `module:attribute`, such as `app.agents:support`.
        name: of the test, without `test_`.
        own_tools: whether the bodies of the agent's own tools run; else stand-ins do.
    """
    module, _, attribute = agent.partition(":")
    first, _, rest = attribute.partition(".")
    named = f"{first}.{rest}" if rest else first
    more = ("Simulator",) if own_tools else ("Simulator", "with_stand_ins")
    return _TEST.format(
        imports=f"from {module} import {first}\n{_imports(scenario, *more)}",
        name=name,
        scenario=_assignment(scenario, margin="    "),
        rehearsed=named if own_tools else f"with_stand_ins({named})",
    )


def _imports(scenario: Scenario, *more: str) -> str:
    names = {"Scenario", *more, *(type(act).__name__ for act in scenario.acts)}
    if scenario.faults:
        names.add("faults")
    if scenario.script:
        names.add("Answer")
        names.update("Call" for answer in scenario.script if answer.calls)
    return f"from refold.scenarios import {', '.join(sorted(names))}"


def _assignment(scenario: Scenario, *, margin: str) -> str:
    lines = ["scenario = Scenario("]
    for name, value in given_fields(scenario):
        if name in ("acts", "faults", "script"):
            lines.append(f"    {name}=(")
            lines.extend(f"        {expression(item)}," for item in cast("tuple[object, ...]", value))
            lines.append("    ),")
        else:
            lines.append(f"    {name}={expression(value)},")
    lines.append(")")
    return f"\n{margin}".join(lines)


def expression(value: object) -> str:
    """Return an expression for a struct, a tuple or a plain value, without the fields that have their default."""
    if isinstance(value, msgspec.Struct):
        fields = ", ".join(f"{name}={expression(field)}" for name, field in given_fields(value))
        home = "faults." if type(value).__module__ == faults.__name__ else ""
        return f"{home}{type(value).__name__}({fields})"
    if isinstance(value, tuple):
        items = [expression(item) for item in cast("tuple[object, ...]", value)]
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    if isinstance(value, str) and value.isprintable() and not {'"', "\\"} & set(value):
        return f'"{value}"'
    return repr(value)


def given_fields(struct: msgspec.Struct) -> Iterator[tuple[str, object]]:
    """Yield the names and values of the fields that have not their default."""
    for field in msgspec.structs.fields(struct):
        value = getattr(struct, field.name)
        if field.default is msgspec.NODEFAULT or value != field.default:
            yield field.name, value
