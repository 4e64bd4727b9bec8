"""`refold approve LOG [SESSION [CALL]]`: a call that waits for a person is allowed or denied, or all are listed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from refold.commands.execution import EXIT_FOUND, EXIT_OK, JsonOption, LogArgument, argument, command
from refold.commands.output import (
    console,
    exact_json,
    exact_line,
    exact_text,
    shell_word,
    tell_error,
    write_exact,
    write_json,
    write_paragraph,
)
from refold.commands.steer.delivery import (
    KeyOption,
    TimeoutOption,
    answer_line,
    approve_line,
    given,
    json_value,
    tell_given,
)

if TYPE_CHECKING:
    from refold.remote.people import AwaitedDecision

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
) -> int:
    """Allow a call that waits for approval, or deny it; without CALL, list what waits for a person.

    The runtime that owns the log does it. Where none does, a denial is recorded directly; a call that is allowed is
    begun by the next runtime that owns the log, since a call that has begun and has no runtime is one that a crash
    interrupted. Whether --arguments fit the tool, that runtime tells; where they do not, the call waits on.

    Exits 1 if the call does not wait for approval, as where another person was quicker; 3 if the runtime that owns the
    log does not take the command in time; it stays in the inbox then.

    JSON: {log, session, key, outcome: done | queued, version, new, run}. Of a list: {log, waiting: [{session, run,
    call, tool, what, reason, decided}]}; decided: whether a decision waits in the inbox for a runtime. Of a call that
    waits for an answer also question, answer_schema and id, for `refold answer`.
    """
    if session is None or call is None:
        if deny or always or reason or arguments is not None or key is not None:
            raise typer.BadParameter("name the SESSION and the CALL to decide about; `refold approve LOG` lists them")
        return await _list(log, session, as_json)
    from refold.actors.calls.verdicts import given_arguments
    from refold.events.core.ids import ToolCallId
    from refold.remote.protocol import InboxDecide, Refused

    if deny and always:
        raise typer.BadParameter("only an allowance can hold for always; leave out --deny or --always")
    if arguments is not None and (deny or always):
        raise typer.BadParameter("--arguments are for a call that is allowed, this time; leave out --deny or --always")
    changed = given_arguments(json_value(arguments, "--arguments")) if arguments is not None else None
    decision = InboxDecide(call=ToolCallId(call), allow=not deny, reason=reason, always=always, arguments=changed)
    what = await given(log, session, decision, key, timeout_s)
    if isinstance(what.outcome, Refused):
        tell_error(f"{what.outcome.message}; `refold approve {shell_word(str(log))}` lists those that wait")
        return EXIT_FOUND
    return tell_given(log, what, f"{decision.call} is {'denied' if deny else 'allowed'}", as_json)


async def _list(log: Path, session: str | None, as_json: bool) -> int:
    from refold.remote.people import awaited_decisions

    waiting = await awaited_decisions(log, session, below=True)
    if as_json:
        write_json({"log": str(log), "waiting": waiting})
        return EXIT_OK
    to = console()
    if not waiting:
        write_paragraph(to, "no call waits for approval")
    for decision in waiting:
        _write(log, decision)
    return EXIT_OK


def _write(log: Path, decision: "AwaitedDecision") -> None:
    to = console()
    why = f" ({exact_line(exact_text(decision.reason), REST)})" if decision.reason else ""
    what = exact_line(exact_json(decision.what), REST)
    if decision.question is not None:
        why = f" asks: {exact_line(exact_text(decision.question), REST)}"
    write_exact(to, f"{exact_text(decision.session)}: {what}{why}", style="bold")
    if decision.decided:
        write_exact(to, f"  {exact_text(decision.call)} is decided; a runtime that owns the log will go on")
    elif decision.question is not None:
        schema = exact_json(msgspec.json.encode(decision.answer_schema).decode())
        write_exact(to, f"  {answer_line(log, decision.session, decision.id)}")
        write_exact(to, f"  # an answer that fits {exact_line(schema, REST)}")
    else:
        write_exact(to, f"  {approve_line(log, decision.session, decision.call)}")
