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


def fallback(**given: Any) -> object:
    return FallbackProvider(**{"alternatives": [refold.ScriptedProvider([])], **given})


def pattern(*, redact: Any) -> Agent:
    return agent(redact=[redact])


def described(**given: Any) -> None:
    refold.connect("events.db").session("s", **given)


MADE: list[tuple[Callable[..., object], list[str]]] = [
    (openai, [*parameters_of(OpenAIProvider), *HttpOptions.__annotations__]),
    (anthropic, [*parameters_of(AnthropicProvider), *HttpOptions.__annotations__]),
    (fallback, parameters_of(FallbackProvider)),
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
        assert "required" not in said or "argument" not in said, said  # Else the option was not looked at.
        assert QUOTED not in said, (name, shape)


def headed(name: str) -> object:
    return openai(headers={name: "x"})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: FieldPath("card..number"), "such as 'card.number', and one is empty"),
        (lambda: FieldPath(5), "such as 'card.number', not 5"),  # type: ignore[arg-type]
        (lambda: FieldPath({"card": QUOTED}), "not dict with card"),  # type: ignore[arg-type]
        (lambda: agent(input_guardrails=[agent]), "not function agent; decorate it with @guardrail"),
        (lambda: agent(output_validators=[Holder]), "not class Holder"),
        (lambda: openai(timeouts=Holder()), "not Holder"),
        (lambda: HttpLimits(events_max=0), "an integer of at least 1, not 0"),
        (lambda: refold.AgentConfig(model="m", max_turns=2**63), "an integer of at least 1 and below 2**63, not 9223"),
        (lambda: refold.AgentConfig(model="m", temperature=1e30), "None or a number from 0 to 2, not 1e+30"),
        (lambda: refold.AgentConfig(model="m", run_timeout_s=1e30), "a number of seconds above 0, not 1e+30"),
        (lambda: FallbackProvider([refold.ScriptedProvider([])], on=["down"]), "the kinds are auth, "),  # type: ignore[list-item]
        (lambda: described(metadata={"": QUOTED}), "not an empty text to str"),
        (lambda: described(metadata={"a": [QUOTED]}), "not str to list"),
        (lambda: headed("a b"), "the name of a header is a text of letters, digits and"),
    ],
)
def test_an_error_says_what_was_given_as_far_as_it_is_no_secret(make: Callable[[], object], said: str) -> None:
    with pytest.raises(refold.ConfigError) as raised:
        make()
    assert said in str(raised.value)
