"""`refold check` of a text log that cannot be read: every damaged line is told, and it exits 1."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from refold.commands.cli import app
from refold.events.core.errors import LogFormatError
from refold.events.core.ids import StreamName
from refold.inspection.check import check_log
from refold.inspection.export import export_to_file
from refold.stores import SQLiteStore
from refold.stores.jsonl.importing import open_to_read
from tests.runtime.conftest import LogBuilder

Lines = list[bytes]


def check(*arguments: object) -> Result:
    result = CliRunner().invoke(app, ["check", *map(str, arguments)], env={"COLUMNS": "300"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def problems_of(path: Path) -> list[dict[str, Any]]:
    result = check(path, "--json")
    assert result.exit_code == 1
    problems: list[dict[str, Any]] = json.loads(result.stdout)["problems"]
    return problems


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """An export of two sessions, one with a payload that is text, and of a stream of a user's own kind."""

    async def build() -> None:
        async with await SQLiteStore.open(tmp_path / "events.db") as store:
            builder = LogBuilder(store)
            await builder.weather_session("alice", result="large " * 20_000)
            await builder.weather_session("bob")
            await builder.append(StreamName("order/7"), [b'{"type":"order.placed.v1"}'])
        await export_to_file(tmp_path / "events.db", tmp_path / "events.jsonl")

    asyncio.run(build())
    return tmp_path / "events.jsonl"


def changed(path: Path, change: Callable[[Lines], Lines]) -> None:
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


def numbers_of(path: Path, word: bytes) -> list[int]:
    """Return the numbers of the lines that hold a word."""
    return [number for number, line in enumerate(path.read_bytes().splitlines(), 1) if word in line]


def test_a_whole_log_is_sound(lines: Path) -> None:
    result = check(lines)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].startswith("sound: 3 streams, ")


def test_each_edited_byte_is_a_problem_of_its_own_with_its_place(lines: Path) -> None:
    edited = numbers_of(lines, b"Lisbon")
    lines.write_bytes(lines.read_bytes().replace(b"Lisbon", b"Lisbum"))
    assert len(edited) >= 2
    found = problems_of(lines)
    assert [problem["message"].split(": ")[0] for problem in found] == [f"line {number}" for number in edited]
    assert {problem["stream"] for problem in found} <= {"session/alice", "session/bob"}
    assert all("does not hash to its chain" in problem["message"] for problem in found)
    batches = [json.loads(line) for line in lines.read_bytes().splitlines()]
    places = [(batches[number - 1]["version"], batches[number - 1]["position"]) for number in edited]
    assert [(problem["version"], problem["position"]) for problem in found] == places


def test_the_text_names_every_problem_and_what_was_not_looked_at(lines: Path) -> None:
    counts = check(lines).stdout.splitlines()[-1].removeprefix("sound: ")
    lines.write_bytes(lines.read_bytes().replace(b"sunny", b"rainy", 1))
    result = check(lines)
    assert (result.exit_code, result.stderr) == (1, "")
    first, *not_decoded, last = result.stdout.splitlines()
    assert first.startswith("unreadable  session/bob@")
    assert not_decoded == [
        f"not decoded: kind {kind!r} ({streams}); versions and chain were checked"
        for kind, streams in (("order", "1 stream"), ("session", "2 streams"))
    ]
    assert last == f"1 problem: {counts}"


@pytest.mark.parametrize("cut", [1, 30, 400])
def test_a_cut_export_is_a_problem(lines: Path, cut: int) -> None:
    lines.write_bytes(lines.read_bytes()[:-cut])
    [problem] = problems_of(lines)[-1:]
    assert "the file was cut short" in problem["message"]


def test_an_export_that_lacks_its_last_lines_is_a_problem(lines: Path) -> None:
    count = len(lines.read_bytes().splitlines())
    changed(lines, lambda all_lines: all_lines[:-2])
    [problem] = problems_of(lines)
    assert problem["message"].startswith(f"line {count - 1}: it is missing: the file was cut short")


def test_a_missing_line_is_one_gap_and_what_follows_is_no_problem(lines: Path) -> None:
    [_, second, *_] = numbers_of(lines, b'"stream":"session/bob"')
    changed(lines, lambda all_lines: [*all_lines[: second - 1], *all_lines[second:]])
    [problem] = problems_of(lines)
    assert "a line is missing, or twice" in problem["message"]
    assert problem["stream"] == "session/bob"


def test_damage_of_many_sorts_is_all_told(lines: Path) -> None:
    [payload, *_] = numbers_of(lines, b'"line":"payload"')
    [bob, *_] = numbers_of(lines, b'"stream":"session/bob"')
    [order] = numbers_of(lines, b'"stream":"order/7"')

    def change(all_lines: Lines) -> Lines:
        all_lines[payload - 1] = all_lines[payload - 1].replace(b'"text":"', b'"text":"X')
        all_lines[bob - 1] = b"nonsense\n"
        all_lines[order - 1] = all_lines[order - 1].replace(b"placed", b"refused")
        return all_lines

    changed(lines, change)
    found = problems_of(lines)
    said = [problem["message"].split(": ")[0] for problem in found]
    assert said[0] == f"line {payload}"
    assert f"line {bob}" in said
    assert said[-1] == f"line {order}"
    assert len(said) == 4, "the second batch of bob follows none, and the other ones follow it"


def test_a_log_that_a_writer_has_left_half_written_hides_no_damage(lines: Path) -> None:
    def change(all_lines: Lines) -> Lines:
        header = all_lines[0].replace(b',"export":true', b"")
        return [header, *all_lines[1:-1], b'{"line":"batch","posit']

    changed(lines, change)
    assert check(lines).exit_code == 0
    lines.write_bytes(lines.read_bytes().replace(b"sunny", b"rainy", 1))
    [problem] = problems_of(lines)
    assert "does not hash to its chain" in problem["message"]


@pytest.mark.parametrize("text", [b"not a log\n", b'{"line":"refold.log","format":99}\n', b""])
def test_what_is_no_log_is_refused_as_before(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(text)
    result = check(path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("refold: ")


async def test_the_library_reports_what_opening_raises(lines: Path) -> None:
    changed(lines, lambda all_lines: [line.replace(b"sunny", b"rainy") for line in all_lines])
    with pytest.raises(LogFormatError):
        async with open_to_read(lines):
            pass
    report = await check_log(lines)
    assert (report.sound, report.problems_found, report.streams) == (False, 1, 3)
