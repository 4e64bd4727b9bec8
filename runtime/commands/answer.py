"""How the result of a run is written."""

from pathlib import Path
from typing import TYPE_CHECKING

from refold.commands.delivery import tell_error
from refold.commands.execution import EXIT_FOUND, EXIT_INTERRUPTED, EXIT_OK
from refold.commands.output import console, write_json, write_paragraph

if TYPE_CHECKING:
    from refold.outcome import RunResult


def write_result(log: Path, session: str, result: "RunResult") -> None:
    """Write a result as one JSON document."""
    write_json({"log": str(log), "session": session, **result_members(result)})


def result_members(result: "RunResult") -> dict[str, object]:
    """Return what a JSON document says of a result."""
    from refold.outcome import Failed

    return {
        "run": result.run,
        "outcome": type(result.outcome).__name__.lower(),
        "error": result.outcome.error if isinstance(result.outcome, Failed) else None,
        "text": result.text,
        "usage": result.usage,
        "turns": result.turns,
        "stop_reason": result.stop_reason,
    }


def tell_result(result: "RunResult", as_json: bool) -> int:
    """Write the answer, or why there is none, and return the exit code."""
    from refold.outcome import Cancelled, Failed

    match result.outcome:
        case Failed(error=error):
            tell_error(f"{result.run} failed ({error.kind}): {error.message}")
            return EXIT_FOUND
        case Cancelled():
            tell_error(f"{result.run} was cancelled")
            return EXIT_INTERRUPTED
        case _:
            if not as_json:
                write_paragraph(console(), result.text)
            return EXIT_OK
