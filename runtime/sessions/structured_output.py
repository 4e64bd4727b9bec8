"""Answers that are data: the schema that a model is told, and what its text becomes.

An agent with an `output_type` has its final answers checked; one that does not fit is told why and asked again (see
`AgentConfig.rejections_max`). What a text means is read in one way everywhere: the JSON value that it is, or the one in
its only code fence, or the one that it ends with.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeAlias, TypeVar, cast

import msgspec

from refold.actors.calls.results import passes
from refold.events.core.cleaning import clean_text, error_words, text_of_error
from refold.events.core.content import Json, JsonObject
from refold.events.core.errors import AgentLoopError, ConfigError, ToolError, quoted, unquoted
from refold.events.model.configuration import AgentConfig, AgentConfiguration
from refold.events.model.run_context import RunContext
from refold.tools.data_type import NOT_DESCRIBED, DataType, why_not_described
from refold.tools.schema import InputSchema

T = TypeVar("T")
Out = TypeVar("Out")

_FENCE_OPENS = re.compile(r"^[ \t]*```[^\n`]*\n", re.MULTILINE)
_FENCE_CLOSES = re.compile(r"^[ \t]*```[ \t]*$", re.MULTILINE)

_BRACKET = re.compile(r"[{}\[\]]")

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?$)|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_CERTAIN = re.compile(
    r'"(?:[^"\\]|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4})*', re.DOTALL
)
"""What is certain of a text that may go on: no half of an escape, nor of a pair of escapes."""

STARTS_MAX = 20
"""At so many places the JSON value that a text ends with may begin."""

SHOWN_CHARACTERS = 200
"""So much of a text that does not fit is shown in the message about it."""

INSTRUCTION = (
    "Give your final answer as one JSON value that fits this JSON Schema, with nothing before or after it:\n{schema}"
)

AGAIN = (
    "Give your final answer as one JSON value that fits the JSON Schema in your instructions, with nothing before or "
    "after it."
)

SCHEMA_REPEATED_MAX = 1_000
"""A schema of more characters is not told again: what a model is told of an answer is cut, and half of one misleads."""


def parsed_output(text: str, output_type: type[T]) -> T:
    """Return what an answer's text says, as a value of `output_type`.

    Args:
        text: JSON, perhaps in a code fence or behind some words.
        output_type: see `Agent.output_type`.
    """
    problem = ""
    data_type = _data_type(output_type)
    for candidate in _candidates(text):
        try:
            return data_type.read(candidate)
        except msgspec.ValidationError as error:
            if _is_json(candidate):
                problem = str(error)
                break  # What it lacks is said best of the first that is JSON.
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            if not problem and candidate.lstrip()[:1] in ("{", "["):
                problem = str(error)
    problem = problem or "it holds no JSON"
    shown = clean_text(text.strip())
    raise AgentLoopError(
        f"the answer is not a JSON value that fits {_name(output_type)}: {problem}. It was: "
        f"{shown[:SHOWN_CHARACTERS]}{'…' if len(shown) > SHOWN_CHARACTERS else ''}"
    )


def _candidates(text: str) -> list[str]:
    """Return the parts of `text` that may be the JSON meant, the likeliest first."""
    fenced = _fenced(text)
    candidates = [text, *fenced] if len(fenced) <= 1 else [text, fenced[-1]]
    end = max(text.rfind("}"), text.rfind("]")) + 1
    candidates.extend(text[start:end] for start in islice(_openings(text, end), STARTS_MAX))
    return candidates


def _fenced(text: str) -> list[str]:
    """Return what stands in code fences; in one pass, since a fence that is not closed ends the search."""
    found: list[str] = []
    place = 0
    while (opens := _FENCE_OPENS.search(text, place)) and (closes := _FENCE_CLOSES.search(text, opens.end())):
        found.append(text[opens.end() : closes.start()])
        place = closes.end()
    return found


def _openings(text: str, end: int) -> Iterator[int]:
    """Yield where a bracket opens that stands in no other: what is inside a value that was cut is not the value."""
    depth = 0
    for found in _BRACKET.finditer(text, 0, end):
        if found[0] in "{[":
            if depth == 0:
                yield found.start()
            depth += 1
        else:
            depth = max(depth - 1, 0)


def _is_json(text: str) -> bool:
    """Return whether the whole of `text` is JSON: a type that does not fit is found before its end is read."""
    try:
        msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    return True


def _data_type(output_type: type[T]) -> DataType[T]:
    try:
        return DataType(output_type)
    except NOT_DESCRIBED as error:
        raise ConfigError(f"output_type {_name(output_type)} has no JSON Schema: {why_not_described(error)}") from None


def output_schema(output_type: type[object]) -> JsonObject:
    """Return the JSON Schema of a type; raise ConfigError if it has none.

    Its properties are in their own order, since a model that is held to it writes them so.
    """
    return _data_type(output_type).schema


def schema_text(output_type: type[object]) -> str:
    """Return the schema as JSON text, the same for the same type."""
    return msgspec.json.encode(output_schema(output_type), order="sorted").decode()


def with_output(config: AgentConfig, output_type: type[object]) -> AgentConfig:
    """Return `config` with a system prompt that says what the final answer must look like."""
    instruction = INSTRUCTION.format(schema=schema_text(output_type))
    prompt = f"{config.fixed_prompt}\n\n{instruction}" if config.fixed_prompt else instruction
    return msgspec.structs.replace(config, system_prompt=prompt)


RUN_INSTRUCTION = (
    "Give the final answer to the latest input as one JSON value that fits this JSON Schema, with nothing before or "
    "after it, in place of any other form that was asked for:\n{schema}"
)
"""What a model is told of the schema that one run has of its own."""


def run_instruction(output_type: type[object]) -> str:
    """Return what a model is told of the type that the final answer of one run must have."""
    return RUN_INSTRUCTION.format(schema=schema_text(output_type))


def schema_problem(text: str, configuration: AgentConfiguration) -> str | None:
    """Return what the model is told of a final answer that does not fit the schema of its run, or None.

    Any process can tell, since the schema is recorded; what a type demands beside its schema is found when the answer
    is read as a value of it.
    """
    problem = "It holds no JSON"
    # What it lacks is said best of the first that is JSON.
    for candidate in islice(filter(_is_json, _candidates(text)), 1):
        found = value_problem(msgspec.json.decode(candidate), configuration.output_schema or {})
        if found is None:
            return None
        problem = found
    told = configuration.output_instruction or ""
    again = told if len(told) <= SCHEMA_REPEATED_MAX + len(RUN_INSTRUCTION) else AGAIN
    return f"The answer is not a JSON value that fits the schema: {problem}.\n{again}"


def value_problem(value: Json, schema: JsonObject) -> str | None:
    """Return what of a JSON value does not fit a schema, with its place; None where it fits."""
    schema = dict(schema)
    whole: JsonObject = {"properties": {"it": schema}, "required": ["it"], "$defs": schema.pop("$defs", {})}
    found = InputSchema(whole, tool="(the answer)", bounds=True).problem({"it": value})
    return found.replace("`$.it", "`$") if found is not None else None


OutputValidator: TypeAlias = Callable[[Out], object] | Callable[[RunContext[Any], Out], object]
"""Is given a final answer, a value of `Agent.output_type`, or the context and the answer.

A `ModelRetry`, another ToolError or a ValueError that it raises has the model asked again with its text; what else it
raises fails the run. It may be async; a plain one runs on the loop and must return quickly. It changes nothing: it
returns None, or the answer.
"""

NOT_ACCEPTED = "The answer is not accepted: "
"""So the words begin that a model is told of what a validator raised."""


def checked_validators(validators: Sequence[OutputValidator[Any]]) -> dict[OutputValidator[Any], int]:
    """Return how many arguments each validator takes, or raise ConfigError."""
    taken = {validator: next(filter(_taking(validator), (1, 2)), 0) for validator in validators}
    for validator, arguments in taken.items():
        if not arguments:
            raise ConfigError(
                "Agent.output_validators must hold functions of the answer, or of the context and the answer, not "
                f"{unquoted(validator)}"
            )
    return taken


def _taking(function: Callable[..., object]) -> Callable[[int], bool]:
    """Return what tells whether a function takes so many arguments."""

    def takes(arguments: int) -> bool:
        if not callable(function):
            return False
        try:
            inspect.signature(function).bind(*[None] * arguments)
        except (TypeError, ValueError):
            return False
        return True

    return takes


def _validator_words(validator: Callable[..., object]) -> str:
    return f"the output validator {getattr(validator, '__name__', type(validator).__name__)}"


class OutputCheck:
    """Says why a final answer's text does not fit a type, or is not accepted by validators."""

    def __init__(self, output_type: type[object] | None, validators: Sequence[OutputValidator[Any]] = ()) -> None:
        self._output_type = output_type
        self._schema = schema_text(output_type) if output_type is not None else ""
        self._validators = checked_validators(validators)

    async def __call__(self, text: str, where: RunContext[Any]) -> str | None:
        """Return what the model is told of a text that does not fit, or is not accepted; or None.

        Raises:
            AgentLoopError: the type, or a validator, failed on it in another way, or a validator returned something
                else than None or the answer.
        """
        value: object = text
        if self._output_type is not None:
            try:
                value = parsed_output(text, self._output_type)
            except AgentLoopError as error:
                said = str(error)
                told = INSTRUCTION.format(schema=self._schema) if len(self._schema) <= SCHEMA_REPEATED_MAX else AGAIN
                return f"{said[0].upper()}{said[1:]}\n{told}"
            except BaseException as error:  # The border to user code, which awaits nothing.
                if isinstance(error, KeyboardInterrupt):
                    raise
                raise AgentLoopError(
                    f"{_name(self._output_type)} failed on the answer: {error_words(error)}"
                ) from error
        for validator, arguments in self._validators.items():
            call = cast("Callable[..., object]", validator)
            try:
                returned = call(value) if arguments == 1 else call(where, value)
                returned = await returned if inspect.isawaitable(returned) else returned
            except (ToolError, ValueError) as error:
                return f"{NOT_ACCEPTED}{text_of_error(error) or type(error).__name__}"
            except BaseException as error:  # The border to user code.
                if passes(error):
                    raise
                raise AgentLoopError(f"{_validator_words(call)} failed: {error_words(error)}") from error
            if returned is not None and returned is not value:
                raise AgentLoopError(
                    f"{_validator_words(call)} gave {type(returned).__name__}; it must return None or the answer, and "
                    "raise ModelRetry to have the model asked again"
                )
        return None


def partial_json(text: str) -> Json:
    """Return as much as is there of the JSON value that a text begins; None where it has not begun.

    A text in it is taken as far as it goes; a number, a word or a name that may go on is left out.
    """
    start = min((place for place in map(text.find, "{[") if place >= 0), default=len(text))
    closing, end, ending, before = "", start, "", ""
    for token in _TOKEN.finditer(text, start):
        word = token[0]
        first, is_over = word[0], token.end() < len(text)
        names = closing[:1] == "}" and before in ("{", ",")
        if first in "{[":
            closing = "}]"["{[".index(first)] + closing
        elif first in "}]":
            closing = closing[1:]
        if first not in ",:" and not names and (is_over or first in '{[}]"'):
            end, ending = token.end(), closing
            if (certain := _CERTAIN.match(word)) and word[certain.end() :] != '"':
                end, ending = token.start() + certain.end(), f'"{closing}'
        before = first
        if not closing:
            break
    try:
        value: Json = msgspec.json.decode(text[start:end] + ending)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return value


def _name(output_type: object) -> str:
    return getattr(output_type, "__name__", None) or quoted(output_type)
