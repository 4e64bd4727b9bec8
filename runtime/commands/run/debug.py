"""`refold debug LOG SESSION --at N`: one recorded step, done again under Python's debugger."""

import bdb
import dis
import inspect
import pdb
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, TextIO

import typer

from refold.commands.execution import EXIT_FOUND, EXIT_OK, DepsOption, LogArgument, argument, command, option
from refold.commands.output import console, json_lines, one_line, tell, write_paragraph


@command
async def debug(
    log: LogArgument,
    session: Annotated[str, argument("SESSION", "The session's name.")],
    at: Annotated[int, option("--at", "N", "Version of the event that the step is of.", min=1)],
    agent: Annotated[str, option("--agent", "AGENT", "module:attribute of the agent whose code runs.")],
    deps: DepsOption = None,
    hooks: Annotated[bool, typer.Option("--hooks", help="Of a tool's result: its hooks, and not its body.")] = False,
    side_effects: Annotated[
        bool, typer.Option("--side-effects", help="Run it where it can act, also a tool whose effect is not pure.")
    ] = False,
) -> int:
    """Do one recorded step again in Python's debugger (pdb), which stops where your code begins.

    At the end of a tool call its body runs with the recorded arguments; at an input, an answer or, with --hooks, a
    result, the prompt function, the offer, the hooks and the policy run with what they were given then. What is before
    is folded and not run. Your code runs in a process of its own, which can write nothing and reach nothing; what it
    tries is refused and told. With --side-effects it runs where it can act, and a tool whose effect is not pure, too.
    Afterwards what came of it is shown beside what is recorded. Exit code 1: hooks or policy do something else today.
    """
    from refold.agents.loading import load_agent, load_deps
    from refold.replay.one_step import one_step

    try:
        done = await one_step(
            log,
            session,
            at,
            agent=load_agent(agent),
            debugged=_debugged,
            deps=load_deps(deps) if deps is not None else None,
            side_effects=side_effects,
            hooks=hooks,
        )
    except bdb.BdbQuit:
        tell("left; the step was not done to its end")
        return EXIT_OK
    to = console()
    write_paragraph(to, f"{one_line(done.place)}: {done.step}", style="bold")
    if not done.step.startswith("hooks"):
        for name, side in (("recorded", done.recorded), ("now", done.now)):
            write_paragraph(to, f"{name}:", style="bold")
            write_paragraph(to, json_lines(side), indent=2)
        return EXIT_OK
    for line in done.differs:
        write_paragraph(to, one_line(line, 2_000), style="red")
    write_paragraph(to, "as recorded" if not done.differs else "not as recorded")
    return EXIT_FOUND if done.differs else EXIT_OK


@contextmanager
def _debugged(functions: Sequence[Callable[..., Any]], terminal: TextIO | None) -> Generator[None, None, None]:
    """Run what is within under a debugger that stops where one of the functions begins, in any thread.

    Raises:
        BdbQuit: who debugs left it, also where code caught that.
    """
    if terminal is not None:
        debugger = pdb.Pdb(stdin=terminal, stdout=terminal, nosigint=True)  # Ctrl-C is the parent's matter.
    else:
        debugger = pdb.Pdb() if sys.stdin.isatty() else pdb.Pdb(stdin=sys.stdin, stdout=sys.stdout)
    debugger.reset()
    for function in functions:
        code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
        if code is not None:
            debugger.set_break(code.co_filename, _first_line(code))
    debugger.botframe = inspect.currentframe()
    debugger.set_continue()

    def stop(*_arguments: object, **_options: object) -> None:
        sys.settrace(None)  # Or the debugger would trace itself here.
        here = inspect.currentframe()
        debugger.set_trace(here.f_back if here is not None else None)

    hook, sys.breakpointhook = sys.breakpointhook, stop
    threading.settrace(debugger.trace_dispatch)
    sys.settrace(debugger.trace_dispatch)
    try:
        yield
    finally:
        sys.settrace(None)
        threading.settrace(None)
        sys.breakpointhook = hook
    if debugger.quitting:
        raise bdb.BdbQuit


def _first_line(code: Any) -> int:
    """Return the line of a function on which its own work begins."""
    lines = [line for _, line in dis.findlinestarts(code) if line]
    return next((line for line in lines if line > lines[0]), lines[0])
