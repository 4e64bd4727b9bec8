"""What model providers accept as a history: INV0 and INV1 on messages, one message at a time.

The rules are the strictest that providers have, so that a history that passes can be sent to any of them:

- the first message is a user's; no message is empty; no text in it is blank;
- an error result says something;
- calls stand in assistant messages, results in user messages, and results before everything else in them;
- each call is answered by exactly one result in the very next message, and every result answers such a call;
- no two calls share an id.

Two user messages in a row are accepted: a run that failed or was cancelled leaves its input without an answer, and
both the Messages and the Chat Completions API join or accept such messages. Two assistant messages in a row arise
only where a model paused its turn; a list of messages does not tell why the model stopped, so it is the caller of
`HistoryRules.add` who may forbid them.
"""

from typing import Literal, NamedTuple, TypeAlias

from refold.events.core.content import Block, Message, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from refold.events.core.ids import ToolCallId

Invariant: TypeAlias = Literal["INV0", "INV1", "INV2", "INV3", "INV4"]
"""The invariants that can be told from events alone: acceptable prefixes, balance, one terminal, FIFO, isolation."""


class Finding(NamedTuple):
    """One way in which an invariant does not hold."""

    invariant: Invariant
    message: str
    """What is wrong, on what."""


class HistoryRules:
    """Reads a history from its beginning and says what is wrong with each message, in O(message)."""

    def __init__(self) -> None:
        self._count = 0
        self._last_role: str | None = None
        self._known: set[ToolCallId] = set()
        self._open: dict[ToolCallId, None] = {}

    @property
    def open_calls(self) -> tuple[ToolCallId, ...]:
        """The calls of the last message, which the next one has to answer, in order."""
        return tuple(self._open)

    def add(self, message: Message, *, after_pause: bool = True) -> list[Finding]:
        """Return what is wrong with `message` as the next one; `after_pause` lets an assistant's follow another."""
        place = f"message {self._count}"
        findings: list[Finding] = []
        if self._count == 0 and message.role != "user":
            findings.append(Finding("INV0", f"{place} is the first one and not a user's"))
        if message.role == self._last_role == "assistant" and not after_pause:
            findings.append(Finding("INV0", f"{place} follows another assistant message that was no pause"))
        if not message.content:
            findings.append(Finding("INV0", f"{place} is empty"))
        if message.role == "assistant":
            findings.extend(self.unanswered())
            self._open = {}
            findings.extend(self._read_answer(message, place))
        else:
            findings.extend(self._read_user(message, place))
        self._count += 1
        self._last_role = message.role
        return findings

    def unanswered(self) -> list[Finding]:
        return [
            Finding("INV1", f"{call} (message {self._count - 1}) has no result in the next message")
            for call in self._open
        ]

    def _read_answer(self, message: Message, place: str) -> list[Finding]:
        findings: list[Finding] = []
        for block in message.content:
            if type(block) is ToolUseBlock:
                if block.id in self._known:
                    findings.append(Finding("INV1", f"{place} uses the call id {block.id} again"))
                self._known.add(block.id)
                self._open[block.id] = None
            elif type(block) is ToolResultBlock:
                findings.append(Finding("INV0", f"{place} is the assistant's and holds a tool result"))
            findings.extend(block_findings(block, place))
        return findings

    def _read_user(self, message: Message, place: str) -> list[Finding]:
        findings: list[Finding] = []
        answered: set[ToolCallId] = set()
        other_seen = False
        for block in message.content:
            findings.extend(block_findings(block, place))
            if type(block) is not ToolResultBlock:
                other_seen = True
                if type(block) is ToolUseBlock or type(block) is ThinkingBlock:
                    findings.append(Finding("INV0", f"{place} is a user's and holds a {_word(block)}"))
                continue
            call = block.tool_use_id
            if other_seen:
                findings.append(Finding("INV0", f"{place} has the result of {call} behind other content"))
            if call in answered:
                findings.append(Finding("INV1", f"{place} answers {call} twice"))
            elif call not in self._open:
                findings.append(Finding("INV1", f"{place} answers {call}, which the message before did not call"))
            answered.add(call)
        for call in answered:
            self._open.pop(call, None)
        findings.extend(self.unanswered())
        self._open = {}
        return findings


def block_findings(block: Block, place: str) -> list[Finding]:
    if type(block) is TextBlock and not block.text.strip():
        return [Finding("INV0", f"{place} holds a blank text")]
    if type(block) is not ToolResultBlock:
        return []
    findings = [finding for part in block.content for finding in block_findings(part, f"{place}, {block.tool_use_id},")]
    if block.is_error and not block.content:
        findings.append(Finding("INV0", f"{place} holds an error result of {block.tool_use_id} that says nothing"))
    return findings


def _word(block: Block) -> str:
    return "tool call" if type(block) is ToolUseBlock else "thinking block"
