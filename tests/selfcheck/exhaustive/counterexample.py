"""A violation as a program that can be run: the commands that lead to it, and the log.

The program needs nothing but `refold.events` and the scope; fields that have their default are left out.
"""

from collections.abc import Iterator, Sequence
from typing import TypeGuard

import msgspec

from refold.events.session.commands import Configure, SessionCommand
from refold.events.session.events import SessionEvent
from refold.scenarios.as_code import expression, given_fields
from tests.selfcheck.exhaustive.scope import Scope

_PROGRAM = """\
{imports}

state = SESSION_CORE.initial()
for command in (
{commands}
):
    planned = plan(SESSION_CORE, state, command, at=0)
    state = planned.state if isinstance(planned, Plan) else state
"""


def as_program(commands: Sequence[SessionCommand], scope: Scope) -> str:
    """Return a program that tells `commands`, in order, to a session of `scope`; it ends with `state`."""
    names = {
        ("refold.events.core.pure_core", "Plan"),
        ("refold.events.core.pure_core", "plan"),
        ("refold.events.session.core", "SESSION_CORE"),
    }
    lines: list[str] = []
    for command in commands:
        if type(command) is Configure:
            names |= {_home(command), _home(scope), (Scope.__module__, "configuration")}
            lines.append(f"    Configure(configuration=configuration({expression(scope)})),")
        else:
            names |= {_home(struct) for struct in _structs(command)}
            lines.append(f"    {expression(command)},")
    imports = "\n".join(f"from {module} import {name}" for module, name in sorted(names))
    return _PROGRAM.format(imports=imports, commands="\n".join(lines))


def as_lines(log: Sequence[SessionEvent]) -> str:
    """Return one line for each event of a log, with its version."""
    return "\n".join(f"{version:>4}  {_without_time(event)}" for version, event in enumerate(log, 1))


def _without_time(event: SessionEvent) -> str:
    return expression(msgspec.structs.replace(event, at=0))


def _structs(value: object) -> Iterator[msgspec.Struct]:
    """Yield every Struct that `expression` names."""
    if isinstance(value, msgspec.Struct):
        yield value
        for _, field in given_fields(value):
            yield from _structs(field)
    elif _is_tuple(value):
        for item in value:
            yield from _structs(item)


def _is_tuple(value: object) -> TypeGuard[tuple[object, ...]]:
    return isinstance(value, tuple)


def _home(struct: msgspec.Struct) -> tuple[str, str]:
    return type(struct).__module__, type(struct).__name__
