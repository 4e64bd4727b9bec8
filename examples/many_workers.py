"""A server with many worker processes and one log; it needs no key and no network but this machine's.

    python examples/many_workers.py [WORKERS]
    echo alice req-1 Hello | nc 127.0.0.1 PORT       # a session, a key, and what is said

All workers run the same program. One of them owns the log and runs the agents, the others reach it through that one.
When the owner dies, killed in the middle of a run or not, another worker owns the log, and its open runs go on; who
waits for one in another worker waits on. A client that lost its connection sends the same line again: the key makes it
the same run. Workers of gunicorn or uvicorn do the same: `async with AgentRuntime(..., share=True)` in their lifespan.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from contextlib import closing, suppress
from functools import partial

from refold import ActorStopped, Agent, AgentConfig, AgentRuntime, CommandRejected, ModelRequest, ScriptedProvider

LOG = "workers.db"


def reply(request: ModelRequest) -> str:
    """Stand in for a model."""
    return f"{request.messages[-1].text}, says worker {os.getpid()}"


agent = Agent(name="greeter", config=AgentConfig(model="scripted"), provider=ScriptedProvider([reply] * 10_000))


async def answer(runtime: AgentRuntime, session: str, key: str, text: str) -> str:
    """Send an input, in whichever worker this is, and return what its run came to."""
    try:
        return (await (await runtime.session(session)).send(text, key=key)).text
    except CommandRejected as error:
        return f"refused: {error}"


async def handle(runtime: AgentRuntime, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the lines of one client, until an empty one, or the worker ends."""
    with closing(writer), suppress(ActorStopped):
        while line := (await reader.readline()).decode(errors="replace").strip():
            match line.split(maxsplit=2):
                case [session, key, text]:
                    answered = await answer(runtime, session, key, text)
                case _:
                    answered = "refused: a line is a session, a key, and what is said"
            writer.write(f"{answered}\n".encode())


async def serve(listener: socket.socket) -> None:
    """Serve until the signal to end."""
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    async with (
        AgentRuntime(agent, log=LOG, share=True) as runtime,
        await asyncio.start_server(partial(handle, runtime), sock=listener),
    ):
        await ending.wait()


def fork_worker(listener: socket.socket) -> int:
    """Begin a worker; the parent has never opened the log, as a fork wants it."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent ends the workers in order.
        asyncio.run(serve(listener))
        os._exit(0)
    return pid


def end(number: int, frame: object) -> None:
    """End the parent, which ends its workers."""
    sys.exit()


def main() -> None:
    """Listen, fork the workers, and let another one begin wherever one dies, until the signal to end or Ctrl-C."""
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")  # It tells who owns the log.
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, end)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"port {listener.getsockname()[1]}", flush=True)
        workers = {fork_worker(listener) for _ in range(int(sys.argv[1]) if sys.argv[1:] else 4)}
        try:
            while True:
                workers.remove(os.wait()[0])
                workers.add(fork_worker(listener))
        finally:
            for pid in workers:
                os.kill(pid, signal.SIGTERM)
            while workers:
                workers.discard(os.wait()[0])


if __name__ == "__main__":
    main()
