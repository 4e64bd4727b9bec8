"""The same support desk on LangGraph and its SQLite checkpointer and store. See README.md in the folder above."""

import asyncio
import fcntl
import json
import os
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import aiosqlite
from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, ModelRequest, dynamic_prompt
from langchain.chat_models import init_chat_model
from langchain.tools import ToolRuntime, tool
from langchain_core.messages import AIMessageChunk, HumanMessage
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.store.sqlite.aio import AsyncSqliteStore
from langgraph.types import Command
from pydantic import ValidationError

from examples.support_desk.in_langgraph.scripted import ScriptedChatModel
from examples.support_desk.shop import PROMPT, Answer, Decision, Person, Question, Shop, User, Waiting, open_shop

WORKER = uuid.uuid4().hex
LOST_AFTER_S = 10.0
"""After how long without a sign of life of its worker a run is taken over."""
POLL_S = 0.2


@dataclass
class Caller:
    """Whom a run is for, and what tools need."""

    user: str
    shop: Shop


@tool
def orders(runtime: ToolRuntime[Caller]) -> list[dict[str, object]]:
    """List what the customer has ordered."""
    return runtime.context.shop.orders(runtime.context.user)


@tool
def refund(order: int, cents: int, runtime: ToolRuntime[Caller]) -> str:
    """Pay back what was paid for an order, or a part of it."""
    return runtime.context.shop.refund(runtime.context.user, order, cents, str(runtime.tool_call_id))


@tool
async def remember(content: str, runtime: ToolRuntime[Caller]) -> str:
    """Remember something for later."""
    await runtime.store.aput((runtime.context.user, "memories"), str(runtime.tool_call_id), {"content": content})
    return "Remembered."


@dynamic_prompt
async def prompt(request: ModelRequest[Caller]) -> str:
    user = request.runtime.context.user
    found = await request.runtime.store.asearch((user, "memories"))
    return "\n".join([PROMPT.format(user=user), *(f"- {item.value['content']}" for item in found)])


model = os.environ.get("DESK_MODEL")
CONFIRMED = {refund.name: refund}

TABLES = """
CREATE TABLE IF NOT EXISTS chats (chat TEXT PRIMARY KEY, user TEXT);
CREATE TABLE IF NOT EXISTS runs (
    id TEXT PRIMARY KEY, chat TEXT, user TEXT, key TEXT, question TEXT, status TEXT, worker TEXT, alive_at REAL,
    UNIQUE (chat, key)
);
CREATE UNIQUE INDEX IF NOT EXISTS one_at_a_time ON runs (chat) WHERE status IN ('running', 'waiting');
CREATE TABLE IF NOT EXISTS events (place INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT, kind TEXT, data TEXT);
"""


class Desk:
    """Carries runs out behind requests, and keeps what clients need that come back, in any worker."""

    def __init__(self, graph: Any, database: aiosqlite.Connection, shop: Shop) -> None:
        self.graph = graph
        self.database = database
        self.shop = shop
        self.running: set[asyncio.Task[None]] = set()

    async def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        async with self.database.execute(sql, values) as cursor:
            return list(await cursor.fetchall())

    async def write(self, sql: str, *values: object) -> int:
        """Return how many rows were changed, durably."""
        async with self.database.execute(sql, values) as cursor:
            return cursor.rowcount

    async def add(self, run: str, kind: str, data: object) -> None:
        await self.write("INSERT INTO events (run, kind, data) VALUES (?, ?, ?)", run, kind, json.dumps(data))

    def begin(self, run: str, chat: str, user: str, given: object) -> None:
        task = asyncio.create_task(self.carry_out(run, chat, user, given))
        self.running.add(task)
        task.add_done_callback(self.running.discard)

    async def carry_out(self, run: str, chat: str, user: str, given: object) -> None:
        """Let a run go on until it ends or waits, and keep what is streamed."""
        config = {"configurable": {"thread_id": chat}}
        said: dict[str | None, int] = {}
        status = "waiting"
        try:
            async for mode, item in self.graph.astream(
                given,
                config,
                context=Caller(user, self.shop),
                stream_mode=["messages", "updates"],
                durability="sync",
            ):
                if mode == "messages" and isinstance(item[0], AIMessageChunk) and (text := item[0].text):
                    await self.add(run, "text", {"at": said.get(item[0].id, 0), "text": text})
                    said[item[0].id] = said.get(item[0].id, 0) + len(text)
                elif mode == "updates":
                    for interrupt in item.get("__interrupt__", ()):
                        await self.add(run, "waiting", interrupt.value["name"])
            state = await self.graph.aget_state(config)
            if not state.next:
                status = "ended"
                await self.add(run, "end", state.values["structured_response"].model_dump())
        except Exception as error:  # noqa: BLE001 - how it failed is what its client is told
            status = "failed"
            await self.add(run, "failed", repr(error))
        await self.write("UPDATE runs SET status = ? WHERE id = ?", status, run)

    async def look_after(self) -> None:
        """Say that this worker lives, and take over the runs of workers that do not."""
        while True:
            now = time.time()
            await self.write("UPDATE runs SET alive_at = ? WHERE worker = ? AND status = 'running'", now, WORKER)
            lost = await self.rows(
                "UPDATE runs SET worker = ?, alive_at = ? WHERE status = 'running' AND alive_at < ?"
                " RETURNING id, chat, user, question",
                *(WORKER, now, now - LOST_AFTER_S),
            )
            for run, chat, user, question in lost:
                state = await self.graph.aget_state({"configurable": {"thread_id": chat}})
                known = any(message.id == run for message in state.values.get("messages", ()))
                self.begin(run, chat, user, None if known else asked(run, question))
            await asyncio.sleep(LOST_AFTER_S / 4)

    async def follow(self, run: str, place: int) -> AsyncIterator[tuple[int, str, Any]]:
        while True:
            sql = "SELECT place, kind, data FROM events WHERE run = ? AND place > ? ORDER BY place"
            for here, kind, data in await self.rows(sql, run, place):
                place = here
                yield place, kind, json.loads(data)
                if kind in ("end", "failed"):
                    return
            await asyncio.sleep(POLL_S)


def asked(run: str, question: str) -> dict[str, object]:
    return {"messages": [HumanMessage(question, id=run)]}


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    async with (
        open_shop() as shop,
        AsyncSqliteSaver.from_conn_string("graph.db") as checkpointer,
        AsyncSqliteStore.from_conn_string("graph.db") as store,
        aiosqlite.connect("graph.db", isolation_level=None) as database,
    ):
        with open("setup.lock", "w") as lock:  # noqa: ASYNC230 - workers that set up at once fail
            fcntl.flock(lock, fcntl.LOCK_EX)
            await checkpointer.setup()
            await store.setup()
            await database.executescript(TABLES)
        graph = create_agent(
            init_chat_model(model) if model else ScriptedChatModel(),
            [orders, refund, remember],
            middleware=[prompt, HumanInTheLoopMiddleware(dict.fromkeys(CONFIRMED, True), interrupt_mode="per_call")],
            response_format=Answer,
            context_schema=Caller,
            checkpointer=checkpointer.with_allowlist([(Answer.__module__, Answer.__name__)]),
            store=store,
        )
        app.state.desk = desk = Desk(graph, database, shop)
        work = asyncio.create_task(desk.look_after())
        yield
        for task in (work, *desk.running):
            task.cancel()
        await asyncio.gather(work, *desk.running, return_exceptions=True)


app = FastAPI(lifespan=lifespan)


def desk_of(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk


DeskOfApp = Annotated[Desk, Depends(desk_of)]


async def chat_of(chat: str, user: User, desk: DeskOfApp) -> str:
    """Return a chat of the user who asks; another user's is not found."""
    await desk.write("INSERT OR IGNORE INTO chats VALUES (?, ?)", chat, user)
    if await desk.rows("SELECT user FROM chats WHERE chat = ?", chat) != [(user,)]:
        raise HTTPException(404, "you have no such chat")
    return chat


Chat = Annotated[str, Depends(chat_of)]


async def run_of(run: str, chat: Chat, desk: DeskOfApp) -> str:
    if not await desk.rows("SELECT id FROM runs WHERE id = ? AND chat = ?", run, chat):
        raise HTTPException(404, "this chat has no such run")
    return run


Run = Annotated[str, Depends(run_of)]


@app.get("/chats")
async def chats(user: User, desk: DeskOfApp) -> list[str]:
    return [chat for (chat,) in await desk.rows("SELECT chat FROM chats WHERE user = ? ORDER BY chat", user)]


@app.post("/chats/{chat}/runs", status_code=202)
async def ask(
    chat: Chat,
    user: User,
    question: Question,
    desk: DeskOfApp,
    key: Annotated[str | None, Header(alias="Idempotency-Key")] = None,
) -> str:
    """Accept a question, and return its run at once; a chat has one run at a time."""
    run = uuid.uuid4().hex
    try:
        await desk.write(
            "INSERT INTO runs VALUES (?, ?, ?, ?, ?, 'running', ?, ?)",
            *(run, chat, user, key, question.text, WORKER, time.time()),
        )
    except aiosqlite.IntegrityError as error:
        match await desk.rows("SELECT id, question FROM runs WHERE chat = ? AND key = ?", chat, key):
            case [(before, question.text)]:
                return str(before)
            case [_]:
                raise HTTPException(409, "the key was used for another question") from error
            case _:
                raise HTTPException(409, "the chat has a run that has not ended") from error
    desk.begin(run, chat, user, asked(run, question.text))
    return run


@app.get("/chats/{chat}/runs/{run}")
async def answer(run: Run, desk: DeskOfApp) -> Answer:
    """Wait for the answer."""
    async for _, kind, data in desk.follow(run, 0):
        if kind == "end":
            return Answer.model_validate(data)
        if kind == "failed":
            raise HTTPException(502, data)
    raise AssertionError("unreachable")


@app.get("/chats/{chat}/runs/{run}/events", response_class=EventSourceResponse)
async def events(
    run: Run, desk: DeskOfApp, place: Annotated[int, Header(alias="Last-Event-ID")] = 0
) -> AsyncIterator[ServerSentEvent]:
    """Follow a run; a client that comes back misses nothing and gets nothing twice."""
    async for here, kind, data in desk.follow(run, place):
        yield ServerSentEvent(event=kind, id=str(here), data=data)


@app.get("/waiting")
async def waiting(_: Person, desk: DeskOfApp) -> list[Waiting]:
    """List the calls of all customers that wait for a person of the shop."""
    found = []
    for (chat,) in await desk.rows("SELECT chat FROM runs WHERE status = 'waiting'"):
        state = await desk.graph.aget_state({"configurable": {"thread_id": chat}})
        for interrupt in state.interrupts:
            call = interrupt.value
            found.append(Waiting(chat=chat, call=interrupt.id, tool=call["name"], arguments=call["args"]))
    return found


@app.post("/waiting/{chat}/{call}", status_code=204)
async def decide(chat: str, call: str, decision: Decision, person: Person, desk: DeskOfApp) -> None:
    """Allow a call, also with other arguments, or deny it."""
    found = {each.call: each for each in await waiting(person, desk) if each.chat == chat}
    if call not in found:
        raise HTTPException(409, "the call does not wait for a decision")
    decided: dict[str, object] = {"type": "approve"}
    if not decision.allow:
        decided = {"type": "reject", "message": decision.reason}
    elif decision.arguments is not None:
        name = found[call].tool
        try:
            CONFIRMED[name].tool_call_schema.model_validate(decision.arguments)
        except ValidationError as error:
            raise HTTPException(409, str(error)) from error
        decided = {"type": "edit", "edited_action": {"name": name, "args": decision.arguments}}
    won = await desk.rows(
        "UPDATE runs SET status = 'running', worker = ?, alive_at = ? WHERE chat = ? AND status = 'waiting'"
        " RETURNING id, user",
        *(WORKER, time.time(), chat),
    )
    if not won:
        raise HTTPException(409, "another person has decided")
    desk.begin(*won[0][:1], chat, won[0][1], Command(resume={call: decided}))
