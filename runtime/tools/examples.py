"""What a model is told of arguments that do not fit, beside what is wrong: what it gave, and what would fit.

Read `taught` first. The rule: an example fits the schema, or there is none.
"""

import re
from collections.abc import Iterator

import msgspec

from refold.events.core.content import Json, JsonObject, is_json_array, is_json_object
from refold.tools.schema import EXACT_FLOATS_MAX, InputSchema, choices_of, names_in

SHOWN_CHARACTERS_MAX = 120
"""Of what was given, and of an example."""

CHOICES_MAX = 20

DEPTH_MAX = 4

_PLACE = re.compile(r" - at `\$([^`]*)`")
_NUMBER = re.compile(r"[+-]?\d{1,30}(\.\d{1,30})?", re.ASCII)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")

_PLAIN: dict[str, Json] = {"integer": 3, "number": 1.5, "boolean": True, "string": "text", "null": None}
_FORMATS = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "duration": "P3D",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "decimal": "1.5",
    "email": "a@example.org",
    "uri": "https://example.org",
}


def taught(schema: InputSchema, arguments: JsonObject, problem: str) -> str:
    """Return `problem`, and where it names a place, what was given there and an example of what fits."""
    place = _PLACE.search(problem)
    found = _at(schema, arguments, place[1]) if place is not None else None
    if found is None:
        return problem
    value, wanted = found
    told = f"{problem}. You gave {_shown(value)}"
    choices = [choices_of(way) for way in schema.ways(wanted)]
    if all(choices):
        listed = [_shown(choice) for way in choices for choice in way or ()]
        return f"{told}; give one of {', '.join(listed[:CHOICES_MAX])}"
    for example in _examples(schema, wanted, value, 0):
        if schema.fits(example, wanted) and example != value:
            return f"{told}; give a JSON value such as {_shown(example)}"
    return told


def _shown(value: Json) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[:SHOWN_CHARACTERS_MAX]}…"


def _at(schema: InputSchema, value: Json, path: str) -> tuple[Json, Json] | None:
    """Return the value at a place and its schema, or None if the path does not say which it is."""
    wanted: Json = schema.schema
    end = 0
    for step in _STEP.finditer(path):
        if step.start() != end:
            return None
        end = step.end()
        parts: dict[str, Json] = {}
        if is_json_array(value):
            parts = {str(place): item for place, item in enumerate(value)}
        elif is_json_object(value):
            parts = value
        key = step[1] or step[2]
        if step[2] == "...":  # Any value of an object: the first that does not fit.
            key = next((name for name, item in parts.items() if not schema.fits(item, schema.part(wanted, name))), "")
        if key not in parts:
            return None
        wanted = schema.part(wanted, int(key) if is_json_array(value) else key)
        value = parts[key]
    return (value, wanted) if end == len(path) and path else None


def _examples(schema: InputSchema, wanted: Json, value: Json, depth: int) -> Iterator[Json]:
    """Yield what may fit: what was given in another form, what the schema names, and one value of each type."""
    yield from _other_forms(value)
    ways = schema.ways(wanted)
    for way in ways:
        named = [way[keyword] for keyword in ("const", "default", "example") if keyword in way]
        listed = [
            item for keyword in ("examples", "enum") if is_json_array(items := way.get(keyword)) for item in items
        ]
        yield from [item for item in [*named, *listed] if item is not None]
    for way in ways:
        bound = next((way[keyword] for keyword in ("minimum", "maximum") if keyword in way), None)
        yield from [] if bound is None else [bound]
        kinds = way.get("type")
        for kind in kinds if is_json_array(kinds) else [kinds]:
            if kind == "string" and way.get("pattern") is not None:
                continue
            if kind == "string":
                yield _FORMATS.get(str(way.get("format")), "text")
            elif kind == "array" and depth < DEPTH_MAX:
                yield [next(_fitting(schema, schema.part(way, 0), depth + 1), None)]
            elif kind == "object" and depth < DEPTH_MAX:
                names = names_in(way.get("required"))
                yield {name: next(_fitting(schema, schema.part(way, name), depth + 1), None) for name in names}
            elif isinstance(kind, str) and kind in _PLAIN:
                yield _PLAIN[kind]


def _fitting(schema: InputSchema, wanted: Json, depth: int) -> Iterator[Json]:
    return (one for one in _examples(schema, wanted, None, depth) if schema.fits(one, wanted))


def _other_forms(value: Json) -> Iterator[Json]:
    """Yield what a value may have been meant as, though that is not certain."""
    if isinstance(value, str):
        if _NUMBER.fullmatch(value.strip()):
            number = float(value)
            yield int(number) if number.is_integer() and abs(number) <= EXACT_FLOATS_MAX else number
        if value.strip().lower() in ("true", "false"):
            yield value.strip().lower() == "true"
    elif isinstance(value, int | float):
        yield msgspec.json.encode(value).decode()
    if not is_json_array(value):
        yield [value]
