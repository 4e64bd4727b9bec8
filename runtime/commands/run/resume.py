"""`refold resume [AGENT]`: the open run of a session, and what is queued behind it, to their end.

Read `refold.commands.run.run` first, whose way to watch a session, to be interrupted and to leave a run open this is.
"""

import shlex
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold.commands.execution import (
    EXIT_FOUND,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_TERMINATED,
    JsonOption,
    result_members,
    run_command,
    tell_result,
)
from refold.commands.output import tell_error, write_json
from refold.commands.run.provider_options import (
    AllowHttpOption,
    BaseUrlOption,
    MaxTokensOption,
    ModelChoice,
    ModelOption,
    ProviderOption,
    ReactOption,
    SystemOption,
    chosen_agent,
    connections_closed,
)
from refold.commands.run.run import Sending, ctrl_c_cancels, sigterm_leaves_open
from refold.commands.run.watching import tell
from refold.commands.steer.delivery import approve_line, resume_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from refold.actors.cancellation import CancellationToken
    from refold.agent_runtime import AgentRuntime
    from refold.events.core.ids import RunId
    from refold.events.session.state import FinishedRun
    from refold.inspection.session_view import ListedSession
    from refold.sessions.event_bus import Follower
    from refold.sessions.notifications import Recorded
    from refold.sessions.outcome import RunResult
    from refold.sessions.session import Session

HAS_OPEN_RUN = ("open", "waiting", "parked")
"""The statuses of sessions that are looked for where none is named."""

SESSIONS_NAMED_MAX = 5
"""So many sessions with open runs are named where one has to be chosen."""


def resume(
    agent: Annotated[
        str | None,
        typer.Argument(
            metavar="AGENT",
            help="module:attribute of an Agent or of a function that makes one; with a --provider it may be left out.",
            show_default=False,
        ),
    ] = None,
    log: Annotated[Path, typer.Option("--log", metavar="PATH", help="The log.")] = Path("refold.db"),
    session: Annotated[
        str | None,
        typer.Option(
            "--session", metavar="ID", help="The session; default: the only one with an open run.", show_default=False
        ),
    ] = None,
    provider: ProviderOption = None,
    model: ModelOption = None,
    base_url: BaseUrlOption = None,
    allow_http: AllowHttpOption = False,
    system: SystemOption = None,
    max_tokens: MaxTokensOption = None,
    react: ReactOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let the open run of a session go on, and the inputs queued behind it, and write the answers.

    A run is left open where a call waits for approval, where a process ended in the middle of it, or where it is
    parked. What was decided meanwhile, as by `refold approve`, is performed first. Everything else is as `refold run`
    has it, also Ctrl-C and SIGTERM.

    Exits 0 if no run is open; 1 if a run failed or waits for somebody; 130 if one was cancelled; 143 if SIGTERM left
    one open; 3 if another runtime owns the log: it has the open runs then.

    JSON: {log, session, runs: [as of `refold run`], open: the run that is left open, or null}.
    """
    choice = ModelChoice(
        provider=provider,
        model=model,
        base_url=base_url,
        allow_http=allow_http,
        system=system,
        max_tokens=max_tokens,
        react=react,
    )
    run_command(_resume(agent, choice, log, session, as_json))


async def _resume(name: str | None, choice: ModelChoice, log: Path, session_id: str | None, as_json: bool) -> int:
    from refold.actors.cancellation import CancellationToken
    from refold.agent_runtime import AgentRuntime
    from refold.events.core.errors import ConfigError
    from refold.sessions.outcome import Cancelled, Failed

    if name is None and choice.provider is None:
        raise ConfigError("there is no AGENT (module:attribute); name the one whose run is to go on, or a --provider")
    agent = chosen_agent(name, choice)
    chosen = await _session_of(log, session_id)
    if chosen is None:
        return _tell_nothing_open(log, session_id, as_json)
    cancel = CancellationToken()
    with ctrl_c_cancels(cancel):
        async with (
            connections_closed(agent),
            AgentRuntime(agent, log=log, wait_for_log_s=0, auto_resume=False, inbox_poll_s=0) as runtime,
        ):
            session = await runtime.session(chosen)
            if not as_json:
                tell(f"session {shlex.quote(session.id)} in {shlex.quote(str(log))}")
            resuming = _Resuming(runtime, session, log, quiet=as_json)
            with sigterm_leaves_open(resuming):
                await resuming.resume(cancel)
                await runtime.close()
    if not resuming.results and resuming.left_open is None:
        return _tell_nothing_open(log, chosen, as_json)
    if as_json:
        runs = [result_members(result) for result in resuming.results]
        write_json({"log": str(log), "session": chosen, "runs": runs, "open": resuming.left_open})
    if resuming.waits_for:
        return _tell_left_open(log, chosen, resuming, choice.words(name))
    outcomes = {type(result.outcome) for result in resuming.results}
    return EXIT_FOUND if Failed in outcomes else EXIT_INTERRUPTED if Cancelled in outcomes else EXIT_OK


def _tell_nothing_open(log: Path, session: str | None, as_json: bool) -> int:
    if as_json:
        write_json({"log": str(log), "session": session, "runs": [], "open": None})
    else:
        where = f"session {shlex.quote(session)}" if session is not None else shlex.quote(str(log))
        tell(f"no run is open in {where}")
    return EXIT_OK


def _tell_left_open(log: Path, session: str, resuming: "_Resuming", agent: list[str]) -> int:
    tell_error(f"{resuming.waits_for}; the run is left open")
    for place, call in resuming.waiting_calls:
        typer.echo(approve_line(log, place, call), err=True)
    typer.echo(resume_line(log, session, agent), err=True)
    return EXIT_TERMINATED if resuming.is_terminated else EXIT_FOUND


async def _session_of(log: Path, session: str | None) -> str | None:
    """Return the session whose run is to go on, or None where none has an open one, or one in the inbox.

    Raises:
        ConfigError: there is no such session, or several have open runs and none is named.
        PersistenceError: the log is missing or cannot be read.
    """
    from refold.events.core.errors import ConfigError
    from refold.inspection.log_reading import opened, session_head
    from refold.inspection.session_view import list_sessions
    from refold.stores.sqlite.file import absolute
    from refold.stores.sqlite.inbox import InboxFile

    async with opened(log) as store:
        commanded = await InboxFile(absolute(log)).sessions_waiting()
        if session is not None:
            if session not in commanded:  # Its first input may wait in the inbox.
                await session_head(store, session)
            return session
        found: dict[str, ListedSession] = {session.session: session for session in await list_sessions(store)}
        commanded = [_asker(name, found) for name in commanded]
        opened_runs = [_asker(name, found) for name, session in found.items() if session.status in HAS_OPEN_RUN]
    names = sorted({*opened_runs, *commanded})
    if len(names) > 1:
        named = ", ".join(shlex.quote(name) for name in names[:SESSIONS_NAMED_MAX])
        more = f" and {len(names) - SESSIONS_NAMED_MAX} more" if len(names) > SESSIONS_NAMED_MAX else ""
        raise ConfigError(f"{len(names)} sessions have open runs: {named}{more}; name one with --session")
    return names[0] if names else None


def _asker(session: str, found: "Mapping[str, ListedSession]") -> str:
    """Return the session whose run waits for that of `session`, which goes on with it; itself where none does."""
    known = found.get(session)
    parent = found.get(known.parent) if known is not None and known.parent is not None else None
    return _asker(parent.session, found) if parent is not None and parent.status in HAS_OPEN_RUN else session


class _Resuming(Sending):
    """The runs of one session that were accepted before, on their way to their ends."""

    not_done = ""

    def __init__(self, runtime: "AgentRuntime", session: "Session", log: Path, *, quiet: bool) -> None:
        super().__init__(runtime, session, log, quiet=quiet)
        self.results: list[RunResult] = []
        """Of those that have ended, oldest first."""
        self.left_open: RunId | None = None
        """The run that has not ended."""
        self._ends: deque[int] = deque()
        """Versions of the events that ended runs which have not been told of yet."""

    async def resume(self, cancel: "CancellationToken") -> None:
        """Return when no run of the session is open any more, when one waits for somebody, or one was cancelled."""
        state = await self._session.state_at()
        self.left_open = state.run.id if state.run is not None else None
        self._runtime.subscribe(self._see, session=self._session.id)
        with self._runtime.hub.follow(self._session.id) as follower:
            await self._beside_the_inbox(cancel, lambda: self._end_all(state.version, follower, cancel))

    def _see(self, recorded: "Recorded") -> None:
        from refold.events.session.events import RunCancelled, RunCompleted, RunFailed

        super()._see(recorded)
        if isinstance(recorded.event, RunCompleted | RunFailed | RunCancelled):
            self._ends.append(recorded.version)

    async def _end_all(self, version: int, follower: "Follower", cancel: "CancellationToken") -> None:
        """Await the ends of all runs that end after `version`, and write each answer."""
        while True:
            while self._ends:
                version = self._ends.popleft()
                await self._tell_end((await self._session.state_at(version)).last_run)
            state = await self._session.state_at()
            last, run = state.last_run, state.run
            self.left_open = run.id if run is not None else None
            if last is not None and last.version > version:
                await follower.ended(last.run)  # It is in the log, and is about to be published.
            elif run is None or (cancel.cancelled and self._was_cancelled):
                return
            else:
                await follower.ended(run.id)

    async def _tell_end(self, finished: "FinishedRun | None") -> None:
        from refold.sessions.outcome import result_of

        assert finished is not None
        result = await result_of(finished, self._runtime.store)
        self.results.append(result)
        if not self._quiet:
            tell_result(result, as_json=False)

    @property
    def _was_cancelled(self) -> bool:
        """Whether the run that ended last was cancelled."""
        from refold.sessions.outcome import Cancelled

        return bool(self.results) and isinstance(self.results[-1].outcome, Cancelled)
