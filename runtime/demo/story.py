"""The demonstration itself: a process is killed in two tools, started again each time, and finishes.

The rules: nothing is timed, the kill comes when the process has said that a tool's body is in the middle of its work
and every other call that it had started is in the log; and what is told of a process is read from the log after its
death, read-only, and not from what it said.
"""

import asyncio
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path

import msgspec

from refold.demo.agent import QUESTION, SESSION, Announcement, BodyRuns, EventRecorded, filed_tickets
from refold.events.core.codec import RecordedEvent
from refold.events.core.content import text_of
from refold.events.core.errors import ConfigError, RefoldError
from refold.events.core.ids import stream_name
from refold.events.core.pure_core import keys_of
from refold.events.session import events as ev
from refold.events.session.core import SESSION_CODEC, SESSION_KIND
from refold.inspection.check import CheckReport, check_log
from refold.inspection.log_reading import opened
from refold.inspection.summaries import event_words
from refold.replay.findings import ReplayReport
from refold.replay.log_replay import replay
from refold.stores.guarding.trusted_files import shared_folders_allowed

KILLS = (("summarise", 20.0), ("open_ticket", 0.03), (None, 0.03))
"""For each process: the tool in whose body it is killed, and how many seconds `summarise` rests after each piece. The
first one would rest for minutes, so that it is killed before its end however busy the machine is."""

SILENCE_S_MAX = 30.0
"""A process that announces nothing for so long has failed."""

STARTED = str(ev.ToolCallStarted.__struct_config__.tag)

_decoder: msgspec.json.Decoder[Announcement] = msgspec.json.Decoder(Announcement)


class ProcessWentWrong(RefoldError):
    """The agent's process ended in another way than the demonstration needs; its own words are on stderr."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Events that were decided together."""

    first_version: int
    last_version: int
    events: tuple[str, ...]
    """Their types, without kind and version of the type: `tool_call_started`."""
    words: str
    """What they say."""


class ProcessLife(msgspec.Struct, frozen=True, kw_only=True):
    """One process, from its start to its end."""

    pid: int
    exit_code: int
    """Negative: the number of the signal that it died of."""
    killed_in: BodyRuns | None
    """The tool's body that was in the middle of its work; None = the process was not killed."""
    said: tuple[Announcement, ...]
    batches: tuple[Batch, ...]
    """What it appended to the session."""
    version: int
    """The session's version at its end."""
    in_flight: tuple[str, ...]
    """Keys of the effects that the log says were in flight at its end."""

    @property
    def bodies(self) -> list[BodyRuns]:
        """The tools' bodies that began to run in it, in order."""
        return [said for said in self.said if isinstance(said, BodyRuns) and not said.words]


class Claim(msgspec.Struct, frozen=True):
    """Something that is to be true."""

    name: str
    holds: bool
    words: str
    """What was found."""


class Story(msgspec.Struct, frozen=True, kw_only=True):
    """What happened, and what is true of it."""

    log: str
    tickets: str
    report: str
    session: str = SESSION
    question: str = QUESTION
    answer: str
    lives: tuple[ProcessLife, ...]
    """In order; all but the last were killed."""
    claims: tuple[Claim, ...]
    held: bool
    """Whether every claim holds."""
    replay: ReplayReport
    check: CheckReport
    seconds: float


class Files(msgspec.Struct, frozen=True):
    """The files of a demonstration, which are not there yet; absolute, so that another process finds them."""

    log: Path
    tickets: Path
    report: Path


def files_beside(log: Path | None) -> Files:
    """Return the files of a demonstration with its log at `log`, or raise ConfigError; None = in a temporary folder."""
    try:
        path = log.absolute() if log is not None else Path(tempfile.mkdtemp(prefix="refold-demo-")) / "events.db"
    except OSError as error:
        raise ConfigError(
            f"no folder for temporary files can be made: {error.strerror}; name a place with --log"
        ) from error
    files = Files(path, path.with_name(f"{path.name}.tickets.jsonl"), path.with_name(f"{path.name}.report.md"))
    if not path.parent.is_dir():
        raise ConfigError(f"the folder {path.parent} does not exist; make it, or choose another place")
    for file in (files.log, files.tickets, files.report):
        if file.exists():
            raise ConfigError(f"{file} is there already; the demonstration begins a log of its own, at another path")
    return files


async def tell_story(files: Files, on_life: Callable[[ProcessLife], object]) -> Story:
    """Do everything and return what was found; `on_life` is called when a process has ended and its log was read."""
    began = time.monotonic()
    lives: list[ProcessLife] = []
    events: list[RecordedEvent[ev.SessionEvent]] = []
    for kill_in, pause_s in KILLS:
        pid, exit_code, killed_in, said = await run_process(files, kill_in, pause_s)
        known = len(events)
        events, in_flight = await _read(files.log)
        life = ProcessLife(
            pid=pid,
            exit_code=exit_code,
            killed_in=killed_in,
            said=said,
            batches=_batches(events[known:]),
            version=len(events),
            in_flight=in_flight,
        )
        lives.append(life)
        on_life(life)
    replayed, checked = await replay(files.log), await check_log(files.log)
    claims = claims_of(lives, events, len(filed_tickets(files.tickets)), replayed, checked)
    answers = [recorded.event for recorded in events if isinstance(recorded.event, ev.ModelResponded)]
    return Story(
        log=str(files.log),
        tickets=str(files.tickets),
        report=str(files.report),
        answer=text_of(answers[-1].content),
        lives=tuple(lives),
        claims=claims,
        held=all(claim.holds for claim in claims),
        replay=replayed,
        check=checked,
        seconds=round(time.monotonic() - began, 2),
    )


async def run_process(
    files: Files, kill_in: str | None, pause_s: float
) -> tuple[int, int, BodyRuns | None, tuple[Announcement, ...]]:
    """Run the agent's process to its end; return its id, its exit code, where it was killed, and all that it said.

    It is killed in the middle of the body of `kill_in`, None = never; `summarise` rests for `pause_s` after each piece.
    """
    given = [str(files.log), str(files.tickets), str(files.report), str(pause_s)]
    given += ["shared"] if shared_folders_allowed.get() else []
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "refold.demo.agent", *given),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # A Ctrl-C is for us: we end the process then, below.
    )
    assert process.stdout is not None
    said: list[Announcement] = []
    killed_in: BodyRuns | None = None
    try:
        while line := await asyncio.wait_for(process.stdout.readline(), SILENCE_S_MAX):
            said.append(_decoder.decode(line))
            if kill_in is not None and killed_in is None:
                killed_in = in_the_middle(kill_in, said)
                if killed_in is not None:
                    process.kill()
        exit_code = await process.wait()
    except TimeoutError:
        message = f"the agent's process {process.pid} has announced nothing for {SILENCE_S_MAX:g} seconds"
        raise ProcessWentWrong(message) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if killed_in is None and (exit_code != 0 or kill_in is not None):
        meant = f"in the middle of {kill_in}, by SIGKILL" if kill_in is not None else "with the answer"
        raise ProcessWentWrong(
            f"the agent's process {process.pid} was to end {meant}, and ended with exit code {exit_code}"
        )
    return process.pid, exit_code, killed_in, tuple(said)


def in_the_middle(tool: str, said: Sequence[Announcement]) -> BodyRuns | None:
    """Return how far the body of `tool` is, if it is under way and every other call that was started has ended."""
    under_way: BodyRuns | None = None
    started: set[str] = set()
    for announcement in said:
        match announcement:
            case BodyRuns(tool=name, words=words) if name == tool and words:
                under_way = announcement
            case EventRecorded(call=str(call), event=event):
                (started.add if event == STARTED else started.discard)(call)
            case _:
                pass
    return under_way if under_way is not None and started <= {under_way.call} else None


async def _read(log: Path) -> tuple[list[RecordedEvent[ev.SessionEvent]], tuple[str, ...]]:
    """Return the session's events, and the effects that the log says are in flight."""
    stream = stream_name(SESSION_KIND, SESSION)
    async with opened(log) as store:
        head = await store.head(stream)
        stored = await store.read_stream(stream)
    return SESSION_CODEC.recorded(stored), keys_of(head.pending) if head is not None else ()


def _batches(events: Sequence[RecordedEvent[ev.SessionEvent]]) -> tuple[Batch, ...]:
    batches: list[Batch] = []
    for _, group in groupby(events, key=lambda recorded: recorded.batch):
        batch = list(group)
        told = [
            one.event
            for one in batch
            if not isinstance(one.event, ev.RunStarted | ev.ModelRequested | ev.ToolCallStarted)
        ]
        batches.append(
            Batch(
                first_version=batch[0].version,
                last_version=batch[-1].version,
                events=tuple(_tag(recorded).split(".")[1] for recorded in batch),
                words="; ".join(map(event_words, told)),
            )
        )
    return tuple(batches)


def _tag(recorded: RecordedEvent[ev.SessionEvent]) -> str:
    return str(type(recorded.event).__struct_config__.tag)


def claims_of(
    lives: Sequence[ProcessLife],
    events: Sequence[RecordedEvent[ev.SessionEvent]],
    tickets: int,
    replayed: ReplayReport,
    checked: CheckReport,
) -> tuple[Claim, ...]:
    """Return what must be true in the end, and whether it is, in words for people; two of the processes were killed."""
    codes = [life.exit_code for life in lives]
    durable = {(said.version, said.event) for life in lives for said in life.said if isinstance(said, EventRecorded)}
    lost = durable - {(recorded.version, _tag(recorded)) for recorded in events}
    inputs = sum(isinstance(recorded.event, ev.InputQueued) for recorded in events)
    whole = [recorded.version for recorded in events] == list(range(1, len(events) + 1))
    ended = bool(events) and isinstance(events[-1].event, ev.RunCompleted)
    times = Counter(body.call for life in lives for body in life.bodies)
    pure, once = (life.killed_in for life in lives if life.killed_in is not None)
    again = [call for call, count in times.items() if count > 1 and call != pure.call]
    problems = "; ".join(map(str, checked.problems[:3]))
    return (
        Claim(
            "killed",
            all(code == -signal.SIGKILL for code in codes[:-1]) and codes[-1] == 0,
            f"exit codes {', '.join(map(str, codes))}: -9 is death by SIGKILL, 0 a normal end",
        ),
        Claim(
            "durable",
            bool(durable) and not lost,
            f"of {len(durable)} events that the processes announced as durable, {len(lost)} are missing",
        ),
        Claim(
            "continued",
            inputs == 1 and whole and ended,
            f"{inputs} input, versions 1 to {len(events)}, {'the run completed' if ended else 'the run did not end'}",
        ),
        Claim(
            "pure runs again",
            times[pure.call] == 2,
            f"{pure.tool} ran {times[pure.call]} times, as one call, {pure.call}",
        ),
        Claim(
            "once does not run again",
            times[once.call] == 1 and tickets == 1,
            f"{once.tool} ran {times[once.call]} time, and {tickets} ticket is filed",
        ),
        Claim("not repeated", not again, f"of {len(times) - 1} other calls {len(again)} ran again"),
        Claim(
            "same decisions",
            replayed.divergence is None and not replayed.not_replayed,
            f"{replayed.batches} batches, {replayed.events} events decided again by today's code: "
            f"{f'diverges at {replayed.divergence}' if replayed.divergence is not None else 'no divergence'}",
        ),
        Claim(
            "check",
            checked.sound,
            f"{checked.streams} streams, {checked.events} events, {checked.payloads} payloads: {problems or 'sound'}",
        ),
    )
