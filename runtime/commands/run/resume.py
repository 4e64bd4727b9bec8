"""`refold resume [AGENT]`: the open run of a session, and what is queued behind it, to their end."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold.commands.execution import EXIT_FOUND, EXIT_INTERRUPTED, EXIT_OK, JsonOption, command, option, result_members
from refold.commands.output import shell_word, tell, write_json
from refold.commands.run.options import (
    DEFAULT_LOG,
    NO_CHOICE,
    AgentArgument,
    ModelChoice,
    chosen_agent,
    with_model_options,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from refold.inspection.session_view import ListedSession

HAS_OPEN_RUN = ("open", "waiting", "parked")
"""The statuses of sessions that are looked for where none is named."""

SESSIONS_NAMED_MAX = 5
"""So many sessions with open runs are named where one has to be chosen."""


@with_model_options
@command
async def resume(
    agent: AgentArgument = None,
    log: Annotated[Path, typer.Option("--log", metavar="PATH", help="The log.")] = DEFAULT_LOG,
    session: Annotated[
        str | None, option("--session", "ID", "The session; default: the only one with an open run.")
    ] = None,
    choice: ModelChoice = NO_CHOICE,
    as_json: JsonOption = False,
) -> int:
    """Let the open run of a session go on, and the inputs queued behind it, and write the answers.

    A run is left open where a call waits for approval, where a process ended in the middle of it, or where it is
    parked. What was decided meanwhile, as by `refold approve`, is performed first. Everything else is as `refold run`
    has it, also Ctrl-C and SIGTERM.

    Exits 0 if no run is open; 1 if a run failed or waits for a person; 130 if one was cancelled; 143 if SIGTERM left
    one open; 3 if another runtime owns the log: it has the open runs then.

    JSON: {log, session, runs: [as of `refold run`], open: the run that is left open, or null}.
    """
    from refold.commands.run.session_run import session_run
    from refold.events.core.errors import ConfigError
    from refold.sessions.outcome import Cancelled, Failed

    if agent is None and choice.provider is None:
        raise ConfigError("there is no AGENT (module:attribute); name the one whose run is to go on, or a --provider")
    chosen = chosen_agent(agent, choice)
    found = await _session_of(log, session)
    if found is None:
        return _tell_nothing_open(log, session, as_json)
    async with session_run(chosen, log, found, quiet=as_json) as resuming:
        await resuming.resume()
    if not resuming.results and resuming.left_open is None:
        return _tell_nothing_open(log, found, as_json)
    if as_json:
        runs = [result_members(result) for result in resuming.results]
        write_json({"log": log, "session": found, "runs": runs, "open": resuming.left_open})
    if resuming.waits_for:
        return resuming.tell_left_open(choice.words(agent))
    outcomes = {type(result.outcome) for result in resuming.results}
    return EXIT_FOUND if Failed in outcomes else EXIT_INTERRUPTED if Cancelled in outcomes else EXIT_OK


def _tell_nothing_open(log: Path, session: str | None, as_json: bool) -> int:
    if as_json:
        write_json({"log": log, "session": session, "runs": [], "open": None})
    else:
        where = f"session {shell_word(session)}" if session is not None else shell_word(str(log))
        tell(f"no run is open in {where}")
    return EXIT_OK


async def _session_of(log: Path, session: str | None) -> str | None:
    """Return the session whose run is to go on, or None where none has an open one, or one in the inbox.

    Raises:
        ConfigError: there is no such session, or several have open runs and none is named.
    """
    from refold.events.core.errors import ConfigError
    from refold.inspection.log_reading import opened, session_head
    from refold.inspection.session_view import list_sessions
    from refold.remote.rows import NO_SESSION
    from refold.stores.sqlite.file import absolute
    from refold.stores.sqlite.inbox import InboxFile

    async with opened(log) as store:
        commanded = await InboxFile(absolute(log)).sessions_waiting()
        if session is not None:
            if session not in commanded:  # Its first input may wait in the inbox.
                await session_head(store, session)
            return session
        found: dict[str, ListedSession] = {session.session: session for session in await list_sessions(store)}
        commanded = [_asker(name, found) for name in commanded if not name.startswith(NO_SESSION)]
        opened_runs = [_asker(name, found) for name, session in found.items() if session.status in HAS_OPEN_RUN]
    names = sorted({*opened_runs, *commanded})
    if len(names) > 1:
        named = ", ".join(shell_word(name) for name in names[:SESSIONS_NAMED_MAX])
        more = f" and {len(names) - SESSIONS_NAMED_MAX} more" if len(names) > SESSIONS_NAMED_MAX else ""
        raise ConfigError(f"{len(names)} sessions have open runs: {named}{more}; name one with --session")
    return names[0] if names else None


def _asker(session: str, found: "Mapping[str, ListedSession]") -> str:
    """Return the session whose run waits for that of `session`, which goes on with it; itself where none does."""
    known = found.get(session)
    parent = found.get(known.parent) if known is not None and known.parent is not None else None
    return _asker(parent.session, found) if parent is not None and parent.status in HAS_OPEN_RUN else session
