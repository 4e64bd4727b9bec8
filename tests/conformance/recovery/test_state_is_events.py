"""Everything that changes is an event: what lives in one process is what another one folds from the log."""

import asyncio
import copy
import json
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from refold import AgentRuntime
from refold.actors import ManualClock
from refold.actors.agent.session import SessionSetting
from refold.actors.agent.tool import ToolActor
from refold.actors.shell.messages import read_state
from refold.events.kinds.runtime import RUNTIME_STREAM
from refold.events.views.metrics_snapshot import LiveCounts
from refold.inspection.kinds import KINDS
from tests.conformance.processes import command_line, run
from tests.conformance.recovery import folded_log
from tests.conformance.recovery.folded_log import answers_of, as_json
from tests.golden.record_stores import Stores, boss, first_life

WALKED = (
    "refold.actors.shell.event_sourced",
    "refold.actors.shell.folded_stream",
    "refold.actors.hosted",
    "refold.actors.agent",
    "refold.actors.calls",
    "refold.memory",
    "refold.resilience",
)
"""Modules of what belongs to one stream; what all of them share (the journal, the clock, settings) is elsewhere."""

NO_EVENTS = {
    "._index": "what an episode is found by, made of the episodes when they are asked for",
    "._conversation": "the history as requests need it, made of the history for the next request",
    "breaker._actor": "the circuit's actor, found when it is first asked; it is compared as that of its stream",
    "._published_to": "up to where subscribers were told of events; after a restart they read what was before",
    "._last_batch": "the cause that is told to work of this process when it is cancelled",
}
"""What a restart may change, by attribute, and why that is no event."""


def leaves(value: object, path: str, seen: set[int]) -> Iterator[tuple[str, object]]:
    """Yield what an object consists of, as far as it belongs to one stream."""
    if id(value) in seen or isinstance(value, SessionSetting):
        return
    if isinstance(value, int | float | str | bytes | None):
        yield path, value
    elif isinstance(value, msgspec.Struct):
        yield path, msgspec.json.encode(value, order="deterministic", enc_hook=lambda item: type(item).__name__)
    elif isinstance(value, Mapping):
        for key, item in cast("Mapping[object, object]", value).items():
            yield from leaves(item, f"{path}[{key}]", seen)
    elif isinstance(value, Sequence | Set):
        for place, item in enumerate(cast("Sequence[object]", value)):
            yield from leaves(item, f"{path}[{place}]", seen)
    elif type(value).__module__.startswith(WALKED):
        seen.add(id(value))
        names = [*getattr(value, "__dict__", ()), *getattr(type(value), "__slots__", ())]
        for name in names:
            yield from leaves(getattr(value, name, None), f"{path}.{name}", seen)


async def walked(runtime: AgentRuntime, stores: Stores) -> dict[str, object]:
    """Return all that belongs to the streams of a runtime which live without being called, but the runtime's own."""
    found = {path: leaf for name, living in vars(stores).items() for path, leaf in leaves(living, name, set())}
    for head in await runtime.store.list_streams():
        if head.stream != RUNTIME_STREAM and not head.stream.startswith("tool/"):
            await read_state(runtime.system.ref(head.stream), lambda state: None)
            found |= leaves(runtime.system.instance(head.stream), head.stream, set())
    return found


def test_the_document_names_every_kind_of_stream_and_every_counter_that_is_no_event() -> None:
    page = Path(__file__).parents[3].joinpath("docs/events.md").read_text(encoding="utf-8")
    for kind in KINDS:
        assert f"| `{kind}/" in page
    for counter in LiveCounts.__struct_fields__:
        assert f"`{counter}`" in page


def broken() -> None:
    raise ConnectionError("gone")


async def test_the_state_of_every_kind_after_a_life_is_what_another_process_folds(tmp_path: Path) -> None:
    log, clock, before = tmp_path / "events.db", ManualClock(), dict[str, object]()

    async def look_around(runtime: AgentRuntime, stores: Stores) -> None:
        with pytest.raises(ConnectionError):  # One failure of a circuit that stays closed.
            await stores.breaker.call(broken)
        before.update(await walked(runtime, stores))
        live: dict[str, Any] = {}
        for head in await runtime.store.list_streams():
            actor = runtime.system.instance(head.stream)
            if isinstance(actor, ToolActor):
                state: object = actor.current_state()
            else:
                state = await read_state(runtime.system.ref(head.stream), copy.copy)
            live[head.stream] = as_json(state)
        assert live["breaker/weather"]["failures"] == 1
        done = await asyncio.to_thread(run, command_line(folded_log.__file__, log, clock.now_us()))
        assert done.stderr == ""
        folded = json.loads(done.stdout)
        assert folded["states"] == live
        assert folded["answers"] == await answers_of(vars(stores))
        assert {stream.partition("/")[0] for stream in live} == set(KINDS)

    await first_life(log, clock, 3, look_around)
    stores = Stores()
    async with AgentRuntime(boss(stores, [], []), log=log, clock=clock, app_version="golden") as runtime:
        after = await walked(runtime, stores)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert {path for path in changed if not any(name in path for name in NO_EVENTS)} == set()
    assert {name for name in NO_EVENTS if any(name in path for path in changed)} == set(NO_EVENTS)
    assert len(before) > 100
