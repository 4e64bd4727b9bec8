"""The page in a real browser: each thing that it offers is clicked, and nothing of a log acts in it."""

import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from refold.events.core.content import Message, TextBlock
from refold.events.core.ids import StreamName
from refold.events.session.commands import ImportHistory
from refold.inspection.log_reading import opened
from refold.page import one_file
from refold.page.one_file import framed_session
from refold.replay import replay
from tests.runtime.command_line import started
from tests.runtime.log_builder import LogBuilder, log_of
from tests.runtime.page.conftest import OpenPage
from tests.runtime.page.sample_page import HOSTILE, HOSTILE_NAME

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Open = Callable[..., OpenPage]

slow = pytest.mark.slow(10)

UNSEEN = set("\u202e\u202c\u200b\ufeff\x1b\x07")


@contextmanager
def started_runtime(log: Path) -> Iterator[None]:
    """Have a process run `running_desk.py` on a log."""
    program = [sys.executable, "-m", "tests.runtime.page.running_desk", str(log)]
    root = Path(__file__).parents[3]
    with subprocess.Popen(program, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        yield
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def log(sample_page_log: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(sample_page_log, tmp_path / "events.db"))


def shows(page: "Page", selector: str, text: str | re.Pattern[str]) -> None:
    """Wait until an element that fits is there and has a text."""
    page.locator(selector).filter(has_text=text).first.wait_for()


def test_a_session_is_found_and_taken_back_in_time(open_page: Open, log: Path) -> None:
    page = open_page(log).page
    shows(page, ".sessions tr", "lisbon")
    shows(page, ".top .waits", "1")
    assert "token" not in page.url
    page.get_by_label("Search sessions").fill("terrace")
    page.locator(".foot", has_text="1\u20131 of 1").wait_for()
    page.get_by_role("link", name="lisbon").click()
    shows(page, ".message.assistant", "I did not pay the deposit")
    shows(page, ".side", re.compile("Cost\\s*0.0159"))
    held = page.locator(".side details")
    held.filter(has_text=re.compile("working/desk/session/lisbon v1.*Friday, four people", re.DOTALL)).wait_for()
    held.filter(has_text=re.compile("breaker/weather v1.*Cascais does not answer", re.DOTALL)).wait_for()
    page.get_by_label("Version", exact=True).fill("9")
    shows(page, ".side .pill", "open")
    shows(page, ".call", re.compile("weather\\s*running"))
    shows(page, ".side .items", 'weather(city="Lisbon", days=3)')
    assert page.locator(".message.assistant").count() == 1
    shows(page, ".later", "14 later events")
    for stream in ("working/desk/session/lisbon", "breaker/weather"):
        held.filter(has_text=re.compile(f"{stream} not yet.*Empty", re.DOTALL)).wait_for()
    page.keyboard.press("End")
    shows(page, ".message.assistant", "I did not pay the deposit")


@slow
def test_the_list_is_filtered_by_status_user_and_key(open_page: Open, log: Path) -> None:
    page = open_page(log).page
    shows(page, ".chip", re.compile("waiting\\s*1"))
    page.locator(".chip", has_text="waiting").click()
    page.locator(".foot", has_text="1\u20131 of 1").wait_for()
    shows(page, ".sessions tr", "porto")
    page.locator(".chip", has_text="waiting").click()
    page.get_by_role("button", name="maria").click()
    page.locator(".foot", has_text="1\u20131 of 1").wait_for()
    page.locator(".chip", has_text="user maria").click()
    page.locator(".foot", has_text="1\u20137 of 7").wait_for()
    page.get_by_label("Order").select_option("cost")
    shows(page, ".sessions tbody tr:first-child", "lisbon")
    page.get_by_label("Search sessions").fill("no such thing")
    shows(page, ".empty", "No session fits")
    page.get_by_label("Search sessions").fill("")
    page.locator(".foot", has_text="1\u20137 of 7").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    shows(page, "h1", "lisbon")
    page.keyboard.press("Escape")
    shows(page, ".sessions tr", "porto")


LANES = """() => {
  const { parts, spans } = window.refold.view;
  const run = spans.find((span) => span.lane === "run");
  if (!run?.to) return null;
  const second = (run.ended_at - run.begun_at) / (run.to - run.from);
  const long = ({ from, to }) => Math.round(((to - from) * second) / 1e5) / 10;
  return parts.timeline.lanes().lanes.map(({ name, spans }) => [name, long(spans[0])]);
}"""
"""The lanes of the time line, and how long the first bar of each is, in seconds at the run's scale."""


@slow
def test_a_child_has_its_bar_and_page(open_page: Open, tmp_path: Path) -> None:
    golden = Path(__file__).parents[2] / "golden" / "format-1-core-4-children.db"
    tab = open_page(Path(shutil.copy(golden, tmp_path / "events.db")))
    tab.to("#/session/alice?tab=timeline")
    tab.page.get_by_role("link", name="child alice/call_6_0", exact=True).wait_for()
    tab.page.wait_for_function(LANES)
    assert [name for name, _ in tab.page.evaluate(LANES)][-1] == "child"
    tab.page.get_by_role("link", name="child alice/call_6_0", exact=True).click()
    tab.page.get_by_role("link", name="parent alice").wait_for()
    tab.page.keyboard.press("Home")
    tab.page.get_by_title("Show this event whole").click()
    shows(tab.page, ".causes li:nth-child(2)", "session/alice@")


@slow
def test_the_tabs_of_a_session_show_its_time_line_events_requests_and_figures(open_page: Open, log: Path) -> None:
    tab = open_page(log)
    page = tab.page
    tab.to("#/session/lisbon")
    shows(page, ".message", "terrace")
    page.keyboard.press("2")
    canvas = page.locator(".timeline canvas")
    canvas.wait_for()
    page.wait_for_function(LANES)
    assert page.evaluate(LANES) == [["run", 28.4], ["model", 2.4], ["tool weather", 0.9], ["person", 8], ["retry", 2.2]]
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 300, box["y"] + 42)  # The lane of the runs.
    shows(page, ".tip", re.compile("Runs run_4.*completed", re.DOTALL))
    before = page.locator(".timeline .tools .hint").inner_text()
    page.get_by_label("Zoom in (+)").click()
    assert page.locator(".timeline .tools .hint").inner_text() != before
    page.get_by_role("button", name="All", exact=True).click()
    page.mouse.click(box["x"] + 180, box["y"] + 72)  # The first model call.
    page.locator(".where b", has_text="7").wait_for()
    page.keyboard.press("3")
    shows(page, ".row.here", "model_responded")
    page.locator(".row", has_text="run_resumed").click()
    shows(page, ".drawer", "session.run_resumed.v1")
    page.keyboard.press("Escape")
    assert page.locator(".drawer").is_hidden()
    page.keyboard.press("End")
    page.keyboard.press("4")
    shows(page, ".request", "Request of version 22")
    page.get_by_role("button", name="Changes since").click()
    shows(page, ".request", "Messages: the first 3 are the same")
    assert page.locator(".message.new").count() == 2
    page.get_by_label("Beside which request").select_option("Version 7")
    shows(page, ".request", "Messages: the first 1 are the same")
    assert page.locator(".message.new").count() == 4
    page.get_by_role("tab", name="Request").press("ArrowRight")
    shows(page, "[role=tab][aria-selected=true]:focus", "Figures")
    page.keyboard.press("5")
    shows(page, ".figures-table", re.compile("test-model\\s*4\\s*1"))
    assert page.locator("figure svg rect.in").count() == 3
    page.get_by_label("Search this session").fill("windy")
    shows(page, ".tabs .hint", "1 of ")
    page.get_by_label("Search this session").press("Escape")
    page.keyboard.press("Home")
    page.locator(".where b", has_text="1").wait_for()
    page.keyboard.press("Shift+ArrowRight")
    page.locator(".where b", has_text="7").wait_for()
    page.keyboard.press("?")
    shows(page, "dialog", "one turn back, or on")
    page.get_by_role("button", name="Close").click()


@slow
def test_a_call_is_denied_and_a_fork_is_made_and_compared(open_page: Open, log: Path) -> None:
    tab = open_page(log)
    page = tab.page
    tab.to("#/session/porto")
    shows(page, ".ask", 'pay(amount=25, to="Boat Ribeira")')
    page.get_by_label("Reason").fill("not today")
    page.get_by_role("button", name="Deny").click()
    shows(page, ".call", re.compile("denied.*not today", re.DOTALL))  # The page follows the log.
    tab.to("#/waiting")
    shows(page, ".empty", "Nothing waits")
    tab.to("#/session/lisbon?v=6")
    shows(page, ".where", "6")
    page.get_by_role("button", name="Fork here").click()
    page.get_by_label("Name of the fork").fill("lisbon~again")
    page.get_by_role("button", name="Fork", exact=True).click()
    shows(page, "h1", "lisbon~again")
    page.get_by_role("link", name="compare with origin").click()
    shows(page, ".page", "They share their first 6 events")
    shows(page, ".differs", "I look at the forecast first.")


@slow
def test_a_hostile_log_does_nothing(open_page: Open, log: Path) -> None:
    tab = open_page(log)
    page = tab.page
    shows(page, ".sessions tr", "<script>")
    for name in (HOSTILE_NAME, "hostile"):
        tab.to(f"#/session/{quote(name)}")
        shows(page, ".side", "Breaker")
        for key in "12345":
            page.keyboard.press(key)
            page.wait_for_timeout(100)
            assert page.title() == f"{name} \u2013 Refold".replace("\u202e", "\\u202e")
            assert page.locator("main script, main img, main iframe, main object").count() == 0
            assert page.locator("a[href^=javascript]").count() == 0
            assert not set(page.inner_text("body")) & UNSEEN
    for version in ("4", "5", "9", "13"):  # An input, an answer, a result and a failure.
        page.get_by_label("Version", exact=True).fill(version)
        page.get_by_title("Show this event whole").click()
        shows(page, ".drawer header", f"Event {version}")
        page.locator(".drawer pre").wait_for()
        assert not set(page.inner_text(".drawer")) & UNSEEN
        page.get_by_label("Close").click()
    page.keyboard.press("End")
    for part in ("note", "working/", "breaker/"):
        shows(page, ".side", part)
    page.keyboard.press("1")
    shows(page, ".call.bad b", "</script>")
    shows(page, ".note", "overloaded")
    shows(page, ".message.user", "document.title='hacked'")
    for text in page.locator(".message.user .text").all_inner_texts():
        assert not set(text) & UNSEEN
        assert "\\u202e" in text
        assert HOSTILE.split("\u202e")[0] in text
    shows(page, ".call pre", "1234567890123456789")
    page.get_by_role("button", name=re.compile("more characters")).click()
    assert "hacked" not in page.title()


HARD_TO_READ = """() => {
  const found = [];
  if (document.documentElement.scrollWidth > innerWidth) found.push(`${document.documentElement.scrollWidth} wide`);
  const channels = (text) => {
    const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
    return [...[r, g, b].map((one) => (text.startsWith("color") ? one : one / 255)), a];
  };
  const over = (above, below) => [0, 1, 2].map((n) => above[n] * above[3] + below[n] * (1 - above[3]));
  const filled = (node) => channels(getComputedStyle(node).backgroundColor);
  const ground = (node) => (node ? over(filled(node), ground(node.parentElement)) : [1, 1, 1]);
  const light = (color) => {
    const [r, g, b] = color.map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  for (const node of document.querySelectorAll("#app *")) {
    const style = getComputedStyle(node);
    if (!node.checkVisibility() || node.closest(":disabled, svg, .ask.done")) continue;
    const name = `${node.tagName} ${node.className} ${node.textContent.slice(0, 40)}`;
    const told = style.textOverflow === "ellipsis" || style.webkitLineClamp !== "none";
    const whole = (style.overflowX === "hidden" && !told) || node.matches("main, .scroll, .side");
    if (whole && node.scrollWidth > node.clientWidth + 1) found.push(`cut: ${name}`);
    if (![...node.childNodes].some((one) => one.nodeType === 3 && one.data.trim())) continue;
    const [one, other] = [light(over(channels(style.color), ground(node))), light(ground(node))];
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (contrast < 4.5 && parseFloat(style.fontSize) > 0) found.push(`${contrast.toFixed(2)}: ${name}`);
  }
  return found;
}"""
"""What is wider than the window, is cut without a word, or has less contrast than WCAG 2 AA asks of text."""


@slow
@pytest.mark.parametrize("dark", [False, True])
def test_it_is_readable_on_a_phone(open_page: Open, log: Path, dark: bool) -> None:
    tab = open_page(log, width=400, dark=dark)
    page = tab.page
    shows(page, ".sessions tr", "lisbon")
    for place in ("#/", "#/session/lisbon", "#/session/hostile", "#/waiting"):
        tab.to(place)
        page.wait_for_timeout(300)
        for key in "12345" if "session" in place else " ":
            page.keyboard.press(key)
            page.wait_for_timeout(60)
            assert page.evaluate(HARD_TO_READ) == [], (place, key)
    ground, text = (page.evaluate(f"getComputedStyle(document.body).{what}") for what in ("backgroundColor", "color"))
    light = [sum(map(int, re.findall(r"\d+", color)[:3])) for color in (ground, text)]
    assert (light[0] < light[1]) == dark
    page.keyboard.press("t")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != ground


@slow
def test_a_file_opens_from_disk_at_any_version(browser: "Browser", log: Path, tmp_path: Path) -> None:
    for session in ("lisbon", "hostile"):
        with started("show", log, session, "--html", tmp_path / f"{session}.html") as process:
            assert process.wait() == 0
        page = browser.new_page()
        tab = OpenPage(page, f"file://{tmp_path}/")
        page.goto(f"file://{tmp_path}/{session}.html")
        shows(page, ".message.user", re.compile("terrace|hacked"))
        page.get_by_label("Version", exact=True).fill("6")
        shows(page, ".side .pill", "open")
        for key in "2345":
            page.keyboard.press(key)
            page.wait_for_timeout(100)
        page.keyboard.press("End")
        page.keyboard.press("4")
        shows(page, ".request", "Request of version")
        page.keyboard.press("3")
        page.locator(".row", has_text="run_completed").click()
        shows(page, ".causes li:nth-child(2)", "model_responded")
        shows(page, ".drawer pre", '"type": "session.run_completed.v1"')
        page.keyboard.press("Escape")
        assert page.title().startswith(session)
        assert tab.faults == []
        page.close()


@slow
def test_files_show_both_sides_of_a_divergence_and_of_a_scenario_and_notebooks_a_frame(
    browser: "Browser", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def diverging(builder: LogBuilder) -> None:
        await builder.weather_session("alice")
        stored = await builder.store.read_stream("session/alice")
        await builder.append(StreamName("session/alice"), [stored[-1].data])

    async def notebook(log: Path) -> str:
        async with opened(log) as store:
            frames = framed_session(store, "alice"), (await replay(store))._repr_html_()
        return "<meta charset=utf-8>" + "".join(map(str, frames))

    with ThreadPoolExecutor(1) as other:  # This thread has a loop, Playwright's.
        log = other.submit(log_of, tmp_path / "events.db", diverging).result()
        (tmp_path / "notebook.html").write_text(other.submit(lambda: asyncio.run(notebook(log))).result())
        monkeypatch.setattr(one_file, "RECORDED_BYTES", 1_000)
        large = other.submit(lambda: asyncio.run(one_file.page_file(log, ["alice"]))).result()
        (tmp_path / "large.html").write_text(large)
    small = ("--first", 14, "--seeds", 1, "--sessions", 1, "--acts", 3, "--faults", 2, "--own-tools", "--jobs", 1)
    for name, *command in (
        ("replay", "replay", log),
        ("simulate", "simulate", "tests.scenarios.rehearsed:leaky", *small),
    ):
        with started(*command, "--html", tmp_path / f"{name}.html", cwd=Path(__file__).parents[3]) as process:
            process.communicate()
            assert process.returncode == 1
    page = browser.new_page()
    tab = OpenPage(page, f"file://{tmp_path}/")
    page.goto(f"{tab.address}replay.html")
    shows(page, ".report .pill", "diverged")
    assert page.locator(".sides h3").all_inner_texts() == ["Recorded", "Now"]
    shows(page, ".lines .new", "no command becomes a RunCompleted")
    page.get_by_role("link", name="Show alice at version 12").click()
    shows(page, ".progress", "What follows version 11 cannot be read")
    page.goto(f"{tab.address}simulate.html")
    shows(page, ".report p", "the promise: once an outcome is told, nothing of that run goes on")
    shows(page, ".sides > div:last-child pre", "scenario = Scenario(")
    shows(page, ".report pre", "refold simulate tests.scenarios.rehearsed:leaky --seed 14")
    page.get_by_role("link", name="s0", exact=True).click()
    page.locator(".message.user").first.wait_for()
    page.goto(f"{tab.address}large.html")
    page.locator(".message.user").first.wait_for()
    for key, said in (("Home", r"has events from version \d+ on as recorded, since"), ("End", "")):
        page.keyboard.press(key)
        page.get_by_title("Show this event whole").click()
        shows(page, ".drawer", re.compile(said + ".*" + ('"words"' if said else '"event"'), re.DOTALL))
        page.get_by_label("Close").click()
    page.goto(f"{tab.address}notebook.html")
    session, report = (page.frame_locator("iframe").nth(place) for place in range(2))
    session.get_by_role("tab", name="Time line").click()
    session.locator(".timeline canvas").wait_for()
    session.get_by_label("Version", exact=True).fill("5")
    session.locator(".side .pill", has_text="open").wait_for()
    session.get_by_title("Show this event whole").click()
    session.locator(".causes a", has_text="@3").click()
    session.locator(".where b", has_text="3").wait_for()
    report.locator(".report .pill", has_text="diverged").wait_for()
    assert tab.faults == []
    page.close()


@slow
def test_the_pictures_of_the_documents_can_be_drawn(browser: "Browser", tmp_path: Path) -> None:
    docs = Path(__file__).parents[3] / "docs"
    subprocess.run([sys.executable, "-P", docs / "pictures" / "draw_page.py", tmp_path], check=True, timeout=300)
    drawn = {picture.name: picture.stat().st_size for picture in tmp_path.iterdir()}
    assert drawn.keys() == {picture.name for picture in (docs / "pictures").glob("page-*")}
    assert all(5_000 < size < 60_000 for size in drawn.values()), drawn
    documents = "".join(document.read_text(encoding="utf-8") for document in docs.glob("*.md"))
    shown = set(re.findall(r"\(pictures/(page-[^)]*)\)", documents))
    assert {name for name in drawn if "-dark" not in name} == shown


@slow
def test_an_imported_history_is_paged(open_page: Open, tmp_path: Path) -> None:
    async def imported(builder: LogBuilder) -> None:
        await builder.open("long")
        roles = ("user", "assistant") * 200
        said = tuple(Message(role, (TextBlock(text=f"said {n}"),)) for n, role in enumerate(roles))  # type: ignore[arg-type]
        await builder.tell("long", ImportHistory(messages=said))

    with ThreadPoolExecutor(1) as other:  # This thread has a loop, Playwright's.
        tab = open_page(other.submit(log_of, tmp_path / "events.db", imported).result())
    tab.to("#/session/long")
    shows(tab.page, ".message", "said 399")
    assert tab.page.locator(".message").count() == 30
    tab.page.get_by_role("button", name="Earlier").click()
    shows(tab.page, ".message", "said 310")
    assert tab.page.locator(".message .text").all_inner_texts() == [f"said {n}" for n in range(310, 400)]


@slow
def test_without_the_token_nothing_is_shown(open_page: Open, log: Path) -> None:
    tab = open_page(log)
    shows(tab.page, ".sessions tr", "lisbon")
    other = tab.page.context.new_page()
    other.goto(tab.address.partition("#")[0])
    shows(other, ".empty", "This page needs its token")
    assert "lisbon" not in other.content()


@slow
def test_calls_are_allowed_and_a_question_answered_on_a_phone_while_a_runtime_runs(
    open_page: Open, tmp_path: Path
) -> None:
    log = tmp_path / "events.db"
    with started_runtime(log):
        tab = open_page(log, width=400)
        page = tab.page
        page.locator(".live.on").wait_for()
        shows(page, ".top .waits", "1")
        tab.to("#/session/s")
        shows(page, ".ask", 'pay(amount=25, to="Boat")')
        allow, said = page.get_by_role("button", name=re.compile("^Allow")), page.get_by_role("tabpanel")
        boxes = [where.bounding_box() for where in (allow, said)]
        assert boxes[0]
        assert boxes[1]
        assert boxes[0]["y"] + boxes[0]["height"] < boxes[1]["y"] < 800  # In sight, above the conversation.
        page.get_by_text("Change the arguments").click()
        arguments = page.get_by_label("Arguments, as JSON")
        for text, refusal in (
            ("[25]", "are a JSON object"),
            ("{", "no JSON"),
            ('{"amount": 1}', "required field `to`"),
        ):
            arguments.fill(text)
            assert page.get_by_role("button", name="Always allow").is_disabled()
            allow.click()
            shows(page, ".ask .said", refusal)
        assert [fault for fault in tab.faults if " 409 " not in fault] == []
        tab.faults.clear()  # The browser tells of the refusal, too.
        arguments.fill('{"amount": 9007199254740993, "to": "Boat \\u202e"}')
        page.get_by_role("button", name="Allow with these arguments").click()
        shows(page, ".call .result", "paid 9007199254740993 to Boat \\u202e")
        shows(page, ".ask", 'pay(amount=25, to="Taxi')
        assert r'"to": "Taxi\u202e"' in arguments.input_value()  # Seen as an escape, and exact.
        page.get_by_role("button", name="Allow", exact=True).click()
        shows(page, ".call .result", "paid 25 to Taxi")
        shows(page, ".ask .question", "Which name is the booking for?")
        page.get_by_label("Answer", exact=True).fill("Maria <b>")
        page.get_by_role("button", name="Answer", exact=True).click()
        shows(page, ".message.assistant", "Done for Maria <b>.")
        shows(page, ".about .pill", "completed")
        tab.to("#/")
        shows(page, ".sessions tr", re.compile("s.*completed", re.DOTALL))
