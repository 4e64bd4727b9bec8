"""For whom a function of the application is called: the session, the run and its turn, and what it depends on.

A system prompt that is a function gets one, hooks get a `HookContext`, tools a `ToolContext`, and policies a
`ProposedCall`. All other functions that Refold calls for a run, such as approval handlers, offers of tools, memories
and providers, find it with `current_context()`, in threads too. The rule: what is in `deps` belongs to the process, and
nothing of it is recorded.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from refold.events.core.ids import RunId, SessionId

D = TypeVar("D")


class RunContext(msgspec.Struct, Generic[D], frozen=True, kw_only=True):
    """For whom a function of the application is called."""

    session: SessionId
    run: RunId | None = None
    """None where none has begun, and around a tool's body."""
    turn: int = 0
    """From 1 in each run; 0 where there is none."""
    user: str | None = None
    """Whose session it is; None = no user was named."""
    metadata: Mapping[str, str] = {}
    """What the application says of the session."""
    deps: D
    """What the application depends on: the run's own, the session's, or the agent's."""


PromptFunction: TypeAlias = Callable[[RunContext[Any]], "str | Awaitable[str]"]
"""Returns the system prompt of one request; a plain function runs on the loop and must return quickly."""
