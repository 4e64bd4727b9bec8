"""`refold send LOG SESSION TEXT`: an input for a session that is in the log."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from refold.commands.execution import (
    EXIT_FOUND,
    EXIT_OK,
    JsonOption,
    LogArgument,
    argument,
    command,
    option,
    tell_result,
    write_result,
)
from refold.commands.output import tell_error
from refold.commands.steer.delivery import (
    KeyOption,
    MaxTurnsOption,
    MetadataOption,
    SessionArgument,
    TemperatureOption,
    TimeoutOption,
    UserOption,
    approve_line,
    given,
    metadata_of,
    tell_given,
)


@command
async def send(
    log: LogArgument,
    session: SessionArgument,
    text: Annotated[str, argument("TEXT", "What to send; - reads it from stdin.")],
    new: Annotated[bool, typer.Option("--new", help="Begin the session if the log has none of that name.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end of the run, and write its answer.")] = False,
    user: UserOption = None,
    metadata: MetadataOption = None,
    model: Annotated[str | None, option("--model", "NAME", "The model of this run, instead of the agent's.")] = None,
    max_turns: MaxTurnsOption = None,
    max_tokens: Annotated[int | None, option("--max-tokens", "N", "Most tokens of one answer of it.", min=1)] = None,
    temperature: TemperatureOption = None,
    key: KeyOption = None,
    timeout_s: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> int:
    """Send an input to a session, and leave the run to the runtime that owns the log.

    Where no runtime owns the log, the input is recorded directly, and its run goes on when one does. The session must
    be there; `refold run` begins one, and so does --new: with the agent of the runtime that owns the log, or of the
    next one that does.

    Exits 3 if the runtime that owns the log does not take the command in time; it stays in the inbox then. With --wait
    exits 1 if the run failed, waits for a person, or no runtime owns the log, now or any more, and 130 if it was
    cancelled.

    JSON: {log, session, key, outcome: done | queued, version, new, run}; with --wait as that of `refold run`.
    """
    from refold.remote.protocol import Done, send_command
    from refold.sessions.access import describe_command
    from refold.sessions.inputs import RunOverrides, run_options

    overrides = RunOverrides(model=model, max_turns=max_turns, max_tokens=max_tokens, temperature=temperature)
    said = describe_command(user, metadata_of(metadata))
    content = send_command(sys.stdin.read() if text == "-" else text, run_options(overrides), said)
    what = await given(log, session, content, key, timeout_s, may_begin=new)
    if not (wait and isinstance(what.outcome, Done) and what.outcome.run is not None):
        run = what.outcome.run if isinstance(what.outcome, Done) else None
        code = await tell_given(
            log, what, f"the input is recorded as {run}" if run else "the input is recorded", as_json
        )
        return EXIT_FOUND if wait and code == EXIT_OK else code  # It waits for a runtime, so there is no answer.
    return await _follow(log, session, what.outcome.run, as_json, owned=not what.directly)


async def _follow(log: Path, session: str, run: str, as_json: bool, *, owned: bool) -> int:
    from refold.actors.kernel.clock import SystemClock
    from refold.events.core.ids import RunId, SessionId
    from refold.remote.mirror import Stuck, follow_run, joined_mirror

    async with joined_mirror(log, SystemClock()) as mirror:
        result = await follow_run(mirror, SessionId(session), RunId(run), owned=owned)
    if isinstance(result, Stuck):
        tell_error(result.why)
        for call in result.calls:
            typer.echo(approve_line(log, session, call), err=True)
        return EXIT_FOUND
    if as_json:
        write_result(log, session, result)
    return tell_result(result, as_json)
