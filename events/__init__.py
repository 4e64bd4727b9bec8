"""What can happen, and what it means: pure data and pure functions, no I/O, no clock, no asyncio.

Read `core.pure_core` first, the four functions of every actor; then `session.react`, how a session decides.
`core` is what all of it is made of, `session` and `kinds` are the actors, `model` is what a model is asked and answers,
`views` are figures that are made from a log.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.events.core.codec import EventCodec as EventCodec
    from refold.events.core.codec import RecordedEvent as RecordedEvent
    from refold.events.core.content import DocumentBlock as DocumentBlock
    from refold.events.core.content import ImageBlock as ImageBlock
    from refold.events.core.content import Message as Message
    from refold.events.core.content import ProviderBlock as ProviderBlock
    from refold.events.core.content import StoredBlock as StoredBlock
    from refold.events.core.content import TextBlock as TextBlock
    from refold.events.core.content import ThinkingBlock as ThinkingBlock
    from refold.events.core.content import ToolResultBlock as ToolResultBlock
    from refold.events.core.content import ToolUseBlock as ToolUseBlock
    from refold.events.core.errors import CommandRejected as CommandRejected
    from refold.events.core.errors import CoreFailed as CoreFailed
    from refold.events.core.event import SECOND_US as SECOND_US
    from refold.events.core.event import Event as Event
    from refold.events.core.pure_core import Effect as Effect
    from refold.events.core.pure_core import KeyedCommand as KeyedCommand
    from refold.events.core.pure_core import KeyedEvent as KeyedEvent
    from refold.events.core.pure_core import PureCore as PureCore
    from refold.events.core.pure_core import Recorded as Recorded
    from refold.events.core.pure_core import State as State
    from refold.events.core.pure_core import Wait as Wait
    from refold.events.core.pure_core import WaitUntil as WaitUntil
    from refold.events.model.configuration import AgentConfig as AgentConfig
    from refold.events.model.configuration import ToolSpec as ToolSpec
    from refold.events.session.core import SESSION_CODEC as SESSION_CODEC
    from refold.events.session.core import SESSION_CORE as SESSION_CORE
    from refold.events.session.core import fold as fold
    from refold.events.session.state import SessionState as SessionState
    from refold.events.session.state import history as history
else:
    from refold._lazy import lazy

    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "refold.events.core.codec": "EventCodec RecordedEvent",
            "refold.events.core.content": (
                "DocumentBlock ImageBlock Message ProviderBlock StoredBlock TextBlock ThinkingBlock "
                "ToolResultBlock ToolUseBlock"
            ),
            "refold.events.core.errors": "CommandRejected CoreFailed",
            "refold.events.core.event": "Event SECOND_US",
            "refold.events.core.pure_core": "Effect KeyedCommand KeyedEvent PureCore Recorded State Wait WaitUntil",
            "refold.events.model.configuration": "AgentConfig ToolSpec",
            "refold.events.session.core": "fold SESSION_CODEC SESSION_CORE",
            "refold.events.session.state": "history SessionState",
        },
    )
