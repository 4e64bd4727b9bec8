"""JSON Schema, as far as tools need it: which arguments fit, and which can be repaired with certainty.

Understood are `type`, `nullable`, `enum`, `const`, `properties`, `required`, `additionalProperties`, `items`,
`prefixItems`, `allOf`, `anyOf`, `oneOf` (of which one fits, or more) and references inside the schema, one beside
another; other keywords are left to the tool's body. In what a person gives, and in final answers, bounds, patterns and
formats count too: what is wrong there is told to those who can give it anew, before it is recorded. The rule it
protects: arguments are changed only where the schema leaves no other meaning, so text that looks like JSON stays text
wherever text is wanted.
"""

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import islice, product
from typing import Any
from urllib.parse import unquote
from uuid import UUID

import msgspec

from refold.events.core.cleaning import INTEGER_MAX, INTEGER_MIN, Unrecordable, clean_json
from refold.events.core.content import Json, JsonObject, is_json_array, is_json_object
from refold.events.core.errors import ConfigError, ToolError, quoted

JSON_TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})

EXACT_FLOATS_MAX = 2**53
"""Up to here a float that has no fraction is one integer and no other."""

WAYS_MAX = 64
"""Most ways to fit a schema that are told apart; one that has more counts as one that accepts everything."""

WAYS_TRIED_MAX = 512
"""Most combinations of parts that are looked at for that."""

_WIDE_TEXT = re.compile(rb'"\s*-?\d{19,}\s*"')

_NESTED = ("$ref", "allOf", "anyOf", "oneOf")


def _is_multiple(value: float, step: float) -> bool:
    """Tell whether a number is a multiple of another one, as far as floats tell: 0.3 is one of 0.1."""
    if step == 0 or (isinstance(value, int) and isinstance(step, int)):
        return step == 0 or value % step == 0
    try:
        return abs(math.remainder(value, step)) <= abs(value) * 1e-9
    except OverflowError:  # A whole number that no float can be.
        return False


_BOUNDS: Mapping[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": (">= {}", operator.ge),
    "maximum": ("<= {}", operator.le),
    "exclusiveMinimum": ("> {}", operator.gt),
    "exclusiveMaximum": ("< {}", operator.lt),
    "multipleOf": ("that is a multiple of {}", _is_multiple),
    **{f"min{counted}": ("of length >= {}", operator.ge) for counted in ("Length", "Items", "Properties")},
    **{f"max{counted}": ("of length <= {}", operator.le) for counted in ("Length", "Items", "Properties")},
}
"""What a number, or the length of what has one, must be."""

_COUNTED = {"Length": "string", "Items": "array", "Properties": "object"}
"""Of which kind of value a keyword counts something."""

_FORMATS: Mapping[str, type] = {
    "date": date, "date-time": datetime, "time": time, "duration": timedelta, "uuid": UUID, "decimal": Decimal
}  # fmt: skip
"""What a text of a format is read as."""


class InputSchema:
    """The schema of a tool's arguments: an object schema, which holds everything that it refers to."""

    def __init__(self, schema: JsonObject, *, tool: str, bounds: bool = False) -> None:
        self._bounds = bounds
        try:
            copy = clean_json(schema)
        except Unrecordable as error:
            raise ConfigError(f"the input schema of the tool {tool!r} is not JSON: {error}") from None
        if not is_json_object(copy) or copy.setdefault("type", "object") != "object":
            raise ConfigError(f'the input schema of the tool {tool!r} must be a dict with "type": "object"')
        properties, required = copy.get("properties", {}), copy.get("required", [])
        if not is_json_object(properties) or not all(isinstance(item, dict | bool) for item in properties.values()):
            raise ConfigError(
                f'"properties" in the input schema of the tool {tool!r} must be a dict of schemas by name'
            )
        if not is_json_array(required) or not all(isinstance(name, str) for name in required):
            raise ConfigError(f'"required" in the input schema of the tool {tool!r} must be a list of names')
        self.schema: JsonObject = copy
        for reference in sorted(_references(copy)):
            if self._target(reference) is None:
                raise ConfigError(
                    f"the input schema of the tool {tool!r} refers to {reference!r:.200}, which it does not hold; put "
                    'it under "$defs" and refer to "#/$defs/…"'
                )

    def repaired(self, arguments: JsonObject) -> JsonObject:
        """Return `arguments` with what is certainly meant differently put right; they are not changed themselves.

        Text that does not fit, and which is exactly the JSON of what does, is decoded. A float without a fraction
        becomes an integer where only integers fit, since some providers send every number as a float. A field that may
        be left out and is null, where null does not fit, is left out: some models give every field that there is.
        """
        repaired = self._repaired(arguments, self.schema, 0)
        assert is_json_object(repaired)
        return repaired

    def passed(self, arguments: JsonObject) -> JsonObject:
        """Return repaired arguments with integers beyond 64 bits as such, which are recorded as text."""
        if _WIDE_TEXT.search(msgspec.json.encode(arguments)) is None:
            return arguments
        passed = self._repaired(arguments, self.schema, 0, wide=True)
        assert is_json_object(passed)
        return passed

    def problem(self, arguments: JsonObject) -> str | None:
        """Return what does not fit, with its path and what was expected, or None."""
        return self._problem(arguments, self.schema, "$", frozenset())

    def fits(self, value: Json, schema: Json) -> bool:
        """Tell whether a value fits a part of the schema."""
        return self._problem(value, schema, "$", frozenset()) is None

    def part(self, schema: Json, place: str | int) -> Json:
        """Return the schema of a field, by its name, or of an item of an array, by its place."""
        if isinstance(place, int):
            return _one_of([_item_schema(way, place) for way in self.ways(schema) if "array" in _accepted(way)])
        return _one_of([_field_schema(way, place) for way in self.ways(schema) if "object" in _accepted(way)])

    def ways(self, schema: Json) -> list[JsonObject]:
        """Return the ways to fit `schema`, each a schema by itself, references followed; none if nothing can fit."""
        if is_json_object(schema) and schema.keys().isdisjoint(_NESTED):
            return [schema]
        ways: list[JsonObject] = []
        for way in self._ways(schema, frozenset()):
            if len(ways) == WAYS_MAX:
                return [{}]
            ways.append(way)
        return ways

    def _repaired(self, value: Json, schema: Json, depth: int, *, wide: bool = False) -> Json:
        ways = self.ways(schema)
        if isinstance(value, str | float):
            accepted = {kind for way in ways for kind in _accepted(way)}
            value = _widened(value, accepted) if wide else _repaired_scalar(value, accepted, depth)
        if is_json_array(value):
            arrays = [way for way in ways if "array" in _accepted(way)]
            return [
                self._repaired(item, _one_of([_item_schema(way, place) for way in arrays]), depth + 1, wide=wide)
                for place, item in enumerate(value)
            ]
        if is_json_object(value):
            objects = [way for way in ways if "object" in _accepted(way) and _may_be(value, way)]
            required = {name for way in objects for name in names_in(way.get("required"))}
            fields = {name: _one_of([_field_schema(way, name) for way in objects]) for name in value}
            return {
                name: self._repaired(item, fields[name], depth + 1, wide=wide)
                for name, item in value.items()
                if wide or name in required or not self._stands_for_nothing(item, fields[name])
            }
        return value

    def _stands_for_nothing(self, item: Json, schema: Json) -> bool:
        """Tell whether a field is there and means that it is left out."""
        if item not in (None, "null") or schema is None:
            return False
        accepted = {kind for way in self.ways(schema) for kind in _accepted(way)}
        return bool(accepted) and "null" not in accepted and json_type(item) not in accepted

    def _problem(self, value: Json, schema: Json, path: str, seen: frozenset[str]) -> str | None:
        """Return what does not fit; `seen` are the references followed for this very value."""
        if schema is False:
            return f"Nothing is accepted - at `{path}`"
        if not is_json_object(schema):
            return None
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in seen:
            problem = self._problem(value, self._target(reference), path, seen | {reference})
            if problem is not None:
                return problem
        for item in _schemas(schema, "allOf"):
            if (problem := self._problem(value, item, path, seen)) is not None:
                return problem
        for keyword in ("anyOf", "oneOf"):
            problems = [self._problem(value, item, path, seen) for item in _schemas(schema, keyword)]
            if problems and all(problems):
                return "; or: ".join(dict.fromkeys(map(str, problems)))
        kind = json_type(value)
        accepted = _accepted(schema) if "type" in schema else JSON_TYPES
        if value is None and schema.get("nullable") is True:
            return None
        if kind not in accepted:
            return f"Expected `{' | '.join(sorted(accepted))}`, got `{kind}` - at `{path}`"
        choices = choices_of(schema)
        if choices is not None and not any(_same(value, choice) for choice in choices):
            shown = ", ".join(msgspec.json.encode(choice).decode() for choice in choices)
            return f"Expected one of {shown:.500} - at `{path}`"
        if self._bounds and (problem := _bounds_problem(value, kind, schema)) is not None:
            return f"{problem} - at `{path}`"
        if is_json_object(value):
            return self._object_problem(value, schema, path)
        if is_json_array(value):
            problems = [
                self._problem(item, _item_schema(schema, place), f"{path}[{place}]", frozenset())
                for place, item in enumerate(value)
            ]
            return next((problem for problem in problems if problem), None)
        return None

    def _object_problem(self, value: JsonObject, schema: JsonObject, path: str) -> str | None:
        properties, others = _properties(schema), schema.get("additionalProperties", True)
        unknown = others is False and "patternProperties" not in schema
        required = names_in(schema.get("required"))
        problem = names_problem(value, known=list(properties), required=required, unknown_refused=unknown)
        if problem is not None:
            return problem if path == "$" else f"{problem} - at `{path}`"
        for name, item in value.items():
            inner = self._problem(item, properties.get(name, others or True), f"{path}.{name}", frozenset())
            if inner is not None:
                return inner
        return None

    def _ways(self, schema: Json, seen: frozenset[str]) -> Iterator[JsonObject]:
        if not is_json_object(schema):
            yield {}
            return
        parts: list[Iterator[JsonObject]] = []
        reference = schema.get("$ref")
        if isinstance(reference, str):
            parts.append(self._ways(self._target(reference), seen | {reference}) if reference not in seen else iter(()))
        parts.extend(self._ways(item, seen) for item in _schemas(schema, "allOf"))
        for keyword in ("anyOf", "oneOf"):
            if alternatives := _schemas(schema, keyword):
                parts.append(way for item in alternatives for way in self._ways(item, seen))
        own = {keyword: value for keyword, value in schema.items() if keyword not in _NESTED}
        for tried, others in enumerate(product(*(islice(part, WAYS_MAX + 1) for part in parts))):
            way: JsonObject | None = own if tried < WAYS_TRIED_MAX else {}
            for other in others if tried < WAYS_TRIED_MAX else ():
                way = _both(way, other) if way is not None else None
            if way is not None:
                yield way
            if tried == WAYS_TRIED_MAX:
                return

    def _target(self, reference: str) -> Json:
        """Return what a reference such as `#/$defs/Point` names, or None if the schema does not hold it."""
        root, *parts = unquote(reference).split("/")
        found: Json = self.schema if root == "#" else None
        for part in parts:
            name = part.replace("~1", "/").replace("~0", "~")
            if is_json_array(found):
                found = found[int(name)] if len(name) < 9 and name.isdecimal() and int(name) < len(found) else None
            else:
                found = found.get(name) if is_json_object(found) else None
        return found if is_json_object(found) or isinstance(found, bool) else None


class DescribedArguments:
    """Arguments that are described by a schema from elsewhere; they are read as plain JSON."""

    def __init__(self, schema: InputSchema) -> None:
        self.input = schema

    def read(self, arguments: JsonObject) -> dict[str, object]:
        passed = self.input.passed(arguments)
        problem = self.input.problem(passed)
        if problem is not None:
            raise ToolError(problem)
        return msgspec.json.decode(msgspec.json.encode(passed), type=dict[str, object])


def json_type(value: Json) -> str:
    """Return the name that JSON Schema has for the type of `value`; of an integer that is `integer`."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def names_problem(
    arguments: JsonObject, *, known: list[str], required: list[str], unknown_refused: bool = True
) -> str | None:
    """Return which names are missing and which are unknown, all of them, or None."""
    missing = [f"`{name}`" for name in required if name not in arguments]
    unknown = [f"`{name:.80}`" for name in arguments if name not in known] if unknown_refused else []
    problems: list[str] = []
    if missing:
        problems.append(f"Missing required {_fields(missing)}")
    if unknown:
        there_are = f"there are {', '.join(f'`{name}`' for name in known)}" if known else "there are none"
        problems.append(f"Unknown {_fields(unknown[:10])} ({there_are})")
    return "; ".join(problems) or None


def _fields(names: list[str]) -> str:
    return f"{'field' if len(names) == 1 else 'fields'} {', '.join(names)}"


def _repaired_scalar(value: str | float, accepted: set[str], depth: int) -> Json:
    if isinstance(value, str):
        if "string" in accepted:
            return value
        try:
            decoded: Json = msgspec.json.decode(value)
            if type(decoded) is int and "number" in accepted:
                decoded = decoded if INTEGER_MIN <= decoded <= INTEGER_MAX else float(decoded)
            decoded = clean_json(decoded, depth=depth)
        except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError, OverflowError, Unrecordable):
            return value
        if not isinstance(decoded, float):
            return decoded if json_type(decoded) in accepted else value
        repaired = _repaired_scalar(decoded, accepted, depth)
        return repaired if json_type(repaired) in accepted else value
    whole = "integer" in accepted and "number" not in accepted and value % 1 == 0
    return int(value) if whole and abs(value) <= EXACT_FLOATS_MAX else value


def _widened(value: str | float, accepted: set[str]) -> Json:
    """Return the integer beyond 64 bits that a text is, where an integer is wanted and no text."""
    if not isinstance(value, str) or "integer" not in accepted or "string" in accepted:
        return value
    try:
        number = msgspec.json.decode(value, type=int)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return value
    return value if INTEGER_MIN <= number <= INTEGER_MAX else number


def _bounds_problem(value: Json, kind: str, schema: JsonObject) -> str | None:
    """Return which bound, pattern or format a value of a kind does not keep; None = it keeps all that are known."""
    length = len(value) if isinstance(value, str) or is_json_array(value) or is_json_object(value) else None
    for keyword, (words, holds) in _BOUNDS.items():
        counted = _COUNTED.get(keyword[3:])
        measured = value if counted is None else length if counted == kind else None
        bound = schema.get(keyword)
        if _is_number(measured) and _is_number(bound) and not holds(measured, bound):
            return f"Expected `{kind}` {words.format(bound)}"
    if not isinstance(value, str):
        return None
    pattern, named = schema.get("pattern"), schema.get("format")
    try:
        if isinstance(pattern, str) and re.search(pattern, value) is None:
            return f"Expected `string` matching {quoted(pattern, 200)}"
        if isinstance(named, str) and named in _FORMATS:
            msgspec.convert(value, _FORMATS[named])
    except re.error:  # Of another dialect.
        return None
    except msgspec.ValidationError as error:
        return str(error)
    return None


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _schemas(schema: JsonObject, keyword: str) -> list[Json]:
    schemas = schema.get(keyword)
    return schemas if is_json_array(schemas) else []


def _references(schema: Json) -> Iterator[str]:
    """Yield what a schema refers to; what stands in its examples and the like is no schema."""
    if is_json_array(schema):
        for item in schema:
            yield from _references(item)
    elif is_json_object(schema):
        for keyword, value in schema.items():
            if keyword == "$ref" and isinstance(value, str):
                yield value
            elif keyword in ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"):
                yield from _references(list(value.values()) if is_json_object(value) else None)
            elif keyword not in ("enum", "const", "default", "examples", "example"):
                yield from _references(value)


def _both(one: JsonObject, other: JsonObject) -> JsonObject | None:
    """Return a schema that takes what fits both, as far as repairing needs it, or None if no type fits both."""
    kinds = _accepted(one) & _accepted(other)
    if not kinds:
        return None
    both: JsonObject = {**one, **other}
    for keyword in ("items", "additionalProperties"):
        if keyword in one and keyword in other:
            both[keyword] = {"allOf": [one[keyword], other[keyword]]}
    fields, others = _properties(one), _properties(other)
    if fields and others:
        shared: JsonObject = {
            name: {"allOf": [fields[name], others[name]]} if name in fields and name in others else schema
            for name, schema in {**fields, **others}.items()
        }
        both["properties"] = shared
    elif fields or others:
        both["properties"] = fields or others
    if required := [*names_in(one.get("required")), *names_in(other.get("required"))]:
        both["required"] = list[Json](dict.fromkeys(required))
    both.pop("nullable", None)
    return {**both, "type": sorted(kinds)} if kinds != JSON_TYPES else both


def _one_of(schemas: list[Json]) -> Json:
    """Return a schema that takes what fits one of `schemas`; True where there is none."""
    different: list[Json] = []
    for schema in schemas:
        if schema not in different:
            different.append(schema)
    if len(different) > 1:
        return {"anyOf": different}
    return different[0] if different else True


def _item_schema(schema: JsonObject, place: int) -> Json:
    """Return the schema of an array's item; `items` may be a list, as `prefixItems` was called before 2020."""
    items = schema.get("items", True)
    if is_json_array(first := schema.get("prefixItems", items)) and place < len(first):
        return first[place]
    return schema.get("additionalItems", True) if is_json_array(items) else items


def _field_schema(schema: JsonObject, name: str) -> Json:
    return _properties(schema).get(name, schema.get("additionalProperties", True))


def _may_be(value: JsonObject, schema: JsonObject) -> bool:
    """Tell whether none of the fields that tell kinds of objects apart says that `value` is another."""
    fields = _properties(schema)
    marks = {name: choices_of(field) for name, field in fields.items() if name in value and is_json_object(field)}
    return all(choices is None or any(_same(value[name], one) for one in choices) for name, choices in marks.items())


def names_in(required: Json) -> list[str]:
    return [name for name in required if isinstance(name, str)] if is_json_array(required) else []


def _accepted(schema: JsonObject) -> frozenset[str]:
    """Return the names of the JSON types that a schema without alternatives accepts."""
    wanted = schema.get("type")
    if wanted is None and (choices := choices_of(schema)) is not None:
        wanted = [json_type(choice) for choice in choices]
    named = wanted if is_json_array(wanted) else [wanted]
    kinds = JSON_TYPES.intersection(kind for kind in named if isinstance(kind, str))
    if schema.get("nullable") is True and kinds:
        kinds |= {"null"}
    return kinds | {"integer"} if "number" in kinds else kinds or JSON_TYPES


def choices_of(schema: JsonObject) -> list[Json] | None:
    if "const" in schema:
        return [schema["const"]]
    choices = schema.get("enum")
    return choices if is_json_array(choices) else None


def _same(value: Json, choice: Json) -> bool:
    return value == choice and isinstance(value, bool) == isinstance(choice, bool)


def _properties(schema: JsonObject) -> JsonObject:
    properties = schema.get("properties")
    return properties if is_json_object(properties) else {}
