"""`refold answer LOG SESSION QUESTION VALUE`: what a call waits to be told: an answer, or its deferred result."""

from typing import Annotated

import typer

from refold.commands.execution import EXIT_FOUND, JsonOption, LogArgument, argument, command
from refold.commands.output import shell_word, tell_error
from refold.commands.steer.delivery import (
    KeyOption,
    SessionArgument,
    TimeoutOption,
    given,
    json_value,
    tell_given,
)


@command
async def answer(
    log: LogArgument,
    session: SessionArgument,
    question: Annotated[str, argument("QUESTION", "The question's id, or its call's, as `refold approve` lists it.")],
    value: Annotated[str | None, argument("VALUE", "The answer, as text.")] = None,
    json_text: Annotated[
        str | None, typer.Option("--value", metavar="JSON", help="The answer as JSON, in place of VALUE.")
    ] = None,
    error: Annotated[
        str | None, typer.Option("--error", metavar="TEXT", help="Why there is no answer, in place of one.")
    ] = None,
    key: KeyOption = None,
    timeout_s: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> int:
    """Answer what a tool asks, or give a call the result that its tool left for later.

    `refold approve LOG` lists what waits, with the schema that an answer must fit. Where no runtime owns the log, an
    answer waits in the inbox for one, since the tool goes on with it; a deferred result is recorded directly.

    Exits 1 if the call waits for no such answer, or it does not fit; 3 if the runtime that owns the log does not take
    the command in time; it stays in the inbox then.

    JSON: {log, session, key, outcome: done | queued, version, new, run}.
    """
    from refold.remote.protocol import InboxAnswer, Refused

    if sum(each is not None for each in (value, json_text, error)) != 1:
        raise typer.BadParameter("give the answer as VALUE or --value, or --error in place of one")
    said = json_value(json_text, "--value") if json_text is not None else value
    what = await given(log, session, InboxAnswer(question=question, answer=said, error=error), key, timeout_s)
    if isinstance(what.outcome, Refused):
        tell_error(f"{what.outcome.message}; `refold approve {shell_word(str(log))}` lists those that wait")
        return EXIT_FOUND
    return tell_given(log, what, f"{question} is answered", as_json)
