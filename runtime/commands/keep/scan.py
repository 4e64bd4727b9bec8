"""`refold scan LOG`: whether keys and other secrets stand in a log."""

import os
from typing import TYPE_CHECKING, Annotated

from msgspec.structs import asdict

from refold.commands.execution import (
    EXIT_BAD_INPUT,
    EXIT_FOUND,
    EXIT_OK,
    CommandAnswer,
    JsonOption,
    LogArgument,
    command,
    compiled_patterns,
    option,
)
from refold.commands.output import Progress, all_counted, counted, one_line, write_paragraph

if TYPE_CHECKING:
    from rich.console import Console

    from refold.inspection.scan import FoundSecret, ScanReport


@command
async def scan(
    log: LogArgument,
    value_from_env: Annotated[
        list[str] | None,
        option(
            "--value-from-env", "NAME", "Look for the value of this variable of the environment. May be given again."
        ),
    ] = None,
    pattern: Annotated[
        list[str] | None,
        option("--pattern", "REGEX", "Look for what this regular expression matches. May be given again."),
    ] = None,
    as_json: JsonOption = False,
) -> CommandAnswer:
    """Look for keys in a log, its WAL, its inbox and what free pages of them still hold.

    Found are keys of known formats (OpenAI, Anthropic, AWS, Google, GitHub, Slack, Stripe, private keys, JSON Web
    Tokens, bearer headers), and what the options name. A value is found with JSON escapes, in URLs and in base64, too;
    no option takes the value itself, which other users of the machine could read. What is found is shown masked.
    Exit code 1: something was found; 2: nothing was, and this user may not read all that belongs to the log.

    JSON: {log, found, findings: [{kind, masked, stream, version, payload, path, file, times}], streams, events,
    payloads, file_bytes, not_read, not_seen, incomplete}.
    """
    from refold.inspection.scan import SoughtSecrets, required_values, scan_log

    values = required_values(value_from_env or [], os.environ)
    patterns = {f"pattern {each.pattern}": each for each in compiled_patterns(pattern or [])}
    with Progress(quiet=as_json) as progress:
        report = await scan_log(log, SoughtSecrets(values, patterns), progress=progress)
    code = EXIT_FOUND if report.found else EXIT_BAD_INPUT if report.incomplete else EXIT_OK
    return CommandAnswer({"log": log, **asdict(report)}, lambda to: _write(to, report), code)


def _write(to: "Console", report: "ScanReport") -> None:
    for finding in report.findings:
        write_paragraph(
            to, f"{finding.kind}  {one_line(_place(finding), 300)}  {one_line(finding.masked)}", style="red"
        )
    if report.found > sum(finding.times for finding in report.findings):
        write_paragraph(to, "… and more", style="red")
    for why in report.not_read:
        write_paragraph(to, f"not read, apart from its bytes: {one_line(why, 300)}")
    for why in report.not_seen:
        write_paragraph(to, f"not looked at: {one_line(why, 300)}", style="red")
    looked = f"{all_counted(report, 'stream', 'event', 'payload')}, {report.file_bytes:,} bytes of files"
    in_all = " in what this user may read" if report.incomplete else ""
    verdict = (counted(report.found, "finding") if report.found else "nothing found") + in_all
    write_paragraph(to, f"{verdict}: {looked}", style="bold red" if report.found else "bold")


def _place(finding: "FoundSecret") -> str:
    if finding.file is not None:
        times = f" ({finding.times} times)" if finding.times > 1 else ""
        return f"{finding.file}: {finding.path or 'in its bytes'}{times}"
    if finding.payload is not None:
        return f"payload {finding.payload[:12]} {finding.path}"
    version = f"@{finding.version}" if finding.version is not None else ""
    return f"{finding.stream}{version} {finding.path}"
