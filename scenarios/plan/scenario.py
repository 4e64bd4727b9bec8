"""A scenario as data: who says what to which session and when, what goes wrong meanwhile, and in which order things go.

    scenario = Scenario(
        acts=(Say(session="alice", text="pay 3"), Cancel(session="alice", at_s=2.0)),
        faults=(faults.CrashAtAppend(nth=3), faults.ProviderStalls(nth=1, seconds=5)),
        seed=7,
    )

The same scenario with the same agent gives the same log, byte for byte.
"""

from typing import Any, Literal, TypeAlias, get_args

import msgspec

from refold.events.core.errors import ConfigError
from refold.scenarios.faults import COUNT_MAX, AnyFault, check_choice, check_fields, check_whole

StoreName: TypeAlias = Literal["memory", "sqlite"]
"""Where a log is."""

WireName: TypeAlias = Literal["none", "openai", "anthropic"]
"""How a model is reached."""


PostWord: TypeAlias = Literal["send", "cancel", "allow", "deny", "answer", "set_aside"]
"""What another process may ask for."""

AnswerKind: TypeAlias = Literal["fits", "misfits", "error"]
"""How a person answers what a tool asks."""


class Act(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client does once, and again after a crash if it was not acknowledged.

    Raises:
        ConfigError: it cannot be done: a number is out of bounds.
    """

    session: str
    at_s: float = 0.0
    """Virtual seconds after the simulation began."""

    def __post_init__(self) -> None:
        check_fields(self)


class Say(Act, frozen=True, kw_only=True, tag="say"):
    """Send an input and wait for what comes of it."""

    text: str = "go on"
    times: int = 1
    """So often the text stands in the input, one after the other: a long input in few words."""
    insists: bool = True
    """Whether the client asks again, under the same key, where it was not told what came of it."""


class Cancel(Act, frozen=True, kw_only=True, tag="cancel"):
    """Cancel the session's run, if there is one."""


class Abandon(Act, frozen=True, kw_only=True, tag="abandon"):
    """Send an input, and cancel the task that waits for it some time later."""

    text: str = "never mind"
    after_s: float = 1.0


class Decide(Act, frozen=True, kw_only=True, tag="decide"):
    """Allow or deny what waits for approval in the session by then; a scenario that has one draws no decisions."""

    allow: bool = True
    edit: bool = False
    """Whether a call that is allowed gets arguments that are drawn, where its tool takes them."""


class Respond(Act, frozen=True, kw_only=True, tag="respond"):
    """Answer what the session's tools have asked by then, or left for later.

    What is asked is answered in any case, by acts that are drawn; a scenario that has such acts itself draws none
    before its calm.

    Raises:
        ConfigError: it cannot be done.
    """

    how: AnswerKind = "fits"
    """`misfits`: first with what does not fit the schema, which must be refused; `error`: with why there is none."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_choice("Respond.how", self.how, get_args(AnswerKind))


class Clear(Act, frozen=True, kw_only=True, tag="clear"):
    """Begin the session's conversation anew; refused while a run is under way."""


class Watch(Act, frozen=True, kw_only=True, tag="watch"):
    """Follow the session from its beginning for some time, slowly, and then read on to what was its end."""

    pause_s: float = 5.0
    """Rests so long after each item."""
    for_s: float = 60.0
    capacity: int = 8
    """So many items may wait for it."""


class Post(Act, frozen=True, kw_only=True, tag="post"):
    """Another process asks something through the log's inbox, where it stays until a runtime has performed it.

    Raises:
        ConfigError: it cannot be done.
    """

    asks: PostWord = "send"
    """`allow` and `deny` are of the call that was last to wait for approval, `answer` of the last that asked, and
    `set_aside` of the last input."""
    text: str = "go on"
    """Of what is sent."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_choice("Post.asks", self.asks, get_args(PostWord))


AnyAct: TypeAlias = Say | Cancel | Abandon | Decide | Respond | Clear | Watch | Post
"""Any act."""


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call of a tool in a scripted answer."""

    tool: str
    input: dict[str, Any] = {}


class Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A scripted answer of the model: a text, calls of tools, or both."""

    text: str = ""
    calls: tuple[Call, ...] = ()


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that a simulation is given beside the agent.

    Raises:
        ConfigError: it cannot be played.
    """

    acts: tuple[AnyAct, ...]
    faults: tuple[AnyFault, ...] = ()
    script: tuple[Answer, ...] = ()
    """What the model answers in each session: first the first one, then the second, and a plain text after the last;
    which one is next is told by how many answers the request shows. Empty = what is drawn from the seed."""
    seed: int = 0
    """Of what the model answers and how long things take."""
    deviations: dict[int, int] | None = None
    """Where the order of ready tasks is not the fair one, in the process's first life (see `SparseSchedule`); None = an
    order drawn from the seed."""
    calm_s: float = 600.0
    """After so many virtual seconds no fault happens any more."""
    passivate_after_s: float = 60.0
    """After so many virtual seconds memory lets go of a session that does nothing."""
    snapshot_every: int | None = None
    """Events after which a stream's state is kept; None = no snapshots are kept or used."""
    patience_s: float = 50_000.0
    """So many more are then given to what was accepted to end."""
    store: StoreName = "memory"
    """Where the log is: in memory; or in a real SQLite file, which is slower and meets the faults of disks too."""
    wire: WireName = "none"
    """How the model is reached: as an object of the process; or over a simulated network, with the product's provider
    for that API and the real HTTP libraries."""

    def __post_init__(self) -> None:
        if not self.acts:
            raise ConfigError("a scenario needs an act that says something: acts=(Say(session='a', text='hello'),)")
        check_fields(self)
        if self.snapshot_every is not None:
            check_whole("Scenario.snapshot_every", self.snapshot_every, least=1, most=COUNT_MAX)
        check_choice("Scenario.store", self.store, get_args(StoreName))
        check_choice("Scenario.wire", self.wire, get_args(WireName))
        for place, overtaken in (self.deviations or {}).items():
            if place < 0 or overtaken < 0:
                raise ConfigError(f"Scenario.deviations count from 0, and one is {place}: {overtaken}")
        for act in self.acts:
            over_s = act.at_s + (act.for_s if isinstance(act, Watch) else 0.0)
            if over_s > self.calm_s + self.patience_s:
                end_s = self.calm_s + self.patience_s
                raise ConfigError(
                    f"{type(act).__name__} is over at {over_s:,.0f} s, and the scenario at calm_s + patience_s, "
                    f"{end_s:,.0f} s; give it more patience"
                )

    def sessions(self) -> tuple[str, ...]:
        """Return the ids of the sessions that get an input, in order of their first act."""
        return tuple(dict.fromkeys(act.session for act in self.acts))
