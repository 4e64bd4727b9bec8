"""What is to be seen of a session at each version and of a damaged one; the transcripts show how it is written."""

import json
from pathlib import Path

import pytest

from refold.events.core.errors import LogFormatError
from refold.events.core.ids import StreamName
from refold.events.core.records import StoredEvent, StreamHead
from refold.inspection.session_view import checked_version, list_sessions, view_session
from refold.stores import InMemoryStore
from tests.runtime.command_line import run
from tests.runtime.log_builder import LogBuilder


def test_a_status_is_the_same_in_the_list_and_in_the_view(samples: Path) -> None:
    log = samples / "states.db"
    listed = {each["session"]: each["status"] for each in json.loads(run("sessions", log, "--json").stdout)["sessions"]}
    assert len(listed) == 8
    for name in listed.keys() - {"damaged"}:
        assert json.loads(run("show", log, name, "--json").stdout)["status"] == listed[name] == name


@pytest.mark.parametrize("version", range(1, 12))
async def test_every_version_can_be_shown_also_inside_a_batch(builder: LogBuilder, version: int) -> None:
    await builder.weather_session("alice")
    assert (await view_session(builder.store, "alice", at=version)).version == version


@pytest.mark.parametrize("version", [None, 1])
def test_a_session_that_is_listed_without_an_event_is_damaged(version: int | None) -> None:
    head = StreamHead(stream=StreamName("session/alice"), version=-7, chain=b"", pending=())
    with pytest.raises(LogFormatError, match="session 'alice' ends at version -7 according to the list of streams"):
        checked_version(head, version)


async def test_a_session_whose_rows_make_no_sense_is_damaged_and_hides_no_other() -> None:
    class DamagedStore(InMemoryStore):
        async def read_stream(
            self, stream: str, *, after_version: int = 0, limit: int | None = None
        ) -> list[StoredEvent]:
            if stream == "session/bob":
                raise LogFormatError("a row of session/bob has a text for a version")
            return await super().read_stream(stream, after_version=after_version, limit=limit)

    builder = LogBuilder(DamagedStore())
    await builder.weather_session("alice")
    await builder.append(StreamName("session/bob"), [b"{}"])
    listed = await list_sessions(builder.store)
    assert {each.session: each.status for each in listed} == {"alice": "completed", "bob": "damaged"}
