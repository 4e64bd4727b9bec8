"""The four functions of a core read nothing but what they are given, and change nothing but the state that they own.

A child process runs long lives of sessions, generated ones and the golden logs, with each call made twice; clock,
randomness, files and sockets raise there. Under every hash seed it must print the same digests.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

GOLDEN = sorted((Path(__file__).resolve().parents[1] / "golden").glob("*.db"))

FORBIDDING = """
import os, random, secrets, sys, time, uuid

def forbidden(*arguments, **named):
    raise AssertionError("a core read the clock, randomness or the world")

def forbid():
    for module, names in (
        (time, ["time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep"]),
        (random, ["random", "randint", "choice", "getrandbits", "shuffle", "Random", "SystemRandom"]),
        (uuid, ["uuid1", "uuid4"]),
        (os, ["urandom", "getpid", "getenv"]),
        (secrets, ["token_bytes", "token_hex", "randbits", "choice"]),
    ):
        for name in names:
            setattr(module, name, forbidden)
    sys.addaudithook(audit)

WATCHED = ("open", "socket", "subprocess", "os", "sqlite3", "shutil", "tempfile", "glob")
watching = False

def audit(event, arguments):
    if watching and event.split(".")[0] in WATCHED:
        forbidden()
"""

CALLED_TWICE = """
import hashlib
sys.path.insert(0, FOLDER)
import msgspec
from refold.events.errors import CommandRejected
from refold.events.session_core import SESSION_CODEC, SESSION_CORE
from refold.events.session_state import SessionState
from life import Life

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(SessionState).decode

class Twice:
    '''The session's core, each of whose functions is called twice, and must answer the same and change no state.'''

    def __init__(self, core):
        self.core, self.initial, self.version = core, core.initial, core.version

    def unchanged(self, function, state, argument):
        before, given = encode(state), encode(argument)
        answers = []
        for _ in range(2):
            try:
                answers.append(function(state, argument))
            except CommandRejected as refusal:
                answers.append(str(refusal))
            assert encode(state) == before and encode(argument) == given
        assert answers[0] == answers[1]
        if isinstance(answers[0], str):
            raise CommandRejected(answers[0])
        return answers[0]

    def admit(self, state, command):
        return self.unchanged(self.core.admit, state, command)

    def react(self, state, event):
        return self.unchanged(self.core.react, state, event)

    def evolve(self, state, event):
        twin, given = decode(encode(state)), encode(event)
        after = self.core.evolve(state, event)
        assert encode(self.core.evolve(twin, event)) == encode(after) and encode(event) == given
        return after

    def pending(self, state):
        before = encode(state)
        first = self.core.pending(state)
        assert first == self.core.pending(state) and encode(state) == before
        return first

TWICE = Twice(SESSION_CORE)
"""

GENERATED = """
lives = [Life(seed, core=TWICE) for seed in range(4)]
forbid()
watching = True
for life in lives:
    life.go(400)
    print(life.seed, life.steps, len(life.log), hashlib.sha256(encode([life.log, life.pending])).hexdigest())
"""

RECORDED = """
import asyncio
from itertools import groupby
from refold.stores import SQLiteStore

async def batches_of(log):
    '''Return the batches of each session in a log.'''
    async with await SQLiteStore.open(log, read_only=True) as store:
        lives = []
        for head in await store.list_streams(prefix="session/"):
            stored = await store.read_stream(head.stream)
            lives.append([SESSION_CODEC.decode_all(batch) for _, batch in groupby(stored, lambda event: event.batch)])
        return lives

lives = asyncio.run(batches_of({log!r}))
forbid()
watching = True
for life in lives:
    digest, state = hashlib.sha256(), TWICE.initial()
    for batch in life:
        for event in batch:
            state = TWICE.evolve(state, event)
            digest.update(encode(TWICE.react(state, event)))
        digest.update(encode(TWICE.pending(state)))
    digest.update(encode(state))
    print(sum(map(len, life)), digest.hexdigest())
"""


def printed(program: str, seed: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": seed},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "lives",
    [
        pytest.param(GENERATED, id="generated"),
        *(pytest.param(RECORDED.format(log=str(log)), id=log.stem) for log in GOLDEN),
    ],
)
def test_the_functions_of_a_core_do_the_same_twice_and_in_every_process_and_read_nothing_of_it(lives: str) -> None:
    program = f"FOLDER = {str(Path(__file__).parent)!r}\n" + FORBIDDING + CALLED_TWICE + lives
    digests = [printed(program, seed) for seed in ("0", "1")]
    assert sum(int(line.split()[-2]) for line in digests[0].splitlines()) > 50
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    "reading",
    [
        "time.time()",
        "time.monotonic_ns()",
        "random.random()",
        "random.Random()",
        "uuid.uuid4()",
        "os.urandom(1)",
        "secrets.token_hex()",
        "open('/dev/null')",
        "__import__('socket').socket()",
        "os.listdir()",
    ],
)
def test_a_core_that_reads_the_world_is_found(reading: str) -> None:
    program = FORBIDDING + f"import socket\nforbid()\nwatching = True\n{reading}"
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "a core read the clock, randomness or the world" in done.stderr


@pytest.mark.parametrize(
    ("function", "fault"),
    [
        ("admit", "state.keys['x'] = None"),
        ("react", "state.queue.append(None)"),
        ("pending", "state.keys.clear()"),
        ("react", "event.tools.append(1)"),
    ],
)
def test_a_function_that_changes_what_it_is_given_is_found(function: str, fault: str) -> None:
    """Not of our core, but of a watched one: the watch itself must not be blind."""
    program = (
        f"FOLDER = {str(Path(__file__).parent)!r}\n"
        + FORBIDDING
        + CALLED_TWICE
        + f"""
class Given(msgspec.Struct):
    tools: list = []

class Faulty:
    initial = version = None
    def {function}(self, state, event=None):
        {fault}

state = SessionState()
state.keys["y"] = None
watched = Twice(Faulty())
watched.{function}(*((state,) if {function!r} == "pending" else (state, Given())))
"""
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "AssertionError" in done.stderr
