"""The four functions of a core read nothing but what they are given, and change nothing but the state that they own.

A child process runs long lives, generated ones and the golden logs, with each call made twice; clock, randomness, files
and sockets raise there. Under every hash seed it must print the same digests. The session's core has lives of its own;
those of the stores are drawn from the types of their commands; and the fold of the metrics is looked at likewise.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).resolve().parents[2])
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
sys.path.insert(0, ROOT)
import msgspec
from refold.events.core.errors import CommandRejected
from refold.events.session.core import SESSION_CODEC, SESSION_CORE
from refold.events.session.state import SessionState
from tests.events.life import Life

encode = msgspec.msgpack.Encoder(enc_hook=list).encode

class Twice:
    '''A core, each of whose functions is called twice, and must answer the same and change no state.'''

    def __init__(self, core, state=SessionState):
        self.core, self.initial, self.version = core, core.initial, core.version
        self.decode = msgspec.msgpack.Decoder(state).decode

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
        twin, given = self.decode(encode(state)), encode(event)
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

OF_STORES = """
import asyncio, random, struct
from refold.events.kinds.breaker import BREAKER_CORE
from refold.events.core.pure_core import Recorded, plan
from refold.events.kinds.deduplicator import DEDUP_CORE
from refold.events.kinds.episodic import EPISODIC_CORE
from refold.events.kinds.graph import GRAPH_CORE
from refold.events.views.metrics import MetricsState, count, snapshot
from refold.events.kinds.semantic import SEMANTIC_CORE
from refold.events.kinds.working_memory import WORKING_CORE
from refold.stores import SQLiteStore

CORES = dict(
    memory=EPISODIC_CORE, working=WORKING_CORE, graph=GRAPH_CORE, knowledge=SEMANTIC_CORE, breaker=BREAKER_CORE,
    dedup=DEDUP_CORE,
)
WATCHED_CORES = {kind: Twice(core, type(core.initial())) for kind, core in CORES.items()}
"""

GENERATED_STORES = (
    OF_STORES
    + """
from msgspec import inspect

def value(kind, draw):
    '''Return something of a type.'''
    match kind:
        case inspect.UnionType(types=types):
            return value(draw.choice(types), draw)
        case inspect.LiteralType(values=values):
            return draw.choice(values)
        case inspect.StrType():
            return draw.choice(["a", "b", "c", "tea", "null"])
        case inspect.BoolType():
            return draw.random() < 0.5
        case inspect.IntType():
            return draw.randint(0, 4)
        case inspect.FloatType():
            return draw.random()
        case inspect.BytesType():
            return struct.pack("<2f", draw.random(), 1)
        case inspect.VarTupleType(item_type=item):
            return tuple(value(item, draw) for _ in range(draw.randint(0, 2)))
        case inspect.DictType():
            return {draw.choice("xyz"): draw.random() for _ in range(draw.randint(0, 2))}
        case inspect.NoneType():
            return None
        case inspect.StructType(cls=cls, fields=fields):
            return cls(**{field.name: value(field.type, draw) for field in fields if field.required})
        case _:
            raise AssertionError(f"no value of {kind}")

def commands(core, seed):
    '''Return commands that the core may take or refuse.'''
    draw, kinds = random.Random(seed), [inspect.type_info(kind) for kind in CORES[core].command_types]
    drawn = []
    for number in range(400):
        kind = draw.choice(kinds)
        fields = {field.name: value(field.type, draw) for field in kind.fields if field.name != "key"}
        drawn.append(kind.cls(**fields, key=f"key {draw.randint(0, 99)}" if draw.random() < 0.3 else None))
    return drawn

drawn = [(name, commands(name, seed)) for name in CORES for seed in range(2)]
forbid()
watching = True
for name, life in drawn:
    core, digest = WATCHED_CORES[name], hashlib.sha256()
    state, events = core.initial(), 0
    for at, command in enumerate(life, 1):
        try:
            planned = plan(core, state, command, at)
        except CommandRejected as refusal:
            digest.update(str(refusal).encode())
            continue
        if isinstance(planned, Recorded):
            digest.update(encode(planned.version))
            continue
        state, events = planned.state, events + len(planned.events)
        digest.update(encode(planned.events) + encode(core.pending(state)))
    print(name, events, hashlib.sha256(digest.digest() + encode(state)).hexdigest())
"""
)

RECORDED = (
    OF_STORES
    + """
async def everything(log):
    async with await SQLiteStore.open(log, read_only=True) as store:
        streams = {head.stream: await store.read_stream(head.stream) for head in await store.list_streams()}
        return log, await store.read_all(limit=100_000), streams

recorded = [asyncio.run(everything(log)) for log in LOGS]
kept = msgspec.msgpack.Decoder(MetricsState)
WATCHED_CORES["session"] = TWICE
CODECS = {"session": SESSION_CODEC, **{kind: core.codec for kind, core in CORES.items()}}
forbid()
watching = True
for log, stored, streams in recorded:
    states, figures, digest = {}, MetricsState(), hashlib.sha256()
    for stream, items in streams.items():
        kind = stream.partition("/")[0]
        for item in items if kind in CODECS else ():
            core, event = WATCHED_CORES[kind], CODECS[kind].decode(item)
            states[stream] = state = core.evolve(states.get(stream) or core.initial(), event)
            digest.update(encode([core.react(state, event), core.pending(state)]))
    for item in stored:
        twin = kept.decode(encode(figures))
        assert encode(count(twin, item)) == encode(count(figures, item))
        assert snapshot(figures) == snapshot(twin)
    digest.update(encode(list(states.values())) + snapshot(figures).to_json().encode())
    print(log, len(stored), digest.hexdigest())
"""
)


def printed(program: str, seed: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"ROOT = {ROOT!r}\n{program}"],
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
        pytest.param(GENERATED_STORES, id="generated stores"),
        pytest.param(RECORDED, id="the golden logs"),
    ],
)
def test_the_functions_of_a_core_do_the_same_twice_and_in_every_process_and_read_nothing_of_it(lives: str) -> None:
    logs = f"LOGS = {[str(log) for log in GOLDEN]}\n"
    digests = [printed(logs + FORBIDDING + CALLED_TWICE + lives, seed) for seed in ("0", "1")]
    assert min(int(line.split()[-2]) for line in digests[0].splitlines()) > 10
    assert digests[0] == digests[1]


READINGS = """
import socket
forbid()
watching = True
for reading in (
    lambda: time.time(),
    lambda: time.monotonic_ns(),
    lambda: random.random(),
    lambda: random.Random(),
    lambda: uuid.uuid4(),
    lambda: os.urandom(1),
    lambda: secrets.token_hex(),
    lambda: open("/dev/null"),
    lambda: socket.socket(),
    lambda: os.listdir(),
):
    try:
        reading()
    except AssertionError as error:
        print(error)
"""

FAULTS = """
class Given(msgspec.Struct):
    tools: list = []

class Faulty:
    initial = version = None

    def admit(self, state, command):
        state.keys["x"] = None

    def react(self, state, event):
        state.queue.append(None) if event is None else event.tools.append(1)

    def pending(self, state):
        state.keys.clear()

for function, *given in (("admit", None), ("react", None), ("react", Given()), ("pending",)):
    state = SessionState()
    state.keys["y"] = None
    try:
        getattr(Twice(Faulty()), function)(state, *given)
    except AssertionError:
        print("found")
"""


def test_a_core_that_reads_the_world_is_found() -> None:
    assert printed(FORBIDDING + READINGS, "0") == "a core read the clock, randomness or the world\n" * 10


def test_a_function_that_changes_what_it_is_given_is_found() -> None:
    """Not of our core, but of a watched one: the watch itself must not be blind."""
    assert printed(FORBIDDING + CALLED_TWICE + FAULTS, "0") == "found\n" * 4
