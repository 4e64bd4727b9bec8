"""The page as one file: whole, closed, and the same as the served one."""

import html
import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refold import AgentConfig, AgentRuntime, ScriptedProvider, say
from refold.commands.execution import EXIT_BAD_INPUT, EXIT_FOUND, EXIT_OK
from refold.events.core.errors import ConfigError
from refold.events.core.ids import StreamName
from refold.inspection.log_reading import opened
from refold.inspection.session_view import list_sessions
from refold.inspection.tail import Following
from refold.lineage.causes import why
from refold.page import one_file
from refold.page.frames import TEXT_MAX, WORDS_MAX
from refold.page.one_file import PageReport, framed, page_file
from refold.page.reports import replay_page
from refold.replay import replay
from tests.runtime.command_line import error_of, run
from tests.runtime.log_builder import LogBuilder, log_of
from tests.runtime.page.blocks import blocks
from tests.runtime.page.sample_page import HOSTILE, HOSTILE_NAME

GOLDEN = Path(__file__).parents[2] / "golden"


async def test_the_file_holds_the_session_and_lets_nothing_else_in(sample_page_log: Path) -> None:
    page = await page_file(sample_page_log, ["lisbon"])
    assert {"s0-0", "s0-0-recorded", "refold-data"} == set(blocks(page))
    assert "Terrace Graça" in page
    assert "connect-src" not in page
    assert "default-src 'none'; script-src 'sha256-" in page
    assert re.findall(r'(?:src|href)="(?!data:,)', page.partition("<script type")[0]) == []


async def test_the_last_events_are_in_the_file_as_they_were_recorded(
    builder: LogBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    await builder.weather_session("alice")
    await builder.send("alice", "x" * (TEXT_MAX + 5))
    data = blocks(await page_file(builder.store, ["alice"]))
    [*whole, long, _, _] = [
        msgspec.json.decode(msgspec.json.encode(await Following(builder.store).read(event)))
        for event in await builder.store.read_stream("session/alice")
    ]
    recorded = data["s0-0-recorded"]
    assert [recorded[str(version)] for version in range(1, long["version"])] == whole
    assert recorded[str(long["version"])]["event"]["content"][0]["text"].endswith("… (5 more characters)")
    assert data["refold-data"]["sessions"][0]["recorded_from"] == 1
    monkeypatch.setattr(one_file, "RECORDED_BYTES", 1_500)  # Less than the long event.
    data = blocks(await page_file(builder.store, ["alice"]))
    assert list(data["s0-0-recorded"]) == [str(long["version"] + 2), str(long["version"] + 1)]
    assert data["refold-data"]["sessions"][0]["recorded_from"] == long["version"] + 1


@pytest.mark.parametrize("name", ["format-1-core-4-children.db", "format-1-core-5-forks.db"])
async def test_the_causes_of_each_event_are_in_the_file(name: str, tmp_path: Path) -> None:
    async with opened(shutil.copy(GOLDEN / name, tmp_path / "events.db")) as store:
        for listed in await list_sessions(store):
            data = blocks(await page_file(store, [listed.session]))
            assert bool(data["refold-data"]["causes"]) == (listed.parent is not None)
            for version in range(1, listed.version + 1):
                chain = await why(store, f"session/{listed.session}@{version}")
                assert causes_in(data, listed.session, version) == [cause.words[:WORDS_MAX] for cause in chain]


def causes_in(data: dict[str, Any], session: str, version: int) -> list[str]:
    """Return the words of the causes of an event as `static/source.js` finds them."""
    frames, words, after = data["s0-0"]["frames"], list[str](), f"session/{session}@{version}"
    while after:
        stream, _, place = after.rpartition("@")
        if stream == f"session/{session}":
            frame = frames[int(place) - 1]
            cause = frame.get("cause") if frame["batch"] == frame["version"] else frame["batch"]
            after = f"{stream}@{cause}" if isinstance(cause, int) else cause
        else:
            frame = data["refold-data"]["causes"][after]
            after = frame["cause"]
        words.append(frame["words"])
    return words


async def test_nothing_of_a_hostile_log_is_markup(sample_page_log: Path) -> None:
    page = await page_file(
        sample_page_log, ["hostile", HOSTILE_NAME], [PageReport(title=HOSTILE, verdict=HOSTILE, words=(HOSTILE,))]
    )
    assert page.count("<script") == len(blocks(page)) + 1
    assert "<svg onload" not in page
    title = page.partition("<title>")[2].partition("</title>")[0]
    assert html.unescape(title) == f"hostile, {HOSTILE_NAME} - Refold".replace("\u202e", "\\u202e")
    [told] = blocks(page)["refold-data"]["reports"]
    assert (told["title"], told["words"]) == (HOSTILE, [HOSTILE])
    frame = framed(page)
    assert frame.count("<") == 2
    assert html.unescape(frame.partition('srcdoc="')[2].removesuffix('"></iframe>')) == page
    assert 'sandbox="allow-scripts"' in frame


async def test_a_session_that_is_not_there_has_no_file(sample_page_log: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'lisbon'"):
        await page_file(sample_page_log, ["lisbonne"])


@pytest.mark.parametrize("log", [":memory:", "events.db"])
async def test_a_notebook_shows_a_session_and_a_replay(
    log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    provider = ScriptedProvider([say("Hello <b>there</b>.")])
    async with AgentRuntime(AgentConfig(model="m"), provider=provider, log=log) as runtime:
        session = await runtime.session("alice")
        assert session._repr_html_() is None
        await session.send("Hi")
        shown = session._repr_html_()
        assert shown is not None
        assert "Hello \\u003cb\\u003ethere" in html.unescape(shown)
        report = (await replay(runtime.store))._repr_html_()
        assert "does what was recorded" in html.unescape(report)


async def test_a_replay_shows_both_sides(builder: LogBuilder) -> None:
    await builder.weather_session("alice")
    stored = await builder.store.read_stream("session/alice")
    await builder.append(StreamName("session/alice"), [stored[-1].data])
    report = await replay(builder.store)
    assert report.divergence is not None
    page = await replay_page(builder.store, report.divergences, report.missing())
    [told] = blocks(page)["refold-data"]["reports"]
    assert (told["verdict"], [side["name"] for side in told["sides"]]) == ("diverged", ["Recorded", "Now"])
    assert told["place"] == {"name": "alice", "version": report.divergence.version}
    assert "s0-0" in blocks(page)
    assert str(report.divergence) in html.unescape(str(told["words"]))


def test_commands_write_it_and_replace_none(tmp_path: Path) -> None:
    async def diverging(builder: LogBuilder) -> None:
        await builder.weather_session("alice")
        stored = await builder.store.read_stream("session/alice")
        await builder.append(StreamName("session/alice"), [stored[-1].data])

    log = log_of(tmp_path / "events.db", diverging)
    for code, *command in ((EXIT_OK, "show", log, "alice"), (EXIT_FOUND, "replay", log)):
        file = tmp_path / f"{command[0]}.html"
        assert run(*command, "--html", file).exit_code == code
        data = blocks(file.read_text())
        reports = [told["verdict"] for told in data["refold-data"].get("reports", [])]
        assert (reports, "s0-0" in data) == (["diverged"] if code else [], True)
        assert file.stat().st_mode & 0o777 == 0o600
        answer = run(*command, "--html", file)
        assert (answer.exit_code, answer.stdout, "is there already" in error_of(answer)) == (EXIT_BAD_INPUT, "", True)


def test_a_notebook_shows_a_session_of_a_runtime_without_a_loop() -> None:
    with AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([say("Hello.")]), log=":memory:") as runtime:
        session = runtime.session("alice")
        session.send("Hi")
        assert "Hello." in html.unescape(session._repr_html_() or "")
