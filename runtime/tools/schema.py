"""JSON Schema, as far as tools need it: which arguments fit, and which can be repaired with certainty.

Understood are `type`, `enum`, `const`, `properties`, `required`, `additionalProperties`, `items`, `anyOf`, `oneOf` and
references inside the schema; other keywords are left to the tool's body. The rule it protects: arguments are changed
only where the schema leaves no other meaning, so text that looks like JSON stays text wherever text is wanted.
"""

from collections.abc import Iterator

import msgspec

from refold.events.core.cleaning import Unrecordable, clean_json
from refold.events.core.content import Json, JsonObject, is_json_array, is_json_object
from refold.events.core.errors import ConfigError, ToolError

JSON_TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})

EXACT_FLOATS_MAX = 2**53
"""Up to here a float that has no fraction is one integer and no other."""


class InputSchema:
    """The schema of a tool's arguments.

    Attributes:
        schema: an object schema, which holds everything that it refers to.
    """

    def __init__(self, schema: JsonObject, *, tool: str) -> None:
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

    def repaired(self, arguments: JsonObject) -> JsonObject:
        """Return `arguments` with what is certainly meant differently put right; they are not changed themselves.

        Text that does not fit, and which is exactly the JSON of what does, is decoded. A float without a fraction
        becomes an integer where only integers fit, since some providers send every number as a float. A field that may
        be left out and is null, where null does not fit, is left out: some models give every field that there is.
        """
        repaired = self._repaired(arguments, self.schema, 0)
        assert is_json_object(repaired)
        return repaired

    def problem(self, arguments: JsonObject) -> str | None:
        """Return what does not fit, with its path and what was expected, or None."""
        return self._problem(arguments, self.schema, "$", frozenset())

    def _repaired(self, value: Json, schema: Json, depth: int) -> Json:
        plain = list(self._plain(schema, frozenset()))
        if isinstance(value, str | float):
            value = _repaired_scalar(value, {kind for item in plain for kind in _accepted(item)}, depth)
        if is_json_array(value):
            arrays = [item for item in plain if "array" in _accepted(item)]
            if len(arrays) == 1:
                first, others = arrays[0].get("prefixItems"), arrays[0].get("items", True)
                places = first if is_json_array(first) else []
                return [
                    self._repaired(item, places[place] if place < len(places) else others, depth + 1)
                    for place, item in enumerate(value)
                ]
        elif is_json_object(value):
            objects = [item for item in plain if "object" in _accepted(item)]
            if len(objects) == 1:
                properties, others = _properties(objects[0]), objects[0].get("additionalProperties", True)
                required = objects[0].get("required", [])
                return {
                    name: self._repaired(item, properties.get(name, others), depth + 1)
                    for name, item in value.items()
                    if not self._stands_for_nothing(item, properties.get(name), name, required)
                }
        return value

    def _stands_for_nothing(self, item: Json, schema: Json, name: str, required: Json) -> bool:
        """Tell whether a field is there and means that it is left out."""
        if item not in (None, "null") or schema is None or (is_json_array(required) and name in required):
            return False
        accepted = {kind for plain in self._plain(schema, frozenset()) for kind in _accepted(plain)}
        return "null" not in accepted and json_type(item) not in accepted

    def _problem(self, value: Json, schema: Json, path: str, seen: frozenset[str]) -> str | None:
        """Return what does not fit; `seen` are the references followed for this very value."""
        if schema is False:
            return f"Nothing is accepted - at `{path}`"
        if not is_json_object(schema):
            return None
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return (
                None if reference in seen else self._problem(value, self._target(reference), path, seen | {reference})
            )
        alternatives = _alternatives(schema)
        if alternatives:
            problems = [self._problem(value, item, path, seen) for item in alternatives]
            if all(problems):
                return "; or: ".join(str(problem) for problem in problems)
        kind = json_type(value)
        accepted = _accepted(schema) if "type" in schema else JSON_TYPES
        if kind not in accepted:
            return f"Expected `{' | '.join(sorted(accepted))}`, got `{kind}` - at `{path}`"
        choices = _choices(schema)
        if choices is not None and not any(_same(value, choice) for choice in choices):
            shown = ", ".join(msgspec.json.encode(choice).decode() for choice in choices)
            return f"Expected one of {shown:.500} - at `{path}`"
        if is_json_object(value):
            return self._object_problem(value, schema, path)
        if is_json_array(value) and "items" in schema:
            problems = [
                self._problem(item, schema["items"], f"{path}[{place}]", frozenset())
                for place, item in enumerate(value)
            ]
            return next((problem for problem in problems if problem), None)
        return None

    def _object_problem(self, value: JsonObject, schema: JsonObject, path: str) -> str | None:
        properties, others = _properties(schema), schema.get("additionalProperties", True)
        required = schema.get("required")
        names = [name for name in required if isinstance(name, str)] if is_json_array(required) else []
        unknown = others is False and "patternProperties" not in schema
        problem = names_problem(value, known=list(properties), required=names, unknown_refused=unknown)
        if problem is not None:
            return problem if path == "$" else f"{problem} - at `{path}`"
        for name, item in value.items():
            inner = self._problem(item, properties.get(name, others or True), f"{path}.{name}", frozenset())
            if inner is not None:
                return inner
        return None

    def _plain(self, schema: Json, seen: frozenset[str]) -> Iterator[JsonObject]:
        """Yield the schemas that `schema` offers as alternatives, its references followed."""
        if not is_json_object(schema):
            yield {}
        elif isinstance(reference := schema.get("$ref"), str):
            if reference not in seen:
                yield from self._plain(self._target(reference), seen | {reference})
        elif alternatives := _alternatives(schema):
            for item in alternatives:
                yield from self._plain(item, seen)
        else:
            yield schema

    def _target(self, reference: str) -> Json:
        """Return what a reference such as `#/$defs/Point` names, or a schema that accepts everything."""
        found: Json = self.schema if reference.startswith("#") else {}
        for part in reference.removeprefix("#").split("/")[1:]:
            found = found.get(part.replace("~1", "/").replace("~0", "~"), {}) if is_json_object(found) else {}
        return found


class DescribedArguments:
    """Arguments that are described by a schema from elsewhere; they are read as plain JSON."""

    def __init__(self, schema: InputSchema) -> None:
        self.input = schema

    def read(self, arguments: JsonObject) -> dict[str, object]:
        problem = self.input.problem(arguments)
        if problem is not None:
            raise ToolError(problem)
        return msgspec.json.decode(msgspec.json.encode(arguments), type=dict[str, object])


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
            decoded = clean_json(msgspec.json.decode(value), depth=depth)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError, Unrecordable):
            return value
        if not isinstance(decoded, float):
            return decoded if json_type(decoded) in accepted else value
        repaired = _repaired_scalar(decoded, accepted, depth)
        return repaired if json_type(repaired) in accepted else value
    whole = "integer" in accepted and "number" not in accepted and value % 1 == 0
    return int(value) if whole and abs(value) <= EXACT_FLOATS_MAX else value


def _alternatives(schema: JsonObject) -> list[Json]:
    """Return the schemas of which one is to fit, or none if the schema itself says what fits."""
    for keyword in ("anyOf", "oneOf"):
        alternatives = schema.get(keyword)
        if is_json_array(alternatives):
            return alternatives
    return []


def _accepted(schema: JsonObject) -> frozenset[str]:
    """Return the names of the JSON types that a schema without alternatives accepts."""
    wanted = schema.get("type")
    if wanted is None and (choices := _choices(schema)) is not None:
        wanted = [json_type(choice) for choice in choices]
    named = wanted if is_json_array(wanted) else [wanted]
    kinds = JSON_TYPES.intersection(kind for kind in named if isinstance(kind, str))
    return kinds | {"integer"} if "number" in kinds else kinds or JSON_TYPES


def _choices(schema: JsonObject) -> list[Json] | None:
    if "const" in schema:
        return [schema["const"]]
    choices = schema.get("enum")
    return choices if is_json_array(choices) else None


def _same(value: Json, choice: Json) -> bool:
    return value == choice and isinstance(value, bool) == isinstance(choice, bool)


def _properties(schema: JsonObject) -> JsonObject:
    properties = schema.get("properties")
    return properties if is_json_object(properties) else {}
