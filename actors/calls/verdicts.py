"""What is recorded of a model's answer: its content in its kept form, a verdict on each call, why it cannot be used.

Part of the model effect (`refold.actors.agent.model`), so that user code may run here: the validation of arguments, the
policy, the check of a final answer. A replay asks the same of recorded answers.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import msgspec

from refold.actors.calls.policy import Policy, policy_verdicts, recovery_text
from refold.actors.calls.protocols import ToolRunner
from refold.actors.calls.results import error_words
from refold.events.core.cleaning import clean_json, clean_text
from refold.events.core.content import JsonObject, TextBlock, ToolUseBlock, tool_uses
from refold.events.core.errors import AgentLoopError, CommandRejected
from refold.events.model.configuration import AgentConfiguration, RecoveryFunction, ToolSpec
from refold.events.model.messages import ModelResponse, ToolUse
from refold.events.model.run_context import RunContext
from refold.events.session.events import Verdict
from refold.events.session.normalise import NormalisedResponse, recorded_answer

log = logging.getLogger("refold.model")

CheckOutput: TypeAlias = Callable[[str, RunContext[Any]], Awaitable[str | None]]
"""Returns why a final answer's text cannot be used, in words for the model, or None where it can; raises what user code
raises that fails on it."""

CheckSchema: TypeAlias = Callable[[str, AgentConfiguration], str | None]
"""Returns the same of an answer whose run has a schema of its own."""

MESSAGE_CHARACTERS_MAX = 2_000
"""An error's text is cut after so many characters before it is recorded."""


def final_text(response: ModelResponse) -> str | None:
    """Return the text of a final answer; None where it calls tools, goes on, or says nothing."""
    calls = any(isinstance(block, ToolUse | ToolUseBlock) for block in response.content)
    text = "".join(block.text for block in response.content if isinstance(block, TextBlock))
    return None if calls or response.stop_reason == "pause_turn" or not text.strip() else text


class AnswerRules:
    """What one agent's answers must be."""

    def __init__(
        self,
        tools: ToolRunner,
        policy: Policy | None,
        output_check: CheckOutput | None,
        recovery: RecoveryFunction | None = None,
        schema_check: CheckSchema | None = None,
    ) -> None:
        self._schema_check = schema_check
        self._recovery = recovery
        self._tools = tools
        self._policy = policy
        self._output_check = output_check

    async def answer(
        self, response: ModelResponse, where: RunContext[Any], tools: Sequence[ToolSpec], offered: Sequence[ToolSpec]
    ) -> NormalisedResponse:
        """Return what is recorded of a response, large blocks spilled to payloads."""
        answer = await policy_verdicts(
            recorded_answer(response, self._check),
            self._policy,
            where=where,
            tools=tools,
            offered=offered,
        )
        broken = [verdict for verdict in answer.verdicts if verdict.verdict == "broken"]
        if self._recovery is None or not broken:
            return answer
        named = zip(tool_uses(answer.content), answer.verdicts, strict=True)
        names = [use.name for use, verdict in named if verdict.verdict == "broken"]
        said = await recovery_text(self._recovery, where.session, names, AgentLoopError(broken[0].reason))
        verdicts = tuple(
            msgspec.structs.replace(verdict, recovery=said) if verdict.verdict == "broken" else verdict
            for verdict in answer.verdicts
        )
        return msgspec.structs.replace(answer, verdicts=verdicts)

    async def rejection(
        self, response: ModelResponse, where: RunContext[Any], configuration: AgentConfiguration
    ) -> str:
        """Return why an answer cannot be used as a whole, in words for the model; empty where it can be.

        Args:
            response: as it came.
            where: whose it is.
            configuration: the run's; with a schema of the run's own, that alone counts.
        """
        if response.rejected:
            return clean_text(response.rejected)[:MESSAGE_CHARACTERS_MAX]
        text = final_text(response)
        if text is None:
            return ""
        if configuration.output_instruction is not None:
            said = self._schema_check(text, configuration) if self._schema_check is not None else None
            return clean_text(said or "")[:MESSAGE_CHARACTERS_MAX]
        if self._output_check is None:
            return ""
        return clean_text(await self._output_check(text, where) or "")[:MESSAGE_CHARACTERS_MAX]

    def _check(self, name: str, arguments: JsonObject) -> tuple[JsonObject, Verdict]:
        return _checked(self._tools, name, arguments)


def _checked(tools: ToolRunner, name: str, arguments: JsonObject) -> tuple[JsonObject, Verdict]:
    try:
        return tools.check(name, arguments)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # The border to user code: nothing is known of the call, so it must not run.
        log.exception("the arguments of a call of %s cannot be checked", name)
        return arguments, Verdict(verdict="broken", reason=f"The arguments cannot be checked: {error_words(error)}")


def changed_arguments(tools: ToolRunner, name: str, arguments: object) -> JsonObject:
    """Return the arguments that a person gives a call in place of the model's, as they are recorded.

    A model's arguments are repaired where their meaning is certain; a person's are what they say, so that what was
    approved is what runs.

    Raises:
        CommandRejected: they cannot be recorded, or do not fit the tool.
    """
    given = given_arguments(arguments)
    fitting, verdict = _checked(tools, name, given)
    if verdict.verdict != "allow":
        raise CommandRejected(f"the call waits on, since its new arguments cannot be used. {verdict.reason}")
    repaired = msgspec.json.encode(fitting)
    if repaired != msgspec.json.encode(given):
        raise CommandRejected(f"the call waits on; {name} would read its new arguments as {repaired.decode():.500}")
    return given


def given_arguments(arguments: object) -> JsonObject:
    """Return arguments in a form that can be recorded; or raise CommandRejected."""
    if not isinstance(arguments, Mapping):
        raise CommandRejected(f"the arguments of a call are an object, not {type(arguments).__name__}")
    return cast("JsonObject", clean_json(dict(cast("Mapping[object, object]", arguments)), "arguments"))
