"""What can happen, and what it means: pure data and pure functions, no I/O, no clock, no asyncio.

Start at `session_core` (the four functions of a session) and `core` (what the four functions are); `content`,
`session_events` and `session_state` are the data; `codec` and `records` are how events enter a store.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.events.codec import EventCodec as EventCodec
    from refold.events.codec import RecordedEvent as RecordedEvent
    from refold.events.configuration import AgentConfig as AgentConfig
    from refold.events.configuration import ToolSpec as ToolSpec
    from refold.events.content import ImageBlock as ImageBlock
    from refold.events.content import Message as Message
    from refold.events.content import ProviderBlock as ProviderBlock
    from refold.events.content import StoredBlock as StoredBlock
    from refold.events.content import TextBlock as TextBlock
    from refold.events.content import ThinkingBlock as ThinkingBlock
    from refold.events.content import ToolResultBlock as ToolResultBlock
    from refold.events.content import ToolUseBlock as ToolUseBlock
    from refold.events.core import Core as Core
    from refold.events.core import Effect as Effect
    from refold.events.core import Recorded as Recorded
    from refold.events.core import Wait as Wait
    from refold.events.core import WaitUntil as WaitUntil
    from refold.events.errors import CommandRejected as CommandRejected
    from refold.events.errors import CoreFailed as CoreFailed
    from refold.events.event import SECOND_US as SECOND_US
    from refold.events.event import Event as Event
    from refold.events.pure_core import KeyedCommand as KeyedCommand
    from refold.events.pure_core import KeyedEvent as KeyedEvent
    from refold.events.pure_core import PureCore as PureCore
    from refold.events.pure_core import State as State
    from refold.events.session_core import SESSION_CODEC as SESSION_CODEC
    from refold.events.session_core import SESSION_CORE as SESSION_CORE
    from refold.events.session_core import fold as fold
    from refold.events.session_state import SessionState as SessionState
    from refold.events.session_state import history as history

__all__ = [
    "SECOND_US",
    "SESSION_CODEC",
    "SESSION_CORE",
    "AgentConfig",
    "CommandRejected",
    "Core",
    "CoreFailed",
    "Effect",
    "Event",
    "EventCodec",
    "ImageBlock",
    "KeyedCommand",
    "KeyedEvent",
    "Message",
    "ProviderBlock",
    "PureCore",
    "Recorded",
    "RecordedEvent",
    "SessionState",
    "State",
    "StoredBlock",
    "TextBlock",
    "ThinkingBlock",
    "ToolResultBlock",
    "ToolSpec",
    "ToolUseBlock",
    "Wait",
    "WaitUntil",
    "fold",
    "history",
]

_HOMES = {
    "AgentConfig": "refold.events.configuration",
    "CommandRejected": "refold.events.errors",
    "Core": "refold.events.core",
    "CoreFailed": "refold.events.errors",
    "Effect": "refold.events.core",
    "Event": "refold.events.event",
    "EventCodec": "refold.events.codec",
    "ImageBlock": "refold.events.content",
    "KeyedCommand": "refold.events.pure_core",
    "KeyedEvent": "refold.events.pure_core",
    "Message": "refold.events.content",
    "ProviderBlock": "refold.events.content",
    "PureCore": "refold.events.pure_core",
    "Recorded": "refold.events.core",
    "RecordedEvent": "refold.events.codec",
    "SECOND_US": "refold.events.event",
    "SESSION_CODEC": "refold.events.session_core",
    "SESSION_CORE": "refold.events.session_core",
    "SessionState": "refold.events.session_state",
    "State": "refold.events.pure_core",
    "StoredBlock": "refold.events.content",
    "TextBlock": "refold.events.content",
    "ThinkingBlock": "refold.events.content",
    "ToolResultBlock": "refold.events.content",
    "ToolSpec": "refold.events.configuration",
    "ToolUseBlock": "refold.events.content",
    "Wait": "refold.events.core",
    "WaitUntil": "refold.events.core",
    "fold": "refold.events.session_core",
    "history": "refold.events.session_state",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, and keep it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
