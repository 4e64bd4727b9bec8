"""The smallest scenario that is found to break a promise, begun from one that does.

A scenario is made smaller step by step, each time in a way that leaves less to understand: fewer acts and faults, the
fair order of tasks, fewer sessions, rounder moments, earlier places, and fields that have their default. What still
breaks the same promise is gone on with. It needs nothing beside Refold, and takes the same steps in every process.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from refold.events.core.errors import ConfigError
from refold.scenarios.plan.scenario import Scenario
from refold.scenarios.report import SimulationReport

S = TypeVar("S", bound=msgspec.Struct)

RUNS_MAX = 300
"""How many smaller scenarios are tried at most."""

SEEDS = 8
"""How many seeds, from 0, are tried instead of the one that was drawn."""


def shrunk(
    play: Callable[[Scenario], SimulationReport], report: SimulationReport, *, runs_max: int = RUNS_MAX
) -> SimulationReport:
    """Return the report of the smallest scenario that breaks the promise that is broken first in `report`.

    Args:
        play: plays a scenario, such as `Simulator(agent).run`.
        report: of a scenario that breaks a promise; returned unchanged where nothing smaller does.
        runs_max: how many scenarios are tried at most, >= 0.
    """
    return _Shrinking(play, report, runs_max).smallest()


class _Shrinking:
    def __init__(self, play: Callable[[Scenario], SimulationReport], report: SimulationReport, runs_max: int) -> None:
        self._play = play
        self._best = report
        self._rule = report.broken[0].rule
        self._runs_left = runs_max
        self._tried = {_key(report.scenario)}

    def smallest(self) -> SimulationReport:
        passes = (self._fair_order, self._fewer, self._fewer_by_other_chance, self._simpler, self._without_details)
        while self._runs_left > 0:
            before = self._best
            for each in passes:
                each()
            if self._best is before:
                break
        return self._best

    def _is_broken(self, candidate: Scenario) -> bool:
        """Try a smaller scenario, and go on with it if it breaks the promise too."""
        key = _key(candidate)
        if key in self._tried or self._runs_left <= 0:
            return False
        self._tried.add(key)
        self._runs_left -= 1
        report = self._play(candidate)
        if not report.broken or report.broken[0].rule != self._rule:
            return False
        self._best = report
        return True

    def _fair_order(self) -> None:
        if self._best.scenario.deviations != {}:
            self._with(deviations={})
        for place in list(self._best.scenario.deviations or {}):
            fewer = {number: by for number, by in (self._best.scenario.deviations or {}).items() if number != place}
            self._with(deviations=fewer)

    def _fewer(self) -> None:
        """Leave out faults and acts: those that did not happen first, then halves, then one after the other."""
        self._with(faults=self._best.happened)
        self._leave_out("faults", least=0)
        self._leave_out("acts", least=1)
        self._leave_out("script", least=0)

    def _leave_out(self, field: str, *, least: int) -> None:
        size = len(getattr(self._best.scenario, field))
        while size >= 1:
            start = 0
            while start < len(items := getattr(self._best.scenario, field)):
                rest = (*items[:start], *items[start + size :])
                if len(rest) < least or not self._with(**{field: rest}):
                    start += size
            size //= 2

    def _fewer_by_other_chance(self) -> None:
        """Leave out an act or a fault and have chance decide otherwise: what is left may do with other answers."""
        for field, least in (("faults", 0), ("acts", 1)):
            place = 0
            while place < len(items := getattr(self._best.scenario, field)):
                rest = (*items[:place], *items[place + 1 :])
                if len(rest) < least or not any(self._with(**{field: rest}, seed=seed) for seed in range(SEEDS)):
                    place += 1

    def _simpler(self) -> None:
        for field in ("acts", "faults"):
            for place in range(len(getattr(self._best.scenario, field))):
                self._simplify(field, place)

    def _simplify(self, field: str, place: int) -> None:
        items: Sequence[msgspec.Struct] = getattr(self._best.scenario, field)
        for candidate in _simplified(items[place]):
            if self._with(**{field: (*items[:place], candidate, *items[place + 1 :])}):
                self._simplify(field, place)
                return

    def _without_details(self) -> None:
        self._with(acts=tuple(sorted(self._best.scenario.acts, key=lambda act: act.at_s)))
        sessions = self._best.scenario.sessions()
        one, counted = dict.fromkeys(sessions, "s0"), {name: f"s{place}" for place, name in enumerate(sessions)}
        for known in (one, counted):
            acts = self._best.scenario.acts
            if self._with(acts=tuple(msgspec.structs.replace(act, session=known[act.session]) for act in acts)):
                break
        for seed in range(min(SEEDS, self._best.scenario.seed)):
            if self._with(seed=seed):
                break
        for field in msgspec.structs.fields(Scenario):
            if field.default is not msgspec.NODEFAULT and field.name not in ("faults", "script", "seed", "deviations"):
                self._with(**{field.name: field.default})

    def _with(self, **changes: object) -> bool:
        try:
            candidate = msgspec.structs.replace(self._best.scenario, **changes)
        except ConfigError:  # Such as less patience than an act takes.
            return False
        return self._is_broken(candidate)


def _simplified(struct: S) -> Iterator[S]:
    """Yield what is simpler than an act or a fault in one field, simplest first."""
    for field in msgspec.structs.fields(struct):
        value: Any = getattr(struct, field.name)
        simpler: list[object] = [] if field.default is msgspec.NODEFAULT else [field.default]
        if field.name == "nth":
            simpler += [1, value // 2, value - value // 4, value - 1]
        elif field.name == "at_s":
            simpler += [0.0, float(value // 2), float(value // 1), round(value, 1)]
        for each in simpler:
            if each != value and (field.name, each) != ("nth", 0):
                yield msgspec.structs.replace(struct, **{field.name: each})


def _key(scenario: Scenario) -> bytes:
    return msgspec.json.encode(scenario)
