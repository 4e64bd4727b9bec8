"""An agent behind FastAPI, on the server's own event loop; it needs no key and no network.

From the top folder:

    pip install fastapi uvicorn
    uvicorn examples.fastapi_app:app
    curl localhost:8000/sessions/alice/messages -H 'Idempotency-Key: 17' --json '{"text": "Weather in Lisbon?"}'
    curl -N localhost:8000/sessions/alice/stream --json '{"text": "And in Porto?"}'
    curl localhost:8000/sessions/alice/runs --json '{"text": "And in Faro?"}'
    curl -N localhost:8000/runs/alice/run_21/events -H 'Last-Event-ID: 25'

Stop it at any moment and start it again: what was accepted goes on, and a client that repeats its request with the
same key gets the answer of the first. One process has the log: run one worker, which serves many requests at once.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from examples.weather_agent import next_step, weather
from refold import (
    ActorStopped,
    AgentConfig,
    AgentRuntime,
    CommandRejected,
    ConfigError,
    Progressed,
    RecordedEvent,
    ScriptedProvider,
    Session,
    Streamed,
    TextDelta,
    close_on_sigterm,
)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    """Open the runtime when the server starts, and close it when the server stops."""
    async with AgentRuntime(
        AgentConfig(model="scripted", streaming=True),
        provider=ScriptedProvider([next_step] * 1000),
        tools=[weather],
        log="fastapi.db",
    ) as runtime:
        app.state.runtime = runtime
        async with close_on_sigterm(runtime):  # Or a response that is still streamed would keep the server from ending.
            yield


app = FastAPI(lifespan=lifespan)


class Question(BaseModel):
    """What a user says."""

    text: str


async def session_of(session_id: str, request: Request) -> Session:
    """Return the session that the path names; it is in the log, or new."""
    runtime: AgentRuntime = request.app.state.runtime
    return await runtime.session(session_id)


SessionOfPath = Annotated[Session, Depends(session_of)]
Key = Annotated[str | None, Header(alias="Idempotency-Key")]


@app.post("/sessions/{session_id}/messages")
async def send(session: SessionOfPath, question: Question, key: Key = None) -> dict[str, str]:
    """Answer a question; the same key with the same question is the same run, and its answer."""
    try:
        result = await session.send(question.text, key=key)
    except CommandRejected as error:
        raise HTTPException(422, str(error)) from error
    except ActorStopped as error:
        raise HTTPException(503, "the server restarts; send it again with the same key") from error
    return {"run": result.run, "outcome": type(result.outcome).__name__, "text": result.text}


@app.post("/sessions/{session_id}/stream")
async def stream(session: SessionOfPath, question: Question, key: Key = None) -> StreamingResponse:
    """Answer a question piece by piece, as Server-Sent Events; a client that hangs up cancels the run."""

    async def events() -> AsyncIterator[str]:
        try:
            async with session.stream(question.text, key=key) as items:
                async for item in items:
                    match item:
                        case Streamed(delta=TextDelta(text=text)):
                            yield server_sent("text", text)
                        case Progressed(report=report):
                            yield server_sent("progress", report)
                        case _:
                            continue
            yield server_sent("end", type(items.result.outcome).__name__)
        except CommandRejected as error:
            yield server_sent("error", str(error))

    return StreamingResponse(events(), media_type="text/event-stream")


@app.post("/sessions/{session_id}/runs", status_code=202)
async def submit(session: SessionOfPath, question: Question, key: Key = None) -> dict[str, str]:
    """Accept a question, and return its run at once; the answer is read from `/runs/…/events`."""
    try:
        return {"id": (await session.submit(question.text, key=key)).id}
    except CommandRejected as error:
        raise HTTPException(422, str(error)) from error


@app.get("/runs/{run_id:path}/events")
async def events(
    run_id: str, request: Request, place: Annotated[str, Header(alias="Last-Event-ID")] = "0"
) -> StreamingResponse:
    """Follow a run, as Server-Sent Events; a client that comes back misses nothing and gets nothing twice."""
    try:
        reader = (await request.app.state.runtime.run(run_id)).stream(place)
    except ConfigError as error:
        raise HTTPException(404, str(error)) from error

    async def lines() -> AsyncIterator[str]:
        async with reader:
            async for item in reader:
                match item:
                    case Streamed(delta=TextDelta(text=text)):
                        yield f"id: {reader.place}\n{server_sent('text', text)}"
                    case RecordedEvent(event=event):
                        yield f"id: {reader.place}\n{server_sent('event', type(event).__name__)}"
                    case _:
                        continue

    return StreamingResponse(lines(), media_type="text/event-stream")


@app.get("/sessions/{session_id}")
async def history(session: SessionOfPath) -> list[dict[str, str]]:
    """Return what was said so far."""
    return [{"role": message.role, "text": message.text} for message in await session.history()]


def server_sent(kind: str, data: object) -> str:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"
