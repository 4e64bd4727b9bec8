"""What waits for a person: `refold approve` allows or denies a call, or lists all; `refold answer` answers one."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from refold.commands.execution import EXIT_FOUND, CommandAnswer, JsonOption, LogArgument, argument, command
from refold.commands.output import (
    exact_json,
    exact_line,
    exact_text,
    shell_word,
    tell_error,
    write_exact,
    write_paragraph,
)
from refold.commands.steer.delivery import (
    KeyOption,
    SessionArgument,
    TimeoutOption,
    answer_line,
    approve_line,
    given,
    json_value,
    tell_given,
)

if TYPE_CHECKING:
    from rich.console import Console

    from refold.connections.people import AwaitedDecision
    from refold.remote.client import Given

REST = "--json shows all"


@command
async def approve(
    log: LogArgument,
    session: Annotated[str | None, argument("SESSION", "The session's name.")] = None,
    call: Annotated[str | None, argument("CALL", "The call's id, as the list shows it.")] = None,
    deny: Annotated[bool, typer.Option("--deny", help="Deny the call instead.")] = False,
    always: Annotated[
        bool, typer.Option("--always", help="Allow later calls of the same action in the session too.")
    ] = False,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="What the model is told where the call is denied.")
    ] = "",
    arguments: Annotated[
        str | None,
        typer.Option("--arguments", metavar="JSON", help="Arguments that it runs with in place of the model's."),
    ] = None,
    key: KeyOption = None,
    timeout_s: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> int | CommandAnswer:
    """Allow a call that waits for approval, or deny it; without CALL, list what waits for a person.

    The runtime that owns the log does it. Where none does, a denial is recorded directly; a call that is allowed is
    begun by the next runtime that owns the log, since a call that has begun and has no runtime is one that a crash
    interrupted. Whether --arguments fit the tool, that runtime tells; where they do not, the call waits on.

    Exits 1 if the call does not wait for approval, as where another person was quicker; 3 if the runtime that owns the
    log does not take the command in time; it stays in the inbox then.

    JSON: {log, session, key, outcome: done | queued, version, new, run}. Of a list: {log, waiting: [{session, run,
    call, tool, what, reason, decided, arguments}]}; decided: whether a decision waits in the inbox for a runtime. Of a
    call that waits for an answer, instead of arguments, question, answer_schema and id, for `refold answer`.
    """
    if session is None or call is None:
        if deny or always or reason or arguments is not None or key is not None:
            raise typer.BadParameter("name the SESSION and the CALL to decide about; `refold approve LOG` lists them")
        return await _list(log, session)
    from refold.actors.calls.policy import given_arguments
    from refold.events.core.ids import ToolCallId
    from refold.remote.rows import InboxDecide

    if deny and always:
        raise typer.BadParameter("only an allowance can hold for always; leave out --deny or --always")
    if arguments is not None and (deny or always):
        raise typer.BadParameter("--arguments are for a call that is allowed, this time; leave out --deny or --always")
    changed = given_arguments(json_value(arguments, "--arguments")) if arguments is not None else None
    decision = InboxDecide(call=ToolCallId(call), allowed=not deny, reason=reason, always=always, input=changed)
    what = await given(log, session, decision, key, timeout_s)
    return await _told(log, what, f"{decision.call} is {'denied' if deny else 'allowed'}", as_json)


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
    from refold.remote.rows import InboxAnswer

    if sum(each is not None for each in (value, json_text, error)) != 1:
        raise typer.BadParameter("give the answer as VALUE or --value, or --error in place of one")
    said = json_value(json_text, "--value") if json_text is not None else value
    what = await given(log, session, InboxAnswer(question=question, answer=said, error=error), key, timeout_s)
    return await _told(log, what, f"{question} is answered", as_json)


async def _told(log: Path, what: "Given", words: str, as_json: bool) -> int:
    from refold.remote.protocol import Refused

    if isinstance(what.outcome, Refused):
        tell_error(f"{what.outcome.message}; `refold approve {shell_word(str(log))}` lists those that wait")
        return EXIT_FOUND
    return await tell_given(log, what, words, as_json)


async def _list(log: Path, session: str | None) -> CommandAnswer:
    from refold.connections.people import awaited_decisions

    waiting = await awaited_decisions(log, session, below=True)

    def write(to: "Console") -> None:
        if not waiting:
            write_paragraph(to, "no call waits for approval")
        for decision in waiting:
            _write(to, log, decision)

    return CommandAnswer({"log": log, "waiting": waiting}, write)


def _write(to: "Console", log: Path, decision: "AwaitedDecision") -> None:
    why = f" ({exact_line(exact_text(decision.reason), REST)})" if decision.reason else ""
    what = exact_line(exact_json(decision.what), REST)
    if decision.question is not None:
        why = f" asks: {exact_line(exact_text(decision.question), REST)}"
    write_exact(to, f"{exact_text(decision.session)}: {what}{why}", style="bold")
    if decision.decided:
        write_exact(to, f"  {exact_text(decision.call)} is decided; a runtime that owns the log will go on")
    elif decision.question is not None:
        schema = exact_json(msgspec.json.encode(decision.answer_schema).decode())
        write_exact(to, f"  {answer_line(log, decision.session, decision.id, decision.answer_schema or {})}")
        write_exact(to, f"  # an answer that fits {exact_line(schema, REST)}")
    else:
        write_exact(to, f"  {approve_line(log, decision.session, decision.call)}")
