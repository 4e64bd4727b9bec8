"""The support desk of examples/: whose chat is whose, what people decide, and what a client gets that comes back.

The one in LangGraph is held to the same, where its packages are installed.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest
from fastapi import FastAPI, HTTPException, Request

from examples.support_desk import desk, shop
from examples.support_desk.scripted import step
from refold import ModelRequest, ScriptedProvider
from refold.actors.calls.protocols import StreamItem
from refold.providers.scripted import ScriptFunction
from refold.stores.sqlite.ownership import log_owner
from tests.conformance.processes import QUIET, Process, command_line, left_in, read_until, started
from tests.examples.conftest import ROOT, run_example


class Event(NamedTuple):
    id: str
    kind: str
    data: Any


class Pausing(ScriptedProvider):
    """Gives a piece of an answer for each release."""

    def __init__(self, script: list[ScriptFunction]) -> None:
        super().__init__(script)
        self.pieces = asyncio.Semaphore(0)

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        async for item in super().stream(request):
            await self.pieces.acquire()
            yield item


class Person:
    """A client that is signed in."""

    def __init__(self, app: FastAPI, http: httpx.AsyncClient, name: str) -> None:
        self.app = app
        self.http = http
        self.headers = {"Authorization": f"Bearer {name}-token"}

    async def get(self, path: str, status: int = 200) -> Any:
        answer = await self.http.get(path, headers=self.headers)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def post(self, path: str, body: dict[str, Any], status: int, **headers: str) -> Any:
        answer = await self.http.post(path, json=body, headers=self.headers | headers)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    async def run(self, chat: str, text: str) -> str:
        return f"/chats/{chat}/runs/{await self.post(f'/chats/{chat}/runs', {'text': text}, 202)}"

    async def ask(self, chat: str, text: str) -> Any:
        return await self.get(await self.run(chat, text))

    @asynccontextmanager
    async def events(self, run: str, place: str = "0") -> AsyncIterator[AsyncIterator[Event]]:
        """Follow a run from a place on, until the block ends: then the client hangs up."""
        sent, hung_up = asyncio.Queue[MutableMapping[str, Any]](), asyncio.Event()
        requests = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> dict[str, Any]:
            if not requests:
                await hung_up.wait()
                return {"type": "http.disconnect"}
            return requests.pop()

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.put_nowait(message)

        async def events() -> AsyncIterator[Event]:
            assert (await sent.get())["status"] == 200
            while (message := await sent.get()).get("more_body"):
                lines = [line.split(": ", 1) for line in message["body"].decode().strip().split("\n")]
                found = dict(line for line in lines if len(line) == 2)
                yield Event(found["id"], found["event"], json.loads(found["data"]))

        headers = {"host": "desk", "last-event-id": place} | self.headers
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "GET",
            "path": f"{run}/events",
            "query_string": b"",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        }
        response = asyncio.create_task(self.app(scope, receive, send))
        yield events()
        hung_up.set()
        await response


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[tuple[Person, Person, Person]]:
    """Open the application in this process, for two customers and a person of the shop."""
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://desk") as http,
    ):
        yield Person(app, http, "alice"), Person(app, http, "bob"), Person(app, http, "sam")


@pytest.fixture(params=["desk", "in_langgraph.desk"])
def app(request: pytest.FixtureRequest) -> FastAPI:
    if request.param != "desk":
        pytest.importorskip("langgraph.checkpoint.sqlite", reason="it is no part of the development tools")
    found: FastAPI = import_module(f"examples.support_desk.{request.param}").app
    return found


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def refunds() -> list[tuple[int, int]]:
    async with shop.open_shop() as opened:
        return opened.refunds()


async def test_a_person_of_the_shop_changes_a_refund_also_after_a_restart(app: FastAPI) -> None:
    async with serving(app) as (alice, _, sam):
        run = await alice.run("teapot", "Refund 5000 cents of order 7.")
        async with alice.events(run) as events:
            assert (await anext(events))[1:] == ("waiting", "refund")
        waiting = await sam.get("/waiting")
        assert [call["arguments"] for call in waiting] == [{"order": 7, "cents": 5000}]
    async with serving(app) as (alice, _, sam):
        assert await sam.get("/waiting") == waiting
        call = f"/waiting/teapot/{waiting[0]['call']}"
        await alice.post(call, {"allow": True}, 403)
        await sam.post(call, {"allow": True, "arguments": {"order": 7, "cents": "all"}}, 409)
        async with alice.events(run) as events:
            assert (await anext(events)).kind == "waiting"
            await sam.post(call, {"allow": True, "arguments": {"order": 7, "cents": 2000}}, 204)
            came = [event async for event in events]
        answer = await alice.get(run)
        await sam.post(call, {"allow": True}, 409)
    assert (answer["refunded_cents"], await refunds()) == (2000, [(7, 2000)])
    assert came.pop()[1:] == ("end", answer)
    assert {event.kind for event in came} == {"text"}
    assert json.loads("".join(event.data["text"] for event in came)) == answer
    assert [event.data["at"] for event in came] == [8 * number for number in range(len(came))]


async def test_a_client_that_comes_back_in_the_middle_of_an_answer_gets_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Pausing([step] * 10)
    monkeypatch.setattr(desk, "agent", msgspec.structs.replace(desk.agent, provider=model))
    async with serving(desk.app) as (alice, _, _):
        run = await alice.run("teapot", "What do you know?")
        async with alice.events(run) as events:
            model.pieces.release()
            came = [await anext(events)]
            model.pieces.release()
            came.append(await anext(events))
        async with alice.events(run, came[0].id) as events:
            assert (await anext(events))[1:] == came[1][1:]
            for _ in range(10):
                model.pieces.release()
            came += [event async for event in events]
        text = "".join(event.data["text"] for event in came[:-1])
        assert json.loads(text) == came[-1].data == {"text": "I do not know.", "refunded_cents": 0}
        async with alice.events(run, came[-1].id) as events:
            assert [event async for event in events] == came[-1:]


async def test_a_run_that_fails_and_a_process_that_ends_are_told_to_those_who_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(desk, "agent", msgspec.structs.replace(desk.agent, provider=ScriptedProvider([step])))
    async with serving(desk.app) as (alice, bob, _):
        waits = await alice.run("teapot", "Refund 5000 cents of order 7.")
        async with alice.events(waits) as events:
            assert (await anext(events)).kind == "waiting"
        fails = await bob.run("other", "What do you know?")
        async with bob.events(fails) as events:
            assert [event.kind async for event in events] == ["failed"]
        assert "the script has 1 answers" in (await bob.get(fails, 502))["detail"]
        waiting = asyncio.create_task(alice.get(waits, 503))
        await asyncio.sleep(0)
        await desk.app.state.runtime.close()
        assert "closed" in (await waiting)["detail"]


async def test_a_user_is_remembered_in_all_chats_and_reaches_no_other_users(app: FastAPI) -> None:
    async with serving(app) as (alice, bob, _):
        await alice.ask("first", "Remember I like green tea.")
        second = await alice.run("second", "Which tea do I like?")
        assert (await alice.get(second))["text"] == "I like green tea"
        assert (await bob.ask("mine", "Which tea do I like?"))["text"] == "I do not know."
        assert "red" in (await bob.ask("mine", "What have I ordered?"))["text"]
        assert await alice.get("/chats") == ["first", "second"]
        for path in (second, f"{second}/events", "/chats/first/runs/run_99"):
            await bob.get(path, 404)
        await bob.post("/chats/first/runs", {"text": "Hello."}, 404)
        await alice.get("/chats/first/runs/run_99", 404)
        await bob.get("/waiting", 403)
        await Person(app, bob.http, "eve").get("/chats", 401)


async def test_a_chat_that_another_user_begins_at_the_same_moment_is_not_read() -> None:
    async with serving(desk.app) as (alice, _, _):
        runtime = desk.runtime_of(Request({"type": "http", "app": desk.app}))
        chat = await desk.chat_of("new", "bob", runtime)
        run = await alice.run("new", "What do you know?")
        with pytest.raises(HTTPException, match="404"):
            await desk.run_of(run.rpartition("/")[2], chat)


async def test_the_same_key_is_the_same_run_and_never_another_question(app: FastAPI) -> None:
    async with serving(app) as (alice, _, _):
        key = {"Idempotency-Key": "1"}
        runs = [await alice.post("/chats/a/runs", {"text": "What have I ordered?"}, 202, **key) for _ in range(2)]
        assert runs[0] == runs[1]
        await alice.post("/chats/a/runs", {"text": "And now?"}, 409, **key)
        await alice.post("/chats/a/runs", {"text": ""}, 422)


def test_it_takes_fewer_lines_than_in_langgraph_and_its_readme_says_how_many(tmp_path: Path) -> None:
    counts = run_example("support_desk/count.py", tmp_path)
    refold, langgraph = (int(line.split()[1]) for line in counts)
    assert refold < langgraph
    assert "\n".join(counts) in (ROOT / "examples" / "support_desk" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("path", "header"),
    [
        ("/chats/a/runs/run_4/events", {"Last-Event-ID": "abc"}),
        ("/chats/a/runs/run_4/events", {"Last-Event-ID": "1.2"}),
        (f"/chats/{'x' * 5000}/runs", {}),
        ("/chats/%00/runs", {}),
    ],
)
async def test_what_cannot_be_is_refused_in_words(path: str, header: dict[str, str]) -> None:
    async with serving(desk.app) as (alice, _, _):
        assert (await alice.run("a", "What do you know?")) == "/chats/a/runs/run_4"
        method = "GET" if path.endswith("events") else "POST"
        answer = await alice.http.request(method, path, json={"text": "Hello?"}, headers=alice.headers | header)
        assert (answer.status_code, bool(answer.json()["detail"])) == (422, True)


@contextmanager
def workers(folder: Path) -> Iterator[tuple[Process, httpx.Client]]:
    """Serve from three processes until the block ends; they must have ended by then."""
    # Its supervisor kills a worker that does not answer for 5 s, though it only begins slowly.
    patient = ("--timeout-worker-healthcheck", "60")
    line = command_line("-m", "uvicorn", "examples.support_desk.desk:app", "--workers", "3", "--port", "0", *patient)
    environment = QUIET | {"PYTHONPATH": str(ROOT)}
    with started(line, stderr=subprocess.STDOUT, cwd=folder, env=environment, start_new_session=True) as process:
        try:
            address = re.search(r"http://[\d.:]+", read_until(process, "INFO:     Uvicorn running on"))
            assert address
            read_until(process, *3 * ["INFO:     Application startup complete"])
            limits = httpx.Limits(max_keepalive_connections=0)  # A connection may be that of a worker that was killed.
            with httpx.Client(base_url=address[0], timeout=60, limits=limits) as client:
                yield process, client
            assert "Traceback" not in process.communicate(timeout=60)[0]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def events_in(response: httpx.Response) -> Iterator[tuple[str, str]]:
    """Yield the kind and the id of each event."""
    kind = ""
    for line in response.iter_lines():
        name, _, text = line.partition(": ")
        if name == "event":
            kind = text
        elif name == "id":
            yield kind, text


@pytest.mark.slow
def test_three_workers_are_one_desk_whichever_is_killed(tmp_path: Path) -> None:
    alice, sam = ({"Authorization": f"Bearer {name}-token"} for name in ("alice", "sam"))
    with workers(tmp_path) as (process, client):
        question = {"text": "Refund 5000 cents of order 7."}
        run = f"/chats/teapot/runs/{client.post('/chats/teapot/runs', json=question, headers=alice).json()}"
        with client.stream("GET", f"{run}/events", headers=alice) as response:
            kind, place = next(events_in(response))
            assert kind == "waiting"
        killed = set[int]()
        while len(killed) < 2:
            owner = log_owner(tmp_path / "desk.db")
            if owner is not None and owner.pid is not None and owner.pid not in killed:
                os.kill(owner.pid, signal.SIGKILL)
                killed.add(owner.pid)
        [waiting] = client.get("/waiting", headers=sam).json()
        with client.stream("GET", f"{run}/events", headers=alice | {"Last-Event-ID": place}) as response:
            changed = {"allow": True, "arguments": {"order": 7, "cents": 2000}}
            call = f"/waiting/teapot/{waiting['call']}"
            assert client.post(call, json=changed, headers=sam).status_code == 204
            came = list(events_in(response))
        assert [kind for kind, _ in came] == ["text"] * (len(came) - 1) + ["end"]
        assert len({place, *(id for _, id in came)}) == 1 + len(came)
        assert client.get(run, headers=alice).json()["refunded_cents"] == 2000
        run = f"/chats/other/runs/{client.post('/chats/other/runs', json=question, headers=alice).json()}"
        with client.stream("GET", f"{run}/events", headers=alice) as response:
            events = events_in(response)
            assert next(events)[0] == "waiting"
            process.send_signal(signal.SIGTERM)
            assert list(events) == []
    assert left_in(tmp_path / "desk.db", "teapot").ends == ["RunCompleted"]
    assert left_in(tmp_path / "desk.db", "other").closed
