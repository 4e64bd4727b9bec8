"""What can happen, and what it means: pure data and pure functions, no I/O, no clock, no asyncio.

Start at `session_core` (the four functions of a session) and `core` (what the four functions are); `content`,
`events` and `state` are the data; `codec` and `records` are how events enter a store.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.events.core.codec import EventCodec as EventCodec
    from refold.events.core.codec import RecordedEvent as RecordedEvent
    from refold.events.core.content import ImageBlock as ImageBlock
    from refold.events.core.content import Message as Message
    from refold.events.core.content import ProviderBlock as ProviderBlock
    from refold.events.core.content import StoredBlock as StoredBlock
    from refold.events.core.content import TextBlock as TextBlock
    from refold.events.core.content import ThinkingBlock as ThinkingBlock
    from refold.events.core.content import ToolResultBlock as ToolResultBlock
    from refold.events.core.content import ToolUseBlock as ToolUseBlock
    from refold.events.core.contract import Core as Core
    from refold.events.core.contract import Effect as Effect
    from refold.events.core.contract import Recorded as Recorded
    from refold.events.core.contract import Wait as Wait
    from refold.events.core.contract import WaitUntil as WaitUntil
    from refold.events.core.errors import CommandRejected as CommandRejected
    from refold.events.core.errors import CoreFailed as CoreFailed
    from refold.events.core.event import SECOND_US as SECOND_US
    from refold.events.core.event import Event as Event
    from refold.events.core.pure_core import KeyedCommand as KeyedCommand
    from refold.events.core.pure_core import KeyedEvent as KeyedEvent
    from refold.events.core.pure_core import PureCore as PureCore
    from refold.events.core.pure_core import State as State
    from refold.events.model.configuration import AgentConfig as AgentConfig
    from refold.events.model.configuration import ToolSpec as ToolSpec
    from refold.events.session.core import SESSION_CODEC as SESSION_CODEC
    from refold.events.session.core import SESSION_CORE as SESSION_CORE
    from refold.events.session.core import fold as fold
    from refold.events.session.state import SessionState as SessionState
    from refold.events.session.state import history as history

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
    "AgentConfig": "refold.events.model.configuration",
    "CommandRejected": "refold.events.core.errors",
    "Core": "refold.events.core.contract",
    "CoreFailed": "refold.events.core.errors",
    "Effect": "refold.events.core.contract",
    "Event": "refold.events.core.event",
    "EventCodec": "refold.events.core.codec",
    "ImageBlock": "refold.events.core.content",
    "KeyedCommand": "refold.events.core.pure_core",
    "KeyedEvent": "refold.events.core.pure_core",
    "Message": "refold.events.core.content",
    "ProviderBlock": "refold.events.core.content",
    "PureCore": "refold.events.core.pure_core",
    "Recorded": "refold.events.core.contract",
    "RecordedEvent": "refold.events.core.codec",
    "SECOND_US": "refold.events.core.event",
    "SESSION_CODEC": "refold.events.session.core",
    "SESSION_CORE": "refold.events.session.core",
    "SessionState": "refold.events.session.state",
    "State": "refold.events.core.pure_core",
    "StoredBlock": "refold.events.core.content",
    "TextBlock": "refold.events.core.content",
    "ThinkingBlock": "refold.events.core.content",
    "ToolResultBlock": "refold.events.core.content",
    "ToolSpec": "refold.events.model.configuration",
    "ToolUseBlock": "refold.events.core.content",
    "Wait": "refold.events.core.contract",
    "WaitUntil": "refold.events.core.contract",
    "fold": "refold.events.session.core",
    "history": "refold.events.session.state",
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
