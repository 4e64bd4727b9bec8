"""Tools as their users write them: made, called directly, checked and run."""

import asyncio
import contextvars
import dataclasses
import datetime
import functools
import math
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from enum import Enum
from typing import Annotated, Any, TypedDict, assert_type

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.actors.calls.tool_context import ToolContext
from refold.events.core.content import Json, JsonObject
from refold.events.core.errors import ConfigError, ToolError
from refold.events.session.events import Verdict
from refold.tools.tool import Tool, tool
from tests.runtime.tools.tool_calls import context, refusal, run


@tool(tier="observe", effect="pure")
async def weather(city: str, days: int = 1) -> str:
    """Forecast for a city.

    Args:
        city: Which city.
    """
    return f"{city}: sunny for {days} days"


@tool
def add(a: int, b: int) -> int:
    """Sum of two numbers."""
    return a + b


def test_a_bare_decorator_takes_everything_from_the_function() -> None:
    assert add.name == "add"
    assert add.spec.description == "Sum of two numbers."
    assert (add.spec.tier, add.spec.effect, add.spec.timeout_s) == ("act", "once", 120.0)
    assert add.spec.input_schema["required"] == ["a", "b"]
    assert repr(add) == f"<Tool add of {add.origin}>"


def test_options_overrule_what_the_function_says() -> None:
    @tool(name="look-up", description="Looks \ud83d up.", tier="confirm", effect="idempotent", timeout_s=5)
    def look_up(word: str) -> str:
        """Something else."""
        return word

    assert look_up.spec.name == "look-up"
    assert look_up.spec.description == "Looks \ufffd up."
    assert (look_up.spec.tier, look_up.spec.effect, look_up.spec.timeout_s) == ("confirm", "idempotent", 5.0)


def test_a_tool_is_frozen_and_keeps_the_name_and_the_docstring_of_its_function() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        add.spec = weather.spec  # type: ignore[misc]
    assert weather.__name__ == "weather"  # type: ignore[attr-defined]
    assert (weather.__doc__ or "").startswith("Forecast for a city.")


async def test_calling_a_tool_calls_its_function_with_its_own_types() -> None:
    assert_type(add(2, b=3), int)
    assert add(2, b=3) == 5
    assert_type(await weather("Lisbon"), str)
    assert await weather("Lisbon", days=2) == "Lisbon: sunny for 2 days"
    with pytest.raises(TypeError):
        add("2")  # type: ignore[call-arg, arg-type]


def test_tools_are_made_of_methods_partials_and_objects_with_call() -> None:
    class Forecast:
        """Forecasts by satellite."""

        def __init__(self, sky: str) -> None:
            self.sky = sky

        def __call__(self, city: str) -> str:
            return f"{city}: {self.sky}"

        def tomorrow(self, city: str) -> str:
            """What comes.

            Args:
                city: Where.
            """
            return f"{city}: {self.sky} again"

        @staticmethod
        def never(city: str) -> str:
            """What does not come."""
            return f"{city}: frogs"

    rainy = Forecast("rain")
    of_object, of_method, of_static = tool(rainy), tool(rainy.tomorrow), tool(Forecast.never)
    of_partial = tool(functools.partial(functools.partial(Forecast.tomorrow, rainy), city="a secret"))
    assert (of_object.name, of_object.spec.description) == ("Forecast", "Forecasts by satellite.")
    assert (of_method.name, of_method.spec.description) == ("tomorrow", "What comes.")
    assert (of_static.name, of_static.spec.description) == ("never", "What does not come.")
    assert (of_partial.name, of_partial.spec.description) == ("tomorrow", "What comes.")
    assert of_object("Porto") == "Porto: rain"
    assert of_method("Porto") == "Porto: rain again"
    assert of_method.spec.input_schema["properties"] == {"city": {"type": "string", "description": "Where."}}
    assert of_partial.spec.input_schema["properties"] == {}
    assert "secret" not in str(of_partial.spec)


def test_a_cached_function_is_the_function_that_it_caches() -> None:
    @tool
    @functools.cache
    def square(number: int) -> int:
        """Square of a number."""
        return number * number

    assert (square.name, square.spec.description) == ("square", "Square of a number.")
    assert square.check({"number": 2})[1] == Verdict()
    assert square(2) == 4


async def test_what_a_partial_binds_is_passed_and_cannot_be_overruled_by_a_model() -> None:
    async def search(query: str, key: str) -> str:
        return f"{query} with {key}"

    bound = tool(functools.partial(search, key="secret"))
    assert await run(bound, {"query": "cats"}) == "cats with secret"
    assert "`key`" in refusal(bound, {"query": "cats", "key": "mine"})


def generator(city: str) -> Iterator[str]:
    yield city


async def async_generator(city: str) -> AsyncIterator[str]:
    yield city


def plain(city: str) -> str:
    return city


untyped_tool: Any = tool
"""Takes what a type checker would not let pass."""

NO_TOOLS: list[tuple[Any, str]] = [
    (generator, "'generator' is a generator"),
    (async_generator, "'async_generator' is a generator"),
    (functools.partial(generator, "x"), "is a generator"),
    (dict, "'dict' is a class"),
    ("weather", "not of str"),
    (add, "'add' is a tool already"),
    (lambda: None, "name of the tool '<lambda>'"),
]
NO_OPTIONS: list[tuple[str, Any, str]] = [
    ("name", "", "the name of the tool ''"),
    ("name", "a b", "the name of the tool 'a b'"),
    ("name", "wetter_für", "the name of the tool"),
    ("name", "a" * 65, "1 to 64 characters"),
    ("name", "weather\n", "the name of the tool"),
    ("name", 5, "the name of the tool 5"),
    ("description", 5, "the description of the tool 'plain'"),
    ("tier", "look", "the tier of the tool 'plain' must be \"observe\""),
    ("effect", "twice", "the effect of the tool 'plain' must be \"once\""),
    *(("timeout_s", wrong, "the timeout_s of the tool 'plain'") for wrong in (0, math.inf, math.nan, True, "5")),
    *(
        ("validate", wrong, "validator of the tool 'plain' must be a plain function")
        for wrong in (weather.function, "city")
    ),
    ("validate", lambda town: None, r"validator of the tool 'plain' must take .*\(city\)"),
    *(("display_name", wrong, "display_name of the tool") for wrong in (3, "x" * 101)),
]


@pytest.mark.parametrize(("function", "said"), NO_TOOLS)
def test_what_cannot_be_a_tool_is_refused_at_once(function: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        untyped_tool(function)


@pytest.mark.parametrize(("option", "value", "said"), NO_OPTIONS)
def test_an_option_that_cannot_work_is_refused_at_once(option: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        untyped_tool(**{option: value})(plain)


def test_the_names_that_every_provider_accepts_are_accepted_and_good_arguments_are_allowed_as_they_are() -> None:
    for name in ("a", "A-b_9", "a" * 64):
        assert tool(name=name)(plain).name == name
    arguments: JsonObject = {"city": "São Paulo 🌦", "days": 3}
    assert weather.check(arguments) == (arguments, Verdict())


def test_a_refusal_names_the_tool_the_place_and_what_was_expected() -> None:
    assert refusal(weather, {"city": "Lisbon", "days": "three"}) == (
        "The arguments of weather were refused, and it did not run: Expected `int`, got `str` - at `$.days`. "
        'You gave "three"; give a JSON value such as 1'
    )
    assert "Missing required field `city`" in refusal(weather, {})
    assert "Unknown field `town` (there are `city`, `days`)" in refusal(weather, {"city": "x", "town": "y"})


class Leg(msgspec.Struct):
    stop: str
    days: int = 1
    notes: str = ""


class Wishes(TypedDict, total=False):
    window: bool


@dataclasses.dataclass
class Bag:
    kilos: float = 7.5


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        ({"limit": None, "ratio": None, "wet": None, "word": None}, {}),
        ({"limit": "null", "maybe": None}, {"maybe": None}),
        (
            {"limit": "3", "ratio": "1.5", "wet": "true", "maybe": "4"},
            {"limit": 3, "ratio": 1.5, "wet": True, "maybe": 4},
        ),
        ({"ratio": "3", "limit": "3.0"}, {"ratio": 3.0, "limit": 3}),
        ({"limit": str(2**70), "ratio": str(2**64)}, {"limit": 2**70, "ratio": 2.0**64}),
        (
            {"legs": [{"stop": "x", "days": str(-(2**64))}], "either": str(2**64)},
            {"legs": [Leg("x", -(2**64))], "either": str(2**64)},
        ),
        ({"maybe": "null"}, {"maybe": None}),
        ({"word": "007", "either": "007"}, {"word": "007", "either": "007"}),
        ({"word": "null", "either": "null"}, {"word": "null", "either": "null"}),
        ({"legs": [{"stop": "5", "days": "2", "notes": None}]}, {"legs": [Leg("5", 2)]}),
        ({"legs": '[{"stop": "Faro", "days": null}]'}, {"legs": [Leg("Faro")]}),
        ({"wishes": {"window": None}, "bag": {"kilos": None}}, {"wishes": {}, "bag": Bag()}),
        ({"pair": ["1", "x"], "counts": {"a": "1"}}, {"pair": (1, "x"), "counts": {"a": 1}}),
    ],
)
async def test_arguments_whose_meaning_is_certain_are_taken(arguments: JsonObject, read: dict[str, object]) -> None:
    """Cases T17 and T51: null for what may be left out, and text that is exactly the JSON of the type."""
    defaults: dict[str, object] = {
        "limit": 10, "ratio": 0.5, "wet": False, "maybe": 5, "word": "owl", "either": 1, "legs": [], "wishes": None,
        "bag": None, "pair": None, "counts": None,
    }  # fmt: skip

    @tool(tier="observe", effect="pure")
    def search(
        limit: int = 10,
        ratio: float = 0.5,
        wet: bool = False,
        maybe: int | None = 5,
        word: str = "owl",
        either: int | str = 1,
        legs: list[Leg] = [],  # noqa: B006
        wishes: Wishes | None = None,
        bag: Bag | None = None,
        pair: tuple[int, str] | None = None,
        counts: dict[str, int] | None = None,
    ) -> dict[str, object]:
        return dict(locals())

    taken, verdict = search.check(arguments)
    assert verdict == Verdict()
    assert await run(search, taken) == {**defaults, **read}


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("limit", "three"),
        ("limit", "3.7"),
        ("limit", ""),
        ("limit", " "),
        ("ratio", "nan"),
        ("wet", "maybe"),
        ("wet", "1"),
        ("wet", "True"),
        ("limit", True),
        ("limit", 3.7),
        ("limit", "[3]"),
        ("count", None),
        ("count", "null"),
    ],
)
def test_arguments_whose_meaning_is_not_certain_are_refused(parameter: str, value: Json) -> None:
    @tool(tier="observe", effect="pure")
    def search(count: int, limit: int = 10, ratio: float = 0.5, wet: bool = False) -> str:
        return str((count, limit, ratio, wet))

    assert f"at `$.{parameter}`" in refusal(search, {"count": 1, parameter: value})


class Colour(Enum):
    RED = "r"
    BLUE = "b"


@pytest.mark.parametrize(
    ("parameter", "value", "said"),
    [
        ("days", "three", '"three"; give a JSON value such as 5'),
        ("days", "007", '"007"; give a JSON value such as 7'),
        ("days", "9" * 5000, f'"{"9" * 119}…; give a JSON value such as 5'),
        ("days", True, "true; give a JSON value such as 5"),
        ("days", 0, "0; give a JSON value such as 5"),
        ("wet", "True", '"True"; give a JSON value such as true'),
        ("when", "tomorrow", '"tomorrow"; give a JSON value such as "2026-01-31"'),
        ("colour", "green", '"green"; give one of "b", "r"'),
        ("legs", [{"days": 1}], '{"days":1}; give a JSON value such as {"stop":"text"}'),
        ("legs", [{"stop": "a", "days": "x"}], '"x"; give a JSON value such as 1'),
        ("legs", {"stop": "a"}, '{"stop":"a"}; give a JSON value such as [{"stop":"a"}]'),
        ("counts", {"a": 1, "b": "x"}, '"x"; give a JSON value such as 3'),
        ("word", 5, '5; give a JSON value such as "5"'),
        ("word", None, 'null; give a JSON value such as "text"'),
    ],
)
def test_a_refusal_says_what_was_given_and_gives_an_example(parameter: str, value: Json, said: str) -> None:
    @tool
    def plan(
        word: str,
        days: Annotated[int, msgspec.Meta(ge=1)] = 5,
        wet: bool = False,
        when: datetime.date | None = None,
        colour: Colour = Colour.RED,
        legs: list[Leg] | None = None,
        counts: dict[str, int] | None = None,
    ) -> None: ...

    assert refusal(plan, {"word": "owl", parameter: value}).endswith(f". You gave {said}")


async def test_a_schema_takes_an_integer_beyond_64_bits_as_text_as_the_refusal_of_the_number_says() -> None:
    schema: JsonObject = {"properties": {"n": {"type": "integer"}}}
    made = Tool.from_schema(name="double", description="", input_schema=schema, handler=lambda given: given["n"] * 2)
    assert await run(made, made.check({"n": str(2**64)})[0]) == 2**65


def test_null_for_what_a_given_schema_does_not_require_is_left_out() -> None:
    schema: JsonObject = {
        "properties": {"words": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["words"],
    }
    made = Tool.from_schema(name="search", description="", input_schema=schema, handler=lambda given: str(given))
    assert made.check({"words": "owls", "limit": None, "other": None})[0] == {"words": "owls", "other": None}
    assert "`$.words`" in refusal(made, {"words": None})


def positive(a: int, b: int) -> str | None:
    if a < 0:
        raise ValueError("a must not be negative")
    if b < 0:
        raise ToolError("b must not be negative")
    if a == 13:
        raise KeyError("13")
    return "a and b must differ" if a == b else None


def test_a_validator_refuses_with_the_text_that_it_returns_or_raises() -> None:
    checked = tool(validate=positive)(add.function)
    assert checked.check({"a": 1, "b": 2})[1] == Verdict()
    assert refusal(checked, {"a": -1, "b": 1}).endswith(": a must not be negative")
    assert refusal(checked, {"a": 1, "b": -1}).endswith(": b must not be negative")
    assert refusal(checked, {"a": 1, "b": 1}).endswith(": a and b must differ")
    assert refusal(checked, {"a": 13, "b": 1}).endswith(": KeyError: '13'")


def test_a_validator_sees_read_values_with_their_defaults_and_only_where_they_fit_the_types() -> None:
    seen: list[tuple[str, int]] = []
    checked = tool(validate=lambda city, days: seen.append((city, days)))(weather.function)
    checked.check({"city": "Lisbon"})
    refusal(checked, {"city": 1})
    assert seen == [("Lisbon", 1)]


async def validate_later() -> None: ...


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (lambda: True, "an object of type bool"),
        (lambda: ["bad"], "an object of type list"),
        (validate_later, "a coroutine"),  # And none is left behind.
    ],
)
def test_a_validator_that_returns_neither_none_nor_text_is_reported(said: Callable[[], Any], shown: str) -> None:
    reason = refusal(tool(validate=lambda city: said())(plain), {"city": "x"})
    assert reason.endswith(f": the tool's validator returned {shown}; it must return None or text")


def test_what_a_validator_says_is_made_clean_and_bounded() -> None:
    reason = refusal(tool(validate=lambda city: "\ud83d" + "x" * 10_000)(plain), {"city": "x"})
    assert "\ufffd" in reason
    assert len(reason) < 2_200


def test_what_the_users_own_types_raise_is_a_refusal() -> None:
    @dataclasses.dataclass
    class Odd:
        number: int

        def __post_init__(self) -> None:
            raise LookupError(f"nothing under {self.number}")

    @tool
    def find(odd: Odd) -> None: ...

    assert "LookupError: nothing under 7" in refusal(find, {"odd": {"number": 7}})


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=[])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(arguments=st.dictionaries(st.sampled_from(["city", "days", "rows", "other"]) | st.text(), ANY_JSON, max_size=4))
def test_checking_never_raises_and_what_it_allows_is_read_again_when_it_runs(arguments: JsonObject) -> None:
    ran: list[object] = []

    @tool
    async def store(city: str = "", days: int = 0, rows: list[dict[str, float]] | None = None) -> None:
        ran.append((city, days, rows))

    repaired, verdict = store.check(arguments)
    if verdict.verdict == "allow":
        asyncio.run(run(store, repaired))
        assert len(ran) == 1
        assert store.check(repaired) == (repaired, Verdict())
    else:
        assert verdict.verdict == "invalid_arguments"
        assert verdict.reason
        assert ran == []


async def test_a_sync_tool_runs_in_a_thread_with_the_callers_context_variables() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("seen")

    @tool
    def where() -> tuple[str, bool]:
        return variable.get(), threading.current_thread() is threading.main_thread()

    assert await run(where, {}) == ("seen", False)


async def test_a_coroutine_that_a_sync_tool_returns_is_awaited_on_the_loop() -> None:
    @tool
    def later() -> Coroutine[Any, Any, str]:
        async def value() -> str:
            asyncio.get_running_loop()
            return "now"

        return value()

    assert await run(later, {}) == "now"


async def test_the_context_is_given_and_its_dependencies_are_the_applications_own() -> None:
    @tool
    async def pay(amount: int, ctx: ToolContext[dict[str, int]]) -> str:
        ctx.deps["paid"] = amount
        return ctx.idempotency_key

    @tool
    def pay_in_a_thread(amount: int, *, ctx: ToolContext[dict[str, int]] | None = None) -> str:
        assert ctx is not None
        return f"{ctx.call}: {amount}"

    deps: dict[str, int] = {}
    assert await run(pay, {"amount": 5}, context(deps)) == "alice/call_4_0"
    assert deps == {"paid": 5}
    assert await run(pay_in_a_thread, {"amount": 5}, context(deps)) == "call_4_0: 5"


async def test_arguments_that_no_longer_fit_are_an_error_and_the_body_does_not_run() -> None:
    with pytest.raises(ToolError, match="Unknown field `town`"):
        await run(weather, {"town": "Lisbon"})


async def test_a_tool_that_changes_its_arguments_does_not_change_what_was_recorded() -> None:
    @tool
    async def sort(rows: list[object]) -> list[object]:
        rows.clear()
        return rows

    arguments: JsonObject = {"rows": [2, 1]}
    assert await run(sort, arguments) == []
    assert arguments == {"rows": [2, 1]}


def test_a29_people_are_shown_another_name_if_it_has_one() -> None:
    named = tool(display_name="Weather forecast", name="weather")(plain)
    assert (named.name, named.display_name, named.spec.display_name) == ("weather", *["Weather forecast"] * 2)
    assert tool(plain).display_name == "plain"
    options: dict[str, Any] = {"name": "look", "description": "", "input_schema": {"type": "object"}}
    handler: Any = lambda arguments: None  # noqa: E731
    assert Tool.from_schema(**options, handler=handler, display_name="Look").display_name == "Look"
    with pytest.raises(ConfigError, match="display_name of the tool"):
        Tool.from_schema(**options, handler=handler, display_name="x" * 101)
