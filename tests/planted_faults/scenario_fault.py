"""What a fault is that scenarios look for, the parts of the system, and the worlds where faults are looked for."""

import msgspec

from tests.planted_faults.sweep import World

MEMORY = World()
SQLITE, OPENAI, ANTHROPIC = World(store="sqlite"), World(wire="openai"), World(wire="anthropic")
POWER, DISK = World(storage="power"), World(storage="disk")


class ScenarioFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault to plant."""

    name: str
    file: str
    """Such as `actors/journal.py`."""
    original: str
    planted: str
    world: World = MEMORY
    """Where it is looked for."""
    not_found: str = ""
    """Why drawn scenarios do not find it, if so; named tests do."""

    @property
    def part(self) -> str:
        """Which part of the system it is in."""
        return next(part for part, files in PARTS.items() if self.file.startswith(files))


PARTS: dict[str, tuple[str, ...]] = {
    "journal": ("actors/journal.py", "actors/folded_stream.py"),
    "effects": ("actors/event_sourced.py", "actors/effects.py", "actors/hosted.py"),
    "kernel": (
        "actors/kernel/mailbox.py",
        "actors/kernel/cell.py",
        "actors/kernel/system.py",
        "actors/cancellation.py",
    ),
    "providers": ("runtime/providers/",),
    "session": ("actors/agent/session.py", "runtime/"),
    "tools, approvals": ("actors/agent/tool.py", "actors/agent/approval.py", "actors/calls/policy.py"),
    "model calls": (
        "actors/agent/model.py",
        "actors/calls/conversation.py",
        "actors/calls/request.py",
        "actors/kernel/reply.py",
    ),
    "stores": ("stores/",),
}
"""The parts, and where they are; providers come before the rest of `runtime/`."""
