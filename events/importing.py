"""Messages of another system, made into a history that this session can go on with.

What is certain is put right: calls get ids of ours, so that no two in the session share one, blank texts go, results
move to the front of their message, and a call that the next message does not answer gets a result that says so. What
would need a guess is refused, with the place of the message. Calls of the very last message stay open: the session
closes them by events of its own.
"""

from collections.abc import Sequence

from refold.events.content import (
    CRASHED_IMPORT_TEXT,
    Block,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    error_result,
    without_blanks,
)
from refold.events.errors import CommandRejected
from refold.events.ids import ToolCallId

UNEXPLAINED_TEXT = "The tool failed."
"""The result of an imported call that failed and said nothing; providers refuse an error result without text."""


def imported_messages(messages: Sequence[Message], version: int, *, first: bool) -> tuple[Message, ...]:
    """Return `messages` as they enter the history.

    Args:
        messages: the given history, oldest first; its calls and results are paired by id within neighbours.
        version: of the event that will hold it; calls get the ids `call_<version>_<index>`.
        first: whether the session's history begins with it.

    Raises:
        CommandRejected: nothing is left to import, or a message cannot stand where it stands; names it (`messages[3]`).
    """
    imported: list[Message] = []
    open_calls: list[tuple[str, ToolCallId]] = []
    calls = 0
    for place, message in enumerate(messages):
        content = without_blanks(message.content)
        if message.role == "user":
            content = _user_content(content, open_calls, place)
            open_calls = []
        elif content:
            if open_calls:
                imported.append(Message("user", tuple(_interrupted(call) for _, call in open_calls)))
            content, open_calls = _answer_content(content, f"call_{version}_", calls, place)
            calls += len(open_calls)
        if content:
            imported.append(Message(message.role, content))
    if not imported:
        raise CommandRejected("there is nothing to import: no message has any content")
    if first and imported[0].role != "user":
        raise CommandRejected("messages[0] must be a user's, since a history begins with one")
    return tuple(imported)


def _answer_content(
    content: tuple[Block, ...], prefix: str, calls: int, place: int
) -> tuple[tuple[Block, ...], list[tuple[str, ToolCallId]]]:
    """Return an assistant's blocks with ids of ours, and each call's given id with ours."""
    blocks: list[Block] = []
    open_calls: list[tuple[str, ToolCallId]] = []
    for block in content:
        if type(block) is ToolResultBlock:
            raise CommandRejected(f"messages[{place}] is the assistant's and holds a tool result; results are a user's")
        if type(block) is not ToolUseBlock:
            blocks.append(block)
            continue
        ours = ToolCallId(f"{prefix}{calls + len(open_calls)}")
        open_calls.append((block.id, ours))
        blocks.append(
            ToolUseBlock(
                id=ours,
                name=block.name,
                input=block.input,
                provider_id=block.provider_id or block.id,
                malformed_input=block.malformed_input,
                provider_data=block.provider_data,
            )
        )
    return tuple(blocks), open_calls


def _user_content(
    content: tuple[Block, ...], open_calls: list[tuple[str, ToolCallId]], place: int
) -> tuple[Block, ...]:
    """Return a user's blocks: one result for each open call, in the order of the calls, then everything else.

    Where a provider repeats ids, its results belong to the calls in their order.
    """
    given: dict[str, list[ToolResultBlock]] = {}
    others: list[Block] = []
    for block in content:
        if type(block) is ToolResultBlock:
            given.setdefault(block.tool_use_id, []).append(block)
        elif isinstance(block, ToolUseBlock | ThinkingBlock):
            raise CommandRejected(f"messages[{place}] is a user's and holds what only an assistant says")
        else:
            others.append(block)
    results: list[Block] = []
    for theirs, ours in open_calls:
        waiting = given.get(theirs)
        results.append(_renamed(waiting.pop(0), ours) if waiting else _interrupted(ours))
    for theirs, left in given.items():
        if left:
            raise CommandRejected(
                f"messages[{place}] has a result for {theirs!r} that the message before it does not call, or calls "
                "less often; remove it"
            )
    return (*results, *others)


def _renamed(result: ToolResultBlock, call: ToolCallId) -> ToolResultBlock:
    content = without_blanks(result.content)
    if result.is_error and not content:
        content = (TextBlock(text=UNEXPLAINED_TEXT),)
    kind = (result.kind or "permanent") if result.is_error else None
    return ToolResultBlock(tool_use_id=call, content=content, is_error=result.is_error, kind=kind)


def _interrupted(call: ToolCallId) -> ToolResultBlock:
    return error_result(call, "crashed", CRASHED_IMPORT_TEXT)
