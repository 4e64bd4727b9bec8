"""A support desk on Refold, for any number of worker processes; it needs no key and no network. See README.md here."""

import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent

from examples.support_desk.scripted import provider as scripted
from examples.support_desk.shop import PROMPT, Answer, Decision, Person, Question, Shop, User, Waiting, open_shop
from refold import (
    ActorStopped,
    Agent,
    AgentConfig,
    AgentRuntime,
    CommandRejected,
    ConfigError,
    EpisodicStore,
    RecordedEvent,
    RunContext,
    RunHandle,
    RunNotCompleted,
    Session,
    Streamed,
    TextDelta,
    ToolApprovalRequested,
    ToolContext,
    close_on_sigterm,
    memory_tools,
    tool,
)
from refold.providers import AnthropicProvider


@tool(tier="observe", effect="pure")
def orders(context: ToolContext[Shop]) -> list[dict[str, object]]:
    """List what the customer has ordered."""
    return context.deps.orders(str(context.user))


@tool(tier="confirm", effect="idempotent")
def refund(order: int, cents: int, context: ToolContext[Shop]) -> str:
    """Pay back what was paid for an order, or a part of it."""
    return context.deps.refund(str(context.user), order, cents, context.idempotency_key)


def prompt(context: RunContext[Shop]) -> str:
    return PROMPT.format(user=context.user)


PLACE = r"^[0-9]{1,18}(\.[0-9]{1,18}\.[0-9]{1,18})?$"
memory = EpisodicStore()
model = os.environ.get("DESK_MODEL")
agent = Agent(
    config=AgentConfig(model=model or "scripted", system_prompt=prompt, streaming=True),
    provider=AnthropicProvider() if model else scripted,
    tools=[orders, refund, *memory_tools(episodic=memory)],
    memory=memory,
    output_type=Answer,
    deps=open_shop,
)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    async with AgentRuntime(agent, log="desk.db", share=True) as runtime, close_on_sigterm(runtime):
        app.state.runtime = runtime
        yield


app = FastAPI(lifespan=lifespan)


@app.exception_handler(ConfigError)
@app.exception_handler(ActorStopped)
async def refused(_: Request, error: Exception) -> JSONResponse:
    """Answer where a name cannot be one, or this process ends; the client then comes back to the next one."""
    return JSONResponse({"detail": str(error)}, 503 if isinstance(error, ActorStopped) else 422)


def runtime_of(request: Request) -> AgentRuntime[Answer]:
    runtime: AgentRuntime[Answer] = request.app.state.runtime
    return runtime


Runtime = Annotated[AgentRuntime[Answer], Depends(runtime_of)]


async def chat_of(chat: str, user: User, runtime: Runtime) -> Session[Answer]:
    """Return a chat of the user who asks; another user's is not found."""
    try:
        return await runtime.session(chat, user=user)
    except CommandRejected as error:
        raise HTTPException(404, "you have no such chat") from error


Chat = Annotated[Session[Answer], Depends(chat_of)]


async def run_of(run: str, chat: Chat) -> RunHandle[Answer]:
    try:
        return await chat.run(run)
    except (CommandRejected, ConfigError) as error:
        raise HTTPException(404, "this chat has no such run") from error


Run = Annotated[RunHandle[Answer], Depends(run_of)]


@app.get("/chats")
async def chats(user: User, runtime: Runtime) -> list[str]:
    return list(await runtime.sessions(user=user))


@app.post("/chats/{chat}/runs", status_code=202)
async def ask(
    chat: Chat, question: Question, key: Annotated[str | None, Header(alias="Idempotency-Key")] = None
) -> str:
    """Accept a question for good, and return its run at once."""
    try:
        return (await chat.submit(question.text, key=key)).run
    except CommandRejected as error:
        raise HTTPException(409, str(error)) from error


@app.get("/chats/{chat}/runs/{run}")
async def answer(run: Run) -> Answer:
    """Wait for the answer."""
    try:
        return (await run.result()).output
    except RunNotCompleted as error:
        raise HTTPException(502, str(error)) from error


@app.get("/chats/{chat}/runs/{run}/events", response_class=EventSourceResponse)
async def events(
    run: Run, place: Annotated[str, Header(alias="Last-Event-ID", pattern=PLACE)] = "0"
) -> AsyncIterator[ServerSentEvent]:
    """Follow a run; a client that comes back misses nothing and gets nothing twice."""
    try:
        async with run.stream(place) as reader:
            async for item in reader:
                match item:
                    case Streamed(delta=TextDelta(text=text), offset=offset):
                        yield ServerSentEvent(event="text", id=reader.place, data={"at": offset, "text": text})
                    case RecordedEvent(event=ToolApprovalRequested(tool=name)):
                        yield ServerSentEvent(event="waiting", id=reader.place, data=name)
        yield ServerSentEvent(event="end", id=reader.place, data=(await run.result()).output)
    except RunNotCompleted as error:
        yield ServerSentEvent(event="failed", id=reader.place, data=str(error))
    except ActorStopped:
        return


@app.get("/waiting")
async def waiting(_: Person, runtime: Runtime) -> list[Waiting]:
    """List the calls of all customers that wait for a person of the shop."""
    found = [
        each
        for name in await runtime.sessions(status="waiting")
        for each in await (await runtime.session(name)).approvals()
    ]
    return [Waiting(chat=each.session, call=each.call, tool=each.tool, arguments=each.input) for each in found]


@app.post("/waiting/{chat}/{call}", status_code=204)
async def decide(chat: str, call: str, decision: Decision, person: Person, runtime: Runtime) -> None:
    """Allow a call, also with other arguments, or deny it."""
    session = await runtime.session(chat)
    try:
        await session.decide(call, allow=decision.allow, arguments=decision.arguments, reason=decision.reason)
    except CommandRejected as error:
        raise HTTPException(409, str(error)) from error
