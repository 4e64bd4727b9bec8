"""What an agent is made of: its configuration, its tools, the code that runs it, and when a failed call is tried again.

`AgentConfig` is what a user writes. `AgentConfiguration` is what the log records of it: everything that a decision
reads is inline, the system prompt and the tools' schemas are payloads named by their hash.

Of a `RetryPolicy`, kinds of errors may have budgets of their own, so that a provider that is overloaded for minutes
uses up nothing of what is meant for broken connections. The delay grows exponentially, as in "Exponential Backoff And
Jitter" (AWS Architecture Blog, 2015), with the jitter taken from a hash instead of a random number, so that a replay
gives the same times.
"""

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, TypeAlias, TypeGuard, get_args

import msgspec

from refold.events.core.cleaning import INTEGER_MAX, clean_text
from refold.events.core.content import JsonObject, Message
from refold.events.core.errors import ConfigError, ProviderErrorKind, quoted
from refold.events.core.ids import AgentId, PayloadHash, SessionId
from refold.events.model.run_context import PromptFunction
from refold.events.model.spending import Budget, Price, TreeBudget, price_of

RETRY_AFTER_S_MAX = 600.0
"""A provider may ask for a pause of at most so many seconds."""


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How often, and after which pauses, a failed model call, or tool call, that may be repeated is tried again.

    The pause after attempt `n` (from 1) is `base_s * 2 ** (n - 1)`, at most `max_s`, less a part of up to `jitter` of
    it; but never shorter than the provider asks for.

    Raises:
        ConfigError: a value is outside its bounds.
    """

    attempts_max: int = 3
    """Most attempts at one call, the first one included, >= 1; one that a crash interrupted does not count."""
    attempts_by_kind: dict[str, int] = {}
    """Most attempts by kind of error, such as `{"overloaded": 20}`, >= 1: a kind named here is counted by itself. Kinds
    are those of model calls."""
    attempts_total_max: int | None = None
    """Most attempts with errors of any kind, >= 1; None = as many as all of the above together."""
    base_s: float = 1.0
    """Pause after the first attempt, in seconds, > 0."""
    max_s: float = 60.0
    """Longest pause of our own, in seconds, >= `base_s`."""
    jitter: float = 0.2
    """Largest part of a pause that is left out, 0 to 1."""

    def __post_init__(self) -> None:
        bounds: tuple[tuple[str, bool, str], ...] = (
            ("attempts_max", type(self.attempts_max) is int and self.attempts_max >= 1, "an integer of at least 1"),
            (
                "attempts_by_kind",
                isinstance(self.attempts_by_kind, dict)
                and all(
                    kind in get_args(ProviderErrorKind) and type(most) is int and most >= 1
                    for kind, most in self.attempts_by_kind.items()
                ),
                f"integers of at least 1 by kinds out of {', '.join(get_args(ProviderErrorKind))}",
            ),
            (
                "attempts_total_max",
                self.attempts_total_max is None
                or (type(self.attempts_total_max) is int and self.attempts_total_max >= 1),
                "None or an integer of at least 1",
            ),
            ("base_s", _is_number(self.base_s) and 0 < self.base_s <= 3600, "a number of seconds above 0, up to 3600"),
            (
                "max_s",
                _is_number(self.max_s) and _is_number(self.base_s) and self.base_s <= self.max_s <= 86_400,
                "a number of seconds of at least base_s, up to 86400",
            ),
            ("jitter", _is_number(self.jitter) and 0 <= self.jitter <= 1, "a number from 0 to 1"),
        )
        for field, good, wanted in bounds:
            if not good:
                raise ConfigError(f"RetryPolicy.{field} must be {wanted}, not {quoted(getattr(self, field))}")


def attempts_counted(policy: RetryPolicy, failures: Mapping[str, int], kind: str) -> int | None:
    """Return how many failed attempts count for the next pause after an error of `kind`; None = there is none."""
    own = policy.attempts_by_kind
    counted = failures[kind] if kind in own else sum(count for name, count in failures.items() if name not in own)
    total_max = policy.attempts_total_max
    if total_max is None:
        total_max = policy.attempts_max + sum(own.values())
    if counted >= own.get(kind, policy.attempts_max) or sum(failures.values()) >= total_max:
        return None
    return counted


def retry_delay_us(policy: RetryPolicy, attempts: int, retry_after_s: float | None, seed: str) -> int:
    """Return the pause before the next attempt, in microseconds.

    Args:
        policy: how to wait.
        attempts: how many have failed, >= 1; those that `attempts_counted` gives.
        retry_after_s: what the provider asks for; None = nothing. Bounded by `RETRY_AFTER_S_MAX`.
        seed: what the jitter is derived from: the same text gives the same pause.

    Example:
        >>> retry_delay_us(RetryPolicy(jitter=0), 3, None, "")
        4000000
    """
    backoff_s = min(policy.base_s * 2.0 ** min(attempts - 1, 60), policy.max_s)
    part = int.from_bytes(hashlib.sha256(f"{seed}:{attempts}".encode()).digest()[:6]) / 2**48
    pause_s = backoff_s * (1 - policy.jitter * part)
    asked_s = min(max(retry_after_s or 0.0, 0.0), RETRY_AFTER_S_MAX)
    return round(max(pause_s, asked_s) * 1_000_000)


Tier = Literal["observe", "act", "confirm"]
"""How a tool runs: `observe` in parallel with others, `act` alone and in order, `confirm` after an approval."""

EffectClass = Literal["once", "idempotent", "pure"]
"""What running a tool again would mean.

`once`: an unknown outcome is never retried by Refold. `idempotent`: safe again with the same idempotency key.
`pure`: safe again at any time.
"""

Protocol = Literal["native", "react"]
"""How a model asks for tools: `native` tool-call blocks, or `react` text (Thought, Action, Observation)."""

CORE_VERSION = 5
"""Raised whenever a recorded decision would now be taken differently; `core` replay compares within one version."""

FOLD_VERSION = 7
"""Raised whenever folding the same events would give another state; snapshots of another version are ignored."""

DEFAULT_SYSTEM_PROMPT = "You are a helpful AI agent."
DEFAULT_MAX_TURNS = 50
DEFAULT_RESUMES_MAX = 3
DEFAULT_RECOVERIES_MAX = 2
DEFAULT_REJECTIONS_MAX = 2
DEFAULT_EMPTY_ANSWERS_MAX = 2
DEFAULT_TOOL_SILENCE_S = 120.0

ErrorRecovery = Literal["stop", "retry"]
"""What becomes of a run when carrying out tool calls itself breaks (a policy, a validator, the runner raises).

`stop`: the run fails. `retry`: the model is told that its calls failed and asked for simpler ones, a few times.
"""

OnCodeChange = Literal["continue", "park", "fail"]
"""What becomes of an open run that another configuration or another version of the code finds."""

RecoveryFunction: TypeAlias = Callable[[SessionId, tuple[str, ...], Exception], "str | Awaitable[str | None] | None"]
"""Decides what becomes of a run then, given its session, the names of the tools whose calls broke, and the error: None
or `"stop"`; `"retry"`; or a text, which the model is told before it is asked again.

A plain function runs on the loop and must return quickly; one that raises stops the run.
"""


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How an agent thinks. Only `model` is required.

    Args:
        model: the provider's name of the model.
        system_prompt: what the model is told first; empty = nothing. Or a function, plain or async, that returns it:
            called with a `RunContext` for each model call. What it returned is recorded with the request.
        max_turns: most model calls in one run, >= 1; a run that wants one more fails.
        max_tokens: most output tokens of one answer, >= 1; None = the provider's own limit.
        temperature: 0 to 2; None = the provider's default.
        stop_sequences: texts at which the model stops.
        max_memory_recalls: most remembered items that enter one prompt, >= 0.
        max_memory_tokens: most tokens of remembered items in one prompt (about 4 characters a token); None = no limit.
        run_timeout_s: most seconds of wall clock for one run, without those in which it waits for a person; None = no
            limit.
        approval_expiry_s: after how many seconds a call that waits for approval counts as denied; None = never.
        retry: how failed model calls that may be repeated are made again: three attempts in all, a second and two
            apart or as the provider asks, unless another policy is given; None = not at all.
        rejections_max: how often in a row an answer that cannot be used is asked again, the model being told why, >= 0.
        empty_answers_max: how often in a row an answer that says nothing, without a reason, is asked again, >= 0.
        budget: how much one run may spend; None = no limit.
        tree_budget: how much one run may spend together with all subagents below it; None = no limit.
        prices: what tokens cost, by model; a name stands for all models whose names begin with it.
        error_recovery: what becomes of a run when carrying out tool calls itself breaks, because a policy, a validator
            or the runner raised. `stop`: the run fails. `retry`: the model is told that its calls failed and asked for
            simpler ones, a few times. A `RecoveryFunction` decides each time, and what it said is recorded.
        recoveries_max: how often in a row the model is asked again then before the run fails, >= 0.
        resumes_max: how often a run may be resumed without progress before it is parked, >= 0.
        on_code_change: what becomes of an open run, when a new process finds it, whose configuration (prompt, tools,
            schemas, settings) or whose version of Refold or of the application (`app_version`) is not today's.
            `continue`: it goes on by today's. `park`: it waits until a person resumes or cancels it. `fail`: it fails
            as `code_changed`. One that waits for a person goes on when they decide, in each case.
        streaming: whether answers are requested as streams.
        protocol: how the model asks for tools: `native` tool-call blocks, or `react` text (Thought, Action,
            Observation).

    Raises:
        ConfigError: a value is outside its bounds; the message names the field.
    """

    model: str
    system_prompt: str | PromptFunction = DEFAULT_SYSTEM_PROMPT
    max_turns: int = DEFAULT_MAX_TURNS
    max_tokens: int | None = None
    temperature: float | None = None
    stop_sequences: tuple[str, ...] = ()
    max_memory_recalls: int = 3
    max_memory_tokens: int | None = None
    run_timeout_s: float | None = None
    approval_expiry_s: float | None = None
    retry: RetryPolicy | None = RetryPolicy()
    rejections_max: int = DEFAULT_REJECTIONS_MAX
    empty_answers_max: int = DEFAULT_EMPTY_ANSWERS_MAX
    budget: Budget | None = None
    tree_budget: TreeBudget | None = None
    prices: dict[str, Price] = {}
    error_recovery: ErrorRecovery | RecoveryFunction = "stop"
    recoveries_max: int = DEFAULT_RECOVERIES_MAX
    resumes_max: int = DEFAULT_RESUMES_MAX
    on_code_change: OnCodeChange = "continue"
    streaming: bool = False
    protocol: Protocol = "native"

    @property
    def prompt_function(self) -> PromptFunction | None:
        """What returns the system prompt, where that is a function."""
        return None if isinstance(self.system_prompt, str) else self.system_prompt

    @property
    def fixed_prompt(self) -> str:
        """What of the system prompt is the same in every request; empty where it is a function."""
        return self.system_prompt if isinstance(self.system_prompt, str) else ""

    @property
    def recovery_function(self) -> RecoveryFunction | None:
        """What decides about recovery, where that is a function."""
        return self.error_recovery if callable(self.error_recovery) else None

    def __post_init__(self) -> None:
        for field, good, wanted in (*_bounds_of_answers(self), *_bounds_of_runs(self)):
            if not good:
                value = getattr(self, field)
                is_too_large = "an integer" in wanted and _is_number(value) and value > INTEGER_MAX
                most = " and below 2**63" if is_too_large else ""
                raise ConfigError(f"AgentConfig.{field} must be {wanted}{most}, not {quoted(value)}")
        if self.budget is not None and self.budget.cost is not None and price_of(self.model, self.prices) is None:
            raise ConfigError(f"AgentConfig.budget limits the cost and AgentConfig.prices has none for {self.model!r}")


Bounds: TypeAlias = tuple[tuple[str, bool, str], ...]
"""Fields, whether their values can work, and what values can."""


def _bounds_of_answers(config: AgentConfig) -> Bounds:
    stop = config.stop_sequences
    return (
        ("model", _is_text(config.model) and bool(config.model), "a non-empty string of valid Unicode"),
        (
            "system_prompt",
            _is_text(config.system_prompt) or callable(config.system_prompt),
            "a string of valid Unicode, or a function that returns one",
        ),
        ("max_tokens", _is_none_or_count(config.max_tokens, 1), "None or an integer of at least 1"),
        (
            "temperature",
            config.temperature is None or (_is_number(config.temperature) and 0 <= config.temperature <= 2),
            "None or a number from 0 to 2",
        ),
        (
            "stop_sequences",
            isinstance(stop, tuple) and all(_is_text(item) and item for item in stop),
            "a tuple of non-empty strings of valid Unicode",
        ),
        ("max_memory_recalls", _is_count(config.max_memory_recalls, 0), "an integer of at least 0"),
        ("max_memory_tokens", _is_none_or_count(config.max_memory_tokens, 0), "None or an integer of at least 0"),
        ("streaming", isinstance(config.streaming, bool), "True or False"),
        ("protocol", config.protocol in ("native", "react"), '"native" or "react"'),
    )


def _bounds_of_runs(config: AgentConfig) -> Bounds:
    prices = config.prices
    return (
        ("max_turns", _is_count(config.max_turns, 1), "an integer of at least 1"),
        ("run_timeout_s", _is_none_or_seconds(config.run_timeout_s), "None or a number of seconds above 0"),
        ("approval_expiry_s", _is_none_or_seconds(config.approval_expiry_s), "None or a number of seconds above 0"),
        ("retry", isinstance(config.retry, RetryPolicy | None), "None or a RetryPolicy"),
        ("rejections_max", _is_count(config.rejections_max, 0), "an integer of at least 0"),
        ("empty_answers_max", _is_count(config.empty_answers_max, 0), "an integer of at least 0"),
        ("budget", isinstance(config.budget, Budget | None), "None or a Budget"),
        ("tree_budget", isinstance(config.tree_budget, TreeBudget | None), "None or a TreeBudget"),
        (
            "prices",
            isinstance(prices, dict)
            and all(_is_text(name) and isinstance(price, Price) for name, price in prices.items()),
            "a dict of Price by model",
        ),
        (
            "error_recovery",
            callable(config.error_recovery) or config.error_recovery in ("stop", "retry"),
            '"stop", "retry" or a function',
        ),
        ("recoveries_max", _is_count(config.recoveries_max, 0), "an integer of at least 0"),
        ("resumes_max", _is_count(config.resumes_max, 0), "an integer of at least 0"),
        ("on_code_change", config.on_code_change in get_args(OnCodeChange), '"continue", "park" or "fail"'),
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and clean_text(value) == value


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= INTEGER_MAX


def _is_none_or_count(value: object, least: int) -> bool:
    return value is None or _is_count(value, least)


def _is_none_or_seconds(value: object) -> bool:
    return value is None or (_is_number(value) and 0 < value < 1e9)


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a model, and a reader of the log, is told of a tool."""

    name: str
    """1 to 64 characters out of `a-z A-Z 0-9 _ -`, which every provider accepts."""
    description: str
    input_schema: JsonObject
    """JSON Schema of the arguments, an object schema."""
    tier: Tier = "act"
    effect: EffectClass = "once"
    timeout_s: float = DEFAULT_TOOL_SILENCE_S
    """Longest silence of a running call in seconds; progress counts as activity."""
    display_name: str = ""
    """What people are shown instead of the name; no model is told it. Empty = the name."""
    retries: RetryPolicy | msgspec.UnsetType = msgspec.UNSET
    """How a call that failed in a way that may pass is tried again; unset = it is not."""


class ToolPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """What decisions read of a tool."""

    name: str
    tier: Tier = "act"
    effect: EffectClass = "once"
    retries: RetryPolicy | None = None
    """How a call that failed in a way that may pass is tried again; None, or an effect of `once` = it is not."""


class CodeIdentity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which code decides."""

    refold: str
    """Version of the package."""
    core: int
    """`CORE_VERSION`."""
    app: str | None = None
    """The application's own version, if it gave one."""


class AgentConfiguration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The configuration in force, as the log records it."""

    agent: AgentId
    model: str
    system_prompt: PayloadHash
    """Payload: the UTF-8 text of what is the same in every prompt; what a function gave is in the request's reference.
    """
    tool_schemas: PayloadHash
    """Payload: the JSON array of `ToolSpec`s, in name order."""
    tools: tuple[ToolPolicy, ...] = ()
    """In name order."""
    code: CodeIdentity
    max_turns: int = DEFAULT_MAX_TURNS
    max_tokens: int | None = None
    temperature: float | None = None
    stop_sequences: tuple[str, ...] = ()
    max_memory_recalls: int = 3
    max_memory_tokens: int | None = None
    run_timeout_s: float | None = None
    approval_expiry_s: float | None = None
    retry: RetryPolicy | None = None
    rejections_max: int = DEFAULT_REJECTIONS_MAX
    empty_answers_max: int = DEFAULT_EMPTY_ANSWERS_MAX
    budget: Budget | None = None
    prices: dict[str, Price] = {}
    error_recovery: ErrorRecovery = "stop"
    recoveries_max: int = DEFAULT_RECOVERIES_MAX
    resumes_max: int = DEFAULT_RESUMES_MAX
    on_code_change: OnCodeChange = "continue"
    streaming: bool = False
    protocol: Protocol = "native"
    builds_requests: bool = False
    """Whether a prompt function, an offer of tools, a memory, a context window or middleware may change requests, so
    that one in flight is recorded as it was built (RequestBuilt); False = a request follows from what is recorded
    before."""
    tree_budget: TreeBudget | None = None
    output_schema: JsonObject | None = None
    """JSON Schema of final answers that are data; None = any text."""
    output_instruction: str | None = None
    """What stands behind the system prompt for a run with its own schema. Recorded with that run's input only."""
    fingerprint: str = ""
    """First 16 hexadecimal digits of the SHA-256 of everything above but `code`: two equal agents have one."""


class Handoff(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """To which agent a call hands the conversation, as of the next turn."""

    agent: AgentId
    configuration: AgentConfiguration
    """Its own, whose payloads are in the log already."""
    history: tuple[Message, ...] | None = None
    """What stands for all messages before the call's; None = they stay."""


TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}")
"""A caller's place in a trace, as W3C Trace Context writes it: version 00, the trace, the span above, flags."""


def well_formed(traceparent: object) -> str | None:
    return traceparent if isinstance(traceparent, str) and TRACEPARENT.fullmatch(traceparent) else None


class RunOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one run does otherwise than its agent, recorded with its input; None = as the agent does it."""

    model: str | None = None
    max_turns: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    tools: tuple[str, ...] | None = None
    """Names of those of the agent's tools that it has, in name order; one that is gone by then is left out."""
    output_schema: JsonObject | None = None
    """JSON Schema of its final answer."""
    output_instruction: str | None = None
    """What the model is told of that, behind the system prompt."""
    system_prompt: PayloadHash | None = None
    """Payload: what stands in place of the agent's configured prompt."""
    traceparent: str | None = None
    """Where its trace goes on (W3C Trace Context); nothing depends on it."""

    def without_trace(self) -> "RunOptions | None":
        """Return what was asked for, and does not only say where the caller was; None = nothing."""
        rest = msgspec.structs.replace(self, traceparent=None)
        return rest if rest != RunOptions() else None


def combined(first: RunOptions | None, then: RunOptions | None) -> RunOptions | None:
    """Return what both say, `then` where they differ; None = nothing."""
    if first is None or then is None:
        return first or then
    said = {name: value for name in then.__struct_fields__ if (value := getattr(then, name)) is not None}
    return msgspec.structs.replace(first, **said)


def without_agent(options: RunOptions) -> RunOptions:
    """Return what of the options of a run stays when another agent goes on."""
    return msgspec.structs.replace(options, model=None, max_tokens=None, temperature=None, tools=None)


CODE_CHANGED = "The configuration or the code of the agent is another one than when the run was open before."


def when_resumed(configuration: AgentConfiguration | None, *, changed: bool, asked: bool) -> OnCodeChange:
    """Return what becomes of a run that goes on in a new process; a person who asks for that knows what they do."""
    return configuration.on_code_change if configuration is not None and changed and not asked else "continue"


def configured_for(configuration: AgentConfiguration, options: RunOptions | None) -> AgentConfiguration:
    """Return the configuration of a run with `options`, given the agent's."""
    if options is None:
        return configuration
    own = [name for name in options.__struct_fields__ if name != "traceparent"]
    changed = {name: value for name in own if (value := getattr(options, name)) is not None}
    if options.tools is not None:
        changed["tools"] = tuple(policy for policy in configuration.tools if policy.name in options.tools)
    return msgspec.structs.replace(configuration, **changed)


SETTINGS = tuple(
    name
    for name in AgentConfiguration.__struct_fields__
    if name in AgentConfig.__struct_fields__ and name != "system_prompt"
)
"""What is recorded of an `AgentConfig` as it was given. Both structs write these fields out: the order of fields is the
order of the recorded bytes, and a common base would put its own before the agent's name."""


def configuration_of(
    config: AgentConfig,
    *,
    agent: AgentId,
    tools: tuple[ToolSpec, ...],
    code: CodeIdentity,
    builds_requests: bool = False,
    output_schema: JsonObject | None = None,
) -> tuple[AgentConfiguration, dict[PayloadHash, bytes]]:
    """Return what is recorded of an agent, and the payloads that it refers to."""
    ordered = tuple(
        msgspec.structs.replace(spec, timeout_s=float(spec.timeout_s)) for spec in sorted(tools, key=lambda it: it.name)
    )
    prompt = config.fixed_prompt.encode()
    schemas = msgspec.json.encode(ordered)
    given = AgentConfiguration(
        agent=agent,
        system_prompt=payload_hash(prompt),
        tool_schemas=payload_hash(schemas),
        tools=tuple(ToolPolicy(spec.name, spec.tier, spec.effect, spec.retries or None) for spec in ordered),
        code=code,
        builds_requests=builds_requests,
        output_schema=output_schema,
        **{name: getattr(config, name) for name in SETTINGS if name != "error_recovery"},
    )
    recovery: ErrorRecovery = "retry" if callable(config.error_recovery) else config.error_recovery
    given = msgspec.structs.replace(given, error_recovery=recovery, prices=dict(sorted(config.prices.items())))
    # As the log gives it back: 60 and 60.0 seconds are one setting, with one fingerprint.
    configuration = msgspec.json.decode(msgspec.json.encode(given), type=AgentConfiguration)
    without_code = msgspec.structs.replace(configuration, code=CodeIdentity(refold="", core=0))
    fingerprint = hashlib.sha256(msgspec.json.encode(without_code)).hexdigest()[:16]
    return (
        msgspec.structs.replace(configuration, fingerprint=fingerprint),
        {configuration.system_prompt: prompt, configuration.tool_schemas: schemas},
    )


def payload_hash(data: bytes) -> PayloadHash:
    return PayloadHash(hashlib.sha256(data).hexdigest())
