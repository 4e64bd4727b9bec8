"""`help()`, `inspect.signature` and `typing.get_type_hints` work on every public name, and show every option."""

import inspect
import pydoc
import re
import typing
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pykka
import pytest
from hypothesis.stateful import RuleBasedStateMachine

import refold
from refold.agents.agent import AgentParts
from refold.options import Settings
from refold.stores.event_store import WholeLog
from refold.tools.definition import OfferOptions, ToolOptions
from tests.test_public_names import PACKAGES

REPLAY = (
    "NotReplayed",
    "RecordedRequest",
    "ReplayReport",
    "follow_log",
    "recorded_request",
    "replay",
    "state_at",
)

NAMES = sorted({f"{package}.{name}" for package in PACKAGES for name in import_module(package).__all__}) + [
    f"refold.replay.{name}" for name in REPLAY
]


def named(path: str) -> object:
    package, _, name = path.rpartition(".")
    return getattr(import_module(package), name)


FUNCTIONS_AND_CLASSES = [path for path in NAMES if isinstance(named(path), type) or inspect.isroutine(named(path))]


def is_made_by_python(made: object) -> bool:
    """Return whether no code of ours makes it, so that it has no signature: a TypedDict, or an error without fields."""
    plain_error = isinstance(made, type) and issubclass(made, BaseException) and not inspect.isfunction(made.__init__)
    return typing.is_typeddict(made) or plain_error


def undescribed_methods(made: object) -> list[str]:
    """Return the public methods of a class that have no docstring."""
    own = vars(made).items() if isinstance(made, type) else ()
    methods = [name for name, value in own if inspect.isroutine(value) or isinstance(value, property | classmethod)]
    described = [name for name in methods if inspect.getdoc(getattr(made, name)) or name in dir(WholeLog)]
    return [name for name in methods if not name.startswith(("_", "test_")) and name not in described]


def test_help_describes_every_public_name() -> None:
    described = {path: named(path) for path in NAMES if not isinstance(named(path), str | int)}
    assert [path for path, made in described.items() if len(pydoc.render_doc(made)) <= 100] == []


def test_every_public_function_and_class_and_each_method_of_it_has_a_docstring() -> None:
    assert [path for path in FUNCTIONS_AND_CLASSES if not inspect.getdoc(named(path))] == []
    missing = {path: undescribed_methods(named(path)) for path in FUNCTIONS_AND_CLASSES}
    assert {path: methods for path, methods in missing.items() if methods} == {}


def test_every_public_function_and_class_has_a_signature() -> None:
    for path in FUNCTIONS_AND_CLASSES:
        made: Any = named(path)
        assert is_made_by_python(made) or inspect.signature(made), path


def test_the_annotations_of_every_public_class_can_be_read() -> None:
    # Those of pykka and hypothesis name what they import for type checkers only.
    foreign = (pykka.Actor, pykka.ActorRef, RuleBasedStateMachine)
    for path in FUNCTIONS_AND_CLASSES:
        made = named(path)
        if isinstance(made, type) and not issubclass(made, foreign):
            typing.get_type_hints(made)


@pytest.mark.parametrize(
    ("described", "options"),
    [
        (refold.AgentConfig, refold.AgentConfig.__struct_fields__),
        (refold.Agent, refold.Agent.__struct_fields__),
        (refold.AgentRuntime, ("agent", "provider", *Settings.__struct_fields__)),
        (refold.tool, ("function", "name", "description", *ToolOptions.__annotations__)),
        (refold.subagent, ("agent", "name", "description", "task", *OfferOptions.__annotations__)),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_help_describes_every_option(described: object, options: tuple[str, ...]) -> None:
    shown = inspect.getdoc(described)
    assert shown is not None
    assert [name for name in options if not re.search(rf"^    {name}: \S+ \S+", shown, re.M)] == []


def test_a_runtime_takes_every_part_of_an_agent() -> None:
    assert set(AgentParts.__annotations__) == set(refold.Agent.__struct_fields__) - {"config", "provider"}


def look() -> str:
    return ""


OPTIONS: dict[str, Any] = {"tear": "act"}


@pytest.mark.parametrize("make", [lambda: refold.tool(**OPTIONS)(look), lambda: refold.subagent("other", **OPTIONS)])
def test_an_option_that_does_not_exist_is_refused_by_name(make: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'tear'"):
        make()
