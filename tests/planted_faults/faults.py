"""The faults, as data: a small edit of a function's source, and what must find it.

The TOML files beside this module hold them, one file a layer. What finds a fault is rules of the exhaustive check
(`test_core_faults`), named tests (`test_shell_faults`), or the drawn scenarios of a world (`test_scenario_faults`).
With a new rule, guard or ending of the product comes the fault that would go unseen without its test.
"""

import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from tests.planted_faults.planting import LAYERS, Edit, copy_package, plant, run_copy
from tests.selfcheck.exhaustive.rules import Rule

SEARCH_S = 250
"""Ends a search that a fault has made endless."""

WorldName: TypeAlias = Literal["memory", "sqlite", "openai", "anthropic", "power", "disk"]


class Fault(Edit, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault to plant, and what finds it."""

    name: str
    rules: tuple[Rule, ...] = ()
    """Of the exhaustive check: those that the first violation breaks, all of them."""
    scope: str = "calls"
    """Name of the smallest scope of the everyday check in which these rules find it."""
    tests: tuple[str, ...] = ()
    """Ids of tests below `tests/`, each of which must fail; without its parameters, in at least one row."""
    world: WorldName | None = None
    """Where drawn scenarios look for it."""
    search: str = ""
    """The test file that searches for it with a program of its own; see `search`."""
    missed: str = ""
    """Why drawn scenarios do not find it, if so; named tests do."""

    @property
    def layer(self) -> str:
        """The name of the folder that it is in."""
        name = self.module.split(".")[1]
        return name if name in LAYERS else "runtime"

    @property
    def part(self) -> str:
        """Which part of the system it is in."""
        return next(part for part, modules in PARTS.items() if self.module.startswith(modules))


PARTS: dict[str, tuple[str, ...]] = {
    "core, views": ("refold.events.",),
    "journal": ("refold.actors.shell.journal", "refold.actors.shell.folded_stream"),
    "effects": (
        *(f"refold.actors.shell.{name}" for name in ("effects", "event_sourced", "joined", "timers")),
        "refold.actors.hosted",
    ),
    "kernel": ("refold.actors.kernel.", "refold.actors.cancellation"),
    "providers": ("refold.providers.",),
    "session": ("refold.actors.agent.session",),
    "tools, approvals": ("refold.actors.agent.tool", "refold.actors.agent.approval", "refold.actors.calls.policy"),
    "model calls": ("refold.actors.",),
    "stores": ("refold.stores.",),
    "runtime": ("refold.",),
}
"""The parts, and how the names of their modules begin; a module belongs to the first that fits."""


def loaded(name: str) -> tuple[Fault, ...]:
    """Return the faults of one TOML file."""
    text = (Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text)["fault"], tuple[Fault, ...])


FAULTS = tuple(
    fault
    for name in ("core", "views", "stores", "actors", "runtime", "providers", "searches")
    for fault in loaded(name)
)
CORE_FAULTS = tuple(fault for fault in FAULTS if fault.rules)
SHELL_FAULTS = tuple(fault for fault in FAULTS if fault.tests)
SCENARIO_FAULTS = tuple(fault for fault in FAULTS if fault.world)


def search(folder: Path, program: str, *arguments: str, faults: Iterable[str]) -> subprocess.CompletedProcess[str]:
    """Run a program, which looks for a fault, on a copy of the package, in `folder`, that has the named faults."""
    copy_package(folder)
    for name in faults:
        plant(folder, next(fault for fault in FAULTS if fault.name == name))
    return run_copy(folder, "-c", program, *arguments, timeout_s=SEARCH_S)
