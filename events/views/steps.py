"""What a session's agent thought, did and saw, step by step: a view of its events.

A step is one complete answer of the model, and the tool calls that it asked for. It is the same for both protocols:
reasoning, and what the model says beside its calls, is the thought; the calls are the actions; their results, errors
too, are the observations; what it says without a call is the answer. A model call that brought no answer is no step.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from refold.events.core.content import (
    Block,
    ErrorKind,
    JsonObject,
    StoredBlock,
    TextBlock,
    ThinkingBlock,
    tool_uses,
)
from refold.events.core.event import SECOND_US
from refold.events.core.ids import PayloadHash, RunId, ToolCallId
from refold.events.model.payloads import restore
from refold.events.session import events as ev

NO_PAYLOADS: Mapping[PayloadHash, bytes] = MappingProxyType({})


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call and what was seen of it."""

    call: ToolCallId
    tool: str
    input: JsonObject
    changed_input: JsonObject | None = None
    """The arguments that a person had it run with in place of `input`; None = they were not changed."""
    observation: str | None = None
    """The text of its result, or of its error; None = it has none yet."""
    kind: ErrorKind | None = None
    """Why it has no ordinary result; None = it has one, or none yet."""
    ended_at: int = 0
    """When that came, in microseconds since the epoch, UTC; 0 = it has not."""
    attempts: int = 0
    """How many attempts at it have begun; one that a crash interrupted is made again and counts once."""

    @property
    def text(self) -> str:
        """The call as one text: the tool's name and its arguments as JSON."""
        return f"{self.tool} {msgspec.json.encode(self.input).decode()}"


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of a model, and the tool calls that it asked for."""

    run: RunId
    turn: int
    """Which of the run's model calls it answers, from 1."""
    thought: str
    """Reasoning, and what was said beside the calls; empty where there was neither."""
    actions: tuple[Action, ...]
    """In the order of the calls."""
    answer: str
    """What was said without a call."""
    rejected: str = ""
    """Why the answer could not be used; the model was told so."""
    started_at: int
    """When the model call was wanted, earlier attempts at it included, in microseconds since the epoch, UTC."""
    answered_at: int
    """When the answer was there, likewise."""

    @property
    def observations(self) -> tuple[str, ...]:
        """The texts of the results that are there, in the order of the calls."""
        return tuple(action.observation for action in self.actions if action.observation is not None)

    @property
    def ended_at(self) -> int | None:
        """When its last result was there, in microseconds since the epoch, UTC; None = a call is still open."""
        if any(not action.ended_at for action in self.actions):
            return None
        return max([self.answered_at, *(action.ended_at for action in self.actions)])

    @property
    def duration_s(self) -> float | None:
        """Seconds from its beginning to its end; None = a call is still open."""
        return None if self.ended_at is None else (self.ended_at - self.started_at) / SECOND_US

    @property
    def failed(self) -> bool:
        """Whether a call of it was answered with an error, or the answer could not be used."""
        return bool(self.rejected) or any(action.kind is not None for action in self.actions)


class Steps:
    """Gathers the steps of one session, event by event."""

    def __init__(self, payloads: Mapping[PayloadHash, bytes] = NO_PAYLOADS) -> None:
        """Begin without an event.

        Args:
            payloads: those that `stored_texts` names; a text that is in none of them is shown by its size.
        """
        self._payloads = payloads
        self._steps: list[Step] = []
        self._wanted_at = 0
        self._open: dict[ToolCallId, tuple[int, int]] = {}
        """Of each call without a result: its step's place, and its place in the step."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps so far, oldest first."""
        return tuple(self._steps)

    @property
    def last(self) -> Step:
        """The last step; there must be one."""
        return self._steps[-1]

    def add(self, event: ev.SessionEvent) -> None:
        match event:
            case ev.ModelRequested():
                self._wanted_at = event.at
            case ev.ModelResponded():
                self._begin(event)
            case ev.ToolApprovalDecided(call=call, input=arguments) if arguments is not None:
                self._note(call, changed_input=arguments)
            case ev.ToolCallStarted(call=call, attempt=attempt):
                self._note(call, attempts=attempt)
            case ev.ToolCallCompleted():
                self._observe(event, None)
            case ev.ToolCallFailed(kind=kind):
                self._observe(event, kind)
            case _:
                return

    def text_of(self, content: Iterable[Block]) -> str:
        """Images and what only a provider understands are left out."""
        return "".join(self._text(block) for block in content if not isinstance(block, ThinkingBlock))

    def _begin(self, event: ev.ModelResponded) -> None:
        uses = tool_uses(event.content)
        thoughts = [self._text(block) for block in event.content if _is_thought(block)]
        said = "".join(self._text(block) for block in event.content if not _is_thought(block))
        if uses:
            thoughts.append(said)
        place = len(self._steps)
        self._open.update({use.id: (place, number) for number, use in enumerate(uses)})
        self._steps.append(
            Step(
                run=event.run,
                turn=event.turn,
                thought="\n".join(thought.strip() for thought in thoughts if thought.strip()),
                actions=tuple(Action(call=use.id, tool=use.name, input=use.input) for use in uses),
                answer="" if uses else said,
                rejected=event.rejected,
                started_at=self._wanted_at or event.at,
                answered_at=event.at,
            )
        )

    def _observe(self, event: ev.ToolCallCompleted | ev.ToolCallFailed, kind: ErrorKind | None) -> None:
        self._note(event.call, observation=self.text_of(event.content), kind=kind, ended_at=event.at)
        self._open.pop(event.call, None)

    def _note(self, call: ToolCallId, **known: object) -> None:
        place, number = self._open.get(call, (None, 0))
        if place is None:  # A call of an imported history.
            return
        step = self._steps[place]
        actions = list(step.actions)
        actions[number] = msgspec.structs.replace(actions[number], **known)
        self._steps[place] = msgspec.structs.replace(step, actions=tuple(actions))

    def _text(self, block: Block) -> str:
        if isinstance(block, StoredBlock):
            if block.holds not in ("text", "thinking"):
                return ""
            if block.hash not in self._payloads:
                return f"({block.bytes:,} bytes in payload {block.hash[:12]})"
            return self._text(restore(block, self._payloads))
        if isinstance(block, ThinkingBlock):
            return block.thinking
        return block.text if isinstance(block, TextBlock) else ""


def steps_of(
    events: Iterable[ev.SessionEvent], payloads: Mapping[PayloadHash, bytes] = NO_PAYLOADS
) -> tuple[Step, ...]:
    steps = Steps(payloads)
    for event in events:
        steps.add(event)
    return steps.steps


def stored_texts(events: Iterable[ev.SessionEvent]) -> list[PayloadHash]:
    """Return the payloads that hold texts of the steps in `events`, in order, each once."""
    answers = (
        event for event in events if isinstance(event, ev.ModelResponded | ev.ToolCallCompleted | ev.ToolCallFailed)
    )
    blocks: Iterable[Block] = (block for event in answers for block in event.content)
    stored = (block for block in blocks if isinstance(block, StoredBlock))
    return list(dict.fromkeys(block.hash for block in stored if block.holds in ("text", "thinking")))


def _is_thought(block: Block) -> bool:
    return isinstance(block, ThinkingBlock) or (isinstance(block, StoredBlock) and block.holds == "thinking")
