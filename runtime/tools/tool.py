"""Tools as their users write them: `@tool` on a typed function, or `Tool.from_schema` for one described elsewhere.

Read `tool` first, then `Tool.check` and `Tool.run`, which are what Refold calls. How arguments are described and read
is in `refold.tools.signature` and `refold.tools.schema`. The rules: checking never raises and never runs the body, and
arguments that pass the check are those that the body gets. A synchronous body runs in a thread (`run_in_thread`); a
thread cannot be interrupted, so a cancelled run waits for the body's end and records its value as late evidence.
"""

import asyncio
import hashlib
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import WRAPPER_ASSIGNMENTS
from typing import Any, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, Unpack, cast, overload

from refold.actors.calls.middleware import CallRefused
from refold.actors.calls.protocols import NO_RULES, ToolRules
from refold.actors.calls.results import DEFAULT_RESULT_LIMIT, WithLimit
from refold.actors.calls.tool_context import ToolContext
from refold.actors.thread_pool import LateOutcome, ThreadPool
from refold.events.core.cleaning import clean_text, error_words, text_of_error
from refold.events.core.content import JsonObject
from refold.events.core.errors import ConfigError, ToolError
from refold.events.model.configuration import ToolSpec
from refold.events.session.events import Verdict
from refold.memory.stream_object import StreamObject
from refold.tools.definition import (
    ActionName,
    ToolOptions,
    Validator,
    check_function,
    check_options,
    checked_result_limit,
    checked_rules,
    checked_spec,
    checked_validator,
    docstring_of,
    name_of,
)
from refold.tools.dry_run import require_outside
from refold.tools.examples import taught
from refold.tools.schema import DescribedArguments, InputSchema
from refold.tools.signature import Signature, check_result, context_parameters, entry_of, first_paragraph

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

ACTION_CHARACTERS_MAX = 500
"""A longer name of an action is cut, and ends with its hash, so that two long ones are never taken for one."""

REASON_CHARACTERS_MAX = 2_000
"""The text of what is wrong with arguments is cut after so many characters."""


class Arguments(Protocol):
    """How a tool's arguments are described and read."""

    input: InputSchema

    def read(self, arguments: JsonObject) -> dict[str, object]:
        """Return the values by name; nothing in them is shared with `arguments`.

        Raises:
            ToolError: they do not fit; says where and what was expected.
        """
        ...


ToolBody: TypeAlias = Callable[[dict[str, object], ToolContext[object]], object]
"""Calls a tool's function with checked arguments; an async one gives an awaitable."""


@dataclass(frozen=True, eq=False, repr=False)
class Tool(Generic[P, R_co]):
    """A function that a model may call, made by `tool` or `Tool.from_schema`.

    Calling it calls the function itself, unchecked; so it can be tested, and used, like any function.

    Attributes:
        spec: what a model is told of it, and how it runs.
        function: the function itself.
        result_limit: how many bytes of a result's text a model is shown; None = all.
        rules: how its calls are carried out in a runtime.
        wants_deps: what type of `ToolContext.deps` it must have, in words; empty = it may be called without.
    """

    spec: ToolSpec
    function: Callable[P, R_co]
    _arguments: Arguments
    _body: ToolBody
    _validate: Validator | None
    _action: ActionName | None = None
    result_limit: int | None = DEFAULT_RESULT_LIMIT
    rules: ToolRules = NO_RULES
    wants_deps: str = ""

    def __post_init__(self) -> None:
        for name in WRAPPER_ASSIGNMENTS:
            if hasattr(self.function, name):
                object.__setattr__(self, name, getattr(self.function, name))
        object.__setattr__(self, "__wrapped__", self.function)

    def __repr__(self) -> str:
        return f"<Tool {self.name} of {self.origin}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        require_outside(f"the tool {self.name}")
        return self.function(*args, **kwargs)

    @property
    def name(self) -> str:
        """The name by which a model calls it."""
        return self.spec.name

    @property
    def display_name(self) -> str:
        """The name by which people are shown it."""
        return self.spec.display_name or self.spec.name

    @property
    def stream_objects(self) -> tuple[StreamObject[Any, Any, Any], ...]:
        """What of it lives on a runtime's log: its breaker."""
        return (self.rules.breaker,) if isinstance(self.rules.breaker, StreamObject) else ()

    @property
    def origin(self) -> str:
        """Where its function is written, such as `app.weather.forecast`."""
        entry = entry_of(self.function)
        return f"{getattr(entry, '__module__', '?')}.{getattr(entry, '__qualname__', '?')}"

    def check(self, arguments: JsonObject) -> tuple[JsonObject, Verdict]:
        """Return the arguments as `run` is to get them, repaired where their meaning is certain, and the verdict.

        It never raises an `Exception`: what the user's validator or types raise is in the verdict, for the model.
        """
        repaired = arguments
        try:
            repaired = self._arguments.input.repaired(arguments)
            problem = self._problem(self._arguments.read(repaired))
        except (ToolError, ValueError) as error:
            problem = taught(self._arguments.input, repaired, text_of_error(error) or type(error).__name__)
        except Exception as error:  # noqa: BLE001 - The border to the user's validator and types.
            problem = error_words(error)
        if problem is None:
            return repaired, self._permitted(repaired)
        text = clean_text(problem)[:REASON_CHARACTERS_MAX]
        reason = f"The arguments of {self.name} were refused, and it did not run: {text}"
        return repaired, Verdict(verdict="invalid_arguments", reason=reason)

    async def run(self, arguments: JsonObject, context: ToolContext[object], pool: ThreadPool) -> object:
        """Run the body and return what it returned, with its limit if it has one of its own.

        A synchronous body runs in a thread of `pool`.

        Raises:
            CallRefused: it works with `deps`, and there are none.
            ToolError: the arguments do not fit, since the tool changed after they were checked.
            Exception: what the body raised.
        """
        require_outside(f"the tool {self.name}")
        value = await self.run_body(arguments, context, pool)
        return value if self.result_limit == DEFAULT_RESULT_LIMIT else WithLimit(value, self.result_limit)

    async def run_body(self, arguments: JsonObject, context: ToolContext[object], pool: ThreadPool) -> object:
        """Return what the body returns, without its limit; in a dry run too, where it may not act. Raises as `run`."""
        if self.wants_deps and context.deps is None:
            what = f"the tool {self.name} works with deps of the type {self.wants_deps}, and there are none"
            raise CallRefused(f"{what}; give Agent(deps=…), or deps with the session or the input", broken=True)
        values = self._arguments.read(arguments)
        if inspect.iscoroutinefunction(entry_of(self.function)):
            result = self._body(values, context)
        else:
            result = await run_in_thread(
                lambda: self._body(values, context), name=f"tool {self.name}", context=context, pool=pool
            )
        return await result if inspect.isawaitable(result) else result

    def carried_out_by(
        self, carry_out: Callable[[ToolBody, dict[str, object], ToolContext[object]], Awaitable[object]]
    ) -> "Tool[..., object]":
        """Return the same tool, but that `carry_out` runs its body: on the loop, given the arguments and context."""

        async def body(values: dict[str, object], context: ToolContext[object]) -> object:
            return await carry_out(self._body, values, context)

        return replace(cast("Tool[..., object]", self), function=body, _body=body, wants_deps="")

    def _permitted(self, arguments: JsonObject) -> Verdict:
        if self._action is None:
            return Verdict()
        try:
            action = cast("object", self._action(**self._arguments.read(arguments)))
        except Exception as error:  # noqa: BLE001 - The border to user code: nobody knows what would be allowed.
            return self._not_known(error_words(error))
        if not isinstance(action, str):
            return self._not_known(f"its `action` returned {_kind_of(action)}; it must return text")
        if not action.strip():
            return self._not_known("its `action` returned an empty text")
        return Verdict(action=f"{self.name}: {_shortened(clean_text(action))}")

    def _not_known(self, why: str) -> Verdict:
        return Verdict(verdict="broken", reason=f"The action of {self.name} is not known: {why:.200}")

    def _problem(self, values: dict[str, object]) -> str | None:
        if self._validate is None:
            return None
        said = cast("object", self._validate(**values))
        if said is None or isinstance(said, str):
            return said
        return f"the tool's validator returned {_kind_of(said)}; it must return None or text"

    @classmethod
    def from_schema(
        cls,
        *,
        name: str,
        description: str,
        input_schema: JsonObject,
        handler: Callable[Q, R],
        **options: Unpack[ToolOptions],
    ) -> "Tool[Q, R]":
        """Return a tool that is described by a JSON schema, as tools of other systems are.

        Args:
            name: 1 to 64 characters out of `a-z A-Z 0-9 _ -`.
            description: what a model is told.
            input_schema: an object schema, copied. Types, enumerations, required and unknown fields and nested schemas
                are checked (docs/results.md lists the keywords); further ones are left to the handler.
            handler: sync or async; gets the arguments as one dict of its own and, in a further parameter annotated so,
                the `ToolContext`.
            **options: those of `tool`, which describes them.

        Raises:
            ConfigError: something of it cannot work; names the tool.
        """
        check_options(name, options, ToolOptions)
        check_function(handler, name)
        contexts, wants_deps = context_parameters(handler, tool=name)
        arguments = DescribedArguments(InputSchema(input_schema, tool=name))
        try:
            inspect.signature(handler).bind({}, **dict.fromkeys(contexts))
        except TypeError as error:
            raise ConfigError(
                f"the handler of the tool {name!r} must take the arguments as one dict: {error}"
            ) from None
        call = cast("Callable[..., object]", handler)
        return _made(
            handler,
            checked_spec(
                name,
                description,
                arguments.input.schema,
                options,
                effect=options.get("effect", "once"),
                retries=options.get("retries"),
            ),
            arguments,
            lambda values, context: call(values, **dict.fromkeys(contexts, context)),
            options,
            wants_deps=wants_deps,
        )

    @classmethod
    def from_spec(cls, spec: ToolSpec, handler: Callable[Q, R]) -> "Tool[Q, R]":
        """Return a tool that is described as another one, such as a log has it, with a body of its own.

        Raises:
            ConfigError: as `from_schema`.
        """
        return cls.from_schema(
            name=spec.name,
            description=spec.description,
            input_schema=spec.input_schema,
            handler=handler,
            tier=spec.tier,
            effect=spec.effect,
            timeout_s=spec.timeout_s,
            display_name=spec.display_name,
        )


def _made(
    function: Callable[P, R],
    spec: ToolSpec,
    arguments: Arguments,
    body: ToolBody,
    options: ToolOptions,
    names: tuple[str, ...] | None = None,
    *,
    wants_deps: str,
) -> Tool[P, R]:
    return Tool(
        spec,
        function,
        arguments,
        body,
        checked_validator(options.get("validate"), spec.name, names),
        checked_validator(options.get("action"), spec.name, names, role="action"),
        checked_result_limit(spec.name, options),
        checked_rules(spec, options.get("breaker"), options.get("concurrency")),
        wants_deps,
    )


def _kind_of(returned: object) -> str:
    """Return what a user's function returned, in words that are the same in each process; no coroutine is left open."""
    if inspect.iscoroutine(returned):
        returned.close()
        return "a coroutine"
    return f"an object of type {type(returned).__name__}"


def _shortened(action: str) -> str:
    if len(action) <= ACTION_CHARACTERS_MAX:
        return action
    return f"{action[: ACTION_CHARACTERS_MAX - 66]}… {hashlib.sha256(action.encode()).hexdigest()}"


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(
    *, name: str | None = None, description: str | None = None, **options: Unpack[ToolOptions]
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    **options: Unpack[ToolOptions],
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Make a tool of a typed function, sync or async: `@tool` or `@tool(tier="observe", effect="pure")`.

    The schema comes from the signature. Parameters are described by the docstring's "Args:" section, or by
    `Annotated[int, "what it is"]`, or by `msgspec.Meta`, which can also bound them. A parameter annotated `ToolContext`
    gets the call's context and is no part of the schema. A synchronous function runs in a thread.

    Args:
        function: a function, bound method, partial or object with `__call__`.
        name: 1 to 64 characters out of `a-z A-Z 0-9 _ -`; the function's own if None.
        description: what a model is told; the docstring's first paragraph if None.
        **options: the following ones.
        tier: `act` (runs alone, in order; the default), `observe` (in parallel with others) or `confirm` (after an
            approval).
        effect: what running it again would mean: `once` (the default), `idempotent` or `pure`.
        timeout_s: longest silence of a running call in seconds, > 0; progress counts as activity. 120 if not given.
        validate: gets a call's arguments by name, and returns what is wrong with them as text for the model, or None;
            synchronous. A ValueError or ToolError that it raises counts as such a text.
        action: gets the arguments likewise and names what the call does, such as `delete reports/`: a call that is
            allowed always allows later ones of the same name. None = every call of the tool is the same action.
        display_name: what people are shown instead of the name; empty = the name.
        result_limit: how many UTF-8 bytes of a result's text a model is shown; of a longer one it sees the beginning
            and the end, and the log keeps all of it (`refold.actors.calls.results`). None = all, and images of any
            size.
        breaker: keeps calls away while the tool fails, such as a `CircuitBreaker`; in a runtime, it lives on the log.
        retries: how a call that failed in a way that may pass (a transient error, or silence) is tried again, with the
            same idempotency key: at most `attempts_max` attempts in all, counted in the log over crashes, with pauses
            that are recorded. None = never. Refused where `effect` is `once`.
        concurrency: most bodies that run at once, over all sessions; None = any number. Further calls wait, which is
            not silence. A body that ignores its cancellation is not counted once it is given up.

    Raises:
        ConfigError: something of it cannot work; names the tool and the parameter.
    """

    def decorate(function: Callable[P, R]) -> Tool[P, R]:
        shown = name if isinstance(name, str) else name_of(function)
        if isinstance(function, Tool):
            raise ConfigError(f"{function.name!r} is a tool already; make another one of its .function")
        check_options(shown, options, ToolOptions)
        check_function(function, shown)
        signature = Signature(function, tool=shown)
        check_result(function, tool=shown)
        told = first_paragraph(docstring_of(function)) if description is None else description
        spec = checked_spec(
            shown if name is None else name,
            told,
            signature.input.schema,
            options,
            effect=options.get("effect", "once"),
            retries=options.get("retries"),
        )
        call = cast("Callable[..., object]", function)
        contexts = signature.context_names
        return _made(
            function,
            spec,
            signature,
            lambda values, context: call(**values, **dict.fromkeys(contexts, context)),
            options,
            signature.names,
            wants_deps=signature.wants_deps,
        )

    return decorate if function is None else decorate(function)


async def run_in_thread(call: Callable[[], R], *, name: str, context: ToolContext[object], pool: ThreadPool) -> R:
    """Return what `call` returns in a thread of `pool`, with this task's context variables.

    Cancelled with the run's token, it goes on until the thread has ended; a body that no thread has begun is never
    begun. Cancelled without the token, or once more, it raises at once and leaves the thread to itself.

    Raises:
        CallRefused: the machine has no thread to give.
        ConfigError: the pool is closed.
        asyncio.CancelledError: the task was cancelled, or the body raised it.
        RuntimeError: the body raised SystemExit or the like.
        Exception: what else the body raised.
    """
    ended: asyncio.Future[LateOutcome[R]] = asyncio.get_running_loop().create_future()

    def keep(outcome: LateOutcome[R]) -> None:
        if not ended.done():
            ended.set_result(outcome)

    try:
        work = pool.submit(call, name=name)
    except RuntimeError as error:  # The machine has no thread to give.
        raise CallRefused(f"No thread could be started for {name}: {error}", broken=True) from error
    try:
        return await work
    except asyncio.CancelledError:
        if not work.abandon(keep):
            return await work  # its end came first, or it was never begun, which raises
        if not context.cancel.cancelled:
            raise
    outcome = await ended
    if outcome.error is not None:
        raise outcome.error
    return cast("R", outcome.value)
