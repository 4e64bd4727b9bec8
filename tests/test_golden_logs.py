"""Logs of every earlier format and core still open, fold, check and go on; the scripts in `tests/golden` make them.

What was decided then is demanded of today's core only where it has the same `CORE_VERSION`.
"""

import re
import shutil
import struct
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from refold import Agent, AgentConfig, AgentRuntime, Completed, ScriptedProvider, SemanticStore, say
from refold.events import SESSION_CODEC, fold, history
from refold.events.core.codec import tag_of
from refold.events.model.configuration import CORE_VERSION
from refold.events.session.events import RunResumed, RunStarted, SessionEvent
from refold.inspection.check import check_log
from refold.replay import replay
from refold.replay.findings import What
from refold.stores import SQLiteStore
from tests.golden import (
    record_agent,
    record_breakers,
    record_children,
    record_embeddings,
    record_forks,
    record_guardrails,
    record_handoffs,
    record_questions,
    record_refusals,
    record_requests,
    record_retries,
    record_stores,
    record_users,
    record_uses,
)
from tests.golden.record_stores import CORES, Stores

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.db"))


def core_of(golden: Path) -> int:
    """Return the core version that a log was recorded with, which its name tells."""
    named = re.fullmatch(r"format-\d+-core-(\d+)(-[a-z]+)?", golden.stem)
    assert named is not None, golden.name
    return int(named[1])


OF_TODAYS_CORE = [golden for golden in GOLDEN if core_of(golden) == CORE_VERSION]

WITH_STORES = [golden for golden in GOLDEN if golden.stem.endswith("-stores")]
"""Logs of all that lives beside sessions."""

WITH_STATES = [
    *WITH_STORES,
    *(golden for golden in GOLDEN if golden.stem.endswith(("-breakers", "-embeddings", "-uses"))),
]
"""Logs beside which the states of that are."""

OF_AN_AGENT = [golden for golden in GOLDEN if re.search(r"-[a-z]+$", golden.stem)]
"""Logs whose agent the module that recorded them can make again."""


def agent_of(golden: Path) -> Agent:
    """Return the agent that recorded a log, without what its models said."""
    match golden.stem.rpartition("-")[2]:
        case "stores":
            return record_stores.boss(Stores(), [], [])
        case "children":
            return record_children.boss()
        case "requests":
            return record_requests.guide()
        case "refusals":
            return record_refusals.viewer()
        case "guardrails":
            return record_guardrails.clerk()
        case "embeddings":
            return record_embeddings.librarian()
        case "forks":
            return record_forks.clerk()
        case "handoffs":
            return record_handoffs.front()
        case "questions":
            return record_questions.clerk()
        case "retries":
            return record_retries.clerk([])
        case "breakers":
            return record_breakers.forecaster()
        case "users":
            return record_users.receptionist()
        case "uses":
            return record_uses.keeper()
        case _:
            return record_agent.desk(own=[], translator=[], counter=[])


def copied(golden: Path, folder: Path) -> Path:
    return Path(shutil.copy(golden, folder / golden.name))


def test_there_are_golden_logs_of_every_core_version_up_to_todays() -> None:
    assert {core_of(golden) for golden in GOLDEN} == set(range(1, CORE_VERSION + 1))


async def test_the_golden_logs_of_todays_core_were_recorded_by_it_and_know_every_event(tmp_path: Path) -> None:
    events: list[SessionEvent] = []
    for golden in OF_TODAYS_CORE:
        async with await SQLiteStore.open(copied(golden, tmp_path), read_only=True) as store:
            for head in await store.list_streams(prefix="session/"):
                events += SESSION_CODEC.decode_all(await store.read_stream(head.stream))
    assert {event.code.core for event in events if isinstance(event, RunStarted | RunResumed)} == {CORE_VERSION}
    assert {type(event) for event in events} == set(get_args(SessionEvent))


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
async def test_a_golden_log_is_sound(golden: Path, tmp_path: Path) -> None:
    report = await check_log(copied(golden, tmp_path))
    assert report.problems == ()
    assert report.sound


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
async def test_a_golden_log_folds_to_the_histories_that_were_recorded_with_it(golden: Path, tmp_path: Path) -> None:
    expected = msgspec.json.decode(golden.with_suffix(".json").read_bytes())
    async with await SQLiteStore.open(copied(golden, tmp_path), read_only=True) as store:
        heads = await store.list_streams(prefix="session/")
        folded = {
            head.stream: history(fold(SESSION_CODEC.decode_all(await store.read_stream(head.stream)))) for head in heads
        }
    sessions = {stream: expected[stream] for stream in expected if stream.startswith("session/")}
    assert msgspec.json.decode(msgspec.json.encode(folded)) == sessions


@pytest.mark.parametrize("golden", WITH_STATES, ids=lambda path: path.stem)
async def test_a_golden_logs_stores_fold_to_the_states_that_were_recorded_with_it(golden: Path, tmp_path: Path) -> None:
    now = await record_stores.read(copied(golden, tmp_path))
    assert now.decode() == golden.with_suffix(".json").read_text(encoding="utf-8")


async def test_a_golden_logs_embeddings_are_found_as_they_were_given(tmp_path: Path) -> None:
    log = copied(GOLDEN[0].with_name("format-1-core-5-embeddings.db"), tmp_path)
    facts = SemanticStore(embed=record_embeddings.embedding)
    async with AgentRuntime(record_embeddings.librarian(facts), log=log):
        found = {entry.key: entry for entry in await facts.by_tags()}
        assert list(found) == ["k0", "k1", "k2", "k3", "k4", "alone", "m1", "m2"]
        for key, entry in found.items():
            given = struct.pack("<96f", *record_embeddings.embedding(entry.value))
            assert entry.embedding == given
            assert (await facts.similar(entry.value, k=1))[0].key == key


async def test_the_golden_logs_of_stores_have_every_event_of_theirs(tmp_path: Path) -> None:
    there: set[str | None] = set()
    for golden in WITH_STATES:
        async with await SQLiteStore.open(copied(golden, tmp_path), read_only=True) as store:
            there |= {tag_of(stored.data) for stored in await store.read_all(limit=10_000)}
    assert {tag for core in CORES.values() for tag in core.codec.tags} <= there


@pytest.mark.parametrize("golden", OF_AN_AGENT, ids=lambda path: path.stem)
async def test_the_agent_of_a_golden_log_decides_all_of_it_again(golden: Path, tmp_path: Path) -> None:
    report = await replay(copied(golden, tmp_path), agent=agent_of(golden))
    of_second_process = ("was kept by other settings than today's",) if golden in WITH_STORES else ()
    report.raise_for_divergence(allow_missing=of_second_process)
    assert report.missing(of_second_process) == []
    assert report.not_replayed == ()
    assert {each.what for each in report.compared if each.compared} >= {"request", "answer", "decision"}
    if golden in WITH_STORES:
        often = {each.what for each in report.compared if each.compared >= 5}
        assert often == set(get_args(What)) - {"guardrail", "model"}


@pytest.mark.parametrize("golden", OF_TODAYS_CORE, ids=lambda path: path.stem)
async def test_todays_core_decides_as_a_golden_log_says(golden: Path, tmp_path: Path) -> None:
    report = await replay(copied(golden, tmp_path), level="core")
    report.raise_for_divergence()
    assert report.events > 15


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
async def test_a_golden_log_goes_on_under_todays_runtime(golden: Path, tmp_path: Path) -> None:
    log = copied(golden, tmp_path)
    provider = ScriptedProvider([say("Still here.")])
    name = "front" if golden.stem.endswith("-handoffs") else "agent"  # In the place of another agent no one goes on.
    async with AgentRuntime(AgentConfig(model="m"), provider=provider, log=log, name=name) as runtime:
        session = await runtime.session((await runtime.sessions())[0], restore=True)
        before = await session.history()
        result = await session.send("Hello again")
        assert (result.outcome, result.text) == (Completed(), "Still here.")
        assert (await session.history())[: len(before)] == before
    assert (await check_log(log)).problems == ()
