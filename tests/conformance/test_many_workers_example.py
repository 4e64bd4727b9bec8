"""The example with many workers, as its reader runs it: the owner is killed, again and again, under the others."""

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from refold import connect
from tests.conformance.processes import ROOT, STRICT, Process, command_line, left_in, read_until, started

EXAMPLE = ROOT / "examples" / "many_workers.py"


class Server:
    """The example as it runs."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.port = int(read_until(process, "port ").split()[1])

    def next_owner(self) -> int:
        return int(read_until(self.process, "process ").split()[1])

    def ask(self, line: str) -> str:
        """Say a line, again wherever the connection or its worker is lost, and return the answer."""
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=60) as connection:
                    connection.sendall(f"{line}\n".encode())
                    with connection.makefile() as answers:
                        if answer := answers.readline().strip():
                            return answer
            except ConnectionError:
                continue


@contextmanager
def server(folder: Path, workers: int) -> Iterator[Server]:
    with started(command_line(*STRICT, EXAMPLE, workers), cwd=folder, start_new_session=True) as process:
        try:
            yield Server(process)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def log_of(folder: Path) -> tuple[list[str], int]:
    """Check the log, and return its sessions' inputs and how many runs were completed."""
    log = folder / "workers.db"
    left = [left_in(log, session) for session in asyncio.run(connect(log).sessions())]
    ends = [end for each in left for end in each.ends]
    return sorted(text for each in left for text in each.inputs), ends.count("RunCompleted")


def test_any_worker_answers_and_a_key_is_one_run_in_all_of_them(tmp_path: Path) -> None:
    with server(tmp_path, 2) as running:
        owner = running.next_owner()
        answers = {running.ask("alice req-1 Hello") for _ in range(4)}
        assert answers == {f"Hello, says worker {owner}"}
        assert running.ask("alice req-1 Goodbye").startswith("refused: key 'req-1' was used before")
        running.process.terminate()
        _, errors = running.process.communicate(timeout=60)
    # In development mode asyncio times every step of the loop.
    complaints = [line for line in errors.splitlines() if not (line.startswith("Executing") and "took" in line)]
    assert (running.process.returncode, complaints) == (0, [])
    assert log_of(tmp_path) == (["Hello"], 1)


def test_a_line_that_is_none_gets_an_answer_and_the_client_goes_on(tmp_path: Path) -> None:
    with server(tmp_path, 1) as running:
        running.next_owner()
        with socket.create_connection(("127.0.0.1", running.port), timeout=60) as connection:
            connection.sendall(b"alice\nalice req-1\n\xff\nalice req-1 Hello\n")
            with connection.makefile() as answers:
                said = [answers.readline() for _ in range(4)]
        assert said[:3] == ["refused: a line is a session, a key, and what is said\n"] * 3
        assert said[3].startswith("Hello, says worker ")


def test_ctrl_c_ends_all_workers_without_a_traceback(tmp_path: Path) -> None:
    with server(tmp_path, 3) as running:
        running.next_owner()
        os.killpg(running.process.pid, signal.SIGINT)  # As a terminal sends it: to all of them.
        _, errors = running.process.communicate(timeout=60)
    assert "Traceback" not in errors
    assert running.process.returncode == 0


@pytest.mark.slow
def test_when_the_owner_is_killed_another_worker_goes_on_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    with server(tmp_path, 3) as running:
        owners = [running.next_owner()]
        for number in range(3):
            assert running.ask(f"alice {number} text{number}").startswith(f"text{number}, says worker")
            os.kill(owners[-1], signal.SIGKILL)
            owners.append(running.next_owner())
        assert running.ask("alice last text9") == f"text9, says worker {owners[-1]}"
        assert running.ask("alice 0 text0") == f"text0, says worker {owners[0]}"
        running.process.terminate()
        running.process.communicate(timeout=60)
    assert len(set(owners)) == 4
    assert log_of(tmp_path) == (["text0", "text1", "text2", "text9"], 4)
