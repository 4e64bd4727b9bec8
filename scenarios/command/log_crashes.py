"""A recorded log, crashed at every commit and every effect: does what is left of it recover?

    async with await SQLiteStore.open("events.db", read_only=True) as store:
        log = await recorded_log(store)
    for trial in crashed_everywhere(log, agent):
        print(trial.boundary, trial.broken)

For each prefix of the log a simulated process starts on it, as if the real one had died after that commit. Where work
was in flight, a second trial lets the process die once more when the work has been done again and nothing of it is
recorded. Every accepted input must reach a terminal event, the session takes a further input, no body of a tool runs
more often than it may (those that the log says to have begun count), and everything holds that a simulation checks.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from refold.agents.agent import with_subagents
from refold.agents.loading import AgentSource, made_agent
from refold.events.core.errors import ConfigError
from refold.events.core.ids import SessionId, kind_and_identifier
from refold.events.core.pure_core import WaitUntil, keys_of
from refold.events.session.core import SESSION_CORE, SESSION_KIND
from refold.events.session.state import SessionState
from refold.scenarios import faults
from refold.scenarios.command.log_prefixes import Prefix, RecordedLog
from refold.scenarios.faults import AnyFault
from refold.scenarios.monitors.monitor import Broken, RuleVerdict, Situation, situations_of, verdicts_on
from refold.scenarios.plan.scenario import Say, Scenario
from refold.scenarios.simulator import Simulator
from refold.scenarios.sweep import quietly
from refold.scenarios.world.stubs import recorded_agent
from refold.stores.memory import InMemoryStore

CALM_S = 120.0
"""After so many virtual seconds nothing goes wrong any more."""

PATIENCE_S = 5_000.0
"""So long is then waited for what was accepted, beyond the latest moment that the log itself waits for."""

IN_FLIGHT_S = 0.05
"""Within so many virtual seconds no simulated model answers."""


class Boundary(msgspec.Struct, frozen=True, kw_only=True):
    """A place of a log at which the process dies."""

    kind: Literal["commit", "effect"]
    """`commit`: right after it. `effect`: then the work in flight is begun again, and the process dies a second time
    before anything of that is recorded."""
    position: int
    """Of the last event that is left."""
    stream: str
    version: int
    """Of that event, in its stream."""

    def __str__(self) -> str:
        return f"{self.stream}@{self.version} ({self.kind})"


class CrashTrial(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a process that started on a prefix of a log."""

    boundary: Boundary
    situations: tuple[Situation, ...]
    """What the session of the last batch was doing; empty if there is none yet."""
    broken: tuple[Broken, ...]
    exercised: tuple[str, ...]
    lives: int
    events: int
    """Of the log after it all."""
    log: InMemoryStore
    """The log after it all."""


def boundaries(log: RecordedLog) -> list[Boundary]:
    ends = set(log.boundaries())
    found: list[Boundary] = []
    pending: dict[str, tuple[str, ...]] = {}
    for length, batch in enumerate(log.batches, start=1):
        stream, last = batch[0].stream, batch[-1]
        if kind_and_identifier(stream)[0] == SESSION_KIND:
            pending[stream] = keys_of(batch[0].pending or ())
        if length in ends:
            place = {"position": last.position, "stream": stream, "version": last.version}
            found.append(msgspec.convert({"kind": "commit", **place}, Boundary))
            if _crash_in_effects([key for keys in pending.values() for key in keys]):
                found.append(msgspec.convert({"kind": "effect", **place}, Boundary))
    return found


def sampled(found: Sequence[Boundary], most: int | None) -> list[Boundary]:
    """Return at most so many of some boundaries, the first and the last among them, at even distances; None = all."""
    if most is None or len(found) <= most:
        return list(found)
    if most == 1:
        return [found[-1]]
    return [found[round(number * (len(found) - 1) / (most - 1))] for number in range(most)]


def crashed_everywhere(
    log: RecordedLog, agent: AgentSource | None = None, at: Sequence[Boundary] | None = None
) -> Iterator[CrashTrial]:
    """Start a process on each prefix of a log, and yield what came of it.

    Without an agent, it is one that is made of what the log says of it, and has no subagents: their sessions are left
    out, and stand-ins answer the calls that began them. So are the sessions of agents that are not this one or its own:
    no agent here would go on with them.
    """
    prefix = Prefix(log, with_children=agent is not None)
    lengths = {batch[-1].position: length for length, batch in enumerate(log.batches, start=1)}
    names = {each.name for each in with_subagents(made_agent(agent))} if agent is not None else set[str]()
    for boundary in boundaries(log) if at is None else at:
        prefix.grow(lengths[boundary.position])
        rehearsed: AgentSource | None = agent
        if rehearsed is None:
            if prefix.configuration is None:
                continue  # So far there is no session, and nothing to recover.
            rehearsed = recorded_agent(prefix.configuration, log.payloads)
            names = {prefix.configuration.agent}
        yield _tried(Simulator(rehearsed), prefix, prefix.of_agents(names), boundary)


def _tried(
    simulator: Simulator, prefix: Prefix, sessions: Mapping[SessionId, SessionState], boundary: Boundary
) -> CrashTrial:
    effects = [effect for state in sessions.values() for effect in SESSION_CORE.pending(state)]
    crash = _crash_in_effects([effect.key for effect in effects]) if boundary.kind == "effect" else ()
    last = prefix.session if prefix.session in sessions else None
    latest = max((effect.due_at for effect in effects if isinstance(effect, WaitUntil)), default=0)
    scenario = Scenario(
        acts=(Say(session=last or SessionId("rehearsed"), text="and now?", at_s=1.0),),
        faults=crash,
        seed=boundary.position,
        calm_s=CALM_S,
        patience_s=PATIENCE_S + max(0.0, (latest - prefix.at_us) / 1_000_000),
    )
    situations = tuple(situations_of(sessions[last], recovering=False)) if last is not None else ()
    beginning = asyncio.run(prefix.beginning(sessions))
    report = quietly(simulator, scenario, beginning)
    return CrashTrial(
        boundary=boundary,
        situations=situations,
        broken=report.broken,
        exercised=report.exercised,
        lives=report.lives,
        events=report.events,
        log=beginning.log,
    )


def _crash_in_effects(keys: Sequence[str]) -> tuple[AnyFault, ...]:
    """Return what lets a process die in the middle of the work that has these keys."""
    if any(key.startswith("tool:") for key in keys):
        return (faults.CrashInTool(nth=1),)
    if any(key.startswith("model:") for key in keys):
        return (faults.Crash(at_s=IN_FLIGHT_S),)
    return ()


class CrashSummary:
    """What came of many trials, all told."""

    def __init__(self) -> None:
        self.tried: Counter[str] = Counter()
        """By the kind of boundary."""
        self.situations: Counter[Situation] = Counter()
        """What sessions were doing at the boundaries."""
        self.lives = 0
        self.exercised: Counter[str] = Counter()
        self.broken: dict[str, list[Boundary]] = {}
        """Where a promise was broken, by its name."""
        self.first_broken: CrashTrial | None = None

    def add(self, trial: CrashTrial) -> None:
        self.tried[trial.boundary.kind] += 1
        self.situations.update(trial.situations)
        self.lives += trial.lives
        self.exercised.update(trial.exercised)
        for rule in dict.fromkeys(broken.rule for broken in trial.broken):
            self.broken.setdefault(rule, []).append(trial.boundary)
        if trial.broken:
            self.first_broken = self.first_broken or trial

    def verdicts(self) -> dict[str, RuleVerdict]:
        return verdicts_on(self.broken, self.exercised)


def boundary_at(found: Sequence[Boundary], position: int) -> list[Boundary]:
    """Return the boundaries at a position."""
    at = [boundary for boundary in found if boundary.position == position]
    if not at:
        near = sorted({boundary.position for boundary in found}, key=lambda other: abs(other - position))[:3]
        raise ConfigError(f"no commit ends at position {position}; near it: {', '.join(map(str, near)) or '-'}")
    return at
