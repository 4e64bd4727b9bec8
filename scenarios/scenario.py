"""A scenario as data: who says what to which session and when, what goes wrong meanwhile, and in which order things go.

    scenario = Scenario(
        acts=(Say(session="alice", text="pay 3"), Cancel(session="alice", at_s=2.0)),
        faults=(faults.CrashAtAppend(nth=3), faults.ProviderStalls(nth=1, seconds=5)),
        seed=7,
    )

The same scenario with the same agent gives the same log, byte for byte.
"""

from typing import Literal, TypeAlias

import msgspec

from refold.events.errors import ConfigError
from refold.scenarios.faults import AnyFault

WireName: TypeAlias = Literal["none", "openai", "anthropic"]
"""How a model is reached."""


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody outside does once, and again after a crash if nobody has acknowledged it."""

    session: str
    at_s: float = 0.0
    """Virtual seconds after the simulation began."""


class Say(Act, frozen=True, kw_only=True, tag="say"):
    """Send an input and wait for what comes of it."""

    text: str = "go on"


class Cancel(Act, frozen=True, kw_only=True, tag="cancel"):
    """Cancel the session's run, if there is one."""


class Abandon(Act, frozen=True, kw_only=True, tag="abandon"):
    """Send an input, and cancel the task that waits for it some time later."""

    text: str = "never mind"
    after_s: float = 1.0


AnyAct: TypeAlias = Say | Cancel | Abandon
"""Any act."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a simulation is given beside the agent.

    Raises:
        ConfigError: it cannot be played.
    """

    acts: tuple[AnyAct, ...]
    faults: tuple[AnyFault, ...] = ()
    seed: int = 0
    """Of what the model answers and how long things take."""
    deviations: dict[int, int] | None = None
    """Where the order of ready tasks is not the fair one, in the process's first life (see `SparseSchedule`); None = an
    order drawn from the seed."""
    calm_s: float = 600.0
    """After so many virtual seconds no fault happens any more."""
    patience_s: float = 50_000.0
    """So many more are then given to what was accepted to end."""
    wire: WireName = "none"
    """How the model is reached: as an object of the process; or over a simulated network, with the product's provider
    for that API and the real HTTP libraries."""

    def __post_init__(self) -> None:
        if not self.acts:
            raise ConfigError("a scenario needs somebody who says something: acts=(Say(session='a', text='hello'),)")

    def sessions(self) -> tuple[str, ...]:
        """Return the ids of the sessions that anybody speaks to, in order of their first act."""
        return tuple(dict.fromkeys(act.session for act in self.acts))
