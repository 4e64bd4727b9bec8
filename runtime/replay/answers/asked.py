"""Models that a replay asks what its sessions' models were asked: how often, the asking itself, and how answers differ.

The code of the agent decides in a child process that can reach nothing; its parent asks the provider, and nothing else
of the agent runs there. Each call costs, so a budget is looked at before it. The rules: an answer belongs to the place
in the log for which it was asked, and nothing goes on from it; and no call begins once a limit is reached; those that
are under way then still count, so what was spent may be more than the limit by what they cost.

How an answer of today differs is told by kind: other tool calls, arguments, end, or text. A model seldom says the same
words twice, so what matters is told first, and what matters little can be looked past (`refold.replay.comparing`) by
its path: `model.text`. Left out: reasoning, and what a provider wants back unchanged.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import msgspec

from refold.actors.agent.compaction import Summarising
from refold.actors.calls.protocols import Provider, StreamingProvider, StreamItem
from refold.actors.calls.streaming import can_stream
from refold.actors.calls.validation import checked_response
from refold.events.core.cleaning import clean_text, error_words
from refold.events.core.content import AnswerContent, ImageBlock, Message, ToolUseBlock, text_of, tool_uses
from refold.events.core.difference import Difference, differences, json_of
from refold.events.core.errors import ConfigError, ProviderError
from refold.events.model.messages import ModelRequest, ModelResponse, StopReason, UsageDelta
from refold.events.model.payloads import restored
from refold.events.model.spending import Price, TreeBudget, Usage, cost_of, price_of, total_tokens
from refold.events.session import events as ev
from refold.events.session.core import SESSION_CODEC, SESSION_KIND
from refold.events.session.normalise import CheckCall, recorded_answer
from refold.inspection.log_reading import Batches, ReadableLog, Streams, opened, session_head
from refold.stores.event_store import EventStore

if TYPE_CHECKING:
    from refold.agents.agent import AnyAgent
    from refold.events.model.configuration import AgentConfiguration

REASON_CHARACTERS: Final = 300
"""After so many characters the reason for which there is no answer is cut."""

MODEL_ANSWER_S: Final = 600.0
"""So long a model is waited for whose agent limits no run's time, in seconds."""

SILENT_MAX: Final = 3
"""A model that gave no answer in time so often in a row is not asked again."""

REFUSED_KINDS: Final = frozenset({"invalid_request", "context_too_long"})
"""Kinds of errors by which a provider says that the request is wrong, so that asking again changes nothing."""


class AnswersFrom(msgspec.Struct, frozen=True):
    """From where answers come in a replay; what is not named here is recorded."""

    tools: bool = False
    """The bodies of pure tools run again."""
    models: bool = False
    """Models are asked again."""


RECORDED: Final = AnswersFrom()


class ModelRequests(msgspec.Struct, frozen=True, kw_only=True):
    """How often a replay would ask models, and what that took when it was recorded."""

    requests: int = 0
    sessions: int = 0
    tokens: int = 0
    cost: float = 0.0
    """By the prices of then, in their currency."""
    unpriced: int = 0
    """Requests to models for which the log has no price; they add nothing to `cost`."""


class ModelsAsked(msgspec.Struct, frozen=True, kw_only=True):
    """How often a replay asked models, and what that took."""

    requests: int
    """Refused ones included."""
    tokens: int
    cost: float
    """In the currency of the agents' prices; what has no price adds nothing."""


class Unanswered(msgspec.Struct, frozen=True):
    """A model gave none."""

    why: str
    refused: bool = False
    """Whether the provider finds the request wrong."""


async def model_requests(log: ReadableLog, *, agent: "AnyAgent", session: str | None = None) -> ModelRequests:
    """Return how often `replay` would ask models at level `model` or `live`; none is asked.

    Args:
        log: path of the file, or an open store.
        agent: whose sessions, and those of its subagents, are counted.
        session: only this one; None = all.

    Raises:
        ConfigError: there is no such session.
        LogFormatError: the file is no log, or an event cannot be decoded.
        PersistenceError: the log cannot be read.
    """
    from refold.agents.agent import with_subagents

    names = {each.name for each in with_subagents(agent)}
    async with opened(log) as store:
        if session is not None:
            return await _requests_in(store, (await session_head(store, session)).stream, names)
        found = ModelRequests()
        async for head in Streams(store, prefix=f"{SESSION_KIND}/"):
            one = await _requests_in(store, head.stream, names)
            sums = {name: getattr(found, name) + getattr(one, name) for name in found.__struct_fields__}
            found = ModelRequests(**sums)
        return found


async def _requests_in(store: EventStore, stream: str, names: set[str]) -> ModelRequests:
    agent, requests, unpriced, cost, usage = "", 0, 0, 0.0, Usage()
    configuration: AgentConfiguration | None = None
    async for batch in Batches(store, stream):
        for event in SESSION_CODEC.decode_all(batch):
            if isinstance(event, ev.SessionOpened | ev.HandedOff):
                agent = event.agent
            elif isinstance(event, ev.AgentConfigured):
                configuration = event.configuration
            elif isinstance(event, ev.ModelResponded | ev.ContextPrepared) and agent in names:
                if configuration is None or event.request is None or batch[0].stream != stream:
                    continue
                asked = price_of(event.model or "", configuration.prices)
                price = asked or price_of(configuration.model, configuration.prices)
                requests, unpriced = requests + 1, unpriced + (price is None)
                cost, usage = cost + cost_of(event.usage, price), usage + event.usage
    return ModelRequests(
        requests=requests, sessions=int(requests > 0), tokens=total_tokens(usage), cost=cost, unpriced=unpriced
    )


class BudgetSpent(ProviderError):
    """A model was not asked, since nothing is left to be spent."""


class Spending:
    """What models were asked and what that cost, all together.

    Args:
        budget: how much may be spent; a limit of its `turns` is one of model calls.

    Attributes:
        calls: that were begun.
        usage: tokens of those that have ended.
        cost: of these, in the currency of the prices.
    """

    def __init__(self, budget: TreeBudget) -> None:
        self.budget = budget
        self.calls = 0
        self.usage = Usage()
        self.cost = 0.0

    @property
    def overspent(self) -> str | None:
        """Why no more call may begin, in words; None = one may."""
        return self.budget.overspent(self.usage, self.cost, self.calls + 1)

    def begin(self) -> None:
        """Count a call that begins.

        Raises:
            BudgetSpent: none may.
        """
        if (spent := self.overspent) is not None:
            raise BudgetSpent(spent)
        self.calls += 1

    def add(self, usage: Usage, price: Price | None) -> None:
        self.usage += usage
        self.cost += cost_of(usage, price)


def require_price(
    budget: TreeBudget, model: str, prices: Mapping[str, Price], *, where: str = "AgentConfig.prices"
) -> None:
    """Return if a budget can be kept with a model; `where` says of which agent the prices are.

    Raises:
        ConfigError: it limits the cost, and nothing says what the model costs.
    """
    if budget.cost is not None and price_of(model, prices) is None:
        raise ConfigError(
            f"the budget limits the cost, and {where} has no price for {model!r}; give one, or limit tokens "
            "or the number of model calls instead"
        )


class PaidProvider(StreamingProvider):
    """A provider whose calls are counted, and refused once the budget is spent."""

    def __init__(self, provider: Provider, spending: Spending, prices: Mapping[str, Price]) -> None:
        self._provider = provider
        self._spending = spending
        self._prices = prices

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the model's answer.

        Raises:
            BudgetSpent: it is not asked any more.
            ConfigError: the budget limits the cost, and there is no price for the model.
            ProviderError: the call failed.
        """
        self._begin(request)
        response = await self._provider.complete(request)
        self._add(request, response)
        return response

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Yield the answer as it arrives, the complete response last; raises as `complete` does."""
        if not can_stream(self._provider):
            yield await self.complete(request)
            return
        self._begin(request)
        counted: UsageDelta | ModelResponse | None = None
        try:
            async for item in self._provider.stream(request):
                if isinstance(item, UsageDelta | ModelResponse):
                    counted = item
                yield item
        finally:
            if counted is not None:
                self._add(request, counted)

    def _begin(self, request: ModelRequest) -> None:
        require_price(self._spending.budget, request.model, self._prices)
        self._spending.begin()

    def _add(self, request: ModelRequest, counted: UsageDelta | ModelResponse) -> None:
        answered = counted.model if isinstance(counted, ModelResponse) else None
        price = price_of(answered, self._prices) if answered is not None else None
        self._spending.add(counted.usage, price or price_of(request.model, self._prices))


AskModel: TypeAlias = Callable[[str, ModelRequest], Awaitable[ModelResponse | Unanswered]]
"""Asks the model of an agent, by the agent's name; with `SUMMARIES` behind it, the one that makes its summaries."""

SUMMARIES: Final = "/summaries"
"""No agent's name has a slash."""


class AskedModel:
    """A model that is waited for no longer than `answer_s` seconds, and that is not asked any more once it hangs."""

    def __init__(self, provider: Provider, answer_s: float) -> None:
        self._provider = provider
        self._answer_s = answer_s
        self._silent = 0
        """How often in a row it gave no answer in time."""

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return its answer; raises as the provider does, and ProviderError where there is none in time."""
        silence = f"the model gave no answer within {self._answer_s:g} seconds"
        if self._silent >= SILENT_MAX:
            raise ProviderError(f"it is not asked any more: {SILENT_MAX} times in a row {silence}")
        limit = asyncio.timeout(self._answer_s)
        try:
            async with limit:
                return await self._provider.complete(request)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise ProviderError(silence, kind="timeout", retryable=True) from error
        finally:
            self._silent = self._silent + 1 if limit.expired() else 0


class LogWithModels:
    """A log, and the models that a replay asks: what a child process has of its parent.

    An answer takes at most as long as today's agent lets a run take, else `MODEL_ANSWER_S`.
    """

    def __init__(self, store: EventStore, models: Mapping[str, AskedModel]) -> None:
        self._store = store
        self._models = models

    def __getattr__(self, method: str) -> Any:
        return getattr(self._store, method)

    async def answer(self, agent: str, request: ModelRequest) -> ModelResponse | Unanswered:
        """Ask the model of an agent.

        Raises:
            ConfigError: the provider cannot work, or the budget cannot be kept with this model.
        """
        try:
            return checked_response(await self._models[agent].complete(request))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return Unanswered("the provider let out a CancelledError of its own")
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - The border to the provider, which is user code.
            refused = isinstance(error, ProviderError) and error.kind in REFUSED_KINDS
            return Unanswered(clean_text(error_words(error))[:REASON_CHARACTERS], refused)


def with_models(store: EventStore, agent: "AnyAgent", spending: Spending) -> EventStore:
    """Return a log that can also be asked what an agent's models answer.

    Raises:
        ConfigError: the budget limits the cost, and a model has no price.
    """
    from refold.agents.agent import with_subagents

    return cast(
        "EventStore", LogWithModels(store, paid_models(with_subagents(agent), spending, lambda each: each.answering()))
    )


def paid_models(
    agents: Iterable["AnyAgent"], spending: Spending, answering: Callable[["AnyAgent"], Provider]
) -> dict[str, AskedModel]:
    """Return what is asked for agents, by the names by which a child process asks it.

    Raises:
        ConfigError: the budget limits the cost, and a model has no price.
    """
    asked: dict[str, AskedModel] = {}
    for agent in agents:
        models = {agent.name: (agent.config.model, answering(agent))}
        if isinstance(window := agent.context, Summarising):
            models[agent.name + SUMMARIES] = (window.model or agent.config.model, window.provider or agent.provider)
        for name, (model, provider) in models.items():
            where = f"AgentConfig.prices of the agent {agent.name!r}"
            require_price(spending.budget, model, agent.config.prices, where=where)
            paid = PaidProvider(provider, spending, agent.config.prices)
            asked[name] = AskedModel(paid, agent.config.run_timeout_s or MODEL_ANSWER_S)
    return asked


def asked_models(spending: Spending) -> ModelsAsked:
    return ModelsAsked(requests=spending.calls, tokens=total_tokens(spending.usage), cost=spending.cost)


PATH = "model"
"""Where paths of these differences begin."""


def answer_differences(
    then: tuple[AnswerContent, ...],
    now: tuple[AnswerContent, ...],
    ends: tuple[StopReason, StopReason],
    path: str = PATH,
) -> Iterator[Difference]:
    """Give how an answer of today differs from the recorded one, what matters most first.

    Args:
        then: the recorded answer, whole: no block stands for a payload.
        now: today's, with arguments that were read as the recorded ones were.
        ends: why the model stopped, then and now.
        path: begins those of the differences. `model.calls`: other tools, or another order.
            `model.arguments.search.query`: the same tools with others. `model.end`: another reason to stop.
            `model.text`: other words, or another image.
    """
    uses, others = tool_uses(then), tool_uses(now)
    names, other_names = [use.name for use in uses], [use.name for use in others]
    if names != other_names:
        yield Difference(path=f"{path}.calls", left=json_of(names), right=json_of(other_names))
    else:
        for use, other in zip(uses, others, strict=True):
            yield from differences(_arguments(use), _arguments(other), f"{path}.arguments.{use.name}")
    if ends[0] != ends[1]:
        yield Difference(path=f"{path}.end", left=ends[0], right=ends[1])
    if (said := text_of(then).strip()) != (says := text_of(now).strip()):
        yield Difference(path=f"{path}.text", left=said, right=says)
    shown, shows = ([json_of(each) for each in content if isinstance(each, ImageBlock)] for content in (then, now))
    yield from differences(shown, shows, f"{path}.text.images")


def _arguments(use: ToolUseBlock) -> object:
    return use.input if use.malformed_input is None else use.malformed_input


def as_recorded(response: ModelResponse, check: CheckCall) -> tuple[AnswerContent, ...]:
    """Return an answer as it would be recorded, whole; `check` reads the arguments of calls."""
    recorded = recorded_answer(response, check)
    message = Message("assistant", recorded.content)
    return cast("tuple[AnswerContent, ...]", restored(message, recorded.payloads).content)
