"""The whole demonstration: an agent's process is killed in two tools, started again each time, and finishes.

Read `refold.demo.killing` for how a process is killed, and `refold.demo.claims` for what must be true in the end. The
rule: what is told of a process is read from the log after its death, read-only, and not from what it said.
"""

import time
from collections.abc import Callable, Sequence

import msgspec

from refold.demo.agent_process import SESSION
from refold.demo.announcements import BodyBegan, BodyUnderWay
from refold.demo.claims import Claim, claims_of
from refold.demo.demo_files import DemoFiles
from refold.demo.killing import ProcessLife, live
from refold.demo.scripted_model import QUESTION
from refold.events.core.codec import RecordedEvent
from refold.events.core.content import ToolUseBlock
from refold.events.core.ids import ToolCallId, stream_name
from refold.events.model.configuration import EffectClass
from refold.events.session.core import SESSION_CODEC, SESSION_KIND, fold
from refold.events.session.events import (
    AgentConfigured,
    InputQueued,
    ModelResponded,
    RunResumed,
    SessionEvent,
    SessionOpened,
    ToolCallCompleted,
    ToolCallFailed,
)
from refold.events.session.state import SessionState, running_calls
from refold.inspection.check import CheckReport, check_log
from refold.inspection.log_reading import opened
from refold.inspection.summaries import call_words, content_words
from refold.replay.log_replay import ReplayReport, replay

PROCESSES = (("summarise", 0.4), ("open_ticket", 0.03), (None, 0.03))
"""For each process: the tool in whose body it is killed, and how many seconds `summarise` rests after each piece. The
first one is slow, so that there is time to kill it on a busy machine."""

_RECOVERIES: dict[EffectClass, str] = {
    "pure": "is pure: it runs again",
    "idempotent": "is idempotent: it runs again with the same key",
    "once": "may run once: it does not run again",
}

Recorded = RecordedEvent[SessionEvent]


class Append(msgspec.Struct, frozen=True, kw_only=True):
    """Events that became durable together."""

    first_version: int
    last_version: int
    events: tuple[str, ...]
    """Their types, without kind and version of the type: `tool_call_started`."""
    words: str
    """What they say."""


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """One process, as the log shows it after its end."""

    pid: int
    exit_code: int
    """Negative: the number of the signal that it died of."""
    killed_in: BodyUnderWay | None
    """The tool's body that was in the middle of its work; None = it was not killed."""
    bodies: tuple[BodyBegan, ...]
    """The tools' bodies that began to run in it, in order."""
    appends: tuple[Append, ...]
    """What it appended to the session."""
    version: int
    """The session's version at its end."""
    in_flight: tuple[str, ...]
    """Keys of the effects that the log says were in flight at its end."""


class CrashStory(msgspec.Struct, frozen=True, kw_only=True):
    """What happened, and what is true of it."""

    log: str
    session: str
    tickets: str
    report: str
    question: str
    answer: str
    lives: tuple[Life, ...]
    """In order; all but the last were killed."""
    claims: tuple[Claim, ...]
    held: bool
    """Whether every claim holds."""
    replay: ReplayReport
    check: CheckReport
    seconds: float


async def tell_crash_story(files: DemoFiles, on_life: Callable[[Life], object]) -> CrashStory:
    """Do everything and return what came of it; `on_life` is called when a process has ended and its log was read.

    Raises:
        ProcessWentWrong: a process ended otherwise than it was to.
        PersistenceError: the log cannot be read.
    """
    began = time.monotonic()
    processes: list[ProcessLife] = []
    lives: list[Life] = []
    events: list[Recorded] = []
    for kill_in, pause_s in PROCESSES:
        process = await live(files, kill_in=kill_in, pause_s=pause_s)
        known = len(events)
        events, in_flight = await _read(files)
        life = _life(process, events, known, in_flight)
        processes.append(process)
        lives.append(life)
        on_life(life)
    replayed, checked = await replay(files.log), await check_log(files.log)
    claims = claims_of(files, processes, events, replayed, checked)
    finished = processes[-1].finished
    return CrashStory(
        log=str(files.log),
        session=SESSION,
        tickets=str(files.tickets),
        report=str(files.report),
        question=QUESTION,
        answer=finished.text if finished is not None else "",
        lives=tuple(lives),
        claims=claims,
        held=all(claim.holds for claim in claims),
        replay=replayed,
        check=checked,
        seconds=round(time.monotonic() - began, 2),
    )


async def _read(files: DemoFiles) -> tuple[list[Recorded], tuple[str, ...]]:
    """Return the session's events, and the effects that the log says are in flight."""
    stream = stream_name(SESSION_KIND, SESSION)
    async with opened(files.log) as store:
        head = await store.head(stream)
        stored = await store.read_stream(stream)
    return SESSION_CODEC.recorded(stored), head.pending if head is not None else ()


def _life(process: ProcessLife, events: Sequence[Recorded], known: int, in_flight: tuple[str, ...]) -> Life:
    return Life(
        pid=process.pid,
        exit_code=process.exit_code,
        killed_in=process.killed_in,
        bodies=tuple(said for said in process.announcements if isinstance(said, BodyBegan)),
        appends=tuple(_append(events, first, last) for first, last in _appended_together(events, known)),
        version=len(events),
        in_flight=in_flight,
    )


def _appended_together(events: Sequence[Recorded], known: int) -> list[tuple[int, int]]:
    """Return the first and last version of each append after version `known`.

    An append is one batch; but the opening and the configuration of a session ride with the batch that needs them.
    """
    appends: list[tuple[int, int]] = []
    first = known + 1
    for recorded, following in zip(events[known:], [*events[known + 1 :], None], strict=True):
        stimulus = events[recorded.batch - 1].event
        ends_batch = following is None or following.batch != recorded.batch
        if ends_batch and not isinstance(stimulus, SessionOpened | AgentConfigured):
            appends.append((first, recorded.version))
            first = recorded.version + 1
    return appends


def _append(events: Sequence[Recorded], first: int, last: int) -> Append:
    before = fold(recorded.event for recorded in events[: first - 1])
    appended = [recorded.event for recorded in events[first - 1 : last]]
    words = (_words(event, before) for event in appended)
    return Append(
        first_version=first,
        last_version=last,
        events=tuple(str(type(event).__struct_config__.tag).split(".")[1] for event in appended),
        words="; ".join(said for said in words if said),
    )


def _words(event: SessionEvent, before: SessionState) -> str:
    """Return what an event says beyond its type; `before` is the state before its append."""
    match event:
        case InputQueued(content=content):
            return content_words(content)
        case ModelResponded(content=content):
            return ", ".join(
                call_words(block.name, block.input) if isinstance(block, ToolUseBlock) else content_words((block,))
                for block in content
            )
        case ToolCallCompleted(call=call, content=content):
            return f"{_tool_of(call, before)} -> {content_words(content)}"
        case ToolCallFailed(call=call, content=content):
            return f"{_tool_of(call, before)} -> {content_words(content)}"
        case RunResumed():
            lost = running_calls(before.turn)
            return ", ".join(f"{call.name} {_RECOVERIES[call.policy.effect]}" for call in lost)
        case _:
            return ""


def _tool_of(call: ToolCallId, state: SessionState) -> str:
    assert state.turn is not None
    return state.turn.calls[state.turn.index[call]].name
