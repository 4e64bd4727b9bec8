"""What must be true after the demonstration's crashes, each found by looking, in words for people."""

import signal
from collections import Counter
from collections.abc import Sequence

import msgspec

from refold.demo.agent_process import state_digest
from refold.demo.announcements import BodyBegan, EventRecorded
from refold.demo.demo_files import DemoFiles
from refold.demo.incident_tools import filed_tickets
from refold.demo.killing import STARTED, ProcessLife
from refold.events.core.codec import RecordedEvent
from refold.events.session.core import fold
from refold.events.session.events import InputQueued, RunCompleted, SessionEvent
from refold.inspection.check import CheckReport
from refold.replay.log_replay import ReplayReport


class Claim(msgspec.Struct, frozen=True):
    """Something that is to be true."""

    name: str
    holds: bool
    words: str
    """What was found."""


def claims_of(
    files: DemoFiles,
    processes: Sequence[ProcessLife],
    events: Sequence[RecordedEvent[SessionEvent]],
    replayed: ReplayReport,
    checked: CheckReport,
) -> tuple[Claim, ...]:
    """Return every claim and whether it holds.

    Args:
        files: what the agent left.
        processes: those that worked on the log, in order.
        events: of the session, as they are in the log.
        replayed: the log done again at level `core`.
        checked: the log checked.
    """
    return (
        _killed(processes),
        _durable(processes, events),
        _continued(events),
        *_bodies(files, processes),
        _decisions(replayed),
        _state(processes, events),
        _sound(checked),
    )


def _killed(processes: Sequence[ProcessLife]) -> Claim:
    codes = [process.exit_code for process in processes]
    killed = all(code == -signal.SIGKILL for code in codes[:-1]) and codes[-1] == 0
    return Claim("killed", killed, f"exit codes {', '.join(map(str, codes))}: -9 is death by SIGKILL, 0 a normal end")


def _durable(processes: Sequence[ProcessLife], events: Sequence[RecordedEvent[SessionEvent]]) -> Claim:
    recorded = {(event.version, str(type(event.event).__struct_config__.tag)) for event in events}
    announced = {
        (said.version, said.event)
        for process in processes[:-1]
        for said in process.announcements
        if isinstance(said, EventRecorded)
    }
    lost = len(announced - recorded)
    words = f"of {len(announced)} events that the killed processes announced as durable, {lost} are missing"
    return Claim("durable", bool(announced) and not lost, words)


def _continued(events: Sequence[RecordedEvent[SessionEvent]]) -> Claim:
    inputs = sum(isinstance(event.event, InputQueued) for event in events)
    whole = [event.version for event in events] == list(range(1, len(events) + 1))
    ended = bool(events) and isinstance(events[-1].event, RunCompleted)
    words = f"{inputs} input, versions 1 to {len(events)}, the last is {'run_completed' if ended else 'no end'}"
    return Claim("continued", inputs == 1 and whole and ended, words)


def _bodies(files: DemoFiles, processes: Sequence[ProcessLife]) -> tuple[Claim, ...]:
    """Return the claims about how often tools' bodies ran: what recovery did about each effect class."""
    began = [said for process in processes for said in process.announcements if isinstance(said, BodyBegan)]
    times = Counter(said.call for said in began)
    interrupted = [process.killed_in for process in processes if process.killed_in is not None]
    ended = {
        said.call
        for process in processes
        for said in process.announcements
        if isinstance(said, EventRecorded) and said.call is not None and said.event != STARTED
    } - {body.call for body in interrupted}
    again = [call for call in ended if times[call] != 1]
    pure, once = (times[body.call] for body in interrupted)
    tickets = len(filed_tickets(files.tickets))
    return (
        Claim(
            "not repeated", not again, f"{len(ended)} calls that no kill interrupted ran once each, {len(again)} again"
        ),
        Claim(
            "pure runs again", pure == 2, f"{interrupted[0].tool} ran {pure} times, as one call, {interrupted[0].call}"
        ),
        Claim(
            "once does not run again",
            once == 1 and tickets == 1,
            f"{interrupted[1].tool} ran {once} time, and {tickets} ticket is filed",
        ),
    )


def _decisions(replayed: ReplayReport) -> Claim:
    found = f"first divergence: {replayed.divergence}" if replayed.divergence is not None else "no divergence"
    words = f"{replayed.batches} batches, {replayed.events} events decided again by today's code: {found}"
    return Claim("same decisions", replayed.divergence is None and not replayed.not_replayed, words)


def _state(processes: Sequence[ProcessLife], events: Sequence[RecordedEvent[SessionEvent]]) -> Claim:
    finished = processes[-1].finished
    held = finished.state if finished is not None else ""
    folded = state_digest(fold(event.event for event in events))
    same = "the same as" if held == folded else "not"
    words = f"folded from the log {folded[:12]}, {same} {held[:12]} in the last process"
    return Claim("same state", held == folded, words)


def _sound(checked: CheckReport) -> Claim:
    problems = "; ".join(str(problem) for problem in checked.problems[:3])
    words = f"{checked.streams} streams, {checked.events} events, {checked.payloads} payloads: {problems or 'sound'}"
    return Claim("check", checked.sound, words)
