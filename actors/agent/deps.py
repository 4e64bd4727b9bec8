"""What an application depends on, as its functions are given it: for one run, or for all of an agent.

Read `refold.agents.opened_deps` for how an agent's are opened. The rules: what is given with an input counts for its
run, before any function is called for it and until the run is over; and nothing of it is recorded, so that a run that
goes on in another process has what is given there, or its agent's.
"""

from refold.events.core.ids import AgentId, RunId, SessionId


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
        """Have a run depend on what was given for another one, if anything was."""
        of_runs = self._of_runs.get(session, {})
        if as_run in of_runs:
            of_runs[run] = of_runs[as_run]

    def let_go(self, session: SessionId, run: RunId) -> None:
        """Forget what a run depended on, which is over."""
        of_runs = self._of_runs.get(session, {})
        if of_runs.pop(run, None) is not None and not of_runs:
            del self._of_runs[session]

    def forget(self, session: SessionId) -> None:
        """Forget what all runs of a session depended on, also those that are still to come."""
        self._of_runs.pop(session, None)
