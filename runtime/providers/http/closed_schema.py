"""A JSON Schema in the form to which a host can hold its model.

Hosts that constrain an answer to a schema take a part of JSON Schema only: the root is an object, every object names
all that it may hold, and few words besides ("Structured outputs", platform.openai.com/docs, platform.claude.com/docs).
A value that fits the closed form fits the schema that it was made from, not the other way round; what the closed form
leaves out, such as bounds, is checked when the answer is read.
"""

from refold.events.core.content import Json, JsonObject, is_json_array, is_json_object
from refold.providers.http.wire import object_field

_KEPT = ("type", "description", "title", "enum", "const")
"""What means the same there; other words are left out."""

_TOO_OPEN = ("patternProperties", "prefixItems", "allOf", "not", "if", "contains", "dependentSchemas")
"""What cannot be left out and has no closed form."""


class _NoClosedForm(Exception):
    """Some part of a schema is too open."""


def closed_schema(schema: JsonObject) -> JsonObject | None:
    """Return the closed form of a schema, all properties of an object required; None where it has none."""
    definitions = object_field(schema, "$defs")
    root: Json = schema
    if isinstance(reference := schema.get("$ref"), str):
        root = definitions.get(reference.removeprefix("#/$defs/"))
    if not is_json_object(root) or root.get("type") != "object":
        return None
    try:
        others = {name: _closed(part) for name, part in definitions.items()}
        return {**_closed(root), **({"$defs": dict(others)} if others else {})}
    except (_NoClosedForm, RecursionError):
        return None


def _closed(schema: Json) -> JsonObject:
    if not is_json_object(schema) or any(word in schema for word in _TOO_OPEN):
        raise _NoClosedForm
    if "$ref" in schema:
        return {"$ref": schema["$ref"]}  # Nothing may stand beside it.
    closed: JsonObject = {word: schema[word] for word in _KEPT if word in schema}
    if not {"type", "enum", "const", "anyOf", "oneOf"} & set(schema):
        raise _NoClosedForm
    options = schema.get("anyOf", schema.get("oneOf"))
    if is_json_array(options):
        closed["anyOf"] = [_closed(option) for option in options]
    elif schema.get("type") == "array":
        closed["items"] = _closed(schema.get("items"))
    elif schema.get("type") == "object":
        properties = schema.get("properties")
        if not is_json_object(properties) or schema.get("additionalProperties"):
            raise _NoClosedForm
        closed["properties"] = {name: _closed(part) for name, part in properties.items()}
        closed |= {"required": list(properties), "additionalProperties": False}
    return closed
