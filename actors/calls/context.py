"""For whom functions of the application are called: whose session it is, which run, and what that depends on.

Read `refold.agents.opened_deps` for how what an agent depends on is opened. The rules: what is given with an input
counts for its run, before any function is called for it and until the run is over; and nothing of it is recorded, so
that a run that goes on in another process has what is given there, or its agent's.
"""

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import msgspec

from refold.events.core.errors import ConfigError
from refold.events.core.ids import AgentId, RunId, SessionId, ToolCallId
from refold.events.model.run_context import RunContext
from refold.events.session.state import SessionState

running_context: ContextVar[RunContext[Any] | None] = ContextVar("running_context", default=None)
"""Set where a function of the application is called for a run, and in what that begins."""


def current_context() -> RunContext[Any]:
    """Return for whom this code runs; in functions that Refold calls for a run, and in what these call.

    Raises:
        ConfigError: it runs for no run.
    """
    found = running_context.get()
    if found is None:
        raise ConfigError("current_context() is for code that Refold calls for a run, and this is not called so")
    return found


class SessionContext(msgspec.Struct, frozen=True, kw_only=True):
    """Which session something happens in, and whose it is: what a scope of memories is found by."""

    session: SessionId
    conversation: SessionId
    """The same, or of a subagent's session the one in which its work was asked for first, which has no parent."""
    user: str | None = None
    """Whose it is; None = no user was named."""
    metadata: Mapping[str, str] = {}
    """What the application says of it."""


def session_context(session: SessionId, ancestors: Sequence[SessionId], state: SessionState) -> SessionContext:
    """Return the context of a session in a state; its `ancestors` are its parent, the parent's parent and so on."""
    conversation = ancestors[-1] if ancestors else session
    return SessionContext(session=session, conversation=conversation, user=state.user, metadata=dict(state.metadata))


def _report_to_nobody(report: object) -> None:
    """Where no runtime is, as in a replay."""


class HookContext(RunContext[Any], frozen=True, kw_only=True):
    """Where a hook is called."""

    deps: Any = None
    """What the application depends on, as `ToolContext.deps`."""
    call: ToolCallId | None = None
    """The tool call, around its body."""
    tool: str = ""
    """The name of its tool."""
    publish: Callable[[object], None] = _report_to_nobody
    """Tells those who follow the session what it is given, as a `Progressed` report, of the call where there is one;
    to be called on the loop, and until the hook has ended: then it raises ConfigError. Nothing of it is logged."""


def hook_context(
    of: SessionContext,
    *,
    deps: object,
    run: RunId | None = None,
    turn: int = 0,
    call: ToolCallId | None = None,
    tool: str = "",
) -> HookContext:
    return HookContext(
        session=of.session, user=of.user, metadata=of.metadata, run=run, turn=turn, call=call, tool=tool, deps=deps
    )


class Dependencies:
    """Knows what each run of a runtime depends on.

    Attributes:
        of_agents: what each agent depends on, as opened; those that are not in it share the main agent's.
        main: the main agent's, or what the runtime was given instead.
    """

    def __init__(self) -> None:
        self.of_agents: dict[AgentId, object] = {}
        self.main: object = None
        self._of_runs: dict[SessionId, dict[RunId, object]] = {}

    def of(self, session: SessionId, run: RunId | None, agent: AgentId | None) -> object:
        """Return what a run of a session depends on, or what one would that begins now."""
        own = self._of_runs.get(session, {}).get(run) if run is not None else None
        if own is None and agent is not None:
            own = self.of_agents.get(agent)
        return self.main if own is None else own

    def give(self, session: SessionId, run: RunId, deps: object, *, instead: bool = True) -> None:
        """Have a run depend on something from now on; with `instead` False only where it has nothing of its own.

        What an agent depends on is no run's own, also where the call of another agent passes it on.
        """
        of_runs = self._of_runs.setdefault(session, {})
        if run not in of_runs or self._is_agents(of_runs[run]) or (instead and not self._is_agents(deps)):
            of_runs[run] = deps

    def _is_agents(self, deps: object) -> bool:
        return deps is self.main or any(deps is opened for opened in self.of_agents.values())

    def give_same(self, session: SessionId, run: RunId, as_run: RunId) -> None:
        of_runs = self._of_runs.get(session, {})
        if as_run in of_runs:
            of_runs[run] = of_runs[as_run]

    def let_go(self, session: SessionId, run: RunId) -> None:
        of_runs = self._of_runs.get(session, {})
        if of_runs.pop(run, None) is not None and not of_runs:
            del self._of_runs[session]

    def forget(self, session: SessionId) -> None:
        self._of_runs.pop(session, None)
