"""Draw `page-*.webp`, light and dark: logs and files as people make them, photographed in Chromium.

python docs/pictures/draw_page.py [FOLDER]

The slow tests draw them into a folder of their own, so that each picture can be drawn, and stands in a document.
"""

import asyncio
import base64
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from refold import Agent, AgentConfig, AgentRuntime, ScriptedProvider, say, tool, use  # noqa: E402 - of this tree
from refold.page.reports import replay_page  # noqa: E402
from refold.replay import replay  # noqa: E402
from tests.runtime.page.sample_page import page_log  # noqa: E402 - found by the line above

SHARPNESS = 1.5
"""Pixels of a picture for one of the page."""

QUALITY = 50
"""Of WebP: text stays clear, and a picture has some 40 KB."""

LOW = "sides => { document.querySelector('main').scrollTop = sides.offsetTop - 260; }"
"""Has the conversations of a comparison begin below its last differences."""

WIDTH = 1120
RESTED_MS = 150


@tool(effect="pure")
async def weather(city: str, days: int = 1) -> str:
    """Tell the weather."""
    return f"{city}: sunny, 24 °C, for {days} days"


def desk(prompt: str, provider: ScriptedProvider) -> Agent[None, str]:
    """Return the agent of what is compared and replayed."""
    return Agent(config=AgentConfig(model="small", system_prompt=prompt), provider=provider, tools=[weather])


async def fork_of_lisbon(log: Path) -> None:
    """Ask once more what lisbon was asked, in a fork with another model."""
    provider = ScriptedProvider(
        [use("weather", {"city": "Lisbon", "days": 5}), say("Yes: it stays sunny until Sunday.")]
    )
    async with AgentRuntime(desk("Be brief.", provider), log=log) as runtime:
        fork = await (await runtime.session("lisbon")).fork(3, model="small", name="lisbon~small")
        await fork.send("Is the weather in Lisbon good enough for a terrace on Friday? Then book one for four.")


async def replayed(log: Path) -> str:
    """Return what a replay finds after the agent's prompt was changed."""
    provider = ScriptedProvider([use("weather", {"city": "Porto"}), say("It stays sunny.")])
    async with AgentRuntime(desk("You help guests. Answer in two sentences. Be kind.", provider), log=log) as runtime:
        await (await runtime.session("ann")).send("Do I need an umbrella in Porto?")
    changed = desk("You help guests. Answer in three sentences. Be kind.", ScriptedProvider([]))
    report = await replay(log, agent=changed)
    return await replay_page(log, report.divergences, report.missing())


def rehearsed(file: Path) -> None:
    """Write what a rehearsal of an agent finds that leaves work behind."""
    what = ("tests.scenarios.rehearsed:leaky", "--first", "14", "--seeds", "1", "--sessions", "1", "--acts", "3")
    command = [sys.executable, "-P", "-m", "refold", "simulate", *what, "--faults", "2", "--own-tools", "--html", file]
    subprocess.run(
        [*map(str, command)],
        cwd=file.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )


@contextmanager
def program(*command: object) -> Iterator[str]:
    """Have a program run, and give the first line that it writes."""
    with subprocess.Popen(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


class Photographer:
    """A page that is photographed in both of its themes."""

    def __init__(self, page: Page, folder: Path) -> None:
        self.page = page
        self.folder = folder
        self.sight = page.context.new_cdp_session(page)

    def show(self, address: str, awaited: str) -> None:
        """Open an address, or go to a place within the page."""
        if address.startswith("#"):
            self.page.evaluate("place => { location.hash = place; }", address)
        else:
            self.page.goto(address)
        self.page.locator(awaited).first.wait_for()

    def take(self, name: str, *, height: int, before: Callable[[Page], object] = id) -> None:
        """Write the light picture of what is shown, and the dark one."""
        self.page.set_viewport_size({"width": WIDTH, "height": height})
        self.page.wait_for_timeout(RESTED_MS)
        before(self.page)
        for theme in ("", "-dark"):
            self.page.wait_for_timeout(RESTED_MS)
            area = {"x": 0, "y": 0, "width": WIDTH, "height": height, "scale": SHARPNESS}
            shot = self.sight.send("Page.captureScreenshot", {"format": "webp", "quality": QUALITY, "clip": area})
            (self.folder / f"page-{name}{theme}.webp").write_bytes(base64.b64decode(shot["data"]))
            self.page.evaluate("window.refold.turnTheme()")


def draw(folder: Path) -> None:
    """Write all pictures into a folder."""
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        log, later = (page_log(work / name, hostile=False) for name in ("events.db", "later.db"))
        asyncio.run(fork_of_lisbon(later))
        (work / "replay.html").write_text(asyncio.run(replayed(work / "desk.db")), encoding="utf-8")
        rehearsed(work / "rehearsal.html")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(device_scale_factor=SHARPNESS, color_scheme="light")
            photograph(Photographer(page, folder), log, later, work)
            browser.close()


def photograph(of: "Photographer", log: Path, later: Path, work: Path) -> None:
    """Take each picture."""
    with program("-P", "-m", "refold", "inspect", log) as address:
        of.show(address, ".sessions .name")
        of.show("#/session/lisbon", ".message")
        of.take("session", height=640)
        of.show("#/session/lisbon?v=17&tab=timeline", ".timeline canvas")
        of.take("timeline", height=500)
        of.show("#/session/lisbon?v=23&tab=request", ".request header")
        of.take("request", height=520, before=lambda page: page.get_by_role("button", name="Changes since").click())
        of.show("#/session/porto", ".ask")
        of.take("approval", height=500, before=lambda page: page.get_by_text("Change the arguments").click())
    with (
        program("-m", "tests.runtime.page.running_desk", later),
        program("-P", "-m", "refold", "inspect", later) as place,
    ):
        of.show(place, ".live.on")
        of.take("sessions", height=520)
        of.show("#/compare?left=lisbon&right=lisbon~small", ".sides .message")
        of.take("compare", height=680, before=lambda page: page.locator(".sides").evaluate(LOW))
    for name, height in (("replay", 440), ("rehearsal", 640)):
        of.show(f"file://{work}/{name}.html", ".report")
        of.take(name, height=height)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
