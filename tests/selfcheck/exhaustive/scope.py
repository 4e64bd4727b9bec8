"""How large the worlds are that `tests.selfcheck.exhaustive` explores, and what is in them.

A scope is small on purpose: most faults of a state machine show with two of a kind. What is bounded is only what
makes a life longer: inputs, turns, calls in one answer. Crashes, cancels, late and repeated results, decisions and
times that come have no bound, since after them a session is in one of finitely many states.
"""

import tomllib
from pathlib import Path
from typing import Literal

import msgspec

from refold.events.core.content import AnswerContent, JsonObject, TextBlock, ThinkingBlock, ToolUseBlock
from refold.events.core.ids import AgentId, SessionId, StreamName, ToolCallId
from refold.events.model.configuration import (
    CORE_VERSION,
    AgentConfig,
    AgentConfiguration,
    CodeIdentity,
    ErrorRecovery,
    OnCodeChange,
    RetryPolicy,
    ToolSpec,
    configuration_of,
)
from refold.events.model.messages import StopReason
from refold.events.model.spending import Budget
from refold.events.session.events import Verdict

SESSION = SessionId("alice")
AGENT = AgentId("agent")
STREAM = StreamName("session/alice")

AT = 1_750_000_000_000_000
"""When everything happens, in microseconds since the epoch: decisions only add to a time that they are told."""

_SCHEMA: JsonObject = {"type": "object"}

TOOLS = (
    ToolSpec(name="look", description="Looks.", input_schema=_SCHEMA, tier="observe", effect="pure"),
    ToolSpec(name="fetch", description="Fetches.", input_schema=_SCHEMA, tier="observe", effect="once"),
    ToolSpec(name="write", description="Writes.", input_schema=_SCHEMA, tier="act", effect="once"),
    ToolSpec(name="put", description="Puts.", input_schema=_SCHEMA, tier="act", effect="idempotent"),
    ToolSpec(name="pay", description="Pays.", input_schema=_SCHEMA, tier="confirm", effect="once"),
    ToolSpec(name="sign", description="Signs.", input_schema=_SCHEMA, tier="confirm", effect="idempotent"),
)
"""One tool for each behaviour that a session tells apart; to it, `pure` and `idempotent` are one."""

UNHEARD_OF = "unheard_of"
"""A tool that the model makes up."""

REFUSALS = (
    Verdict(verdict="deny", reason="not today"),
    Verdict(verdict="invalid_arguments", reason="city is missing"),
    Verdict(verdict="not_found", reason="there is no tool of that name"),
)

ASKED_BY_POLICY = Verdict(verdict="ask", reason="policy", action="pay")
"""What is allowed always with one such call is allowed of the tool `pay` too."""

EDITED: JsonObject = {"amount": 5}
"""With what a person lets a call run in place of what the model gave, which is nothing."""

BROKEN = Verdict(verdict="broken")
"""Without a reason, as of an error that says nothing."""


class Answer(msgspec.Struct, frozen=True):
    """Something that the model may say."""

    content: tuple[AnswerContent, ...]
    stop_reason: StopReason = "end_turn"
    verdicts: tuple[Verdict, ...] = ()
    rejected: str = ""


FINAL_ANSWER = Answer((TextBlock(text="Done."),))
"""What an ordinary model says."""


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """What may happen in one world, and how much of it."""

    name: str
    inputs: int = 2
    """Most inputs that are accepted."""
    turns: int = 2
    """`max_turns` of the configuration: most model calls of one run."""
    calls: int = 2
    """Most tool calls in one answer."""
    tools: tuple[str, ...] = tuple(spec.name for spec in TOOLS)
    """Names out of `TOOLS`; all of them exist, an answer names these."""
    asks: bool = False
    """A policy may put a call to approval whose tool does not ask for it."""
    refusals: int = len(REFUSALS)
    """How many of `REFUSALS` a call may get."""
    keyed: tuple[Literal["send", "cancel", "decide", "clear"], ...] = ()
    """Commands that also come with a key, one for each kind of command."""
    imports: bool = False
    """A history with an unanswered call may be imported, once."""
    resumes_max: int = 1
    """A run parks when it is resumed without progress once more than this."""
    now: bool = False
    """An input may join the run under way."""
    stepwise: bool = False
    """A run may go step by step."""
    scheduled: bool = False
    """An input may be accepted for one of two later times."""
    clears: bool = False
    """The history may be cleared."""
    finishes: bool = False
    """A tool may end the run."""
    attempts_max: int = 1
    """Most attempts of a model call; 1 = it is never made again."""
    tool_attempts_max: int = 1
    """Most attempts at a tool call, as the policy of every tool says, one of `once` too; 1 = no tool has a policy."""
    breaks: ErrorRecovery | None = None
    """Carrying out calls may break, and then the run stops or the model is asked again; None = nothing breaks."""
    interrupts: bool = False
    """An answer may be cut while it is streamed."""
    always: bool = False
    """A person may allow a call for always."""
    edits: bool = False
    """A person may allow a call with other arguments."""
    expires: bool = False
    """A call waits for a person only so long."""
    summaries: int = 0
    """How often a summary may come to stand for the oldest message of the history in one run."""
    hands_off: bool = False
    """A tool may hand the session to another agent."""
    guards: bool = False
    """Guardrails may trip on inputs and on answers."""
    refuses: bool = False
    """The provider refuses requests for what they hold."""
    questions: int = 0
    """Most questions that one call asks; what is asked may be the call's result, and has a time."""
    waits: bool = False
    """The work of a call may wait for a person in another session."""
    rejects: bool = False
    """An answer may be one that cannot be used."""
    on_code_change: OnCodeChange = "continue"
    """What becomes of a run that a process with other code finds; it finds none where the run goes on."""
    describes: bool = False
    """The session may be told whose it is."""
    budget: Budget | None = None
    """How much one run may spend; an answer is counted with one token."""


_SCOPES = tomllib.loads(Path(__file__).with_name("scopes.toml").read_text(encoding="utf-8"))

EVERYDAY = msgspec.convert(_SCOPES["everyday"], tuple[Scope, ...])
"""Explored in seconds: with every test run, and against every planted fault."""

FULL = msgspec.convert(_SCOPES["full"], tuple[Scope, ...])
"""Explored in minutes.

What does not meet in any decision is not multiplied. A run reads nothing of the runs before it, so that every choice
of two calls is tried in one run (`calls`), and in two runs only one tool of each tier (`runs`). Keys are read where a
command is admitted, where nothing looks at a tool (`keys`). An import is over before a run begins (`import`). Inputs
that join, steps and retries meet where a model is asked, which no tool changes (`joining`, `steps`, `retries`); what
ends or breaks a run, and a call between two attempts, meets the other calls of its answer, and nothing of other runs
(`finishing`, `breaking`, `attempts`).
"""


def configuration(scope: Scope) -> AgentConfiguration:
    """Return what is in force in every session of `scope`."""
    config = AgentConfig(
        model="model",
        max_turns=scope.turns,
        run_timeout_s=60.0,  # So that every run can run out of time.
        approval_expiry_s=30.0 if scope.expires else None,
        retry=RetryPolicy(attempts_max=scope.attempts_max) if scope.attempts_max > 1 else None,
        error_recovery=scope.breaks or "stop",
        recoveries_max=1,
        resumes_max=scope.resumes_max,
        on_code_change=scope.on_code_change,
        rejections_max=1,
        budget=scope.budget,
    )
    code = CodeIdentity(refold="0.1.0", core=CORE_VERSION)
    tools: tuple[ToolSpec, ...] = TOOLS
    if scope.tool_attempts_max > 1:  # Without jitter, which is drawn from identifiers and would keep states apart.
        retries = RetryPolicy(attempts_max=scope.tool_attempts_max, jitter=0)
        tools = tuple(msgspec.structs.replace(spec, retries=retries) for spec in TOOLS)
    return configuration_of(config, agent=AGENT, tools=tools, code=code)[0]


def answers(scope: Scope) -> tuple[Answer, ...]:
    """Return all that the model may say: texts, every ordered choice of calls, and such answers cut short.

    Which tool a call is for makes no difference where it is refused or its answer was cut: it never runs.
    """
    texts: tuple[Answer, ...] = (
        FINAL_ANSWER,
        Answer(()),
        Answer((ThinkingBlock(thinking="hm", signature="s"),)),
        Answer((TextBlock(text="Let me go on."),), "pause_turn"),
        Answer((TextBlock(text="It is because"),), "max_tokens"),
        Answer((), "refusal"),
    )
    if scope.rejects:
        texts = (*texts, Answer((TextBlock(text="Hm."),), rejected="Say it otherwise."), Answer((), rejected="Say it."))
        texts = (*texts, Answer((TextBlock(text="No."),), "refusal", rejected="Give the data."))
    shapes = _call_shapes(scope)
    single = [Answer((use,), "tool_use", (verdict,)) for use, verdict in shapes]
    pairs = [Answer((first[0], second[0]), "tool_use", (first[1], second[1])) for first in shapes for second in shapes]
    called = [*single, *pairs] if scope.calls > 1 else single if scope.calls else []
    cut = [
        Answer(answer.content, "max_tokens", answer.verdicts)
        for answer in called
        if all(use == shapes[0][0] for use in answer.content)
    ]
    return (*texts, *called, *cut)


def _call_shapes(scope: Scope) -> list[tuple[ToolUseBlock, Verdict]]:
    shapes = [(_use(tool), Verdict()) for tool in scope.tools]
    asked = {spec.name for spec in TOOLS if spec.tier == "confirm"}
    if scope.asks:
        shapes.extend((_use(tool), ASKED_BY_POLICY) for tool in scope.tools if tool not in asked)
    for refusal in REFUSALS[: scope.refusals]:
        shapes.append((_use(UNHEARD_OF if refusal.verdict == "not_found" else scope.tools[0]), refusal))
    if scope.breaks is not None:
        shapes.append((_use(scope.tools[0]), BROKEN))
    return shapes


def _use(tool: str) -> ToolUseBlock:
    return ToolUseBlock(id=ToolCallId(""), name=tool, input={})
