"""Arguments against a JSON schema: what fits, what is said of what does not, and what is repaired."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.events.core.content import Json, JsonObject
from refold.events.core.errors import ConfigError, ToolError
from refold.sessions.structured_output import value_problem
from refold.tools.examples import taught
from refold.tools.schema import DescribedArguments, InputSchema

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "number"}},
    "required": ["x"],
    "additionalProperties": False,
}


def schema_of(properties: JsonObject, **more: Json) -> InputSchema:
    return InputSchema({"type": "object", "properties": properties, **more}, tool="draw")


def problem_of(value: Json, schema: Json, **more: Json) -> str | None:
    return schema_of({"it": schema}, **more).problem({"it": value})


@pytest.mark.parametrize(
    ("value", "schema", "problem"),
    [
        (0, {"type": "integer", "minimum": 1}, "Expected `integer` >= 1"),
        (2.5, {"maximum": 2}, "Expected `number` <= 2"),
        (1, {"exclusiveMinimum": 1}, "Expected `integer` > 1"),
        (3, {"exclusiveMaximum": 5, "multipleOf": 2}, "Expected `integer` that is a multiple of 2"),
        (0.35, {"multipleOf": 0.1}, "Expected `number` that is a multiple of 0.1"),
        (10**400, {"multipleOf": 0.1}, "Expected `integer` that is a multiple of 0.1"),
        ("🫖", {"minLength": 2}, "Expected `string` of length >= 2"),
        ("ab", {"pattern": "^b", "maxLength": 2}, "Expected `string` matching '^b'"),
        ([], {"minItems": 1}, "Expected `array` of length >= 1"),
        ({"a": 1, "b": 2}, {"maxProperties": 1}, "Expected `object` of length <= 1"),
        ("tomorrow", {"format": "date"}, "Invalid RFC3339 encoded date"),
        ("soon", {"anyOf": [{"format": "uuid"}, {"format": "duration"}]}, "Invalid UUID"),
        ("2026-11-29", {"format": "date", "pattern": "^20", "minLength": 10}, None),
        (19.99, {"multipleOf": 0.01}, None),
        (-0.3, {"multipleOf": 0.1}, None),
        (4, {"minimum": 4, "maximum": 4, "multipleOf": 2, "minLength": 9}, None),
        (True, {"minimum": 5}, None),
        ("a", {"pattern": "(?<=", "format": ["date"], "minLength": "9", "multipleOf": True}, None),
        (1, {"multipleOf": 0, "format": "date"}, None),
    ],
)
def test_bounds_count_in_what_is_given_anew_and_are_left_to_the_body_of_a_tool(
    value: Json, schema: JsonObject, problem: str | None
) -> None:
    found = value_problem(value, schema)
    assert (found or "None").startswith(f"{problem} - at `$`" if problem else "None")
    assert problem_of(value, schema) is None


def repaired(value: Json, schema: Json, **more: Json) -> Json:
    return schema_of({"it": schema}, **more).repaired({"it": value})["it"]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "array"}, '"type": "object"'),
        ({"type": "object", "properties": ["x"]}, '"properties"'),
        ({"type": "object", "properties": {"x": "integer"}}, '"properties"'),
        ({"type": "object", "required": "x"}, '"required"'),
        ({"type": "object", "required": [1]}, '"required"'),
        ({"type": "object", "default": float("nan")}, r"\$\.default is nan"),
        (["x"], '"type": "object"'),
        ({"properties": {"x": {"$ref": "https://example.org/elsewhere"}}}, "https://example.org/elsewhere"),
        ({"$defs": {"A": {"items": {"$ref": "#/$defs/B"}}}}, r'#/\$defs/B.*put it under "\$defs"'),
        ({"allOf": [{"$ref": "#/allOf/1"}]}, "#/allOf/1"),
    ],
)
def test_a_schema_that_describes_no_object_is_refused_and_the_tool_is_named(schema: JsonObject, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refusal:
        InputSchema(schema, tool="draw")
    assert "'draw'" in str(refusal.value)


def test_a_schema_is_copied_and_is_one_of_an_object_if_it_does_not_say() -> None:
    given_schema: JsonObject = {"properties": {"x": {"type": "integer"}}}
    schema = InputSchema(given_schema, tool="draw")
    given_schema["properties"] = {}
    assert schema.schema == {"type": "object", "properties": {"x": {"type": "integer"}}}


def test_missing_and_unknown_fields_are_all_named_with_those_that_exist() -> None:
    schema = schema_of({"a": {}, "b": {}, "c": {}}, required=["a", "b"], additionalProperties=False)
    assert schema.problem({"d": 1, "e": 2}) == (
        "Missing required fields `a`, `b`; Unknown fields `d`, `e` (there are `a`, `b`, `c`)"
    )
    assert InputSchema({"additionalProperties": False}, tool="draw").problem({"a": 1}) == (
        "Unknown field `a` (there are none)"
    )


def test_unknown_fields_are_accepted_unless_the_schema_forbids_them() -> None:
    assert schema_of({"a": {"type": "integer"}}).problem({"b": 1}) is None
    assert schema_of({}, additionalProperties=False, patternProperties={"^x": {}}).problem({"x1": 1}) is None
    others = schema_of({}, additionalProperties={"type": "integer"})
    assert others.problem({"b": 1}) is None
    assert others.problem({"b": "1"}) == "Expected `integer`, got `string` - at `$.b`"


@pytest.mark.parametrize(
    ("value", "schema", "problem"),
    [
        ("5", {"type": "integer"}, "Expected `integer`, got `string` - at `$.it`"),
        (True, {"type": "integer"}, "Expected `integer`, got `boolean` - at `$.it`"),
        (1.5, {"type": "integer"}, "Expected `integer`, got `number` - at `$.it`"),
        (None, {"type": "string"}, "Expected `string`, got `null` - at `$.it`"),
        (1, {"type": ["string", "null"]}, "Expected `null | string`, got `integer` - at `$.it`"),
        ("c", {"enum": ["a", "b"]}, 'Expected one of "a", "b" - at `$.it`'),
        (True, {"enum": [1, True, "a"], "type": "integer"}, "Expected `integer`, got `boolean` - at `$.it`"),
        (True, {"enum": [1]}, "Expected one of 1 - at `$.it`"),
        ("b", {"const": "a"}, 'Expected one of "a" - at `$.it`'),
        (["a", 1], {"type": "array", "items": {"type": "string"}}, "Expected `string`, got `integer` - at `$.it[1]`"),
        ({"x": "1"}, POINT, "Expected `integer`, got `string` - at `$.it.x`"),
        ({"y": 1}, POINT, "Missing required field `x` - at `$.it`"),
        ({"x": 1, "z": 1}, POINT, "Unknown field `z` (there are `x`, `y`) - at `$.it`"),
        (1, False, "Nothing is accepted - at `$.it`"),
        ([1, 2, 3], {"prefixItems": [{}, {"type": "string"}]}, "Expected `string`, got `integer` - at `$.it[1]`"),
        ([1, 2], {"prefixItems": [{}], "items": False}, "Nothing is accepted - at `$.it[1]`"),
        ({"y": 1}, {"allOf": [{"type": "object"}, POINT]}, "Missing required field `x` - at `$.it`"),
        (1, {"$ref": "#/$defs/X", "enum": [2]}, "Expected one of 2 - at `$.it`"),
        (
            {"a": "x"},
            {"properties": {"a": {"type": "integer"}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
            "Expected `integer`, got `string` - at `$.it.a`",
        ),
        (
            [],
            {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "Expected `string`, got `array` - at `$.it`; or: Expected `null`, got `array` - at `$.it`",
        ),
    ],
)
def test_what_does_not_fit_is_told_with_its_path_and_what_was_expected(value: Json, schema: Json, problem: str) -> None:
    assert problem_of(value, schema, **{"$defs": {"X": {"type": "integer"}}}) == problem


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (1, {"type": "number"}),
        (1.0, {"enum": [1, 2]}),
        (None, {"type": ["string", "null"]}),
        ("a", {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (1, {"oneOf": [{"type": "integer"}, {"type": "number"}]}),
        ({"x": 1, "y": 2}, POINT),
        (["anything", 1, None, {}], {"type": "array"}),
        ("anything", {}),
        ("anything", True),
        ("anything", {"type": "a type that does not exist"}),
        (None, {"type": "string", "nullable": True}),
        (None, {"enum": ["a"], "nullable": True}),
        ([1, "x"], {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False}),
        ([1, "x"], {"items": [{"type": "integer"}], "additionalItems": {"type": "string"}}),
        (5, {"allOf": [{"type": "number"}, {"enum": [5, "a"]}]}),
        ("a", {"$ref": "#/properties/it/anyOf/0", "anyOf": [{"type": ["string", "integer"]}, {"type": "null"}]}),
        ("anything", {"anyOf": []}),
    ],
)
def test_what_fits_has_no_problem_and_what_is_not_understood_is_left_to_the_tool(value: Json, schema: Json) -> None:
    assert problem_of(value, schema) is None


def test_references_inside_the_schema_are_followed_however_they_turn() -> None:
    definitions: JsonObject = {
        "tree/node": {
            "type": "object",
            "properties": {"value": {"type": "integer"}, "children": {"$ref": "#/$defs/nodes"}},
            "required": ["value"],
        },
        "nodes": {"type": "array", "items": {"$ref": "#/$defs/tree~1node"}},
        "self": {"$ref": "#/$defs/self"},
        "circle": {"anyOf": [{"$ref": "#/$defs/circle"}, {"type": "integer"}]},
    }
    tree: JsonObject = {"$ref": "#/$defs/tree~1node"}
    good: Json = {"value": 1, "children": [{"value": 2, "children": []}]}
    bad: Json = {"value": 1, "children": [{"value": 2, "children": [{}]}]}
    assert problem_of(good, tree, **{"$defs": definitions}) is None
    assert problem_of(bad, tree, **{"$defs": definitions}) == (
        "Missing required field `value` - at `$.it.children[0].children[0]`"
    )
    for circular in ("self", "circle"):
        assert problem_of("x", {"$ref": f"#/$defs/{circular}"}, **{"$defs": definitions}) is None
        assert repaired("[]", {"$ref": f"#/$defs/{circular}"}, **{"$defs": definitions}) == "[]"


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        ('[{"x": 1}]', {"type": "array"}, [{"x": 1}]),
        ('{"x": 1}', POINT, {"x": 1}),
        ("[1]", {"type": ["array", "null"]}, [1]),
        ("[1]", {"anyOf": [{"type": "array"}, {"type": "null"}]}, [1]),
        ('{"x": "{}"}', {"type": "object"}, {"x": "{}"}),
        (['{"x": 1}', {"x": 2}], {"type": "array", "items": POINT}, [{"x": 1}, {"x": 2}]),
        ({"points": "[[1]]"}, {"type": "object", "properties": {"points": {"type": "array"}}}, {"points": [[1]]}),
        ({"k": "[1]"}, {"type": "object", "additionalProperties": {"type": "array"}}, {"k": [1]}),
        ('["[1]"]', {"type": "array", "items": {"type": "array"}}, [[1]]),
        (3.0, {"type": "integer"}, 3),
        ([3.0], {"type": "array", "items": {"type": ["integer", "null"]}}, [3]),
        ("3", {"allOf": [{"type": ["integer", "string"]}, {"type": ["integer", "null"]}]}, 3),
        ({"x": "3"}, {"allOf": [{"$ref": "#/$defs/P"}, {"description": "Where."}]}, {"x": 3}),
        ({"x": "3"}, {"$ref": "#/$defs/P", "properties": {"x": {"minimum": 1}}}, {"x": 3}),
        ({"x": "3", "y": None}, {"anyOf": [{"required": ["x"]}, {"required": ["z"]}], **POINT}, {"x": 3}),
        ({"n": "3"}, {"oneOf": [{"properties": {"n": {"type": kind}}} for kind in ("integer", "boolean")]}, {"n": 3}),
        (
            {"kind": "b", "n": "3"},
            {
                "anyOf": [
                    {"properties": {"kind": {"const": "a"}, "n": {"type": "string"}}},
                    {"properties": {"kind": {"const": "b"}, "n": {"type": "integer"}}},
                ]
            },
            {"kind": "b", "n": 3},
        ),
        (["1", "2"], {"prefixItems": [{"type": "integer"}, {"type": "string"}]}, [1, "2"]),
        ("18446744073709551616", {"type": "number"}, 18446744073709551616.0),
    ],
)
def test_case_b08_text_where_only_an_array_or_object_fits_is_decoded(value: Json, schema: Json, expected: Json) -> None:
    found = repaired(value, schema, **{"$defs": {"P": POINT}})
    assert msgspec.json.encode(found) == msgspec.json.encode(expected)


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ("[1]", {"type": "string"}),
        ("[1]", {"type": ["string", "array"]}),
        ("[1]", {"anyOf": [{"type": "string"}, {"type": "array"}]}),
        ("[1]", {}),
        ("[1]", {"enum": ["[1]"]}),
        ("[1]", {"type": "object"}),
        ("{}", {"type": "array"}),
        ("5x", {"type": "integer"}),
        ("[1", {"type": "array"}),
        ("[18446744073709551616]", {"type": "array"}),
        ("18446744073709551616", {"type": "integer"}),
        ("9" * 400, {"type": "number"}),
        ("3", {"allOf": [{"type": "integer"}, {"type": "string"}]}),
        ("[" * 150 + "]" * 150, {"type": "array"}),
        ("\ud83d", {"type": "array"}),
        (3.0, {"type": "number"}),
        (3.5, {"type": "integer"}),
        (1e300, {"type": "integer"}),
        ({"k": "[1]"}, {"anyOf": [POINT, {"type": "object", "properties": {"k": {"type": "array"}}}]}),
    ],
)
def test_case_b08_what_may_be_meant_as_it_is_stays_untouched(value: Json, schema: Json) -> None:
    found = repaired(value, schema)
    assert found == value
    assert type(found) is type(value)


def test_a_schema_of_more_ways_than_can_be_told_apart_changes_nothing() -> None:
    kinds: list[Json] = [{"type": kind} for kind in ("string", "integer", "array", "boolean")]
    for parts in ([{"anyOf": kinds}] * 20, [{"anyOf": [*kinds[:place], *kinds]} for place in range(9)]):
        assert repaired("3", {"allOf": parts}) == "3"
        assert problem_of(3, {"allOf": parts}) is None


def test_repairing_leaves_the_given_arguments_as_they_are() -> None:
    schema = schema_of({"plan": {"type": "array", "items": {"type": "object"}}})
    arguments: JsonObject = {"plan": ["{}"]}
    assert schema.repaired(arguments) == {"plan": [{}]}
    assert arguments == {"plan": ["{}"]}


def test_arguments_are_read_as_a_copy_or_refused() -> None:
    described = DescribedArguments(schema_of({"rows": {"type": "array"}}))
    arguments: JsonObject = {"rows": [{"a": 1}]}
    read = described.read(arguments)
    assert read == arguments
    assert read["rows"] is not arguments["rows"]
    with pytest.raises(ToolError, match="Expected `array`, got `integer`"):
        described.read({"rows": 1})


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)

KEYWORDS = st.sampled_from(
    [
        "type",
        "nullable",
        "enum",
        "const",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "prefixItems",
        "allOf",
        "anyOf",
        "oneOf",
        "$ref",
    ]
)

ANY_SCHEMA = st.recursive(
    st.booleans()
    | st.sampled_from(["object", "array", "string", "integer", "#", "#/properties/it", "it"])
    | st.sampled_from([{"type": kind} for kind in ("object", "array", "string", "integer", "number", "null")]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS | st.just("it"), inner, max_size=4),
    max_leaves=12,
)


@given(value=ANY_JSON, schema=ANY_SCHEMA)
def test_any_value_meets_any_schema_without_an_error_and_repairing_twice_changes_nothing_more(
    value: Json, schema: Json
) -> None:
    if not isinstance(schema, dict | bool):
        schema = {"anyOf": [schema]}
    try:
        checked = schema_of({"it": schema})
    except ConfigError as error:
        assert "which it does not hold" in str(error)  # noqa: PT017 - A schema that was drawn may name anything.
        return
    once = checked.repaired({"it": value})
    assert checked.repaired(once) == once
    assert checked.passed(once) == once
    problem = checked.problem(once)
    assert problem is None or ("$.it" in problem and taught(checked, once, problem).startswith(problem))
