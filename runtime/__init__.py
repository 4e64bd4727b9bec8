"""Refold: an event-sourced actor system for LLM agents.

Each session, tool and model is an actor; every change of state is an event in one SQLite log; state is never stored,
only folded. Names load on first use, so that importing the package is cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.actors.agent.compaction import Summarising as Summarising
    from refold.actors.calls.middleware import HookContext as HookContext
    from refold.actors.calls.middleware import Middleware as Middleware
    from refold.actors.calls.middleware import ToolCall as ToolCall
    from refold.actors.calls.policy import Policy as Policy
    from refold.actors.calls.protocols import Provider as Provider
    from refold.actors.calls.protocols import StreamingProvider as StreamingProvider
    from refold.actors.calls.tool_context import ToolContext as ToolContext
    from refold.actors.cancellation import CancellationToken as CancellationToken
    from refold.actors.kernel.errors import ActorStopped as ActorStopped
    from refold.actors.kernel.errors import AskCycle as AskCycle
    from refold.actors.kernel.errors import AskTimeout as AskTimeout
    from refold.actors.kernel.errors import WouldDeadlock as WouldDeadlock
    from refold.agent_runtime import AgentRuntime as AgentRuntime
    from refold.agents.agent import Agent as Agent
    from refold.agents.agent import ApprovalHandler as ApprovalHandler
    from refold.agents.memory_tools import memory_tools as memory_tools
    from refold.agents.skill import Skill as Skill
    from refold.agents.skill import load_skills as load_skills
    from refold.agents.subagent import SubagentTool as SubagentTool
    from refold.agents.subagent import subagent as subagent
    from refold.events.core.codec import RecordedEvent as RecordedEvent
    from refold.events.core.content import ImageBlock as ImageBlock
    from refold.events.core.content import Message as Message
    from refold.events.core.content import ProviderBlock as ProviderBlock
    from refold.events.core.content import TextBlock as TextBlock
    from refold.events.core.content import ThinkingBlock as ThinkingBlock
    from refold.events.core.content import ToolResultBlock as ToolResultBlock
    from refold.events.core.content import ToolUseBlock as ToolUseBlock
    from refold.events.core.errors import AgentLoopError as AgentLoopError
    from refold.events.core.errors import AgentMemoryError as AgentMemoryError
    from refold.events.core.errors import BackpressureShed as BackpressureShed
    from refold.events.core.errors import CircuitOpen as CircuitOpen
    from refold.events.core.errors import CommandRejected as CommandRejected
    from refold.events.core.errors import ConfigError as ConfigError
    from refold.events.core.errors import GraphError as GraphError
    from refold.events.core.errors import LogFormatError as LogFormatError
    from refold.events.core.errors import LogInUse as LogInUse
    from refold.events.core.errors import PersistenceError as PersistenceError
    from refold.events.core.errors import PipelineError as PipelineError
    from refold.events.core.errors import ProviderError as ProviderError
    from refold.events.core.errors import RefoldError as RefoldError
    from refold.events.core.errors import ToolError as ToolError
    from refold.events.core.ids import AgentId as AgentId
    from refold.events.core.ids import MemoryId as MemoryId
    from refold.events.core.ids import RunId as RunId
    from refold.events.core.ids import SessionId as SessionId
    from refold.events.core.ids import ToolCallId as ToolCallId
    from refold.events.kinds.indexing import TextColumn as TextColumn
    from refold.events.kinds.memory_policies import DecayPolicy as DecayPolicy
    from refold.events.kinds.memory_policies import RecallPolicy as RecallPolicy
    from refold.events.model.configuration import AgentConfig as AgentConfig
    from refold.events.model.configuration import ToolSpec as ToolSpec
    from refold.events.model.context_window import ContextWindow as ContextWindow
    from refold.events.model.context_window import TokenWindow as TokenWindow
    from refold.events.model.messages import Delta as Delta
    from refold.events.model.messages import ModelRequest as ModelRequest
    from refold.events.model.messages import ModelResponse as ModelResponse
    from refold.events.model.messages import TextDelta as TextDelta
    from refold.events.model.messages import ThinkingDelta as ThinkingDelta
    from refold.events.model.messages import ToolInputDelta as ToolInputDelta
    from refold.events.model.messages import ToolUse as ToolUse
    from refold.events.model.messages import Usage as Usage
    from refold.events.model.messages import UsageDelta as UsageDelta
    from refold.events.model.retry import RetryPolicy as RetryPolicy
    from refold.events.model.spending import Budget as Budget
    from refold.events.model.spending import Price as Price
    from refold.events.session.events import Allow as Allow
    from refold.events.session.events import Ask as Ask
    from refold.events.session.events import Deny as Deny
    from refold.events.session.events import ProposedCall as ProposedCall
    from refold.events.session.events import ToolApprovalRequested as ToolApprovalRequested
    from refold.memory.episodic import EpisodicStore as EpisodicStore
    from refold.memory.graph import GraphStore as GraphStore
    from refold.memory.items import NewEntry as NewEntry
    from refold.memory.items import NewEpisode as NewEpisode
    from refold.memory.items import Recalled as Recalled
    from refold.memory.semantic import SemanticStore as SemanticStore
    from refold.memory.working import WorkingMemory as WorkingMemory
    from refold.providers.react import ReActProvider as ReActProvider
    from refold.providers.scripted import ScriptedProvider as ScriptedProvider
    from refold.providers.scripted import ScriptItem as ScriptItem
    from refold.providers.scripted import cut as cut
    from refold.providers.scripted import say as say
    from refold.providers.scripted import stall as stall
    from refold.providers.scripted import use as use
    from refold.react.text import ReActStep as ReActStep
    from refold.react.text import parse_react_step as parse_react_step
    from refold.remote.connection import ConnectedSession as ConnectedSession
    from refold.remote.connection import Connection as Connection
    from refold.remote.connection import Unfinished as Unfinished
    from refold.remote.connection import connect as connect
    from refold.sessions.checkpoint import Checkpoint as Checkpoint
    from refold.sessions.checkpoint import load_checkpoint as load_checkpoint
    from refold.sessions.notifications import Missed as Missed
    from refold.sessions.notifications import Progressed as Progressed
    from refold.sessions.notifications import Published as Published
    from refold.sessions.notifications import Streamed as Streamed
    from refold.sessions.outcome import Cancelled as Cancelled
    from refold.sessions.outcome import Completed as Completed
    from refold.sessions.outcome import Failed as Failed
    from refold.sessions.outcome import Outcome as Outcome
    from refold.sessions.outcome import RunError as RunError
    from refold.sessions.outcome import RunResult as RunResult
    from refold.sessions.outcome import Spent as Spent
    from refold.sessions.reads import AwaitedApproval as AwaitedApproval
    from refold.sessions.reads import SessionMetadata as SessionMetadata
    from refold.sessions.run_handle import TurnResult as TurnResult
    from refold.sessions.session import Session as Session
    from refold.sessions.stream import RunStream as RunStream
    from refold.sessions.subscription import Subscription as Subscription
    from refold.sigterm import stop_on_sigterm as stop_on_sigterm
    from refold.sync.connection import SyncConnectedSession as SyncConnectedSession
    from refold.sync.connection import SyncConnection as SyncConnection
    from refold.sync.runtime import SyncRunStream as SyncRunStream
    from refold.sync.runtime import SyncRuntime as SyncRuntime
    from refold.sync.runtime import SyncSession as SyncSession
    from refold.sync.runtime import SyncSubscription as SyncSubscription
    from refold.tools.registry import ToolRegistry as ToolRegistry
    from refold.tools.tool import Tool as Tool
    from refold.tools.tool import tool as tool
    from refold.version import VERSION as __version__  # noqa: N811 - The name that every package has.

__all__ = [
    "ActorStopped",
    "Agent",
    "AgentConfig",
    "AgentId",
    "AgentLoopError",
    "AgentMemoryError",
    "AgentRuntime",
    "Allow",
    "ApprovalHandler",
    "Ask",
    "AskCycle",
    "AskTimeout",
    "AwaitedApproval",
    "BackpressureShed",
    "Budget",
    "CancellationToken",
    "Cancelled",
    "Checkpoint",
    "CircuitOpen",
    "CommandRejected",
    "Completed",
    "ConfigError",
    "ConnectedSession",
    "Connection",
    "ContextWindow",
    "DecayPolicy",
    "Delta",
    "Deny",
    "EpisodicStore",
    "Failed",
    "GraphError",
    "GraphStore",
    "HookContext",
    "ImageBlock",
    "LogFormatError",
    "LogInUse",
    "MemoryId",
    "Message",
    "Middleware",
    "Missed",
    "ModelRequest",
    "ModelResponse",
    "NewEntry",
    "NewEpisode",
    "Outcome",
    "PersistenceError",
    "PipelineError",
    "Policy",
    "Price",
    "Progressed",
    "ProposedCall",
    "Provider",
    "ProviderBlock",
    "ProviderError",
    "Published",
    "ReActProvider",
    "ReActStep",
    "RecallPolicy",
    "Recalled",
    "RecordedEvent",
    "RefoldError",
    "RetryPolicy",
    "RunError",
    "RunId",
    "RunResult",
    "RunStream",
    "ScriptItem",
    "ScriptedProvider",
    "SemanticStore",
    "Session",
    "SessionId",
    "SessionMetadata",
    "Skill",
    "Spent",
    "Streamed",
    "StreamingProvider",
    "SubagentTool",
    "Subscription",
    "Summarising",
    "SyncConnectedSession",
    "SyncConnection",
    "SyncRunStream",
    "SyncRuntime",
    "SyncSession",
    "SyncSubscription",
    "TextBlock",
    "TextColumn",
    "TextDelta",
    "ThinkingBlock",
    "ThinkingDelta",
    "TokenWindow",
    "Tool",
    "ToolApprovalRequested",
    "ToolCall",
    "ToolCallId",
    "ToolContext",
    "ToolError",
    "ToolInputDelta",
    "ToolRegistry",
    "ToolResultBlock",
    "ToolSpec",
    "ToolUse",
    "ToolUseBlock",
    "TurnResult",
    "Unfinished",
    "Usage",
    "UsageDelta",
    "WorkingMemory",
    "WouldDeadlock",
    "__version__",
    "connect",
    "cut",
    "load_checkpoint",
    "load_skills",
    "memory_tools",
    "parse_react_step",
    "say",
    "stall",
    "stop_on_sigterm",
    "subagent",
    "tool",
    "use",
]

_HOMES = {
    "ActorStopped": "refold.actors.kernel.errors",
    "Agent": "refold.agents.agent",
    "AgentConfig": "refold.events.model.configuration",
    "AgentId": "refold.events.core.ids",
    "AgentLoopError": "refold.events.core.errors",
    "AgentMemoryError": "refold.events.core.errors",
    "AgentRuntime": "refold.agent_runtime",
    "Allow": "refold.events.session.events",
    "ApprovalHandler": "refold.agents.agent",
    "Ask": "refold.events.session.events",
    "AskCycle": "refold.actors.kernel.errors",
    "AskTimeout": "refold.actors.kernel.errors",
    "AwaitedApproval": "refold.sessions.reads",
    "BackpressureShed": "refold.events.core.errors",
    "Budget": "refold.events.model.spending",
    "CancellationToken": "refold.actors.cancellation",
    "Cancelled": "refold.sessions.outcome",
    "Checkpoint": "refold.sessions.checkpoint",
    "CircuitOpen": "refold.events.core.errors",
    "CommandRejected": "refold.events.core.errors",
    "Completed": "refold.sessions.outcome",
    "ConfigError": "refold.events.core.errors",
    "ConnectedSession": "refold.remote.connection",
    "Connection": "refold.remote.connection",
    "ContextWindow": "refold.events.model.context_window",
    "DecayPolicy": "refold.events.kinds.memory_policies",
    "Delta": "refold.events.model.messages",
    "Deny": "refold.events.session.events",
    "EpisodicStore": "refold.memory.episodic",
    "Failed": "refold.sessions.outcome",
    "GraphError": "refold.events.core.errors",
    "GraphStore": "refold.memory.graph",
    "HookContext": "refold.actors.calls.middleware",
    "ImageBlock": "refold.events.core.content",
    "LogFormatError": "refold.events.core.errors",
    "LogInUse": "refold.events.core.errors",
    "MemoryId": "refold.events.core.ids",
    "Message": "refold.events.core.content",
    "Middleware": "refold.actors.calls.middleware",
    "Missed": "refold.sessions.notifications",
    "ModelRequest": "refold.events.model.messages",
    "ModelResponse": "refold.events.model.messages",
    "NewEntry": "refold.memory.items",
    "NewEpisode": "refold.memory.items",
    "Outcome": "refold.sessions.outcome",
    "PersistenceError": "refold.events.core.errors",
    "PipelineError": "refold.events.core.errors",
    "Policy": "refold.actors.calls.policy",
    "Price": "refold.events.model.spending",
    "Progressed": "refold.sessions.notifications",
    "ProposedCall": "refold.events.session.events",
    "Provider": "refold.actors.calls.protocols",
    "ProviderBlock": "refold.events.core.content",
    "ProviderError": "refold.events.core.errors",
    "Published": "refold.sessions.notifications",
    "ReActProvider": "refold.providers.react",
    "ReActStep": "refold.react.text",
    "RecallPolicy": "refold.events.kinds.memory_policies",
    "Recalled": "refold.memory.items",
    "RecordedEvent": "refold.events.core.codec",
    "RefoldError": "refold.events.core.errors",
    "RetryPolicy": "refold.events.model.retry",
    "RunError": "refold.sessions.outcome",
    "RunId": "refold.events.core.ids",
    "RunResult": "refold.sessions.outcome",
    "RunStream": "refold.sessions.stream",
    "ScriptItem": "refold.providers.scripted",
    "ScriptedProvider": "refold.providers.scripted",
    "SemanticStore": "refold.memory.semantic",
    "Session": "refold.sessions.session",
    "SessionId": "refold.events.core.ids",
    "SessionMetadata": "refold.sessions.reads",
    "Skill": "refold.agents.skill",
    "Spent": "refold.sessions.outcome",
    "Streamed": "refold.sessions.notifications",
    "StreamingProvider": "refold.actors.calls.protocols",
    "SubagentTool": "refold.agents.subagent",
    "Subscription": "refold.sessions.subscription",
    "Summarising": "refold.actors.agent.compaction",
    "SyncConnectedSession": "refold.sync.connection",
    "SyncConnection": "refold.sync.connection",
    "SyncRunStream": "refold.sync.runtime",
    "SyncRuntime": "refold.sync.runtime",
    "SyncSession": "refold.sync.runtime",
    "SyncSubscription": "refold.sync.runtime",
    "TextBlock": "refold.events.core.content",
    "TextColumn": "refold.events.kinds.indexing",
    "TextDelta": "refold.events.model.messages",
    "ThinkingBlock": "refold.events.core.content",
    "ThinkingDelta": "refold.events.model.messages",
    "TokenWindow": "refold.events.model.context_window",
    "Tool": "refold.tools.tool",
    "ToolApprovalRequested": "refold.events.session.events",
    "ToolCall": "refold.actors.calls.middleware",
    "ToolCallId": "refold.events.core.ids",
    "ToolContext": "refold.actors.calls.tool_context",
    "ToolError": "refold.events.core.errors",
    "ToolInputDelta": "refold.events.model.messages",
    "ToolRegistry": "refold.tools.registry",
    "ToolResultBlock": "refold.events.core.content",
    "ToolSpec": "refold.events.model.configuration",
    "ToolUse": "refold.events.model.messages",
    "ToolUseBlock": "refold.events.core.content",
    "TurnResult": "refold.sessions.run_handle",
    "Unfinished": "refold.remote.connection",
    "Usage": "refold.events.model.messages",
    "UsageDelta": "refold.events.model.messages",
    "WorkingMemory": "refold.memory.working",
    "WouldDeadlock": "refold.actors.kernel.errors",
    "connect": "refold.remote.connection",
    "cut": "refold.providers.scripted",
    "load_checkpoint": "refold.sessions.checkpoint",
    "load_skills": "refold.agents.skill",
    "memory_tools": "refold.agents.memory_tools",
    "parse_react_step": "refold.react.text",
    "say": "refold.providers.scripted",
    "stall": "refold.providers.scripted",
    "stop_on_sigterm": "refold.sigterm",
    "subagent": "refold.agents.subagent",
    "tool": "refold.tools.tool",
    "use": "refold.providers.scripted",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, and keep it."""
    if name == "__version__":
        value: object = import_module("refold.version").VERSION
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
