"""A real redis-server for tests, on a free port of this machine."""

import shutil
import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager

REASON = "there is no program redis-server on this machine; install it to run the tests of breakers in Redis"

FOUND = shutil.which("redis-server")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextmanager
def redis_server() -> Generator[str, None, None]:
    """Run a server that keeps nothing, and give its URL."""
    assert FOUND is not None
    port = free_port()
    command = [FOUND, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            said: list[str] = []
            for line in server.stdout:
                said.append(line)
                if "Ready to accept connections" in line:
                    break
            else:
                raise AssertionError("redis-server did not start: " + "".join(said))
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.terminate()
            server.communicate()
