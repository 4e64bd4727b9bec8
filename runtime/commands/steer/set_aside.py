"""`refold set-aside LOG SESSION VERSION`: what a provider refuses for good is left out of later requests."""

from typing import Annotated

import typer

from refold.commands.execution import JsonOption, LogArgument, command, option
from refold.commands.output import shell_word
from refold.commands.steer.delivery import KeyOption, SessionArgument, TimeoutOption, given, tell_given


@command
async def set_aside(
    log: LogArgument,
    session: SessionArgument,
    version: Annotated[
        int, typer.Argument(metavar="VERSION", min=1, help="That of the event, as `refold show --events` lists it.")
    ],
    message: Annotated[
        int | None, option("--message", "N", "Only this one of the messages of an imported history, from 0.")
    ] = None,
    part: Annotated[int | None, option("--part", "N", "Only this block of a message or result, from 0.")] = None,
    undo: Annotated[
        bool, typer.Option("--undo", help="Take back what was set aside: VERSION is that of the InputSetAside.")
    ] = False,
    reason: Annotated[str, option("--reason", "TEXT", "Why; it is recorded.")] = "",
    key: KeyOption = None,
    timeout_s: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> int:
    """Leave an input, an answer, a result or an imported history out of later requests; its event stays in the log.

    What a provider refuses is set aside by itself where a request without it is answered. This is for all else. Of a
    call the arguments go, and the call stays. No run may be under way.

    Writes the command that undoes it. Exits 1 if there is nothing to set aside, or to take back; 3 if the runtime that
    owns the log does not take the command in time; it stays in the inbox then.

    JSON: {log, session, key, outcome: done | queued, version, new, run}.
    """
    from refold.remote.protocol import Done
    from refold.remote.rows import InboxSetAside, InboxTakeBack

    if undo and (message, part) != (None, None):
        raise typer.BadParameter("--undo takes back all that was set aside there; leave out --message and --part")
    if undo:
        what = await given(log, session, InboxTakeBack(aside=version, reason=reason), key, timeout_s)
        return await tell_given(log, what, f"what version {version} set aside is back", as_json, goes_on=False)
    named = InboxSetAside(version=version, message=message, part=part, reason=reason)
    what = await given(log, session, named, key, timeout_s)
    code = await tell_given(log, what, f"what version {version} brought is set aside", as_json, goes_on=False)
    if isinstance(what.outcome, Done) and not as_json:
        words = [str(log), session, str(what.outcome.version)]
        options = ["--undo", *(["--"] if any(word.startswith("-") for word in words) else [])]
        line = " ".join(["refold", "set-aside", *options, *map(shell_word, words)])
        typer.echo(f"to show it again: {line}")
    return code
