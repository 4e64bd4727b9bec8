"""What a log says is quoted in part only: a message of a problem or an error fits into a terminal."""

import msgspec
import pytest
from typer.testing import CliRunner

from refold.commands.cli import app
from refold.events import Event, EventCodec
from refold.events.core.errors import LogFormatError
from refold.events.core.event import Event as AnyEvent
from refold.events.core.ids import StreamName
from refold.events.core.records import StoredEvent
from refold.events.model.payloads import referenced_payloads
from refold.inspection.check import MESSAGE_CHARACTERS, Problems


class Noted(Event, frozen=True, kw_only=True, tag="note.noted.v1"):
    content: object = None
    messages: object = None
    summary: object = None


def test_the_message_of_a_problem_is_cut() -> None:
    problems = Problems()
    problems.add("event", "session/alice", "x" * 1_000_000)
    [problem] = problems.kept
    assert len(problem.message) == MESSAGE_CHARACTERS + 1


def test_the_error_of_a_command_is_cut() -> None:
    result = CliRunner().invoke(app, ["check", "x" * 100_000])
    assert result.exit_code == 2
    assert len(result.stderr) < 2_000


def test_a_tag_that_nobody_knows_is_quoted_in_part() -> None:
    codec: EventCodec[AnyEvent] = EventCodec([Noted])
    data = msgspec.json.encode({"type": "x" * 1_000_000})
    stored = StoredEvent(position=1, stream=StreamName("note/a"), version=1, batch=1, at=0, data=data)
    with pytest.raises(LogFormatError) as raised:
        codec.decode(stored)
    assert len(str(raised.value)) < 1_000


@pytest.mark.parametrize("value", [5, "text", {"a": 1}, [1, "b"], None, ["message"]])
def test_an_event_of_a_users_kind_may_have_anything_where_a_session_has_messages(value: object) -> None:
    assert referenced_payloads(Noted(content=value, messages=value, summary=value)) == []
