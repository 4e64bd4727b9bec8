"""A function's signature and docstring, as the arguments that a model may give: their schema, and how they are read.

msgspec does the work: the parameters become the fields of a Struct, whose schema is the tool's and whose decoder reads
the arguments, strictly. Parameters annotated `ToolContext` are given by Refold and are no part of either. Of a
Google-style docstring, the first paragraph describes the tool and the "Args:" section its parameters.

The rule: what cannot work is refused when the function becomes a tool, with the tool and the parameter in the error.
"""

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from refold.actors.calls.tool_context import ToolContext
from refold.events.core.cleaning import clean_text
from refold.events.core.content import JsonObject, is_json_array
from refold.events.core.errors import ConfigError, ToolError
from refold.tools.data_type import (
    ANY_VALUE,
    NOT_DESCRIBED,
    DataType,
    describe_custom,
    read_custom,
    shown_default,
    unrecordable_part,
    why_not_described,
    without_definitions,
)
from refold.tools.schema import InputSchema, names_problem

ARGUMENT_HEADINGS = frozenset({"Args:", "Arguments:", "Parameters:"})

_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\(.*?\))?\s*:\s*(.*)")


def first_paragraph(docstring: str | None) -> str:
    """Return the text before the first blank line or "Args:", as one line; empty if there is none."""
    lines: list[str] = []
    for line in _lines(docstring):
        if not line.strip() or line.strip() in ARGUMENT_HEADINGS:
            break
        lines.append(line.strip())
    return " ".join(lines)


def parameter_descriptions(docstring: str | None) -> dict[str, str]:
    """Return what the "Args:" section says, each as one line, by parameter."""
    lines = _lines(docstring)
    heading = next((place for place, line in enumerate(lines) if line.strip() in ARGUMENT_HEADINGS), None)
    if heading is None:
        return {}
    # Cleaning a docstring that begins with its section takes the indentation of what follows.
    section_indent = _indent(lines[heading]) if heading > 0 else -1
    described: dict[str, list[str]] = {}
    entry_indent: int | None = None
    current: list[str] = []
    for line in lines[heading + 1 :]:
        if not line.strip():
            continue
        if _indent(line) <= section_indent:
            break
        entry_indent = _indent(line) if entry_indent is None else entry_indent
        entry = _ENTRY.fullmatch(line.strip()) if _indent(line) <= entry_indent else None
        if entry is None:
            current.append(line.strip())
        else:
            current = described[entry[1]] = [entry[2]] if entry[2] else []
    return {name: " ".join(parts) for name, parts in described.items() if parts}


def _lines(docstring: str | None) -> list[str]:
    return clean_text(docstring).splitlines() if docstring else []


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


AnyFunction = Callable[..., object]

UNSUPPORTED_HINT = (
    "use types that have a JSON form: str, int, float, bool, None, list, dict, Literal, Enum, dataclass, TypedDict, "
    "msgspec.Struct, pydantic model, datetime, unions of different kinds of these"
)


class Signature:
    """What a function takes.

    Attributes:
        input: the schema of what a model gives.
        names: the arguments that a model may give, in order.
        context_names: the parameters that get the call's `ToolContext`.
        wants_deps: what type of `deps` it must have, in words; empty = it may be called without.
    """

    def __init__(self, function: AnyFunction, *, tool: str) -> None:
        parameters = _parameters(function, tool)
        annotations = {name: _annotation(function, parameter, tool) for name, parameter in parameters.items()}
        self.context_names = tuple(name for name, annotation in annotations.items() if _is_context(annotation))
        self.wants_deps = wanted_deps(annotations[name] for name in self.context_names)
        self.names = tuple(name for name in parameters if name not in self.context_names)
        self._defaults: dict[str, object] = {
            name: parameters[name].default
            for name in self.names
            if parameters[name].default is not inspect.Parameter.empty
        }
        self._required = [name for name in self.names if name not in self._defaults]
        read = {name: _data_type(annotations[name], name, tool) for name in self.names}
        self._pydantics = {name: data_type for name, data_type in read.items() if data_type.of_pydantic}
        fields = {name: msgspec.Raw if name in self._pydantics else annotations[name] for name in self.names}
        struct = msgspec.defstruct(
            "Arguments",
            [
                (name, field, msgspec.UNSET) if name in self._defaults else (name, field)
                for name, field in fields.items()
            ],
            kw_only=True,
            forbid_unknown_fields=True,
        )
        self._decoder: msgspec.json.Decoder[msgspec.Struct] = msgspec.json.Decoder(struct, dec_hook=read_custom)
        self.input = InputSchema(self._schema(struct, annotations, function), tool=tool)

    def read(self, arguments: JsonObject) -> dict[str, object]:
        """Return the value for each of `names`, defaults included; nothing in them is shared with `arguments`."""
        problem = names_problem(arguments, known=list(self.names), required=self._required)
        if problem is not None:
            raise ToolError(problem)
        try:
            read = self._decoder.decode(msgspec.json.encode(self.input.passed(arguments)))
            values = {name: getattr(read, name) for name in self.names}
            for name, data_type in self._pydantics.items():
                if values[name] is not msgspec.UNSET:
                    values[name] = data_type.read(bytes(values[name]), f"$.{name}")
        except msgspec.ValidationError as error:
            raise ToolError(str(error)) from error
        return {name: self._defaults[name] if value is msgspec.UNSET else value for name, value in values.items()}

    def _schema(
        self, struct: type[msgspec.Struct], annotations: Mapping[str, object], function: AnyFunction
    ) -> JsonObject:
        """Return the schema of `struct`, with defaults and descriptions, as one object schema with its `$defs`."""
        (reference,), components = msgspec.json.schema_components(
            [struct], schema_hook=describe_custom, ref_template="#/$defs/{name}"
        )
        plain = components.pop(reference["$ref"].removeprefix("#/$defs/"))
        del plain["title"]
        plain["properties"] |= {name: data_type.schema for name, data_type in self._pydantics.items()}
        schema = typing.cast("dict[str, Any]", without_definitions(plain, components))
        components |= {name: without_definitions(part, components) for name, part in list(components.items())}
        described = parameter_descriptions(inspect.getdoc(entry_of(function)))
        for name, found in schema["properties"].items():
            text = _plain_description(annotations[name]) or described.get(name)
            if text and found.get("description", ANY_VALUE) == ANY_VALUE:
                found["description"] = text
            if name in self._defaults:
                found.update(shown_default(self._defaults[name], annotations[name]))
        for component in components.values():
            _order_defaults(component)
        if components:
            schema["$defs"] = dict(sorted(components.items()))
        return typing.cast("JsonObject", schema)


def entry_of(function: AnyFunction) -> AnyFunction:
    """Return the function that calling `function` calls: of a partial, a bound method or an object with `__call__`."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, types.MethodType | staticmethod):
            function = function.__func__
        elif inspect.isroutine(function) or inspect.isclass(function):
            return function
        else:
            function = type(function).__call__


def context_parameters(function: AnyFunction, *, tool: str) -> tuple[tuple[str, ...], str]:
    """Return the parameters of `function` that are annotated as the call's context, and what `deps` it must have."""
    annotated = {
        name: _annotation(function, parameter, tool)
        for name, parameter in _signature(function, tool).parameters.items()
        if parameter.annotation is not inspect.Parameter.empty
    }
    contexts = {name: annotation for name, annotation in annotated.items() if _is_context(annotation)}
    return tuple(contexts), wanted_deps(contexts.values())


def wanted_deps(contexts: Iterable[object]) -> str:
    """Return the type of `deps`, in words, of the first context that is annotated with one that None is not of."""
    for annotation in contexts:
        for context in _alternatives(annotation):
            given = get_args(context)
            if get_origin(context) is ToolContext and given and not _takes_none(given[0]):
                return getattr(given[0], "__name__", None) or str(given[0])
    return ""


def _takes_none(kind: object) -> bool:
    known = isinstance(kind, type) or get_origin(kind) is not None
    anything = (object, Any, types.NoneType, None)
    return not known or any(one in anything or isinstance(one, typing.TypeVar) for one in _alternatives(kind))


def _alternatives(annotation: object) -> tuple[object, ...]:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _alternatives(get_args(annotation)[0])
    return get_args(annotation) if origin in (Union, types.UnionType) else (annotation,)


def _signature(function: AnyFunction, tool: str) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"the tool {tool!r} has no signature that can be read ({error}); wrap it in a function"
        ) from None


def _parameters(function: AnyFunction, tool: str) -> dict[str, inspect.Parameter]:
    """Return the parameters that can be given by name; what a partial has bound is not for a model to give."""
    found = _signature(function, tool).parameters
    bound = function.keywords if isinstance(function, functools.partial) else {}
    parameters = {name: parameter for name, parameter in found.items() if name not in bound}
    for name, parameter in parameters.items():
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise ConfigError(
                f"the tool {tool!r} takes *{name}, for which there is no schema; write out its parameters, or use "
                "Tool.from_schema"
            )
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise ConfigError(f"the parameter {name!r} of the tool {tool!r} is positional-only; arguments come by name")
    return parameters


def _annotation(function: AnyFunction, parameter: inspect.Parameter, tool: str) -> object:
    """Return the type of a parameter, names in text resolved where it was defined."""
    if parameter.annotation is inspect.Parameter.empty:
        method = parameter.name in ("self", "cls")
        todo = "make a tool of the bound method: tool(instance.method)" if method else "give it a type"
        raise ConfigError(f"the parameter {parameter.name!r} of the tool {tool!r} has no annotation; {todo}")
    try:
        return _resolved(function, parameter.annotation)
    except UNRESOLVED as error:
        raise ConfigError(
            f"the annotation {parameter.annotation!r} of the parameter {parameter.name!r} of the tool {tool!r} cannot "
            f"be resolved: {error}; define or import what it names (not only under TYPE_CHECKING) before the tool"
        ) from error


UNRESOLVED = (NameError, AttributeError, SyntaxError, TypeError)
"""What Python raises of an annotation that cannot be resolved."""


def _resolved(function: AnyFunction, annotation: object) -> object:
    """Return a type, names in text resolved where the function was defined; or raise one of `UNRESOLVED`."""
    body = inspect.unwrap(entry_of(function))
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    names = getattr(body, "__globals__", {})
    try:
        return typing.get_type_hints(holder, names, {}, include_extras=True)["it"]
    except NameError:
        return typing.get_type_hints(holder, names, _locals_around(body), include_extras=True)["it"]


def check_result(function: AnyFunction, *, tool: str) -> None:
    """Refuse a function of whose results none can be recorded: each call would fail after its body has run."""
    annotation = _signature(function, tool).return_annotation
    if annotation is inspect.Signature.empty:
        return
    try:
        unrecordable = unrecordable_part(_resolved(function, annotation))
    except UNRESOLVED:  # As of a name that is imported for checkers only: the value itself will tell.
        return
    if unrecordable is not None:
        raise ConfigError(
            f"the tool {tool!r} returns {annotation!r}, and no log can hold {unrecordable!r}; return text, or a type "
            "that has a JSON form, such as a dataclass, a TypedDict, a msgspec.Struct or a pydantic model"
        )


def _locals_around(body: AnyFunction) -> dict[str, object]:
    """Return the local names of the running functions in whose file `body` is written, the innermost winning."""
    code = getattr(body, "__code__", None)
    found: dict[str, object] = {}
    frame = inspect.currentframe()
    while frame is not None:
        if code is not None and frame.f_code.co_filename == code.co_filename:
            found = {**frame.f_locals, **found}
        frame = frame.f_back
    return found


def _is_context(annotation: object) -> bool:
    return any(one is ToolContext or get_origin(one) is ToolContext for one in _alternatives(annotation))


def _data_type(annotation: object, name: str, tool: str) -> DataType[object]:
    try:
        return DataType(annotation)
    except NOT_DESCRIBED as error:
        raise ConfigError(
            f"the parameter {name!r} of the tool {tool!r} has the type {annotation!r}, which is not supported "
            f"({why_not_described(error)}); {UNSUPPORTED_HINT}"
        ) from error


def _order_defaults(schema: Mapping[str, Mapping[str, dict[str, object]]]) -> None:
    """Give the default sets in a type's schema one order; msgspec lists them in the order of this process."""
    for found in schema.get("properties", {}).values():
        default = found.get("default")
        if found.get("uniqueItems") and is_json_array(default):
            default.sort(key=msgspec.json.encode)


def _plain_description(annotation: object) -> str | None:
    """Return the text in `Annotated[..., "text"]`, if there is one."""
    if get_origin(annotation) is Annotated:
        return next((item for item in get_args(annotation)[1:] if isinstance(item, str)), None)
    return None
