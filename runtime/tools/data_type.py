"""Types of data: how their JSON is described to a model, how it is read, and what is no data at all.

msgspec does the work. A type that pydantic has part in, such as a model, a list of models, or a number with pydantic's
bounds, is described and read by pydantic's own `TypeAdapter`; a model inside a Struct is handed to it by msgspec. The
rules: nothing of pydantic is loaded unless something of it is there already; and what is wrong with a value is said in
msgspec's form, with the place, so that a model is told the same of all types.
"""

import types
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence, Set
from dataclasses import is_dataclass
from importlib.util import find_spec
from inspect import isabstract
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Generic,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import msgspec

from refold.events.core.cleaning import Unrecordable, clean_json
from refold.events.core.content import Json, JsonObject, is_json_array, is_json_object

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")

PROBLEMS_TOLD_MAX = 10
"""Of what is wrong with a value, so much is told."""

ANY_VALUE = "Any JSON value."
"""Describes what is annotated `object`, for which msgspec itself has no schema."""

NOT_DESCRIBED = (TypeError, ValueError, NameError, AttributeError, RecursionError, RuntimeError)
"""What msgspec and pydantic raise of a type that they cannot describe or read."""


def why_not_described(error: BaseException) -> str:
    """Return in one line what is wrong with such a type, without what to do about it in msgspec or pydantic."""
    said = str(error).partition("\n\nFor further information visit")[0].strip()
    return said.rpartition("\n")[2] or type(error).__name__


def require_shown(annotation: object) -> None:
    """Raise TypeError of what is no type and cannot be shown, which msgspec and pydantic would do in their errors."""
    try:
        repr(annotation)
    except Exception as error:
        raise TypeError(f"its __repr__ raises {type(error).__name__}") from error


class DataType(Generic[T]):
    """A type whose values are written as JSON.

    Attributes:
        schema: its JSON Schema, with all that it refers to under `$defs`.
        of_pydantic: whether pydantic reads the whole of it.
    """

    def __init__(self, annotation: object) -> None:
        """Find out how a type is described and read; raises one of `NOT_DESCRIBED` where it cannot be."""
        adapter = _adapter_of_whole(annotation)
        self.of_pydantic = adapter is not None
        if adapter is not None:
            self._read: Callable[[str | bytes, str], T] = lambda data, path: _validated(adapter, data, path)
            self.schema = _schema_of(adapter)
            return
        require_shown(annotation)
        decoder = msgspec.json.Decoder(cast("type[T]", annotation), dec_hook=read_custom)
        self._read = lambda data, _: decoder.decode(data)
        definitions: JsonObject = {}
        described = msgspec.json.schema(annotation, schema_hook=describe_custom)
        self.schema = cast("JsonObject", without_definitions(described, definitions))
        if definitions:
            self.schema["$defs"] = definitions

    def read(self, data: str | bytes, path: str = "$") -> T:
        """Return the value that a JSON text is, or raise what msgspec does; `path` is its place, for the error."""
        return self._read(data, path)


def shown_default(default: object, annotation: object) -> JsonObject:
    """Return the schema's word for a default, or nothing for one that a model could not give itself."""
    try:
        shown = clean_json(default)
        DataType[object](annotation).read(msgspec.json.encode(shown))
    except (*NOT_DESCRIBED, msgspec.MsgspecError, Unrecordable):
        return {}
    return {"default": shown}


def describe_custom(custom: type) -> JsonObject:
    """Return the schema of a type that msgspec does not know."""
    if custom is object:
        return {"description": ANY_VALUE}
    if not _is_of_pydantic(custom):
        raise NotImplementedError
    return _schema_of(_adapter_of(custom))


def read_custom(custom: type, value: object) -> object:
    """Return the value of a type that msgspec does not know which plain JSON stands for."""
    if not _is_of_pydantic(custom):
        return value
    try:
        return _validated(_adapter_of(custom), msgspec.json.encode(value), "")
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error  # To which msgspec adds the place.


def without_definitions(schema: Json, definitions: JsonObject) -> Json:
    """Return a schema without the definitions in it, which go to `definitions`, renamed where a name is taken."""
    if is_json_array(schema):
        return [without_definitions(item, definitions) for item in schema]
    if not is_json_object(schema):
        return schema
    rest: JsonObject = {name: item for name, item in schema.items() if name != "$defs"}
    own = schema.get("$defs")
    if is_json_object(own):
        names: dict[str, str] = {}
        for name, item in own.items():
            free = name
            while definitions.get(free, item) != item:
                free += "_"
            names[name] = free
            definitions[free] = item
        for name, free in names.items():
            if name != free:
                rest = _referring(rest, name, free)
                definitions |= {each: _referring(definitions[each], name, free) for each in names.values()}
        definitions |= {each: without_definitions(definitions[each], definitions) for each in names.values()}
    return {name: without_definitions(item, definitions) for name, item in rest.items()}


def _referring(schema: Any, name: str, free: str) -> Any:
    text = msgspec.json.encode(schema)
    return msgspec.json.decode(text.replace(f'"#/$defs/{name}"'.encode(), f'"#/$defs/{free}"'.encode()))


def _adapter_of_whole(annotation: object) -> "TypeAdapter[Any] | None":
    """Return pydantic's adapter of a type in which it has part; None = it has none, or cannot describe all of it."""
    if not any(map(_is_of_pydantic, parts_of(annotation))):
        return None
    try:
        adapter = _adapter_of(annotation)
        _schema_of(adapter)
    except NOT_DESCRIBED:
        return None
    return adapter


def _adapter_of(annotation: object) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter

    return TypeAdapter(cast("type[Any]", annotation))


def _schema_of(adapter: "TypeAdapter[Any]") -> JsonObject:
    from pydantic.json_schema import GenerateJsonSchema

    class WithoutTitles(GenerateJsonSchema):
        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

    return adapter.json_schema(schema_generator=WithoutTitles)


def _validated(adapter: "TypeAdapter[T]", data: str | bytes, path: str) -> T:
    from pydantic import ValidationError

    msgspec.json.decode(data)  # Of what is no JSON, pydantic would say that it does not fit.
    try:
        return adapter.validate_json(data)
    except ValidationError as error:
        told = error.errors(include_url=False, include_context=False, include_input=False)[:PROBLEMS_TOLD_MAX]
        said = "; ".join(f"{each['msg']}{_at(each['loc'], path)}" for each in told)
        raise msgspec.ValidationError(said) from error


def _at(steps: tuple[int | str, ...], path: str) -> str:
    """Return where something is wrong, in msgspec's form; without a path, inside of what msgspec names behind it."""
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    if path:
        return f" - at `{path}{place}`"
    return f" ({place.removeprefix('.')})" if place else ""


def _is_of_pydantic(part: object) -> bool:
    """Tell whether pydantic says how a type is read, or bounds it."""
    if isinstance(part, type):
        return hasattr(part, "__get_pydantic_core_schema__") or hasattr(part, "__pydantic_validator__")
    bounds: tuple[object, ...] = getattr(part, "__metadata__", ())
    homes = {type(bound).__module__.partition(".")[0] for bound in bounds}
    return "pydantic" in homes or ("annotated_types" in homes and find_spec("pydantic") is not None)


NO_DATA = (type, BaseException, Iterator, AsyncIterator, types.FunctionType)
"""Kinds of objects of which none has a JSON form."""


def unrecordable_part(annotation: object) -> object:
    """Return the first part of a type of which no value has a JSON form; None where none is certain to have none."""
    for part in parts_of(annotation):
        made = get_origin(part) or part
        if made is Callable:
            return part
        if not isinstance(made, type) or made in NO_CLASSES:
            continue
        if _has_no_form(made) or (issubclass(made, Mapping) and get_args(part)[:1] in NO_KEYS):
            return part
    return None


NO_CLASSES = (Annotated, Union, types.UnionType)
"""What joins types, and is no class though Python may have made one of it."""

NO_KEYS = ((int,), (float,), (bool,), (bytes,), (tuple,))
"""Types of keys that objects of JSON cannot have."""


def _has_no_form(made: Any) -> bool:
    if issubclass(made, NO_DATA):
        return True
    if made is object or isabstract(made) or _is_of_pydantic(made) or issubclass(made, Mapping | Set | Sequence):
        return False
    try:
        return isinstance(msgspec.inspect.type_info(made), msgspec.inspect.CustomType)
    except NOT_DESCRIBED:
        return False


def parts_of(annotation: object) -> Iterator[object]:
    """Yield a type and all types that it is made of: alternatives, arguments and fields."""
    waiting, seen = [annotation], set[int]()
    while waiting:
        part = waiting.pop()
        if id(part) in seen or get_origin(part) is ClassVar:
            continue
        seen.add(id(part))
        yield part
        arguments = get_args(part)
        waiting += reversed(arguments[:1] if get_origin(part) is Annotated else arguments)
        waiting += [each for name in ("__value__", "__supertype__") if (each := getattr(part, name, None)) is not None]
        waiting += _types_of_fields(cast("Any", get_origin(part) or part))


def _types_of_fields(made: Any) -> list[object]:
    """Return the types of the fields of a class that has some, none where they cannot be resolved."""
    kinds: Any = made if isinstance(made, type) else object
    if not (
        is_dataclass(kinds) or is_typeddict(kinds) or issubclass(kinds, msgspec.Struct) or hasattr(kinds, "_fields")
    ):
        return []
    try:
        return list(get_type_hints(made, include_extras=True).values())
    except (NameError, TypeError, AttributeError, SyntaxError):
        return []
