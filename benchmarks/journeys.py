"""Which files of Refold a journey enters, in the order of first entry, and how often it changes from file to file.

Run: python -P benchmarks/journeys.py [send | core | decide]...

`send`: an input that is answered with a text, from the call of `Session.send` to its result, log in SQLite. `core` and
`decide`: the command `refold replay` at that level, on the log of a session with a tool call. A file is entered when a
function of it is called or goes on after an `await`; all threads count. Each journey is made once beforehand, so that
importing modules is no part of it.
"""

import asyncio
import contextlib
import io
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import refold
import refold.actors
import refold.events
import refold.scenarios
import refold.stores
from refold import Agent, AgentConfig, AgentRuntime, ScriptedProvider, say, tool, use
from refold.commands.cli import app

FOLDERS = {
    f"{folder}/": "runtime" if module is refold else module.__name__.partition(".")[2]
    for module in (refold.events, refold.stores, refold.actors, refold.scenarios, refold)
    for folder in module.__path__
}
"""Where each layer is installed; the last is the parent of the others where the package is a built one."""


class Journey:
    """Counts the files that are entered inside of `counted`; to be made before the threads that it shall see."""

    def __init__(self) -> None:
        self.entries: Counter[str] = Counter()
        """How many functions were entered, by file, in the order of first entry."""
        self.changes = 0
        """How often a thread entered another file than the one before."""
        self._counting = False
        self._latest: dict[int, str] = {}
        self._names: dict[str, str | None] = {}
        threading.setprofile(self._entered)

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count what happens meanwhile, in this thread and in those that began after the journey was made."""
        self._counting = True
        sys.setprofile(self._entered)
        try:
            yield
        finally:
            sys.setprofile(None)
            self._counting = False

    def _entered(self, frame: FrameType, event: str, _argument: object) -> None:
        if event != "call" or not self._counting:
            return
        path = frame.f_code.co_filename
        if path not in self._names:
            self._names[path] = name_of(path)
        name = self._names[path]
        if name is None:
            return
        self.entries[name] += 1
        thread = threading.get_ident()
        self.changes += self._latest.get(thread, name) != name
        self._latest[thread] = name


def name_of(path: str) -> str | None:
    """Return a file of Refold by layer and path, such as `actors/agent/session.py`; None: none of ours."""
    for folder, layer in FOLDERS.items():
        if path.startswith(folder):
            return f"{layer}/{path.removeprefix(folder)}"
    return None


@tool(tier="observe", effect="pure")
async def weather(city: str) -> str:
    """Forecast for a city."""
    return f"{city}: sunny"


def agent() -> Agent:
    """Return the agent of the journeys, which calls its tool once."""
    provider = ScriptedProvider([use("weather", {"city": "Lisbon"}), say("Sunny.")])
    return Agent(config=AgentConfig(model="m"), provider=provider, tools=[weather])


async def sent(log: Path, journey: Journey) -> None:
    """Send an input and get a plain answer."""
    provider = ScriptedProvider([say("Sunny.")])
    async with AgentRuntime(AgentConfig(model="m"), provider=provider, log=log, inbox_poll_s=0) as runtime:
        session = await runtime.session("s")
        # Nothing is told of its end, and it is no part of what is counted.
        while any(task.get_name() == "resume open runs" for task in asyncio.all_tasks()):  # noqa: ASYNC110
            await asyncio.sleep(0)
        with journey.counted():
            result = await session.send("Weather?")
    assert result.text == "Sunny."


async def recorded(log: Path) -> None:
    """Write the log that is replayed."""
    async with AgentRuntime(agent(), log=log) as runtime:
        await (await runtime.session("s")).send("Weather in Lisbon?")


def replayed(log: Path, journey: Journey, *options: str) -> None:
    """Replay a log as the command does."""
    asyncio.run(recorded(log))
    with contextlib.redirect_stdout(io.StringIO()) as shown, journey.counted():
        left = app(["replay", str(log), *options], standalone_mode=False)
    assert not left, shown.getvalue()


JOURNEYS: dict[str, Callable[[Path, Journey], None]] = {
    "send": lambda log, journey: asyncio.run(sent(log, journey)),
    "core": lambda log, journey: replayed(log, journey, "--level", "core"),
    "decide": lambda log, journey: replayed(log, journey, "--agent", f"{Path(__file__).stem}:agent"),
}


def main() -> None:
    """Make the journeys that are named, or all."""
    sys.path.insert(0, str(Path(__file__).parent))
    for name in sys.argv[1:] or JOURNEYS:
        with tempfile.TemporaryDirectory() as folder:
            JOURNEYS[name](Path(folder) / "before.db", Journey())
            journey = Journey()
            JOURNEYS[name](Path(folder) / "events.db", journey)
        print(f"{name}: {len(journey.entries)} files, {journey.changes} changes of file")
        for place, (file, entries) in enumerate(journey.entries.items(), 1):
            print(f"{place:5} {file:45} {entries:5} entries")


if __name__ == "__main__":
    main()
