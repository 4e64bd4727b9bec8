"""A served page, without a browser and in one."""

import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import httpx
import pytest

from refold.actors.kernel.clock import Clock
from refold.page.pages import opened_pages
from refold.serving.doors import TOKEN_HEADER
from refold.serving.routes import page_application
from tests.runtime.command_line import started
from tests.runtime.page.sample_page import page_log

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TOKEN = "a-token"  # noqa: S105
HOST = "127.0.0.1:8000"


class Serve(Protocol):
    def __call__(
        self, log: Path, *, clock: Clock | None = None, ending: bool = False
    ) -> AbstractAsyncContextManager[httpx.AsyncClient]: ...


@pytest.fixture
def serve() -> Serve:
    @asynccontextmanager
    async def served(
        log: Path, *, clock: Clock | None = None, ending: bool = False
    ) -> AsyncIterator[httpx.AsyncClient]:
        async with opened_pages(log, patience_s=None) as pages:
            hosts = ("127.0.0.1", "[::1]")
            app = page_application(pages, token=TOKEN, hosts=hosts, clock=clock, ending=lambda: ending)
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url=f"http://{HOST}", headers={TOKEN_HEADER: TOKEN}
            ) as client:
                yield client

    return served


@pytest.fixture(scope="session")
def sample_page_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of `sample_page.py`."""
    return page_log(tmp_path_factory.mktemp("page") / "events.db")


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    """Chromium of the system; its tests are skipped where there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("there is no chromium; apt-get install chromium")
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        # As root, chromium has no sandbox of its own; what it loads is our page.
        chromium = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"] if os.getuid() == 0 else [])
        yield chromium
        chromium.close()


class OpenPage:
    """The page of a log in a tab, and what went wrong in it."""

    def __init__(self, page: "Page", address: str) -> None:
        self.page = page
        self.address = address
        self.faults: list[str] = []
        """Exceptions of scripts, what the policy refused, and requests to others."""
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", lambda said: self.faults.append(said.text) if said.type == "error" else None)
        origin = address.partition("#")[0]
        page.on(
            "request",
            lambda request: (
                None if request.url.startswith((origin, "data:", "file:")) else self.faults.append(request.url)
            ),
        )

    def to(self, place: str) -> None:
        """Go to a place within the page: `#/session/alice`."""
        self.page.evaluate("place => { location.hash = place; }", place)


@pytest.fixture
def open_page(browser: "Browser") -> "Iterator[Callable[..., OpenPage]]":
    """Serve logs, and open them in tabs; at the end nothing may have gone wrong in one."""
    with ExitStack() as stack:
        opened: list[OpenPage] = []

        def open_log(log: Path, *, width: int = 1280, height: int = 800, dark: bool = False) -> OpenPage:
            process = stack.enter_context(started("inspect", log))
            stack.callback(process.send_signal, signal.SIGTERM)
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            context = browser.new_context(
                viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
            )
            stack.callback(context.close)
            opened.append(OpenPage(context.new_page(), address))
            opened[-1].page.goto(address)
            return opened[-1]

        yield open_log
        for each in opened:
            assert each.faults == []
