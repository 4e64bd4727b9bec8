"""A runtime in a notebook, whose loop runs already: cells of a real IPython kernel, over sockets in its own folder.

Ports would be chosen before the kernel has them, and another process may take one meanwhile.
"""

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from refold.inspection.check import check_log
from tests.conformance.processes import QUIET

PREPARE = """
import asyncio
from refold import *

asked = asyncio.Event()

async def hang(request):
    asked.set()
    await asyncio.Event().wait()

def make(*script):
    return AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider(script), log="events.db")
"""


class Notebook:
    """Runs cells in a kernel."""

    def __init__(self, client: BlockingKernelClient) -> None:
        self._client = client
        self._kernel_pid = int(self.run("import os\nos.getpid()"))

    def run(self, cell: str, *, interrupt_at: str | None = None) -> str:
        """Run a cell and return what is to be seen below it; the interrupt is sent when it has printed that line."""
        shown: list[str] = []

        def see(message: dict[str, Any]) -> None:
            content = message["content"]
            match message["msg_type"]:
                case "stream":
                    shown.append(content["text"])
                    if interrupt_at is not None and interrupt_at in content["text"]:
                        os.kill(self._kernel_pid, signal.SIGINT)
                case "execute_result":
                    shown.append(content["data"]["text/plain"])
                case "error":
                    shown.append(f"{content['ename']}: {content['evalue']}")

        self._client.execute_interactive(cell, timeout=60, output_hook=see, allow_stdin=False)
        return "".join(shown)


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[Notebook]:
    with tempfile.TemporaryDirectory() as sockets:  # Their paths have to be short.
        manager = KernelManager(
            kernel_name="python3", transport="ipc", ip=f"{sockets}/ipc", connection_file=f"{sockets}/kernel.json"
        )
        manager.start_kernel(cwd=str(tmp_path), env=QUIET, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        client = manager.client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=60)
            yield Notebook(client)
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)


def test_a_runtime_lives_over_many_cells_and_one_of_them_is_interrupted(notebook: Notebook, tmp_path: Path) -> None:
    assert notebook.run(PREPARE) == ""
    assert notebook.run("runtime = await make(say('One.'), hang, say('Three.')).open()") == ""
    assert notebook.run("session = await runtime.session('s')\n(await session.send('1')).text") == "'One.'"
    assert notebook.run("with make():\n    pass").startswith("WouldDeadlock: a blocking call here would stop the event")
    begins = "sending = asyncio.create_task(session.send('2'))\nawait asked.wait()\nprint('asked', flush=True)"
    assert "CancelledError" in notebook.run(f"{begins}\nawait sending", interrupt_at="asked")
    assert notebook.run("(await session.send('3')).text") == "'Three.'"
    names = "[type(recorded.event).__name__ async for recorded in session.events()]"
    seen = notebook.run(f"print(*{names})").split()
    assert [name for name in seen if name.startswith("Run")] == [
        *("RunStarted", "RunCompleted"),
        *("RunStarted", "RunCancelled"),
        *("RunStarted", "RunCompleted"),
    ]
    assert notebook.run("await runtime.close()") == ""
    assert (
        notebook.run(
            "async with make(say('Block.')) as runtime:\n    session = await runtime.session('s')\n"
            "    print((await session.send('4')).text)"
        )
        == "Block.\n"
    )
    assert asyncio.run(check_log(tmp_path / "events.db")).sound
