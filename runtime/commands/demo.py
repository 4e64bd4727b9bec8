"""`refold demo`: an agent is killed in the middle of a tool, goes on, and replays."""

import shlex
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold.commands.execution import EXIT_FOUND, EXIT_OK, JsonOption, run_command
from refold.commands.output import cell, console, write_json, write_paragraph

if TYPE_CHECKING:
    from rich.console import Console

    from refold.demo.crash_story import Append, CrashStory, Life

EVENTS_COLUMNS = 38
"""Room for the types of an append's events."""

WORDS_CHARACTERS = 64
"""After so many characters the words of an append are cut."""


def demo(
    log: Annotated[
        Path | None,
        typer.Option(
            "--log",
            metavar="PATH",
            help="Where the log goes; it must not be there yet. Default: a new folder for temporary files.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Watch an agent be killed in the middle of a tool, go on, and replay.

    It looks into a log of a web shop with real tools; its model plays a script, so it needs no key and no network. Its
    process is killed with SIGKILL in two of its tools; each time another one takes the log up and goes on. In the end
    the log is replayed and checked. Exits 1 if anything is not as it must be.

    JSON: {log, session, tickets, report, question, answer, lives: [{pid, exit_code, killed_in: {tool, call, words},
    bodies: [{tool, call}], appends: [{first_version, last_version, events, words}], version, in_flight}],
    claims: [{name, holds, words}], held, replay, check, seconds}.
    """
    run_command(_demo(log, as_json))


async def _demo(log: Path | None, as_json: bool) -> int:
    from refold.demo.crash_story import tell_crash_story
    from refold.demo.demo_files import DemoFiles
    from refold.demo.killing import ProcessWentWrong

    files = DemoFiles.beside(log)
    to = console()
    if not as_json:
        _write_beginning(to, files.log)
    try:
        story = await tell_crash_story(files, lambda life: None if as_json else _write_life(to, life))
    except ProcessWentWrong as error:
        typer.echo(f"refold: {error}", err=True)
        return EXIT_FOUND
    if as_json:
        write_json(story)
    else:
        _write_end(to, story)
    return EXIT_OK if story.held else EXIT_FOUND


def _write_beginning(to: "Console", log: Path) -> None:
    write_paragraph(to, "An agent finds out why a web shop failed. Its model plays a script: no key, no network.")
    write_paragraph(to, f"What it does is real: tools, log, kills. Its log is {log}")


def _write_life(to: "Console", life: "Life") -> None:
    first = life.appends[0].first_version if life.appends else life.version + 1
    begins = "begins" if first == 1 else "takes the log up and goes on by itself"
    write_paragraph(to, f"\nProcess {life.pid} {begins}", style="bold")
    for append in life.appends:
        _write_append(to, append)
    if life.killed_in is not None:
        words = f"SIGKILL in the middle of {life.killed_in.tool} ({life.killed_in.words}): exit code {life.exit_code}; "
        words += f"the log has {life.version} events, in flight is {', '.join(life.in_flight) or 'nothing'}"
        write_paragraph(to, words, indent=2, style="bold red")


def _write_append(to: "Console", append: "Append") -> None:
    """Write the events of an append and, beside them where there is room, what they say."""
    from rich.text import Text

    events = f"{_versions(append):>7}  {_events(append):<{EVENTS_COLUMNS}}"
    room = to.width - len(events) - 2 if to.is_terminal else WORDS_CHARACTERS
    if room < EVENTS_COLUMNS // 2:
        to.print(events, style="cyan", soft_wrap=True)
        events, room = " " * 9, to.width - 9
    line = Text(events, style="cyan")
    line.append(f"  {cell(append.words, min(room, WORDS_CHARACTERS))}", style="default")
    line.rstrip()
    to.print(line, soft_wrap=True)


def _versions(append: "Append") -> str:
    first, last = append.first_version, append.last_version
    return str(first) if first == last else f"{first}-{last}"


def _events(append: "Append") -> str:
    counted = ((name, len(list(same))) for name, same in groupby(append.events))
    return ", ".join(name if times == 1 else f"{name} x {times}" for name, times in counted)


def _write_end(to: "Console", story: "CrashStory") -> None:
    write_paragraph(to, f"\n{story.answer}", style="bold")
    write_paragraph(to, "\nWhat was found", style="bold")
    for claim in story.claims:
        shown = f"{'yes' if claim.holds else 'NO '}  {claim.name}: {claim.words}"
        write_paragraph(to, shown, indent=2, style="" if claim.holds else "bold red")
    write_paragraph(to, f"\nThat took {story.seconds:.1f} s. Look at it yourself:", style="bold")
    log = shlex.quote(story.log)
    for command in (
        f"refold show {log} {story.session}",
        f"refold show {log} {story.session} --events",
        f"refold replay {log}",
        f"refold check {log}",
        f"cat {shlex.quote(story.report)}",
    ):
        write_paragraph(to, command, indent=2)
