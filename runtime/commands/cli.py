"""The `refold` command: every subcommand is registered here, and lives in a module of `refold.commands`.

Modules that a command needs are imported when it runs, so that `refold --help` is quick.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, cast

import typer

from refold.commands.demo import demo
from refold.commands.execution import EXIT_CODES_HELP
from refold.commands.inspect import inspect
from refold.commands.keep.backup import backup
from refold.commands.keep.bundle import bundle
from refold.commands.keep.compact import compact
from refold.commands.keep.delete import delete
from refold.commands.keep.repair import repair
from refold.commands.keep.retain import retain
from refold.commands.keep.scan import scan
from refold.commands.look.check import check
from refold.commands.look.diff import diff
from refold.commands.look.export import export
from refold.commands.look.import_log import import_log
from refold.commands.look.replay import replay
from refold.commands.look.sessions import sessions
from refold.commands.look.show import show
from refold.commands.look.tail import tail
from refold.commands.look.why import timeline, why
from refold.commands.measure.metrics import metrics
from refold.commands.measure.stats import stats
from refold.commands.measure.trace import trace
from refold.commands.run.chat import chat
from refold.commands.run.debug import debug
from refold.commands.run.resume import resume
from refold.commands.run.run import run
from refold.commands.steer.approve import answer, approve
from refold.commands.steer.cancel import cancel
from refold.commands.steer.fork import fork, rewind
from refold.commands.steer.remind import remind
from refold.commands.steer.send import send
from refold.commands.steer.set_aside import set_aside
from refold.version import __version__

app = typer.Typer(
    name="refold",
    help="Run agents on a log, look into it, do it again with today's code, check it, and rehearse faults.",
    epilog=EXIT_CODES_HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _register(command: Callable[..., None], name: str | None = None) -> None:
    """Make a function a command, which the list of all describes by its first sentence, however narrow the terminal."""
    first = " ".join((command.__doc__ or "").split("\n\n", 1)[0].split()).split(". ", 1)[0].rstrip(".")
    app.command(name, epilog=EXIT_CODES_HELP, short_help=first)(command)


for command in (
    demo,
    run,
    resume,
    chat,
    send,
    remind,
    approve,
    answer,
    cancel,
    fork,
    rewind,
    sessions,
    show,
    inspect,
    tail,
    stats,
    metrics,
    trace,
    replay,
    debug,
    diff,
    why,
    timeline,
    check,
    export,
    backup,
    bundle,
    repair,
    delete,
    retain,
    compact,
    scan,
):
    _register(command)
_register(import_log, "import")
_register(set_aside, "set-aside")


def _command(module: str, name: str) -> Callable[..., None]:
    """Return a command that stands to the right of the runtime, which is found by its name and never imported here."""
    return cast("Callable[..., None]", getattr(import_module(module), name))


_register(_command("refold.scenarios.command.command", "simulate"))


def _write_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"refold {__version__}")
        raise typer.Exit


@app.callback()
def refold(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and leave.", callback=_write_version, is_eager=True)
    ] = False,
    allow_shared_folder: Annotated[
        bool,
        typer.Option(
            "--allow-shared-folder",
            help="Write logs and inboxes also in folders where other users may make files (SECURITY.md).",
        ),
    ] = False,
) -> None:
    """Run agents on a log, look into it, do it again with today's code, check it, and rehearse faults."""
    if allow_shared_folder:
        from refold.stores.guarding.trusted_files import shared_folders_allowed

        shared_folders_allowed.set(True)


def main() -> None:
    """Run the command with the process's arguments, and leave with its exit code."""
    if isinstance(sys.stdout, TextIOWrapper):
        # What the terminal's encoding lacks is shown as a question mark.
        sys.stdout.reconfigure(errors="replace")  # pyright: ignore[reportUnknownMemberType]
    app()
