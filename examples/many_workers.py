"""A server with many worker processes and one log; it needs no key and no network but this machine's.

    python examples/many_workers.py [WORKERS]
    echo alice req-1 Hello | nc 127.0.0.1 PORT       # a session, a key, and what is said

One worker owns the log and runs the agents, the others send through it. When the owner dies, killed in the middle of a
run or not, the next worker owns the log, and its open runs go on. A client that lost its connection sends the same line
again: the key makes it the same run. Workers of gunicorn or uvicorn do the same: `serve` is what they run at startup,
and `answer` is what their handlers do.
"""

import asyncio
import os
import signal
import socket
import sys

from refold import Agent, AgentConfig, AgentRuntime, CommandRejected, ModelRequest, RunResult, ScriptedProvider, connect

LOG = "workers.db"


def reply(request: ModelRequest) -> str:
    """Stand in for a model."""
    return f"{request.messages[-1].text}, says worker {os.getpid()}"


agent = Agent(name="greeter", config=AgentConfig(model="scripted"), provider=ScriptedProvider([reply] * 10_000))


async def answer(session: str, key: str, text: str) -> str:
    """Send an input, in whichever worker this is, and return what its run came to."""
    try:
        result = await connect(LOG).session(session).send(text, key=key, wait_s=30)
    except CommandRejected as error:
        return f"refused: {error}"
    return result.output if isinstance(result, RunResult) else f"accepted, and {result.why}"


async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the lines of one client, until an empty one."""
    while line := (await reader.readline()).decode(errors="replace").strip():
        match line.split(maxsplit=2):
            case [session, key, text]:
                answered = await answer(session, key, text)
            case _:
                answered = "refused: a line is a session, a key, and what is said"
        writer.write(f"{answered}\n".encode())
    writer.close()


async def serve(listener: socket.socket) -> None:
    """Serve until the signal to end; own the log as soon as no other worker does."""
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    async with await asyncio.start_server(handle, sock=listener):
        owning = asyncio.create_task(own_the_log())
        await ending.wait()
        owning.cancel()
        await asyncio.wait([owning])


async def own_the_log() -> None:
    """Wait for the log, then run what is asked of its sessions; at the end, leave what is open to the next owner."""
    async with AgentRuntime(agent, log=LOG, wait_for_log_s=1e8):
        print(f"worker {os.getpid()} owns the log", flush=True)
        await asyncio.Event().wait()


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
