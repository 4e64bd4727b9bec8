"""A session's view as text: what `refold show` writes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, assert_never

from refold.commands.output import counted, exact_json, exact_line, exact_text, one_line, write_exact, write_paragraph
from refold.events.core.content import ThinkingBlock
from refold.inspection.session_view import SessionView
from refold.inspection.summaries import block_words, call_words, content_words, kind_words, repeat_words, usage_words
from refold.inspection.times import duration_words, time_words
from refold.inspection.transcript import CallEntry, Entry, MessageEntry, NoteEntry, RunEndEntry

if TYPE_CHECKING:
    from rich.console import Console


RESULT_CHARACTERS: Final = 4_000
"""After so many characters the text of a result is cut, unless all of it is asked for."""


def write_conversation(to: "Console", view: SessionView, *, full: bool = False, last: int | None = None) -> None:
    """Write a session: what it is, its conversation, and what is in flight.

    Args:
        last: only so many of its last exchanges, each from what a user says, and how many came before; None = all.
    """
    if last is None:
        _write_head(to, view)
    for entry in view.transcript if last is None else _last_exchanges(to, view.transcript, last):
        match entry:
            case MessageEntry():
                _write_said(to, entry, full=full)
            case NoteEntry():
                _write_line(to, f"  ~ {one_line(entry.what)}", entry.version, "yellow")
            case RunEndEntry():
                _write_ended(to, entry)
            case _:
                assert_never(entry)
    _write_present(to, view)
    if last is not None:
        write_paragraph(to, "")


def _last_exchanges(to: "Console", transcript: Sequence[Entry], last: int) -> Sequence[Entry]:
    """Return the last exchanges, and write how many are left out."""
    begun = [n for n, entry in enumerate(transcript) if isinstance(entry, MessageEntry) and entry.role == "user"]
    if len(begun) <= last:
        return transcript
    write_paragraph(to, f"… {counted(len(begun) - last, 'earlier exchange')}; /history shows all", style="dim")
    return transcript[begun[-last] :]


def _write_head(to: "Console", view: SessionView) -> None:
    who = " · ".join(one_line(str(word)) for word in (view.session, view.agent, view.model) if word)
    write_paragraph(to, who, style="bold")
    if view.parent is not None:
        write_paragraph(to, f"a subagent's session, begun by a call in {one_line(str(view.parent))}")
    if view.forked_from is not None:
        write_paragraph(to, f"a fork, which goes on from {one_line(str(view.forked_from))}")
    if view.user is not None or view.metadata:
        said = [f"{key}={value}" for key, value in view.metadata.items()]
        whose = [f"user {view.user}"] if view.user is not None else []
        write_paragraph(to, " · ".join(one_line(words) for words in (*whose, *said)))
    part = "" if view.version == view.last_version else f" of {view.last_version:,}"
    write_paragraph(
        to, f"{view.status} · version {view.version:,}{part} · {time_words(view.at)} · {usage_words(view.usage)}"
    )


def _write_line(to: "Console", line: str, version: int, style: str) -> None:
    write_paragraph(to, f"{line}  @{version}", style=style)


def _write_said(to: "Console", said: MessageEntry, *, full: bool) -> None:
    write_paragraph(to, "")
    words = [said.role, time_words(said.at)]
    if said.imported:
        words.append("imported")
    if said.usage is not None and (said.usage.input_tokens or said.usage.output_tokens):
        words.append(usage_words(said.usage))
    if said.stop_reason not in (None, "end_turn", "tool_use"):
        words.append(f"stopped: {said.stop_reason}")
    _write_line(to, " · ".join(words), said.version, "bold cyan" if said.role == "user" else "bold green")
    for block in said.content:
        thinking = isinstance(block, ThinkingBlock)
        write_paragraph(to, block_words(block), indent=4 if thinking else 2, style="dim" if thinking else "")
    if not said.content and not said.calls:
        write_paragraph(to, "(empty)", indent=2, style="dim")
    for call in said.calls:
        _write_call(to, call, full=full)


def _write_call(to: "Console", call: CallEntry, *, full: bool) -> None:
    arguments = f"{call.tool}({call.malformed_input})" if call.malformed_input is not None else None
    took = f"  ({duration_words(call.ended_at - call.started_at)})" if call.started_at and call.ended_at else ""
    write_paragraph(to, f"-> {arguments or call_words(call.tool, call.input)}{took}", indent=2, style="magenta")
    if call.approval:
        reason = f": {call.approval_reason}" if call.approval_reason else ""
        write_paragraph(to, f"approval {call.approval}{reason}", indent=5, style="yellow")
    if call.changed_input is not None:
        write_paragraph(
            to, f"changed by a person: {call_words(call.tool, call.changed_input)}", indent=5, style="yellow"
        )
    if call.ended_at:
        failed = f"{kind_words(call.kind, call.result)}: " if call.kind is not None else ""
        words = "\n".join(block_words(block) for block in call.result) or "(empty)"
        if not full and len(words) > RESULT_CHARACTERS:
            left_out = len(words) - RESULT_CHARACTERS
            words = f"{words[:RESULT_CHARACTERS]}…\n({left_out:,} more characters; `refold show --full` writes them)"
        write_paragraph(to, f"{failed}{words}", indent=5, style="red" if call.kind is not None else "")
    else:
        write_paragraph(to, "started, no result yet" if call.started_at else "no result yet", indent=5, style="yellow")


def _write_ended(to: "Console", ended: RunEndEntry) -> None:
    why = f" ({ended.kind}): {one_line(ended.message)}" if ended.kind is not None else ""
    took = duration_words(max(ended.at - ended.started_at, 0))
    turns = counted(ended.turns, "turn")
    line = f"  {ended.run} {ended.outcome}{why} · {turns} · {took} · {usage_words(ended.usage)}"
    style = {"completed": "dim", "failed": "bold red", "cancelled": "yellow"}[ended.outcome]
    _write_line(to, line, ended.version, style)


def _write_present(to: "Console", view: SessionView) -> None:
    """Write what has not ended: the open run, waiting inputs, effects in flight."""
    if view.run is None and not view.queue and not view.pending:
        return
    write_paragraph(to, "")
    if view.run is not None:
        state = "parked" if view.run.parked else view.run.phase
        line = f"{view.run.run} is open ({state}) since {time_words(view.run.started_at)}, turn {view.run.turns}"
        write_paragraph(to, line, style="bold")
    for call in view.waiting_calls:
        waits = "approval" if call.question is None else f"an answer to {exact_text(call.question)}"
        what = exact_line(exact_json(call.what), "--json shows all")
        write_exact(to, f"  waits for {exact_line(waits, '--json shows all')}: {call.call} · {what}")
    for effect in view.pending:
        write_paragraph(to, f"in flight: {effect.key} · {one_line(effect.what)}", indent=2)
    for waiting in view.queue:
        when = f" · for {time_words(waiting.due_at)}" if waiting.due_at is not None else ""
        when += repeat_words(waiting.every)
        write_paragraph(to, f"waiting: {waiting.run}{when} · {one_line(content_words(waiting.content))}", indent=2)
