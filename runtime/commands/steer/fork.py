"""`refold fork LOG SESSION` and `refold rewind LOG SESSION`: go on from an earlier place, beside it or in it."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from refold.commands.execution import EXIT_OK, JsonOption, LogArgument, command, option
from refold.commands.output import shell_word
from refold.commands.steer.delivery import KeyOption, SessionArgument, TimeoutOption, given, resume_line, tell_given


@command
async def fork(
    log: LogArgument,
    session: SessionArgument,
    at: Annotated[int | None, option("--at", "N", "After its version N; default: its last.", min=1)] = None,
    name: Annotated[str | None, option("--as", "NAME", "Of the fork; default: SESSION~N.")] = None,
    text: Annotated[str | None, option("--input", "TEXT", "Send this to the fork; - reads it from stdin.")] = None,
    prompt: Annotated[
        str | None, option("--prompt", "TEXT", "The system prompt of its runs; @FILE reads it from a file.")
    ] = None,
    model: Annotated[str | None, option("--model", "MODEL", "The model of its runs.")] = None,
    result: Annotated[
        list[str] | None,
        option("--result", "CALL=TEXT", "What a call that is open there is answered with. May be given again."),
    ] = None,
    keep_run: Annotated[
        bool, typer.Option("--keep-run", help="A run that is open there waits for `refold resume`; else it is ended.")
    ] = False,
    key: KeyOption = None,
    timeout_s: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> int:
    """Make a new session that goes on from a place in another one, which does not change.

    It costs one event, wherever the place is. N is the last event that both have, the end of a batch, as `refold show
    --events` lists it. What tools did before it is not done again. With --result a run that is open there goes on
    with `refold resume`; so it does with --keep-run.

    Exits 1 if it cannot be made, or there is another session of its name. Exits 3 if the runtime that owns the log
    does not take the command in time; it stays in the inbox then.

    JSON: {log, session, key, outcome: done | queued, version, new, run}; the session is the fork, and with --input
    version and run are of the input.
    """
    from msgspec.structs import replace

    from refold.events.core.ids import SessionId
    from refold.remote.protocol import Done
    from refold.remote.rows import InboxFork, InboxSend

    results = dict(_call_and_text(each) for each in result or [])
    words = _text_of_file(prompt) if prompt is not None else None
    wanted = name or await _free_name(log, session, at)
    fork_command = InboxFork(
        name=wanted, at=at, model=model, system_prompt=words, results={**results}, keep_run=keep_run or bool(results)
    )
    what = await given(log, session, fork_command, key, timeout_s)
    said = f"session {shell_word(wanted)} goes on from {shell_word(session)}"
    if not isinstance(what.outcome, Done):
        return await tell_given(log, what, said, as_json, goes_on=False)
    if text is not None:
        content = sys.stdin.read() if text == "-" else text
        what = await given(log, wanted, InboxSend(text=content), f"{what.key}:input", timeout_s)
        run = what.outcome.run if isinstance(what.outcome, Done) else None
        return await tell_given(log, what, f"{said}; the input is recorded as {run}", as_json)
    code = await tell_given(log, replace(what, session=SessionId(wanted)), said, as_json, goes_on=False)
    if not as_json and (keep_run or results) and code == EXIT_OK:
        typer.echo(resume_line(log, wanted), err=True)
    return code


@command
async def rewind(
    log: LogArgument,
    session: SessionArgument,
    at: Annotated[int | None, option("--at", "N", "To its version N; default: before its last input.", min=1)] = None,
    key: KeyOption = None,
    timeout_s: TimeoutOption = 10.0,
    as_json: JsonOption = False,
) -> int:
    """Take the conversation of a session back: later requests hold what they held after version N.

    What was said since stays in the log, and what it cost and what tools did is not undone. No run may be under way,
    now or after that version. To go on from a place inside a run, or before a summary, use `refold fork`.

    Exits 1 if it cannot be; 3 if the runtime that owns the log does not take the command in time; it stays in the inbox
    then.

    JSON: {log, session, key, outcome: done | queued, version, new, run}.
    """
    from refold.remote.rows import InboxRewind

    what = await given(log, session, InboxRewind(to=at), key, timeout_s)
    to = f"to version {at}" if at is not None else "to before its last input"
    return await tell_given(log, what, f"the conversation is taken back {to}", as_json, goes_on=False)


def _call_and_text(given_text: str) -> tuple[str, str]:
    call, equals, text = given_text.partition("=")
    if not equals or not call:
        raise typer.BadParameter(f"{given_text!r} is no CALL=TEXT, such as call_6_0=rain")
    return call, text


def _text_of_file(words: str) -> str:
    if not words.startswith("@"):
        return words
    try:
        return Path(words[1:]).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{words[1:]} cannot be read: {error}") from None


async def _free_name(log: Path, session: str, at: int | None) -> str:
    """Return a name that no session has yet."""
    from refold.events.core.ids import SessionId, stream_name
    from refold.inspection.log_reading import opened, session_head, tombstone_of
    from refold.lineage.fork import names_for

    async with opened(log) as store:
        head = await session_head(store, session)
        for name in names_for(SessionId(session), head.version if at is None else at):
            stream = stream_name("session", name)
            if await store.head(stream) is None and await tombstone_of(store, stream) is None:
                return name
    raise AssertionError("unreachable")
