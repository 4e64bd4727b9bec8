"""Guardrails: named functions that look at what is said, and at final answers, and may let either not pass.

An input guardrail runs in the model effect before all else: of a run on which it trips, no model is asked. It is shown
all that users said and no model has answered yet, so that nothing reaches a model past it: an input that joined the
run, or one whose run ended before its first answer. An output guardrail is shown a final answer that is accepted. What
tripped is recorded with the guardrail's name, and a replay asks today's guardrails the same.

The rule: a guardrail that raises, or returns anything but None, Allow or Deny, fails the run and lets nothing pass.
"""

import asyncio
import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, Literal, TypeAlias, TypeVar, overload

from refold.actors.calls.conversation import own_copy
from refold.actors.calls.policy import Allow, Deny
from refold.actors.calls.results import error_words
from refold.actors.calls.verdicts import final_text
from refold.events.core.cleaning import recorded_reason
from refold.events.core.content import Message
from refold.events.core.errors import AgentLoopError, ConfigError
from refold.events.core.ids import checked_identifier
from refold.events.model.configuration import AgentConfiguration
from refold.events.model.messages import ModelResponse
from refold.events.model.refused import GuardrailTrip, inputs_unanswered
from refold.events.model.run_context import RunContext

G = TypeVar("G")

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

    Raises:
        ConfigError: the name cannot be one, or the function is none.
    """

    name: str
    function: Judging[G]

    def __post_init__(self) -> None:
        checked_identifier(self.name, "guardrail name")
        if not callable(self.function):
            raise ConfigError(f"the guardrail {self.name!r} must be a function, not {type(self.function).__name__}")


@overload
def guardrail(function: Judging[G], /) -> Guardrail[G]: ...


@overload
def guardrail(*, name: str) -> Callable[[Judging[G]], Guardrail[G]]: ...


def guardrail(
    function: Judging[G] | None = None, /, *, name: str = ""
) -> Guardrail[G] | Callable[[Judging[G]], Guardrail[G]]:
    """Make a guardrail of a function, for `Agent(input_guardrails=…)` or `Agent(output_guardrails=…)`.

    Args:
        function: plain or async; is given a `RunContext` and, of inputs, one `Message` with all that users said and no
            model has answered; of answers, the value of the agent's `output_type`, or the text where the agent, or the
            run, has none.
        name: by which it is known; empty = the function's.

    Raises:
        ConfigError: the name cannot be one.

    Example:
        >>> @guardrail
        ... def no_cards(context: RunContext[Any], said: Message) -> GuardrailDecision:
        ...     return Deny("a card number") if "4111" in said.text else None
    """

    def made(function: Judging[G]) -> Guardrail[G]:
        return Guardrail(name or getattr(function, "__name__", ""), function)

    return made if function is None else made(function)


def checked_guardrails(field: str, guardrails: Sequence[object]) -> None:
    """Return if all are guardrails of different names.

    Raises:
        ConfigError: one is not.
    """
    names: set[str] = set()
    for each in guardrails:
        if not isinstance(each, Guardrail):
            raise ConfigError(f"Agent.{field} must hold guardrails, not {each!r:.80}; decorate it with @guardrail")
        if each.name in names:
            raise ConfigError(f"two of Agent.{field} are named {each.name!r}; give one another name=")
        names.add(each.name)


class Guardrails:
    """The guardrails of one agent, asked in their order until one trips.

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
        self.judge_inputs = bool(of_input)
        self._of_input = tuple(of_input)
        self._of_output = tuple(of_output)
        self._read = read

    async def on_input(
        self, where: RunContext[Any], messages: Sequence[Message], answered: int
    ) -> GuardrailTrip | None:
        """Return which guardrail does not let pass what users have said and no model has answered.

        Args:
            where: whose it is.
            messages: the history, in the form in which a model is shown it.
            answered: how many of them were in a request that was answered, or are its answer.

        Raises:
            AgentLoopError: one failed.
        """
        places = inputs_unanswered(messages, answered) if self.judge_inputs else ()
        if not places:
            return None
        said = Message("user", tuple(block for place in places for block in messages[place].content))
        return await _first_trip("input", self._of_input, where, lambda: own_copy(said))

    async def on_output(
        self, response: ModelResponse, where: RunContext[Any], configuration: AgentConfiguration
    ) -> GuardrailTrip | None:
        """Return which guardrail does not let an accepted answer pass, if it is a final one.

        Raises:
            AgentLoopError: one failed.
        """
        text = final_text(response)
        if text is None or not self._of_output:
            return None
        read = str if configuration.output_instruction is not None else self._read
        return await _first_trip("output", self._of_output, where, lambda: read(text))


async def _first_trip(
    on: Literal["input", "output"],
    guardrails: Sequence[Guardrail[Any]],
    where: RunContext[Any],
    value: Callable[[], object],
) -> GuardrailTrip | None:
    for each in guardrails:
        try:
            said = each.function(where, value())
            if inspect.isawaitable(said):
                said = await said
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # The border to user code: nothing passes of which it has not judged.
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            raise AgentLoopError(f"the {on} guardrail {each.name!r} failed: {error_words(error)}") from error
        match said:
            case None | Allow():
                continue
            case Deny(reason=reason):
                return GuardrailTrip(guardrail=each.name, on=on, reason=recorded_reason(reason))
            case _:
                gave = type(said).__name__
                raise AgentLoopError(f"the {on} guardrail {each.name!r} gave {gave} instead of None, Allow or Deny")
    return None
