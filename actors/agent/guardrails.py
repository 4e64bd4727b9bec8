"""Guardrails: named functions that look at what is said, and at final answers, and may let either not pass.

An input guardrail runs in the model effect before all else: of a run on which it trips, no model is asked. One that
runs in parallel is asked beside the model call, whose answer waits for it. It is shown all that users said and no model
has answered yet, so that nothing gets past it: an input that joined the run, or one whose run ended before its first
answer. An output guardrail is shown a final answer that is accepted. What tripped is recorded with the guardrail's
name, and a replay asks today's guardrails the same.

The rule: a guardrail that raises, or returns anything but None, Allow or Deny, fails the run and lets nothing pass.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast, overload

from refold.actors.calls.conversation import own_copy
from refold.actors.calls.policy import Allow, Deny, final_text
from refold.actors.calls.results import answer_of_user_code
from refold.events.core.cleaning import recorded_reason
from refold.events.core.content import Message
from refold.events.core.errors import AgentLoopError, ConfigError, unquoted
from refold.events.core.ids import checked_identifier
from refold.events.model.configuration import AgentConfiguration
from refold.events.model.messages import ModelResponse
from refold.events.model.refused import GuardrailTrip, inputs_unanswered
from refold.events.model.run_context import RunContext

G = TypeVar("G")
T = TypeVar("T")

GuardrailDecision: TypeAlias = Allow | Deny | None
"""`Deny(reason)` trips the guardrail; `Allow()` and None let pass."""

Judging: TypeAlias = Callable[[RunContext[Any], G], GuardrailDecision | Awaitable[GuardrailDecision]]
"""Looks at something; a plain function runs on the loop and must return quickly."""


@dataclasses.dataclass(frozen=True)
class Guardrail(Generic[G]):
    """A named function that may let an input or an answer not pass; made by `guardrail`.

    Attributes:
        name: the log, outcomes and errors call it so.
        function: given the context and what is judged, returns `Deny(reason)` where it does not pass.
        run_in_parallel: beside the model call, of which nothing is shown or done before all such guardrails let pass.

    Raises:
        ConfigError: the name cannot be one, or the function is none.
    """

    name: str
    function: Judging[G]
    run_in_parallel: bool = False

    def __post_init__(self) -> None:
        checked_identifier(self.name, "guardrail name")
        if not callable(self.function):
            raise ConfigError(f"the guardrail {self.name!r} must be a function, not {type(self.function).__name__}")


@overload
def guardrail(function: Judging[G], /) -> Guardrail[G]: ...


@overload
def guardrail(*, name: str = "", run_in_parallel: bool = False) -> Callable[[Judging[G]], Guardrail[G]]: ...


def guardrail(
    function: Judging[G] | None = None, /, *, name: str = "", run_in_parallel: bool = False
) -> Guardrail[G] | Callable[[Judging[G]], Guardrail[G]]:
    """Make a guardrail of a function, for `Agent(input_guardrails=…)` or `Agent(output_guardrails=…)`.

    Args:
        function: plain or async; is given a `RunContext` and, of inputs, one `Message` with all that users said and no
            model has answered; of answers, the value of the agent's `output_type`, or the text where the agent, or the
            run, has none.
        name: by which it is known; empty = the function's.
        run_in_parallel: it is asked beside the model call instead of before it: the answer comes as soon, but what a
            model is told, and costs, it cannot prevent. Nothing of the answer is shown or done before it lets pass,
            and where it trips, the model call is cancelled. Of input guardrails only.

    Raises:
        ConfigError: the name cannot be one.

    Example:
        >>> @guardrail
        ... def no_cards(context: RunContext[Any], said: Message) -> GuardrailDecision:
        ...     return Deny("a card number") if "4111" in said.text else None
    """

    def made(function: Judging[G]) -> Guardrail[G]:
        return Guardrail(name or getattr(function, "__name__", ""), function, run_in_parallel)

    return made if function is None else made(function)


def checked_guardrails(field: str, guardrails: Sequence[object]) -> None:
    """Return if all are guardrails of different names, and only those of inputs run in parallel."""
    names: set[str] = set()
    for each in guardrails:
        if not isinstance(each, Guardrail):
            raise ConfigError(f"Agent.{field} must hold guardrails, not {unquoted(each)}; decorate it with @guardrail")
        if each.name in names:
            raise ConfigError(f"two of Agent.{field} are named {each.name!r}; give one another name=")
        if each.run_in_parallel and field != "input_guardrails":
            raise ConfigError(f"{each.name!r} of Agent.{field} cannot run in parallel: there is no answer to judge yet")
        names.add(each.name)


class InputTripped(Exception):
    """An input guardrail has tripped, so that no answer is wanted."""

    def __init__(self, trip: GuardrailTrip) -> None:
        super().__init__(str(trip))
        self.trip = trip


class Guardrails:
    """The guardrails of one agent. The first in their order that trips is told, also of those that run in parallel.

    Args:
        of_input: shown what users said.
        of_output: shown final answers.
        read: returns what the text of a final answer says, as the agent's `output_type`.
    """

    def __init__(
        self,
        of_input: Sequence[Guardrail[Message]] = (),
        of_output: Sequence[Guardrail[Any]] = (),
        read: Callable[[str], object] = str,
    ) -> None:
        self._first = tuple(each for each in of_input if not each.run_in_parallel)
        self._beside = tuple(each for each in of_input if each.run_in_parallel)
        self._of_output = tuple(of_output)
        self._read = read

    @property
    def judge_inputs(self) -> bool:
        return bool(self._first or self._beside)

    async def on_input(
        self, where: RunContext[Any], messages: Sequence[Message], answered: int
    ) -> GuardrailTrip | None:
        """Return which guardrail does not let pass what users have said and no model has answered.

        `messages` are the history as a model is shown it, of which so many were in a request that was answered.
        """
        said = _unanswered(messages, answered) if self.judge_inputs else None
        if said is None:
            return None
        return await _first_trip("input", (*self._first, *self._beside), where, lambda: own_copy(said))

    async def around(
        self,
        where: RunContext[Any],
        messages: Sequence[Message],
        answered: int,
        call: Callable[[], Awaitable[T]],
        passed: Callable[[], None],
    ) -> T:
        """Return what the model call returns, made once those of input let pass, or beside those that run in parallel.

        One that trips raises InputTripped, and the model call was not made, or was cancelled. `passed` is called as
        soon as all let pass, at the latest before this returns. For the other arguments see `on_input`.
        """
        said = _unanswered(messages, answered) if self.judge_inputs else None
        if said is None:
            passed()
            return await call()
        given = said
        trip = await _first_trip("input", self._first, where, lambda: own_copy(given))
        if trip is not None:
            raise InputTripped(trip)
        if not self._beside:
            passed()
            return await call()

        async def judge() -> None:
            found = await _first_found([_found(each, where, own_copy(given)) for each in self._beside])
            if found is not None:
                raise found
            passed()

        try:
            async with asyncio.TaskGroup() as group:
                judging = group.create_task(judge())
                try:
                    made, failure = await call(), None
                except Exception as error:  # noqa: BLE001 - raised below, once the input is judged
                    made, failure = None, error
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None
        if judging.cancelled():  # By other code; a group passes over that.
            raise AgentLoopError("the input guardrails beside the model call were cancelled before they had judged")
        if failure is not None:
            raise failure
        return cast("T", made)

    async def on_output(
        self, response: ModelResponse, where: RunContext[Any], configuration: AgentConfiguration
    ) -> GuardrailTrip | None:
        """Return which guardrail does not let an accepted answer pass, if it is a final one."""
        text = final_text(response)
        if text is None or not self._of_output:
            return None
        read = str if configuration.output_instruction is not None else self._read
        return await _first_trip("output", self._of_output, where, lambda: read(text))


def _unanswered(messages: Sequence[Message], answered: int) -> Message | None:
    places = inputs_unanswered(messages, answered)
    if not places:
        return None
    return Message("user", tuple(block for place in places for block in messages[place].content))


async def _found(each: Guardrail[Any], where: RunContext[Any], said: Message) -> Exception | None:
    try:
        trip = await _first_trip("input", [each], where, lambda: said)
    except AgentLoopError as error:
        return error
    return InputTripped(trip) if trip is not None else None


async def _first_found(judging: Sequence[Coroutine[Any, Any, Exception | None]]) -> Exception | None:
    """Return what the first of several that run beside each other has found; the others are cancelled then."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in judging]
        for task in tasks:
            found = await task
            if found is not None:
                for other in tasks:
                    other.cancel()
                return found
    return None


def _judged(each: Guardrail[Any], where: RunContext[Any], value: Callable[[], object]) -> object:
    return each.function(where, value())


async def _first_trip(
    on: Literal["input", "output"],
    guardrails: Sequence[Guardrail[Any]],
    where: RunContext[Any],
    value: Callable[[], object],
) -> GuardrailTrip | None:
    for each in guardrails:
        # Nothing passes of which it has not judged.
        said = await answer_of_user_code(f"the {on} guardrail {each.name!r}", _judged, each, where, value)
        match said:
            case None | Allow():
                continue
            case Deny(reason=reason):
                return GuardrailTrip(guardrail=each.name, on=on, reason=recorded_reason(reason))
            case _:
                gave = type(said).__name__
                raise AgentLoopError(f"the {on} guardrail {each.name!r} gave {gave} instead of None, Allow or Deny")
    return None
