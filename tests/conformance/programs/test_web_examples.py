"""The examples for Flask and scripts, as their readers run them: a real server, real HTTP, a restart."""

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest

from refold import AgentConfig, AgentRuntime, ScriptedProvider, ToolContext, stall, tool, use
from tests.conformance.processes import QUIET, ROOT, command_line, left_in, run, started


@contextmanager
def serving(folder: Path) -> Iterator[httpx.Client]:
    """Run Flask's server in a folder until the block ends, and then as Ctrl-C ends it."""
    environment = QUIET | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with started(
        command_line("-m", "flask", "--app", "examples.flask_app", "run", "--port", "0"),
        stderr=subprocess.STDOUT,
        cwd=folder,
        env=environment,
    ) as process:
        assert process.stdout is not None
        said = list[str]()
        address = None
        for line in process.stdout:
            said.append(line)
            address = re.search(r"running on (http://[\d.:]+)", line, re.IGNORECASE)
            if address:
                break
        try:
            assert address, "".join(said)
            with httpx.Client(base_url=address[1], timeout=60) as client:
                yield client
        finally:
            process.send_signal(signal.SIGINT)
            said.append(process.communicate()[0])
    assert "Traceback" not in "".join(said)


def ask(client: httpx.Client, session: str, text: str, key: str | None = None) -> httpx.Response:
    headers = {"Idempotency-Key": key} if key is not None else {}
    return client.post(f"/sessions/{session}/messages", json={"text": text}, headers=headers)


@pytest.mark.slow
def test_a_server_answers_and_after_a_restart_knows_what_it_has_answered(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        first = ask(client, "alice", "Weather in Lisbon?", "17")
        assert first.json() == first.json() | {"outcome": "Completed", "text": "Lisbon: sunny, 24 degrees."}
        assert ask(client, "alice", "Weather in Lisbon?", "17").json() == first.json()
        assert ask(client, "alice", "Weather in Porto?").json()["text"] == "Porto: rain, 17 degrees."
        refused = ask(client, "alice", "Weather in Faro?", "17")
        assert (refused.status_code, "17" in refused.text) == (422, True)
    assert left_in(tmp_path / "flask.db").closed
    with serving(tmp_path) as client:
        assert ask(client, "alice", "Weather in Lisbon?", "17").json() == first.json()
        texts = [message["text"] for message in client.get("/sessions/alice").json()]
        assert [text for text in texts if text.endswith("?")] == ["Weather in Lisbon?", "Weather in Porto?"]


@pytest.mark.slow
def test_a_server_answers_many_at_once(tmp_path: Path) -> None:
    with serving(tmp_path) as client, ThreadPoolExecutor(16) as threads:
        cities = {"Lisbon": "sunny, 24", "Porto": "rain, 17", "Faro": "sunny, 27"}
        asked = [(f"s{number}", city) for number in range(16) for city in cities]
        answers = threads.map(lambda question: ask(client, question[0], question[1]).json()["text"], asked)
        assert list(answers) == [f"{city}: {cities[city]} degrees." for _, city in asked]
    assert left_in(tmp_path / "flask.db").closed


@pytest.mark.slow
def test_a_server_streams_an_answer_as_server_sent_events(tmp_path: Path) -> None:
    def events_of(text: str) -> list[tuple[str, object]]:
        with client.stream(
            "POST", "/sessions/alice/stream", json={"text": text}, headers={"Idempotency-Key": "1"}
        ) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            pieces = response.read().decode().strip().split("\n\n")
        pairs = [piece.split("\n") for piece in pieces]
        return [(kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for kind, data in pairs]

    with serving(tmp_path) as client:
        events = events_of("Weather in Lisbon?")
        assert events[0] == ("progress", "looking up Lisbon")
        assert events[-1] == ("end", "Completed")
        texts = [data for kind, data in events if kind == "text"]
        assert len(texts) > 1
        assert "".join(map(str, texts)) == "Lisbon: sunny, 24 degrees."
        [(kind, refusal)] = events_of("Weather in Porto?")
        assert (kind, "1" in str(refusal)) == ("error", True)


def test_the_script_asks_once_and_remembers(tmp_path: Path) -> None:
    script = command_line("-W", "error", ROOT / "examples" / "plain_script.py")
    said = [run(script, cwd=tmp_path, check=True) for _ in range(2)]
    assert [done.stdout.splitlines() for done in said] == [
        ["It will be sunny in Lisbon.", f"{calls} model calls, 4 messages in the log"] for calls in (2, 0)
    ]
    assert [done.stderr for done in said] == ["", ""]


@tool(tier="observe")
async def look(context: ToolContext[None]) -> str:
    context.progress("looking")
    return "looked"


@pytest.fixture
def flask_app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The example's app, whose runtime is in memory: a run of it reports something and then gets no answer."""
    app = import_module("examples.flask_app").app
    provider = ScriptedProvider([use("look"), stall("never", after=0)])
    with AgentRuntime(AgentConfig(model="m", streaming=True), provider=provider, tools=[look]) as runtime:
        monkeypatch.setitem(app.extensions, "refold", runtime)
        yield app


@pytest.mark.parametrize("body", [{}, {"text": 7}, ["text"], "text"])
@pytest.mark.parametrize("path", ["messages", "stream"])
def test_a_body_without_text_is_refused_by_flask(flask_app: Any, path: str, body: Any) -> None:
    response = flask_app.test_client().post(f"/sessions/alice/{path}", json=body)
    assert response.status_code == 422
    assert "the body is" in response.text


def test_who_hangs_up_on_a_stream_of_flask_cancels_the_run(flask_app: Any) -> None:
    response = flask_app.test_client().post("/sessions/alice/stream", json={"text": "Weather?"})
    assert b"looking" in next(response.iter_encoded())
    response.close()
    kinds = [type(recorded.event).__name__ for recorded in flask_app.extensions["refold"].session("alice").events()]
    assert kinds[-1] == "RunCancelled"
