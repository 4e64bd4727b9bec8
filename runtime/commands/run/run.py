"""`refold run [AGENT] INPUT`: one input to an agent, durable from its first event."""

from typing import Annotated

from refold.commands.execution import EXIT_OK, JsonOption, argument, command, option, tell_result, write_result
from refold.commands.run.options import (
    DEFAULT_LOG,
    NO_CHOICE,
    AgentArgument,
    LogOption,
    ModelChoice,
    SessionOption,
    chosen_agent,
    with_model_options,
)
from refold.commands.steer.delivery import (
    MaxTurnsOption,
    MetadataOption,
    TemperatureOption,
    UserOption,
    metadata_of,
)


@with_model_options
@command
async def run(
    agent: AgentArgument = None,
    text: Annotated[str | None, argument("INPUT", "What to send to it.")] = None,
    log: LogOption = DEFAULT_LOG,
    session: SessionOption = None,
    user: UserOption = None,
    metadata: MetadataOption = None,
    max_turns: MaxTurnsOption = None,
    temperature: TemperatureOption = None,
    key: Annotated[str | None, option("--key", "KEY", "The same key in a session is the same run.")] = None,
    choice: ModelChoice = NO_CHOICE,
    as_json: JsonOption = False,
) -> int:
    """Send an input to an agent, or to a model of a provider, and write the answer.

    The module is found in the working directory too. Tool calls are shown on stderr as they happen. Ctrl-C cancels the
    run, which is recorded; a second Ctrl-C leaves at once, and the run goes on when its session is next used. SIGTERM
    leaves it open too, and lets what is in flight reach the log first; a second one leaves at once. A run
    of the session that an earlier process left open goes on first; other sessions of the log are left alone. Where a
    call waits for approval, the command that allows it is written to stderr, and the run is left open, with the command
    that lets it go on, `refold resume`. Where the
    agent's configuration streams, its answers are written as they come, also those that ask for tool calls.

    Exits 1 if the run failed or waits for a person, 130 if it was cancelled, 143 if SIGTERM left it open.

    JSON: {log, session, run, outcome: completed | failed | cancelled, error: {kind, message}, text, usage, turns,
    stop_reason}.
    """
    from refold.commands.run.session_run import session_run
    from refold.sessions.inputs import RunOverrides, input_blocks
    from refold.sessions.outcome import Completed

    name, content = _agent_and_input([word for word in (agent, text) if word is not None], choice)
    input_blocks(content)  # An empty one is refused before there is a log.
    said, overrides = metadata_of(metadata), RunOverrides(max_turns=max_turns, temperature=temperature)
    async with session_run(
        chosen_agent(name, choice), log, session, user=user, metadata=said, quiet=as_json
    ) as sending:
        result = await sending.send(content, key, **overrides)
    if result is None:
        return sending.tell_left_open(choice.words(name))
    if as_json:
        write_result(log, sending.session, result)
    elif sending.live.has_written(result.text) and isinstance(result.outcome, Completed):
        return EXIT_OK
    return tell_result(result, as_json)


def _agent_and_input(words: list[str], choice: ModelChoice) -> tuple[str | None, str]:
    """Return the agent's name, if one is given, and the input.

    Raises:
        ConfigError: one that is needed is not there.
    """
    from refold.events.core.errors import ConfigError

    match words:
        case [name, text]:
            return name, text
        case [text] if choice.provider is not None:
            return None, text
        case [word]:
            raise ConfigError(
                f"{word!r} stands alone: give an AGENT (module:attribute) and an INPUT, or a --provider with a --model"
            )
        case _:
            raise ConfigError("there is no INPUT, which says what to send")
