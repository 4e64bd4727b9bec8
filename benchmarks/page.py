"""The page of a log with a long session, in Chromium.

Run: python -m benchmarks.page [events]     (with `refold[inspect]`, playwright and a chromium)

`list_ms`: from the address until the browser paints first, and until the list of sessions is there. `session_ms`:
until the session's last answer is there, in a server that has not read the session yet; `read_s`: until all of it was
read. `near` and `far`: milliseconds from a move of the slider until the browser has drawn that version, of 200 moves to
the next version and of 200 to any. Times that pass: a loaded machine makes them longer.
"""

import asyncio
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import sync_playwright

from benchmarks.opening import write

if TYPE_CHECKING:
    from playwright.sync_api import Page

MOVES = 200

PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"

MOVE = """async version => {
  const begun = performance.now();
  await refold.view.go(version);
  await new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve)));
  return performance.now() - begun;
}"""


def moved(page: "Page", versions: list[int]) -> dict[str, float]:
    took = [page.evaluate(MOVE, version) for version in versions]
    return {"median": round(statistics.median(took), 1), "longest": round(max(took), 1)}


def looked_at(page: "Page", address: str, events: int) -> dict[str, object]:
    """Return what a look at the session takes."""
    page.goto(address)
    page.locator(".sessions tbody tr").first.wait_for()
    painted, listed = page.evaluate(f"[{PAINTED}, performance.now()]")
    page.evaluate("globalThis.begun = performance.now(); location.hash = '#/session/s'")
    page.locator(".message.assistant").first.wait_for()
    shown = page.evaluate("performance.now() - begun")
    while not page.evaluate("refold.view.head.complete && refold.view.head.version === refold.view.head.last_version"):
        page.wait_for_timeout(100)
    read = page.evaluate("(performance.now() - begun) / 1000")
    page.wait_for_timeout(1_000)
    pick = random.Random(1)
    return {
        "events": events,
        "list_ms": {"painted": round(painted), "listed": round(listed)},
        "session_ms": round(shown),
        "read_s": round(read, 1),
        "near": moved(page, list(range(events // 2, events // 2 + MOVES))),
        "far": moved(page, [pick.randint(1, events) for _ in range(MOVES)]),
    }


def main() -> None:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        log = Path(folder) / "events.db"
        subprocess.run([sys.executable, "-m", "benchmarks.page", str(events), str(log)], check=True)
        serve = [sys.executable, "-P", "-m", "refold", "inspect", str(log)]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            found = looked_at(browser.new_page(), process.stdout.readline().strip(), events)
            process.terminate()
        browser.close()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    if len(sys.argv) == 3:  # A process without Playwright's loop writes the log.
        asyncio.run(write(Path(sys.argv[2]), int(sys.argv[1])))
    else:
        main()
