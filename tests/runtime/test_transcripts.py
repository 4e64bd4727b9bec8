"""The commands write what the transcripts say, whole; see `transcripts.py`."""

from pathlib import Path

import pytest

from tests.runtime.transcripts import compare, played, sections

SECTIONS = sections("commands/*.txt")


@pytest.mark.parametrize("title", SECTIONS)
def test_what_is_written(title: str, samples: Path, folder: Path) -> None:
    path, text = SECTIONS[title]
    for sample in samples.iterdir():
        if sample.name in text:
            (folder / sample.name).write_bytes(sample.read_bytes())
    compare(path, title, text, played(text, folder))
