"""Who may ask the served page, and what asking does."""

import asyncio
import hashlib
import math
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import uvicorn
from starlette.responses import JSONResponse
from uvicorn.server import ServerState

from refold import page
from refold.actors import ManualClock
from refold.serving import routes
from refold.serving.doors import HEADERS, TOKEN_HEADER
from refold.serving.patience import ImpatientProtocol
from tests.runtime.command_line import run, started
from tests.runtime.log_builder import LogBuilder, log_of, use
from tests.runtime.page.conftest import HOST, TOKEN, Serve

STATIC = Path(page.__file__).parent / "static"

QUESTIONS = (
    "sessions",
    "session?session=alice",
    "frames?session=alice&chunk=0",
    "spans?session=alice&after=0",
    "search?session=alice&text=sunny",
    "beside?session=alice",
    "event?session=alice&version=3",
    "why?event=alice@6",
    "request?session=alice&version=6",
    "waiting",
    "waiting?session=carol",
    "diff?left=alice&right=carol",
    "changes?after=0",
)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "[::1]:9"}, 200),
        ({"host": "127.0.0.1"}, 200),
        ({"host": "127\u30020.0.1"}, 421),
        ({"host": "[0:0:0:0:0:0:0:1]"}, 421),
        ({"sec-fetch-site": "same-origin", "origin": f"http://{HOST}"}, 200),
        ({"sec-fetch-site": "same-origin", "origin": f"https://{HOST}"}, 200),
        ({TOKEN_HEADER: ""}, 401),
        ({TOKEN_HEADER: TOKEN[:-1]}, 401),
        ({TOKEN_HEADER: "ä"}, 401),
        ({"host": "evil.example"}, 421),
        ({"host": "127.0.0.1.evil.example:8000"}, 421),
        ({"host": "localhost:8000"}, 421),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "navigate"}, 403),
    ],
)
async def test_only_the_page_with_its_token_is_let_in(
    serve: Serve, log_file: Path, headers: dict[str, str], status: int
) -> None:
    async with serve(log_file) as client:
        given = {name: value.encode() for name, value in headers.items()}
        answer = await client.get("/api/sessions", headers=given)  # type: ignore[arg-type]
        assert answer.status_code == status
        assert ("alice" in answer.text) == (status == 200)
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        assert "access-control-allow-origin" not in answer.headers


async def test_a_request_has_one_host_and_an_answer_a_greatest_size(
    serve: Serve, log_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "ANSWER_MAX", 1_000)
    async with serve(log_file) as client:
        hosts = httpx.Headers([("host", HOST), ("host", "evil.example"), (TOKEN_HEADER, TOKEN)])
        assert (await client.get("/api/sessions", headers=hosts)).status_code == 421
        answer = await client.get("/api/frames?session=alice&chunk=0")
        assert (answer.status_code, "the page shows 1,000" in answer.json()["error"]) == (413, True)


async def test_the_files_of_the_page_hold_nothing_of_a_log_and_are_the_only_ones(serve: Serve, log_file: Path) -> None:
    link = {TOKEN_HEADER: "", "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    async with serve(log_file) as client:
        assert (await client.get("/", headers=link)).text == (STATIC / "index.html").read_text()
        for file in STATIC.iterdir():
            answer = await client.get(f"/page/{file.name}", headers={TOKEN_HEADER: ""})
            assert (answer.status_code, answer.content) == (200, file.read_bytes())
        for path in ("/page/../pages.py", "/page/%2e%2e%2fpages.py", "/page/pages.py", "/page/", "/events.db"):
            assert (await client.get(path)).status_code == 404


async def test_a_get_changes_nothing_and_nothing_else_is_answered(serve: Serve, log_file: Path) -> None:
    def files() -> dict[str, str]:
        index = (".db-wal", ".db-shm")  # SQLite's own, of a file that is read.
        found = [path for path in log_file.parent.iterdir() if path.suffix not in index]
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file" for path in found
        }

    async with serve(log_file) as client:
        fork = {"session": "alice", "at": 5, "name": "with-an-inbox"}
        assert (await client.post("/api/fork", json=fork)).status_code == 200
        before = files()
        for question in QUESTIONS:
            assert (await client.get(f"/api/{question}")).status_code == 200, question
            assert (await client.post(f"/api/{question}")).status_code == 405, question
            assert (await client.get(f"/api/{question}", headers={TOKEN_HEADER: "x"})).status_code == 401, question
        for command in ("decide", "answer", "fork"):
            assert (await client.get(f"/api/{command}")).status_code == 405
    assert files() == before


async def test_another_log_in_the_place_of_the_one_that_was_opened_is_not_shown(
    serve: Serve, log_file: Path, tmp_path: Path
) -> None:
    other = await asyncio.to_thread(log_of, tmp_path / "other.db", waiting)
    async with serve(log_file) as client:
        assert (await client.get("/api/sessions")).json()["total"] == 3
        for change in (lambda: other.replace(log_file), log_file.unlink):
            change()
            decided = {"session": "alice", "call": "call_7_0", "allow": True}
            for answer in (
                await client.get("/api/waiting"),
                await client.get("/api/changes?after=0"),
                await client.post("/api/decide", json=decided),
            ):
                assert (answer.status_code, "start refold inspect again" in answer.json()["error"]) == (500, True)


async def test_a_connection_that_does_not_go_on_is_closed_and_one_that_waits_for_an_answer_is_not() -> None:
    looks, heard, answers = asyncio.Queue[Callable[[], None]](), asyncio.Queue[bytes](), asyncio.Event()

    class PatientLoop:
        """The loop of this test, in which time passes for a connection when the test says so."""

        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio.get_running_loop(), name)

        def call_later(self, delay_s: float, callback: Callable[[], None], *given: Any) -> asyncio.TimerHandle:
            if delay_s == ImpatientProtocol.patience_s:
                looks.put_nowait(callback)
            return asyncio.get_running_loop().call_at(math.inf, callback, *given)

    class Heard(ImpatientProtocol):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            heard.put_nowait(data)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "POST":
            while (await receive()).get("more_body"):
                pass
        await answers.wait()
        await JSONResponse("waited")(scope, receive, send)

    def connection() -> ImpatientProtocol:
        return Heard(config, state, {}, _loop=cast(asyncio.AbstractEventLoop, PatientLoop()))

    config = uvicorn.Config(app, log_level="critical")
    config.load()
    state = ServerState()
    async with await asyncio.get_running_loop().create_server(connection, HOST[:9], 0) as server:
        port = server.sockets[0].getsockname()[1]
        for said, answered in (
            (b"", False),
            (b"GET / HTTP/1.1\r\nHost: 127", False),
            (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{", False),
            (b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", True),
        ):
            reader, writer = await asyncio.open_connection(HOST[:9], port)
            writer.write(said)
            if said:
                assert await heard.get() == said
            for _ in range(5 if answered else 2):
                (await looks.get())()
            answers.set()
            try:
                told = await reader.read()
            except ConnectionResetError:
                told = b""
            assert (b"waited" in told) == answered, said
            writer.close()
            answers.clear()


@pytest.mark.parametrize(
    ("question", "status", "words"),
    [
        ("session?session=nobody", 404, "no session 'nobody'"),
        ("session", 400, "session is missing"),
        ("frames?session=alice&chunk=-1", 404, "no events there"),
        ("frames?session=alice&chunk=x", 400, "Expected `int`"),
        ("event?session=alice&version=99", 404, "has the versions 1 to 11"),
        ("request?session=alice&version=1", 404, "version 1 of session 'alice' has no request"),
        ("payload?session=alice&hash=../etc/passwd", 404, "is no hash"),
        ("diff?left=alice&right=alice", 404, "compared with itself"),
        ("sessions?order=sideways", 400, "Invalid enum value"),
        ("sessions?limit=10&unknown=1", 400, "unknown field"),
    ],
)
async def test_what_cannot_be_answered_is_told(
    serve: Serve, log_file: Path, question: str, status: int, words: str
) -> None:
    async with serve(log_file) as client:
        answer = await client.get(f"/api/{question}")
        assert (answer.status_code, words in answer.json()["error"]) == (status, True), answer.text


@pytest.mark.parametrize(
    ("change", "version", "damage"),
    [
        ("DELETE FROM events WHERE version = 5", 4, "version 5 of session/alice is missing"),
        ("DELETE FROM events WHERE version > 8", 8, "version 9 of session/alice is missing"),
        ('UPDATE events SET data = \'{"type":"x"}\' WHERE version = 6', 5, "'x'"),
    ],
)
async def test_a_damaged_session_is_shown_as_far_as_it_goes(
    serve: Serve, log_file: Path, change: str, version: int, damage: str
) -> None:
    with closing(sqlite3.connect(log_file)) as connection:
        connection.execute(f"{change} AND stream = (SELECT id FROM streams WHERE name = 'session/alice')")
        connection.commit()
    async with serve(log_file) as client:
        for question in QUESTIONS:
            answer = await client.get(f"/api/{question}")
            assert answer.status_code == 200 or answer.json()["error"], question
        head = (await client.get("/api/session?session=alice")).json()
        assert (head["version"], head["complete"], damage in head["damage"]) == (version, True, True), head
        assert (await client.get("/api/frames?session=alice&chunk=1")).status_code == 404


async def waiting(builder: LogBuilder) -> None:
    await builder.open("alice")
    await builder.send("alice", "pay")
    await builder.answer("alice", use("pay", amount=1234567890123456789))


async def test_a_person_decides_through_the_inbox(serve: Serve, tmp_path: Path) -> None:
    log = await asyncio.to_thread(log_of, tmp_path / "events.db", waiting)
    async with serve(log) as client:
        [asked] = (await client.get("/api/waiting")).json()
        assert asked["what"] == "pay(amount=1234567890123456789)"
        nested = {"session": "alice", "question": "q", "text": "[" * 100_000}
        assert (await client.post("/api/answer", json=nested)).status_code == 409
        denied = {"session": "alice", "call": asked["call"], "allow": False, "reason": "too much"}
        assert (await client.post("/api/decide", json=denied)).json() == {"done": True}
        assert (await client.get("/api/waiting")).json() == []
        again = await client.post("/api/decide", json=denied)
        assert (again.status_code, "wait" in again.json()["error"]) == (409, True)
        [found] = (await client.get("/api/search", params={"session": "alice", "text": "too much"})).json() or [0]
        assert found == 0  # It was not read yet.
        assert (await client.get("/api/session?session=alice")).json()["complete"]
        assert (await client.get("/api/search", params={"session": "alice", "text": "too much"})).json()


@pytest.mark.parametrize(
    ("said", "headers", "status"),
    [
        (b"{}", {}, 400),
        (b'{"session":"alice","call":"c","allow":true,"run":"rm"}', {}, 400),
        (b'{"session":"alice","call":"c","allow":true}', {"content-type": "text/plain"}, 400),
        (b'{"session":"nobody","call":"c","allow":true}', {}, 404),
        (b"[" * 100_000, {}, 400),
        (b" " * (routes.BODY_MAX + 1), {}, 400),
        (b'{"session":"alice","call":"\xff","allow":true}', {}, 400),
        (b'{"session":"alice","call":"c","allow":true}', {TOKEN_HEADER: "x"}, 401),
        (b'{"session":"alice","call":"c","allow":true}', {"origin": "http://evil.example"}, 403),
    ],
)
async def test_a_command_that_is_none_is_refused(
    serve: Serve, log_file: Path, said: bytes, headers: dict[str, str], status: int
) -> None:
    async with serve(log_file) as client:
        answer = await client.post("/api/decide", content=said, headers={"content-type": "application/json", **headers})
        assert answer.status_code == status, answer.text


async def test_a_fork_is_made(serve: Serve, log_file: Path) -> None:
    async with serve(log_file) as client:
        fork = {"session": "alice", "at": 5, "name": "other"}
        assert (await client.post("/api/fork", json=fork)).json() == {"done": True}
        assert (await client.post("/api/fork", json=fork)).status_code in (200, 409)
        assert (await client.get("/api/session?session=other")).json()["forked_from"] == "session/alice@5"
        head = (await client.get("/api/session?session=alice")).json()  # The list of sessions was never asked for.
        assert (head["related"], [fork["session"] for fork in head["forks"]]) == (True, ["other"])


async def test_a_log_of_text_is_shown_and_not_written(serve: Serve, log_file: Path, tmp_path: Path) -> None:
    text = tmp_path / "log.jsonl"
    assert (await asyncio.to_thread(run, "export", log_file, "--output", text)).exit_code == 0
    async with serve(text) as client:
        assert (await client.get("/api/sessions")).json()["total"] == 3
        answer = await client.post("/api/decide", json={"session": "alice", "call": "c", "allow": True})
        assert (answer.status_code, "only read" in answer.json()["error"]) == (404, True)


async def test_a_server_that_is_to_end_lets_no_page_wait(serve: Serve, log_file: Path) -> None:
    async with serve(log_file, clock=ManualClock(), ending=True) as client:
        assert (await client.get("/api/changes?after=1000000")).json()["position"] < 1_000_000


def test_the_command_writes_an_address_that_opens_it(log_file: Path) -> None:
    with started("inspect", log_file) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"(http://127\.0\.0\.1:\d+/)#token=([\w-]{40,})\n", line)
        assert found is not None, line
        with httpx.Client(base_url=found[1], headers={TOKEN_HEADER: found[2]}, timeout=60) as client:
            while not (shown := client.get("api/sessions").json())["complete"]:
                pass
            assert shown["total"] == 3
            assert client.get("api/sessions", headers={TOKEN_HEADER: ""}).status_code == 401
        process.terminate()
