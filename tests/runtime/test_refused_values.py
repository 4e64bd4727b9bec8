"""What is given as an option may be a secret at the wrong place: no error quotes it."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

import refold
from refold.agents.agent import Agent
from refold.events.core.errors import RefoldError
from refold.events.secrets.redaction import FieldPath
from refold.providers import AnthropicProvider, FallbackProvider, HttpLimits, HttpTimeouts, OpenAIProvider
from refold.providers.http.settings import HttpOptions

QUOTED = "hunter2-is-a-secret"


class Holder:
    """Shows itself with what it holds, as a dataclass does."""

    def __repr__(self) -> str:
        return f"Holder({QUOTED})"


SHAPES: list[Any] = [
    QUOTED,
    f"{QUOTED} ",
    f"https://host:{QUOTED}/v1",
    f"https://{QUOTED}@host/v1",
    f"..{QUOTED}",
    QUOTED.encode(),
    [QUOTED],
    (QUOTED,),
    {"messages": QUOTED, "stream": QUOTED},
    {"a b": QUOTED},
    {"a": Holder()},
    Holder(),
    [Holder()],
    re.compile(QUOTED.encode()),
]


def parameters_of(function: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [one.name for one in inspect.signature(function).parameters.values() if one.kind in kinds]


def agent(**given: Any) -> Agent:
    whole: dict[str, Any] = {"config": refold.AgentConfig(model="m"), "provider": refold.ScriptedProvider([]), **given}
    return Agent(**whole)


def openai(**given: Any) -> object:
    whole: dict[str, Any] = {"base_url": "https://host/v1", "api_key": "k", **given}
    return OpenAIProvider(**whole)


def anthropic(**given: Any) -> object:
    whole: dict[str, Any] = {"api_key": "k", **given}
    return AnthropicProvider(**whole)


def pattern(*, redact: Any) -> Agent:
    return agent(redact=[redact])


def described(**given: Any) -> None:
    refold.connect("events.db").session("s", **given)


MADE: list[tuple[Callable[..., object], list[str]]] = [
    (openai, [*parameters_of(OpenAIProvider), *HttpOptions.__annotations__]),
    (anthropic, [*parameters_of(AnthropicProvider), *HttpOptions.__annotations__]),
    (FallbackProvider, ["alternatives", "on", "breakers"]),
    (HttpTimeouts, list(HttpTimeouts.__struct_fields__)),
    (HttpLimits, list(HttpLimits.__struct_fields__)),
    (agent, [name for name in parameters_of(Agent) if name not in ("name", "config", "output_type")]),
    (pattern, ["redact"]),
    (described, ["user", "metadata"]),
    (FieldPath, ["path"]),
]


@pytest.mark.parametrize(
    ("make", "name"),
    [(make, name) for make, names in MADE for name in names],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
def test_no_error_quotes_an_option(make: Callable[..., object], name: str) -> None:
    for shape in SHAPES:
        said = ""
        try:
            make(**{name: shape})
        except (RefoldError, TypeError, ValueError, AttributeError) as error:
            said = f"{error!s} {error!r}"
        assert QUOTED not in said, (name, shape)
