"""Refold: an event-sourced actor system for LLM agents.

Each session, tool and model is an actor; every change of state is an event in one SQLite log; state is never stored,
only folded. Names load on first use, so that importing the package is cheap.

Read `agent_runtime` first. `agents` says what an agent is, `sessions` what callers do with one, `commands` is `refold`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refold.actors.agent.compaction import Summarising as Summarising
    from refold.actors.agent.guardrails import Guardrail as Guardrail
    from refold.actors.agent.guardrails import GuardrailDecision as GuardrailDecision
    from refold.actors.agent.guardrails import guardrail as guardrail
    from refold.actors.calls.context import HookContext as HookContext
    from refold.actors.calls.context import SessionContext as SessionContext
    from refold.actors.calls.context import current_context as current_context
    from refold.actors.calls.middleware import Middleware as Middleware
    from refold.actors.calls.middleware import ToolCall as ToolCall
    from refold.actors.calls.policy import Allow as Allow
    from refold.actors.calls.policy import Ask as Ask
    from refold.actors.calls.policy import Deny as Deny
    from refold.actors.calls.policy import Policy as Policy
    from refold.actors.calls.policy import ProposedCall as ProposedCall
    from refold.actors.calls.protocols import Provider as Provider
    from refold.actors.calls.protocols import StreamingProvider as StreamingProvider
    from refold.actors.calls.protocols import TellingProvider as TellingProvider
    from refold.actors.calls.questions import DeferredResult as DeferredResult
    from refold.actors.calls.questions import NoAnswer as NoAnswer
    from refold.actors.calls.tool_context import ToolContext as ToolContext
    from refold.actors.cancellation import CancellationToken as CancellationToken
    from refold.actors.kernel.errors import ActorStopped as ActorStopped
    from refold.actors.kernel.errors import AskCycle as AskCycle
    from refold.actors.kernel.errors import AskTimeout as AskTimeout
    from refold.actors.kernel.errors import WouldDeadlock as WouldDeadlock
    from refold.agent_runtime import AgentRuntime as AgentRuntime
    from refold.agent_runtime import SyncRuntime as SyncRuntime
    from refold.agents.agent import Agent as Agent
    from refold.agents.agent import HandoffTool as HandoffTool
    from refold.agents.agent import SubagentTool as SubagentTool
    from refold.agents.agent import handoff as handoff
    from refold.agents.agent import subagent as subagent
    from refold.agents.approval import ApprovalHandler as ApprovalHandler
    from refold.agents.memory_tools import memory_tools as memory_tools
    from refold.agents.skill import Skill as Skill
    from refold.agents.skill import load_skills as load_skills
    from refold.connections.connection import Connection as Connection
    from refold.connections.connection import SyncConnection as SyncConnection
    from refold.connections.connection import connect as connect
    from refold.connections.hosted import ConnectedHosted as ConnectedHosted
    from refold.connections.hosted import SyncConnectedHosted as SyncConnectedHosted
    from refold.connections.run import ConnectedReader as ConnectedReader
    from refold.connections.run import ConnectedRun as ConnectedRun
    from refold.connections.run import SyncConnectedReader as SyncConnectedReader
    from refold.connections.run import SyncConnectedRun as SyncConnectedRun
    from refold.connections.run import Unfinished as Unfinished
    from refold.connections.session import ConnectedSession as ConnectedSession
    from refold.connections.session import SyncConnectedSession as SyncConnectedSession
    from refold.events.core.codec import RecordedEvent as RecordedEvent
    from refold.events.core.content import DocumentBlock as DocumentBlock
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
    from refold.events.core.errors import ModelRetry as ModelRetry
    from refold.events.core.errors import PersistenceError as PersistenceError
    from refold.events.core.errors import PipelineError as PipelineError
    from refold.events.core.errors import ProviderError as ProviderError
    from refold.events.core.errors import QueueFull as QueueFull
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
    from refold.events.model.configuration import RetryPolicy as RetryPolicy
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
    from refold.events.model.run_context import RunContext as RunContext
    from refold.events.model.spending import Budget as Budget
    from refold.events.model.spending import Price as Price
    from refold.events.model.spending import TreeBudget as TreeBudget
    from refold.events.secrets.redaction import FieldPath as FieldPath
    from refold.events.session.events import QuestionAnswered as QuestionAnswered
    from refold.events.session.events import QuestionAsked as QuestionAsked
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
    from refold.publishing.notifications import Missed as Missed
    from refold.publishing.notifications import Progressed as Progressed
    from refold.publishing.notifications import Published as Published
    from refold.publishing.notifications import Streamed as Streamed
    from refold.publishing.subscription import Subscription as Subscription
    from refold.react.text import ReActStep as ReActStep
    from refold.react.text import parse_react_step as parse_react_step
    from refold.sessions.access import SessionMetadata as SessionMetadata
    from refold.sessions.checkpoint import Checkpoint as Checkpoint
    from refold.sessions.checkpoint import load_checkpoint as load_checkpoint
    from refold.sessions.outcome import Cancelled as Cancelled
    from refold.sessions.outcome import Completed as Completed
    from refold.sessions.outcome import Failed as Failed
    from refold.sessions.outcome import Outcome as Outcome
    from refold.sessions.outcome import RunError as RunError
    from refold.sessions.outcome import RunNotCompleted as RunNotCompleted
    from refold.sessions.outcome import RunResult as RunResult
    from refold.sessions.outcome import Spent as Spent
    from refold.sessions.outcome import Tripped as Tripped
    from refold.sessions.outcome import TurnResult as TurnResult
    from refold.sessions.people import AwaitedApproval as AwaitedApproval
    from refold.sessions.people import AwaitedQuestion as AwaitedQuestion
    from refold.sessions.run_handle import RunHandle as RunHandle
    from refold.sessions.run_handle import RunReader as RunReader
    from refold.sessions.run_handle import RunStatus as RunStatus
    from refold.sessions.session import Session as Session
    from refold.sessions.stream import RunStream as RunStream
    from refold.sessions.structured_output import OutputValidator as OutputValidator
    from refold.sessions.turn_checkpoints import step_key as step_key
    from refold.sessions.turn_checkpoints import step_versions as step_versions
    from refold.sigterm import close_on_sigterm as close_on_sigterm
    from refold.sigterm import stop_on_sigterm as stop_on_sigterm
    from refold.sync.session import SyncRunHandle as SyncRunHandle
    from refold.sync.session import SyncRunReader as SyncRunReader
    from refold.sync.session import SyncRunStream as SyncRunStream
    from refold.sync.session import SyncSession as SyncSession
    from refold.sync.session import SyncSubscription as SyncSubscription
    from refold.tools.registry import ToolRegistry as ToolRegistry
    from refold.tools.tool import Tool as Tool
    from refold.tools.tool import tool as tool
    from refold.version import __version__ as __version__
else:
    from refold._lazy import lazy

    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "refold.actors.agent.compaction": "Summarising",
            "refold.actors.agent.guardrails": "guardrail Guardrail GuardrailDecision",
            "refold.actors.calls.context": "HookContext SessionContext current_context",
            "refold.actors.calls.middleware": "Middleware ToolCall",
            "refold.actors.calls.questions": "DeferredResult NoAnswer",
            "refold.actors.calls.policy": "Allow Ask Deny Policy ProposedCall",
            "refold.actors.calls.protocols": "Provider StreamingProvider TellingProvider",
            "refold.actors.calls.tool_context": "ToolContext",
            "refold.actors.cancellation": "CancellationToken",
            "refold.actors.kernel.errors": "ActorStopped AskCycle AskTimeout WouldDeadlock",
            "refold.agent_runtime": "AgentRuntime SyncRuntime",
            "refold.agents.approval": "ApprovalHandler",
            "refold.agents.agent": "Agent handoff HandoffTool subagent SubagentTool",
            "refold.agents.memory_tools": "memory_tools",
            "refold.agents.skill": "load_skills Skill",
            "refold.events.core.codec": "RecordedEvent",
            "refold.events.core.content": (
                "DocumentBlock ImageBlock Message ProviderBlock TextBlock ThinkingBlock ToolResultBlock ToolUseBlock"
            ),
            "refold.events.core.errors": (
                "AgentLoopError AgentMemoryError BackpressureShed CircuitOpen CommandRejected ConfigError GraphError "
                "LogFormatError LogInUse ModelRetry PersistenceError PipelineError ProviderError QueueFull RefoldError "
                "ToolError"
            ),
            "refold.events.core.ids": "AgentId MemoryId RunId SessionId ToolCallId",
            "refold.events.secrets.redaction": "FieldPath",
            "refold.events.kinds.indexing": "TextColumn",
            "refold.events.kinds.memory_policies": "DecayPolicy RecallPolicy",
            "refold.events.model.configuration": "AgentConfig RetryPolicy ToolSpec",
            "refold.events.model.context_window": "ContextWindow TokenWindow",
            "refold.events.model.messages": (
                "Delta ModelRequest ModelResponse TextDelta ThinkingDelta ToolInputDelta ToolUse Usage UsageDelta"
            ),
            "refold.events.model.run_context": "RunContext",
            "refold.events.model.spending": "Budget Price TreeBudget",
            "refold.events.session.events": "QuestionAnswered QuestionAsked ToolApprovalRequested",
            "refold.memory.episodic": "EpisodicStore",
            "refold.memory.graph": "GraphStore",
            "refold.memory.items": "NewEntry NewEpisode Recalled",
            "refold.memory.semantic": "SemanticStore",
            "refold.memory.working": "WorkingMemory",
            "refold.providers.react": "ReActProvider",
            "refold.providers.scripted": "cut say ScriptedProvider ScriptItem stall use",
            "refold.publishing.notifications": "Missed Progressed Published Streamed",
            "refold.publishing.subscription": "Subscription",
            "refold.react.text": "parse_react_step ReActStep",
            "refold.connections.hosted": "ConnectedHosted SyncConnectedHosted",
            "refold.connections.connection": "connect Connection SyncConnection",
            "refold.connections.session": "ConnectedSession SyncConnectedSession",
            "refold.connections.run": "ConnectedReader ConnectedRun SyncConnectedReader SyncConnectedRun Unfinished",
            "refold.sessions.checkpoint": "Checkpoint load_checkpoint",
            "refold.sessions.outcome": (
                "Cancelled Completed Failed Outcome RunError RunNotCompleted RunResult Spent Tripped TurnResult"
            ),
            "refold.sessions.access": "SessionMetadata",
            "refold.sessions.people": "AwaitedApproval AwaitedQuestion",
            "refold.sessions.run_handle": "RunHandle RunReader RunStatus",
            "refold.sessions.session": "Session",
            "refold.sessions.stream": "RunStream",
            "refold.sessions.structured_output": "OutputValidator",
            "refold.sessions.turn_checkpoints": "step_key step_versions",
            "refold.sigterm": "close_on_sigterm stop_on_sigterm",
            "refold.sync.session": "SyncRunHandle SyncRunReader SyncRunStream SyncSession SyncSubscription",
            "refold.tools.registry": "ToolRegistry",
            "refold.tools.tool": "Tool tool",
            "refold.version": "__version__",
        },
    )
