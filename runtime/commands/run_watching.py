"""What the commands that run an agent show of it beside its answers: a line for each tool call and for each result.

A model call that failed and is made again has a line, too: the pause may be long. Answers are written by
`refold.commands.live_text`.
"""

from typing import TYPE_CHECKING, Final

import typer

from refold.commands.output import cell
from refold.commands.safe_text import one_line

if TYPE_CHECKING:
    from refold.published import Recorded

CALL_CHARACTERS: Final = 100
"""After so many characters a line about a tool call is cut."""

LIVE_CAPACITY: Final = 10_000
"""How many pieces of an answer may wait to be shown."""

INBOX_POLL_S: Final = 0.2
"""How often it is looked for commands of other processes to the session."""


class CallLines:
    """Writes the lines of one session to stderr.

    Args:
        quiet: write nothing.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._tools: dict[str, str] = {}
        """Names by call."""
        self._failure = ""
        """Why the last model call failed."""

    def see(self, recorded: "Recorded") -> None:
        """Write what an event says of a tool call, or of a model call that is made again, if it does."""
        from refold.event_words import call_words, content_words
        from refold.events.content import tool_uses
        from refold.events.session_events import (
            ModelFailed,
            ModelResponded,
            RetryScheduled,
            ToolCallCompleted,
            ToolCallFailed,
        )

        match recorded.event:
            case ModelFailed(message=message):
                self._failure = message
            case RetryScheduled(due_at=due_at, at=at):
                self.tell(f".. asked again in {max(due_at - at, 0) / 1e6:.0f} s: {self._failure}")
            case ModelResponded(content=content):
                for call in tool_uses(content):
                    self._tools[call.id] = call.name
                    self.tell(f"-> {call_words(call.name, call.input)}")
            case ToolCallCompleted(call=call_id, content=content):
                self.tell(f"<- {self._tools.get(call_id, call_id)}: {content_words(content)}")
            case ToolCallFailed(call=call_id, content=content, kind=kind):
                self.tell(f"<- {self._tools.get(call_id, call_id)} ({kind}): {content_words(content)}")
            case _:
                return

    def tell(self, words: str) -> None:
        """Write a line about a call, cut to one of a terminal."""
        if not self._quiet:
            tell(cell(words, CALL_CHARACTERS))


def tell(words: str) -> None:
    """Write a line about what goes on, to stderr, where no answers are."""
    typer.secho(one_line(words), err=True, dim=True)
