"""The agent's process as another process starts it, watches it, and kills it.

The rule: nothing is timed. The kill comes when the process has said that the tool's body is in the middle of its work
and that everything else it had begun is in the log; and it is SIGKILL, of which no program is told.
"""

import asyncio
import sys
from collections.abc import Sequence

import msgspec

from refold.demo.announcements import AgentFinished, Announcement, BodyUnderWay, EventRecorded
from refold.demo.demo_files import DemoFiles
from refold.events.core.errors import RefoldError
from refold.events.session.events import ToolCallStarted

MODULE = "refold.demo.agent_process"

SILENCE_S_MAX = 30.0
"""A process that announces nothing for so long is given up."""

STARTED = str(ToolCallStarted.__struct_config__.tag)

_decoder: msgspec.json.Decoder[Announcement] = msgspec.json.Decoder(Announcement)


class ProcessWentWrong(RefoldError):
    """The agent's process ended in another way than the demonstration needs; its own words are on stderr."""


class ProcessLife(msgspec.Struct, frozen=True, kw_only=True):
    """A process, from its start to its end."""

    pid: int
    exit_code: int
    """Negative: the number of the signal that it died of."""
    killed_in: BodyUnderWay | None
    """Which tool's body was in the middle of its work when the process was killed."""
    announcements: tuple[Announcement, ...]
    """Everything that it said."""

    @property
    def finished(self) -> AgentFinished | None:
        """How the run ended, if it did so in this process."""
        last = self.announcements[-1] if self.announcements else None
        return last if isinstance(last, AgentFinished) else None


async def live(files: DemoFiles, *, kill_in: str | None, pause_s: float) -> ProcessLife:
    """Run the agent's process to its end and return what came of it.

    Args:
        files: where it works.
        kill_in: the tool in the middle of whose body it is killed; None = it is left alone.
        pause_s: how long `summarise` rests after each piece.

    Raises:
        ProcessWentWrong: it ended before it could be killed, it failed, or it hangs.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", MODULE, files.log, files.tickets, files.report),
        str(pause_s),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # A Ctrl-C is for us: we end the process then, below.
    )
    announcements: list[Announcement] = []
    killed_in: BodyUnderWay | None = None
    try:
        while (announcement := await _next(process)) is not None:
            announcements.append(announcement)
            if kill_in is not None and killed_in is None:
                killed_in = in_the_middle(kill_in, announcements)
                if killed_in is not None:
                    process.kill()
        exit_code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    life = ProcessLife(pid=process.pid, exit_code=exit_code, killed_in=killed_in, announcements=tuple(announcements))
    if killed_in is None and (exit_code != 0 or kill_in is not None or life.finished is None):
        meant = f"in the middle of {kill_in}, by SIGKILL" if kill_in is not None else "with the answer"
        raise ProcessWentWrong(
            f"the agent's process {life.pid} was to end {meant}, and ended with exit code {exit_code}"
        )
    return life


async def _next(process: asyncio.subprocess.Process) -> Announcement | None:
    """Return the next announcement, or None at the end of the process's output."""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(SILENCE_S_MAX):
            line = await process.stdout.readline()
    except TimeoutError:
        message = f"the agent's process {process.pid} has announced nothing for {SILENCE_S_MAX:g} seconds"
        raise ProcessWentWrong(message) from None
    return _decoder.decode(line) if line else None


def in_the_middle(tool: str, announcements: Sequence[Announcement]) -> BodyUnderWay | None:
    """Return how far the body of `tool` is, if it is under way and every other call that was started has ended."""
    under_way: BodyUnderWay | None = None
    started: set[str] = set()
    for announcement in announcements:
        match announcement:
            case BodyUnderWay(tool=name) if name == tool:
                under_way = announcement
            case EventRecorded(call=str(call), event=event):
                if event == STARTED:
                    started.add(call)
                else:
                    started.discard(call)
            case _:
                pass
    return under_way if under_way is not None and started <= {under_way.call} else None
