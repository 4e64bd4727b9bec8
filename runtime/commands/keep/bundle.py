"""`refold bundle LOG SESSION`: a bug in one file, without secrets."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from refold.commands.execution import (
    EXIT_FOUND,
    EXIT_OK,
    AgentOption,
    CommandAnswer,
    DepsOption,
    JsonOption,
    LogArgument,
    argument,
    command,
    compiled_patterns,
    loaded_agent,
    option,
)
from refold.commands.output import counted, one_line, shell_word, tell, write_exact, write_paragraph

if TYPE_CHECKING:
    from rich.console import Console

    from refold.replay.manifest import BundleManifest


@command
async def bundle(
    log: LogArgument,
    session: Annotated[str, argument("SESSION", "The session's name.")],
    output: Annotated[Path, option("--output", "FILE", "Write this new file; its name ends in .refold.", short="-o")],
    agent: AgentOption = None,
    deps: DepsOption = None,
    value_from_env: Annotated[
        list[str] | None,
        option("--value-from-env", "NAME", "Take out the value of this variable. May be given again."),
    ] = None,
    pattern: Annotated[
        list[str] | None, option("--pattern", "REGEX", "Take out what this matches. May be given again.")
    ] = None,
    field: Annotated[
        list[str] | None,
        option("--field", "PATH", "Take out what is at this place of JSON, such as card.number. May be given again."),
    ] = None,
    as_json: JsonOption = False,
) -> CommandAnswer:
    """Write a session, and what it needs to be done again, into one file without secrets.

    With the session go the sessions that its calls began, and what its memories held up to its last event. Keys of
    providers, what --agent's redact names and what the options name are taken out; [redacted] stands in their place,
    and digests are made anew. The log and the bundle are both replayed (with --agent also its code): the bundle says
    what was found. Exit code 1: what was taken out makes a difference, so a replay of the bundle finds something else.
    `refold replay FILE`, `show` and all that read a log read the file; `pytest FILE` runs it as a test.

    JSON: {format, session, recorded_with: [{agent, fingerprint, refold, core, app}], refold, core, python, agent,
    redacted, left_out, verdict: {level, diverged, kinds, missing}, log_verdict}.
    """
    from refold.bundles.bundle import bundle_session
    from refold.events.secrets.redaction import FieldPath
    from refold.inspection.scan import required_values

    loaded, depends_on = loaded_agent(agent, deps)
    manifest = await bundle_session(
        log,
        session,
        output,
        redact=[
            *required_values(value_from_env or [], os.environ).values(),
            *compiled_patterns(pattern or []),
            *map(FieldPath, field or []),
        ],
        agent=loaded,
        agent_name=agent,
        deps=depends_on,
    )
    for stream in manifest.left_out:
        tell(f"left out: {stream}, which the log does not say that the session has seen")
    code = EXIT_OK if manifest.log_verdict is None else EXIT_FOUND
    return CommandAnswer(manifest, lambda to: _write(to, manifest, output), code)


def _write(to: "Console", manifest: "BundleManifest", output: Path) -> None:
    for each in manifest.recorded_with:
        words = f"{each.agent} ({each.fingerprint}), refold {each.refold}"
        write_paragraph(to, f"recorded with {one_line(words, 300)}{f', {one_line(each.app)}' if each.app else ''}")
    verdict = manifest.verdict
    write_paragraph(
        to,
        f"level {verdict.level}: "
        + (f"divergence in {counted(verdict.diverged, 'stream')}" if verdict.diverged else "no divergence")
        + (f", {counted(len(verdict.missing), 'reason')} why not everything was compared" if verdict.missing else ""),
    )
    if manifest.log_verdict is not None:
        for kind in sorted(set(verdict.kinds) ^ set(manifest.log_verdict.kinds)):
            write_paragraph(to, f"only of the {'bundle' if kind in verdict.kinds else 'log'}: {one_line(kind, 300)}")
        write_paragraph(to, "what was taken out makes a difference for a replay", style="bold red")
    with_agent = f" --agent {shell_word(manifest.agent)}" if manifest.agent is not None else ""
    write_exact(to, f"next: refold replay {shell_word(str(output))}{with_agent}")
