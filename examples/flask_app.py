"""An agent behind Flask, whose requests are answered by threads; it needs no key and no network.

From the top folder:

    pip install flask
    flask --app examples.flask_app run
    curl localhost:5000/sessions/alice/messages -H 'Idempotency-Key: 17' --json '{"text": "Weather in Lisbon?"}'
    curl -N localhost:5000/sessions/alice/stream --json '{"text": "And in Porto?"}'

The runtime has an event loop of its own, in a thread of its own; requests only wait for it. It is opened by the first
request, since a server may import this module and fork later, and closed when the process ends. One process has the
log: run one worker with many threads (`gunicorn --workers 1 --threads 16 examples.flask_app:app`).
"""

import json
import threading
from collections.abc import Iterator

from flask import Flask, Response, abort, request

from examples.weather_agent import next_step, weather
from refold import (
    AgentConfig,
    AgentRuntime,
    CommandRejected,
    Progressed,
    ScriptedProvider,
    Streamed,
    SyncRuntime,
    TextDelta,
)

app = Flask(__name__)
opening = threading.Lock()


def runtime() -> SyncRuntime:
    """Return this process's runtime, which the first who asks opens."""
    with opening:
        if "refold" not in app.extensions:
            app.extensions["refold"] = SyncRuntime(
                AgentRuntime(
                    AgentConfig(model="scripted", streaming=True),
                    provider=ScriptedProvider([next_step] * 1000),
                    tools=[weather],
                    log="flask.db",
                )
            )
        opened: SyncRuntime = app.extensions["refold"]
        return opened


def question() -> str:
    """Return what a user says."""
    match request.get_json():
        case {"text": str(text)}:
            return text
        case _:
            abort(422, 'the body is {"text": what is said}')


@app.post("/sessions/<session_id>/messages")
def send(session_id: str) -> dict[str, str]:
    """Answer a question; the same key with the same question is the same run, and its answer."""
    session = runtime().session(session_id)
    result = session.send(question(), key=request.headers.get("Idempotency-Key"))
    return {"run": result.run, "outcome": type(result.outcome).__name__, "text": result.text}


@app.post("/sessions/<session_id>/stream")
def stream(session_id: str) -> Response:
    """Answer a question piece by piece, as Server-Sent Events; a client that hangs up cancels the run."""
    items = runtime().session(session_id).stream(question(), key=request.headers.get("Idempotency-Key"))

    def events() -> Iterator[str]:
        try:
            with items:
                for item in items:
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

    return Response(events(), mimetype="text/event-stream")


@app.get("/sessions/<session_id>")
def history(session_id: str) -> list[dict[str, str]]:
    """Return what was said so far."""
    return [{"role": message.role, "text": message.text} for message in runtime().session(session_id).history()]


@app.errorhandler(CommandRejected)
def rejected(error: CommandRejected) -> tuple[str, int]:
    """Tell a client that its key was used for another question, or that its question is empty."""
    return str(error), 422


def server_sent(kind: str, data: object) -> str:
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"
