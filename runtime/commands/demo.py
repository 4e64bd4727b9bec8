"""`refold demo`: an agent is killed in the middle of a tool, goes on, and replays."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from refold.commands.execution import EXIT_FOUND, EXIT_OK, CommandAnswer, JsonOption, command, option
from refold.commands.output import (
    cell,
    console,
    shell_word,
    table,
    tell_error,
    write_paragraph,
    write_table,
)

if TYPE_CHECKING:
    from rich.console import Console

    from refold.demo.story import ProcessLife, Story

WORDS_CHARACTERS = 64
"""After so many characters the words of a batch are cut."""


@command
async def demo(
    log: Annotated[
        Path | None,
        option(
            "--log", "PATH", "Where the log goes; it must not be there yet. Default: a new folder for temporary files."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> int | CommandAnswer:
    """Watch an agent be killed in the middle of a tool and go on, and replay its log.

    It looks into a log of a web shop with real tools; its model plays a script, so it needs no key and no network. Its
    process is killed with SIGKILL in two of its tools; each time another one opens the log and resumes the run. In the
    end the log is replayed and checked. Exits 1 if anything is not as it must be.

    JSON: {log, tickets, report, session, question, answer, lives: [{pid, exit_code, killed_in: {tool, call, words},
    said, batches: [{first_version, last_version, events, words}], version, in_flight}], claims: [{name, holds,
    words}], held, replay, check, seconds}.
    """
    from refold.demo.story import ProcessWentWrong, files_beside, tell_story

    files = files_beside(log)
    to = console()
    if not as_json:
        write_paragraph(to, "An agent finds out why a web shop failed. Its model plays a script: no key, no network.")
        write_paragraph(to, f"What it does is real: tools, log, kills. Its log is {files.log}")
    try:
        story = await tell_story(files, lambda life: None if as_json else _write_life(to, life))
    except ProcessWentWrong as error:
        tell_error(str(error))
        return EXIT_FOUND
    return CommandAnswer(story, lambda to: _write_end(to, story), EXIT_OK if story.held else EXIT_FOUND)


def _write_life(to: "Console", life: "ProcessLife") -> None:
    begins = "begins" if life.batches[0].first_version == 1 else "opens the log and resumes the run by itself"
    write_paragraph(to, f"\nProcess {life.pid} {begins}", style="bold")
    rows = table("#VERSIONS", "EVENTS", "WHAT THEY SAY")
    for batch in life.batches:
        versions = f"{batch.first_version}-{batch.last_version}" if len(batch.events) > 1 else str(batch.first_version)
        rows.add_row(versions, ", ".join(batch.events), cell(batch.words, WORDS_CHARACTERS))
    write_table(to, rows)
    if life.killed_in is not None:
        words = f"SIGKILL in the middle of {life.killed_in.tool} ({life.killed_in.words}): exit code {life.exit_code}; "
        words += f"the log has {life.version} events, in flight is {', '.join(life.in_flight) or 'nothing'}"
        write_paragraph(to, words, style="bold red")


def _write_end(to: "Console", story: "Story") -> None:
    write_paragraph(to, f"\n{story.answer}", style="bold")
    write_paragraph(to, "\nWhat was found", style="bold")
    for claim in story.claims:
        shown = f"{'yes' if claim.holds else 'NO '}  {claim.name}: {claim.words}"
        write_paragraph(to, shown, indent=2, style="" if claim.holds else "bold red")
    write_paragraph(to, f"\nThat took {story.seconds:.1f} s. Look at it yourself:", style="bold")
    log = shell_word(story.log)
    for line in (
        f"refold show {log} {story.session}",
        f"refold show {log} {story.session} --events",
        f"refold replay {log}",
        f"refold check {log}",
        f"cat {shell_word(story.report)}",
    ):
        write_paragraph(to, line, indent=2)
