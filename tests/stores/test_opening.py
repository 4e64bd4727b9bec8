"""The name of a log says what it is."""

import os
from pathlib import Path

import pytest

from refold.events.core.errors import LogFormatError
from refold.stores import JsonLinesStore, SQLiteStore
from refold.stores.opening import is_json_lines, open_log
from refold.stores.sample_batches import batch


@pytest.mark.parametrize(
    ("path", "json_lines"),
    [
        ("events.jsonl", True),
        ("a/B.JSONL", True),
        (Path(".jsonl"), True),
        ("events.db", False),
        ("events.jsonl.db", False),
        ("jsonl", False),
        ("events.json", False),
    ],
)
def test_a_name_that_ends_in_jsonl_is_a_log_in_json_lines(path: str | os.PathLike[str], json_lines: bool) -> None:
    assert is_json_lines(path) == json_lines


@pytest.mark.parametrize(("name", "kind"), [("events.jsonl", JsonLinesStore), ("events.db", SQLiteStore)])
async def test_the_store_is_of_the_kind_that_the_name_says(tmp_path: Path, name: str, kind: type) -> None:
    async with await open_log(tmp_path / name) as store:
        assert type(store) is kind
        await store.append([batch("session/a", 0)])
    async with await open_log(tmp_path / name, read_only=True) as store:
        assert type(store) is kind
        assert len(await store.read_all()) == 1


async def test_a_log_under_the_name_of_the_other_kind_is_refused_and_left_alone(tmp_path: Path) -> None:
    for name, other in (("a.jsonl", "b.db"), ("c.db", "d.jsonl")):
        async with await open_log(tmp_path / name):
            pass
        (tmp_path / name).rename(tmp_path / other)
        data = (tmp_path / other).read_bytes()
        for read_only in (True, False):
            with pytest.raises(LogFormatError, match="name another file"):
                await open_log(tmp_path / other, read_only=read_only, wait_for_log_s=0)
        assert (tmp_path / other).read_bytes() == data
        assert not (tmp_path / f"{other}.lock").exists()
