"""`refold export` and `refold import` of whole logs, and what they take; the transcripts show what they write."""

import fcntl
import json
import os
import shutil
import signal
import termios
import tracemalloc
from array import array
from pathlib import Path

import msgspec
import pytest

from refold import AgentConfig, AgentRuntime, ConfigError, ScriptedProvider, say
from refold.events.model.configuration import payload_hash
from refold.inspection.export import export_log, export_to_file
from refold.stores import SQLiteStore
from refold.stores.jsonl.importing import import_log
from refold.stores.sample_batches import batch, payload
from tests.runtime.command_line import error_of, run, started

GOLDEN = sorted((Path(__file__).parents[3] / "golden").glob("*.db"))


@pytest.mark.slow
@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_a_golden_log_comes_back_byte_for_byte(golden: Path, tmp_path: Path) -> None:
    source = Path(shutil.copy(golden, tmp_path / golden.name))
    first = run("export", source).stdout_bytes
    (tmp_path / "log.jsonl").write_bytes(first)
    assert run("import", tmp_path / "log.jsonl", tmp_path / "copy.db").exit_code == 0
    assert run("export", tmp_path / "copy.db").stdout_bytes == first
    for name in ("copy.db", "log.jsonl"):
        assert run("check", tmp_path / name).exit_code == 0
        replayed = run("replay", tmp_path / name).stdout
        assert replayed.replace(str(tmp_path / name), str(source)) == run("replay", source).stdout


def has_read_all(pipe: int) -> bool:
    """Tell whether what was written into a pipe is out of it."""
    waiting = array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, waiting)
    return waiting[0] == 0


@pytest.mark.parametrize("form", [[], ["--format=openai", "--session=s"]], ids=["lines", "a conversation"])
def test_ctrl_c_leaves_nothing(tmp_path: Path, form: list[str]) -> None:
    """Also where a thread waits in the middle of a read."""
    with started("import", "-", tmp_path / "x.db", *form) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write('{"line":"refold.log","format":1}\n')
        process.stdin.flush()
        while not has_read_all(process.stdin.fileno()):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert process.stderr.read() == ""
    assert list(tmp_path.iterdir()) == []


async def test_an_export_of_a_stream_of_another_kind_has_the_payloads_that_it_names(tmp_path: Path) -> None:
    path, part = tmp_path / "own.db", tmp_path / "part.jsonl"
    named, other = payload_hash(b"named"), payload_hash(b"other")
    given = msgspec.structs.replace(batch("order/7", 0, 1), events=(f'{{"bill":"{named}"}}'.encode(),))
    async with await SQLiteStore.open(path) as store:
        await store.append([given], {named: b"named", other: b"other"})
    await export_to_file(path, part, streams=["order/7"])
    kept = [line["hash"] for line in map(json.loads, part.read_bytes().splitlines()) if line["line"] == "payload"]
    assert kept == [named]


async def test_a_store_of_ones_own_that_lists_no_payloads_is_refused() -> None:
    class Small:
        name = "small"

    with pytest.raises(ConfigError, match="WholeLog"):
        await export_log(Small(), print)  # type: ignore[arg-type]


async def peak_of(folder: Path, events: int, payloads: int) -> int:
    """Return the most memory that exporting and importing a log of so many events and payloads takes at a time."""
    async with await SQLiteStore.open(folder / f"{events}.db", durability="normal") as store:
        for version in range(0, events, 500):
            await store.append([batch(f"session/{version // 500 % 5}", version // 2500 * 500, 500)])
        for number in range(payloads):
            await store.append([], payload(b"%d" % number * 200_000))
    tracemalloc.start()
    try:
        await export_to_file(folder / f"{events}.db", folder / f"{events}.jsonl")
        with (folder / f"{events}.jsonl").open("rb") as source:
            await import_log(source, "x", folder / f"{events}-copy.db")
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
async def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    small = await peak_of(tmp_path, 5_000, 10)
    assert await peak_of(tmp_path, 20_000, 40) < 1.3 * small


# Text logs.


async def test_no_runtime_opens_a_text_log(log_file: Path, tmp_path: Path) -> None:
    lines = tmp_path / "log.jsonl"
    await export_to_file(log_file, lines)
    for path in (lines, tmp_path / "new.JSONL"):
        with pytest.raises(ConfigError, match=r"is a text log by its name.*`refold import \S+ \S+\.db`"):
            await AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([say("Hi.")]), log=path).open()
    assert sorted(os.listdir(tmp_path)) == ["events.db", "log.jsonl"]


def test_a_command_for_a_text_log_is_refused_and_leaves_nothing(log_file: Path, tmp_path: Path) -> None:
    lines = tmp_path / "log.jsonl"
    run("export", log_file, "-o", lines)
    for command in (["send", lines, "alice", "Hi"], ["cancel", lines, "alice"]):
        assert "refold import" in error_of(run(*command))
    assert sorted(os.listdir(tmp_path)) == ["events.db", "log.jsonl"]
