"""`refold set-aside LOG SESSION VERSION`: what a provider refuses for good is left out of later requests."""

from typing import Annotated

import typer

from refold.commands.execution import JsonOption, LogArgument, command
from refold.commands.steer.delivery import KeyOption, SessionArgument, TimeoutOption, given, tell_given


@command
async def set_aside(
    log: LogArgument,
    session: SessionArgument,
    version: Annotated[
        int, typer.Argument(metavar="VERSION", min=1, help="That of the event, as `refold show --events` lists it.")
    ],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is recorded.")] = "",
    key: KeyOption = None,
    timeout_s: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> int:
    """Leave an input, a result or an imported history out of later requests; its event stays in the log.

    Images and the like that were new in a request which a provider refused as invalid are set aside by themselves. This
    is for all else: a text that it refuses, or what an earlier model took. No run may be under way.

    Exits 1 if there is nothing to set aside; 3 if the runtime that owns the log does not take the command in time; it
    stays in the inbox then.

    JSON: {log, session, key, outcome: done | queued, version, new, run}.
    """
    from refold.remote.protocol import InboxSetAside

    what = await given(log, session, InboxSetAside(version=version, reason=reason), key, timeout_s)
    return tell_given(log, what, f"what version {version} brought is set aside", as_json, goes_on=False)
