"""A real redis-server for tests, at a socket in a folder of its own: a free port may be another process's meanwhile."""

import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager

REASON = "there is no program redis-server on this machine; install it to run the tests of breakers in Redis"

FOUND = shutil.which("redis-server")


@contextmanager
def redis_server() -> Generator[str, None, None]:
    """Run a server that keeps nothing, and give its URL."""
    assert FOUND is not None
    with tempfile.TemporaryDirectory() as folder:
        command = [FOUND, "--port", "0", "--unixsocket", f"{folder}/redis", "--save", "", "--appendonly", "no"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                said: list[str] = []
                for line in server.stdout:
                    said.append(line)
                    if "ready to accept connections" in line.lower():
                        break
                else:
                    raise AssertionError("redis-server did not start: " + "".join(said))
                yield f"unix://{folder}/redis"
            finally:
                server.terminate()
                server.communicate()
