"""Refold: an event-sourced actor system for LLM agents.

Each session, tool and model is an actor; every change of state is an event in one SQLite log; state is never stored,
only folded. Names load on first use, so that importing the package is cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.actors.cancellation import CancellationToken as CancellationToken
    from refold.actors.compaction import Summarising as Summarising
    from refold.actors.errors import ActorStopped as ActorStopped
    from refold.actors.errors import AskCycle as AskCycle
    from refold.actors.errors import AskTimeout as AskTimeout
    from refold.actors.errors import WouldDeadlock as WouldDeadlock
    from refold.actors.judging import Policy as Policy
    from refold.actors.middleware import HookContext as HookContext
    from refold.actors.middleware import Middleware as Middleware
    from refold.actors.middleware import ToolCall as ToolCall
    from refold.actors.protocols import Provider as Provider
    from refold.actors.protocols import StreamingProvider as StreamingProvider
    from refold.actors.tool_context import ToolContext as ToolContext
    from refold.agent import Agent as Agent
    from refold.agent_runtime import AgentRuntime as AgentRuntime
    from refold.approval_handling import ApprovalHandler as ApprovalHandler
    from refold.awaited_approvals import AwaitedApproval as AwaitedApproval
    from refold.checkpoint import Checkpoint as Checkpoint
    from refold.checkpoint import load_checkpoint as load_checkpoint
    from refold.connection import ConnectedSession as ConnectedSession
    from refold.connection import Connection as Connection
    from refold.connection import Unfinished as Unfinished
    from refold.connection import connect as connect
    from refold.events.codec import RecordedEvent as RecordedEvent
    from refold.events.configuration import AgentConfig as AgentConfig
    from refold.events.configuration import ToolSpec as ToolSpec
    from refold.events.content import ImageBlock as ImageBlock
    from refold.events.content import Message as Message
    from refold.events.content import ProviderBlock as ProviderBlock
    from refold.events.content import TextBlock as TextBlock
    from refold.events.content import ThinkingBlock as ThinkingBlock
    from refold.events.content import ToolResultBlock as ToolResultBlock
    from refold.events.content import ToolUseBlock as ToolUseBlock
    from refold.events.context_window import ContextWindow as ContextWindow
    from refold.events.context_window import TokenWindow as TokenWindow
    from refold.events.errors import AgentLoopError as AgentLoopError
    from refold.events.errors import AgentMemoryError as AgentMemoryError
    from refold.events.errors import BackpressureShed as BackpressureShed
    from refold.events.errors import CircuitOpen as CircuitOpen
    from refold.events.errors import CommandRejected as CommandRejected
    from refold.events.errors import ConfigError as ConfigError
    from refold.events.errors import GraphError as GraphError
    from refold.events.errors import LogFormatError as LogFormatError
    from refold.events.errors import LogInUse as LogInUse
    from refold.events.errors import PersistenceError as PersistenceError
    from refold.events.errors import PipelineError as PipelineError
    from refold.events.errors import ProviderError as ProviderError
    from refold.events.errors import RefoldError as RefoldError
    from refold.events.errors import ToolError as ToolError
    from refold.events.ids import AgentId as AgentId
    from refold.events.ids import MemoryId as MemoryId
    from refold.events.ids import RunId as RunId
    from refold.events.ids import SessionId as SessionId
    from refold.events.ids import ToolCallId as ToolCallId
    from refold.events.memory_policies import DecayPolicy as DecayPolicy
    from refold.events.memory_policies import RecallPolicy as RecallPolicy
    from refold.events.model import Delta as Delta
    from refold.events.model import ModelRequest as ModelRequest
    from refold.events.model import ModelResponse as ModelResponse
    from refold.events.model import TextDelta as TextDelta
    from refold.events.model import ThinkingDelta as ThinkingDelta
    from refold.events.model import ToolInputDelta as ToolInputDelta
    from refold.events.model import ToolUse as ToolUse
    from refold.events.model import Usage as Usage
    from refold.events.model import UsageDelta as UsageDelta
    from refold.events.permission import Allow as Allow
    from refold.events.permission import Ask as Ask
    from refold.events.permission import Deny as Deny
    from refold.events.permission import ProposedCall as ProposedCall
    from refold.events.retrying import RetryPolicy as RetryPolicy
    from refold.events.session_events import ToolApprovalRequested as ToolApprovalRequested
    from refold.events.spending import Budget as Budget
    from refold.events.spending import Price as Price
    from refold.events.text_column import TextColumn as TextColumn
    from refold.memory.episodic import EpisodicStore as EpisodicStore
    from refold.memory.graph import GraphStore as GraphStore
    from refold.memory.new_items import NewEntry as NewEntry
    from refold.memory.new_items import NewEpisode as NewEpisode
    from refold.memory.recalled import Recalled as Recalled
    from refold.memory.semantic import SemanticStore as SemanticStore
    from refold.memory.tools import memory_tools as memory_tools
    from refold.memory.working import WorkingMemory as WorkingMemory
    from refold.outcome import Cancelled as Cancelled
    from refold.outcome import Completed as Completed
    from refold.outcome import Failed as Failed
    from refold.outcome import Outcome as Outcome
    from refold.outcome import RunError as RunError
    from refold.outcome import RunResult as RunResult
    from refold.outcome import Spent as Spent
    from refold.providers.react import ReActProvider as ReActProvider
    from refold.providers.scripted import ScriptedProvider as ScriptedProvider
    from refold.providers.scripted import ScriptItem as ScriptItem
    from refold.providers.scripted import cut as cut
    from refold.providers.scripted import say as say
    from refold.providers.scripted import stall as stall
    from refold.providers.scripted import use as use
    from refold.published import Missed as Missed
    from refold.published import Progressed as Progressed
    from refold.published import Published as Published
    from refold.published import Streamed as Streamed
    from refold.react_text import ReActStep as ReActStep
    from refold.react_text import parse_react_step as parse_react_step
    from refold.run_stream import RunStream as RunStream
    from refold.session import Session as Session
    from refold.session_metadata import SessionMetadata as SessionMetadata
    from refold.skill import Skill as Skill
    from refold.skill import load_skills as load_skills
    from refold.stepping import TurnResult as TurnResult
    from refold.stopping import stop_on_sigterm as stop_on_sigterm
    from refold.subagent_tool import SubagentTool as SubagentTool
    from refold.subagent_tool import subagent as subagent
    from refold.subscription import Subscription as Subscription
    from refold.sync_connection import SyncConnectedSession as SyncConnectedSession
    from refold.sync_connection import SyncConnection as SyncConnection
    from refold.sync_runtime import SyncRuntime as SyncRuntime
    from refold.sync_session import SyncSession as SyncSession
    from refold.sync_streams import SyncRunStream as SyncRunStream
    from refold.sync_streams import SyncSubscription as SyncSubscription
    from refold.tool_registry import ToolRegistry as ToolRegistry
    from refold.tools import Tool as Tool
    from refold.tools import tool as tool
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
    "ActorStopped": "refold.actors.errors",
    "Agent": "refold.agent",
    "AgentConfig": "refold.events.configuration",
    "AgentId": "refold.events.ids",
    "AgentLoopError": "refold.events.errors",
    "AgentMemoryError": "refold.events.errors",
    "AgentRuntime": "refold.agent_runtime",
    "Allow": "refold.events.permission",
    "ApprovalHandler": "refold.approval_handling",
    "Ask": "refold.events.permission",
    "AskCycle": "refold.actors.errors",
    "AskTimeout": "refold.actors.errors",
    "AwaitedApproval": "refold.awaited_approvals",
    "BackpressureShed": "refold.events.errors",
    "Budget": "refold.events.spending",
    "CancellationToken": "refold.actors.cancellation",
    "Cancelled": "refold.outcome",
    "Checkpoint": "refold.checkpoint",
    "CircuitOpen": "refold.events.errors",
    "CommandRejected": "refold.events.errors",
    "Completed": "refold.outcome",
    "ConfigError": "refold.events.errors",
    "ConnectedSession": "refold.connection",
    "Connection": "refold.connection",
    "ContextWindow": "refold.events.context_window",
    "DecayPolicy": "refold.events.memory_policies",
    "Delta": "refold.events.model",
    "Deny": "refold.events.permission",
    "EpisodicStore": "refold.memory.episodic",
    "Failed": "refold.outcome",
    "GraphError": "refold.events.errors",
    "GraphStore": "refold.memory.graph",
    "HookContext": "refold.actors.middleware",
    "ImageBlock": "refold.events.content",
    "LogFormatError": "refold.events.errors",
    "LogInUse": "refold.events.errors",
    "MemoryId": "refold.events.ids",
    "Message": "refold.events.content",
    "Middleware": "refold.actors.middleware",
    "Missed": "refold.published",
    "ModelRequest": "refold.events.model",
    "ModelResponse": "refold.events.model",
    "NewEntry": "refold.memory.new_items",
    "NewEpisode": "refold.memory.new_items",
    "Outcome": "refold.outcome",
    "PersistenceError": "refold.events.errors",
    "PipelineError": "refold.events.errors",
    "Policy": "refold.actors.judging",
    "Price": "refold.events.spending",
    "Progressed": "refold.published",
    "ProposedCall": "refold.events.permission",
    "Provider": "refold.actors.protocols",
    "ProviderBlock": "refold.events.content",
    "ProviderError": "refold.events.errors",
    "Published": "refold.published",
    "ReActProvider": "refold.providers.react",
    "ReActStep": "refold.react_text",
    "RecallPolicy": "refold.events.memory_policies",
    "Recalled": "refold.memory.recalled",
    "RecordedEvent": "refold.events.codec",
    "RefoldError": "refold.events.errors",
    "RetryPolicy": "refold.events.retrying",
    "RunError": "refold.outcome",
    "RunId": "refold.events.ids",
    "RunResult": "refold.outcome",
    "RunStream": "refold.run_stream",
    "ScriptItem": "refold.providers.scripted",
    "ScriptedProvider": "refold.providers.scripted",
    "SemanticStore": "refold.memory.semantic",
    "Session": "refold.session",
    "SessionId": "refold.events.ids",
    "SessionMetadata": "refold.session_metadata",
    "Skill": "refold.skill",
    "Spent": "refold.outcome",
    "Streamed": "refold.published",
    "StreamingProvider": "refold.actors.protocols",
    "SubagentTool": "refold.subagent_tool",
    "Subscription": "refold.subscription",
    "Summarising": "refold.actors.compaction",
    "SyncConnectedSession": "refold.sync_connection",
    "SyncConnection": "refold.sync_connection",
    "SyncRunStream": "refold.sync_streams",
    "SyncRuntime": "refold.sync_runtime",
    "SyncSession": "refold.sync_session",
    "SyncSubscription": "refold.sync_streams",
    "TextBlock": "refold.events.content",
    "TextColumn": "refold.events.text_column",
    "TextDelta": "refold.events.model",
    "ThinkingBlock": "refold.events.content",
    "ThinkingDelta": "refold.events.model",
    "TokenWindow": "refold.events.context_window",
    "Tool": "refold.tools",
    "ToolApprovalRequested": "refold.events.session_events",
    "ToolCall": "refold.actors.middleware",
    "ToolCallId": "refold.events.ids",
    "ToolContext": "refold.actors.tool_context",
    "ToolError": "refold.events.errors",
    "ToolInputDelta": "refold.events.model",
    "ToolRegistry": "refold.tool_registry",
    "ToolResultBlock": "refold.events.content",
    "ToolSpec": "refold.events.configuration",
    "ToolUse": "refold.events.model",
    "ToolUseBlock": "refold.events.content",
    "TurnResult": "refold.stepping",
    "Unfinished": "refold.connection",
    "Usage": "refold.events.model",
    "UsageDelta": "refold.events.model",
    "WorkingMemory": "refold.memory.working",
    "WouldDeadlock": "refold.actors.errors",
    "connect": "refold.connection",
    "cut": "refold.providers.scripted",
    "load_checkpoint": "refold.checkpoint",
    "load_skills": "refold.skill",
    "memory_tools": "refold.memory.tools",
    "parse_react_step": "refold.react_text",
    "say": "refold.providers.scripted",
    "stall": "refold.providers.scripted",
    "stop_on_sigterm": "refold.stopping",
    "subagent": "refold.subagent_tool",
    "tool": "refold.tools",
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
