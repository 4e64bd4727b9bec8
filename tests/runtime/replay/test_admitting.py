"""What `admit` makes of commands that are made again from recorded stimuli, of all kinds of Refold's own.

That of sessions is in `tests/conformance/recovery/test_decide_replay.py`; the golden logs have every event of the other
kinds.
"""

import random
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from refold import Agent, AgentConfig, AgentRuntime, ScriptedProvider, say
from refold.bundles import bundle_session
from refold.events.core.ids import StreamName
from refold.events.core.pure_core import PureCore, Recorded, evolve_all, plan, types_of
from refold.events.kinds import breaker, deduplicator, episodic, graph, runtime, semantic, tool, working_memory
from refold.events.session.commands import SessionCommand
from refold.events.session.events import SessionEvent
from refold.inspection.kinds import KINDS
from refold.memory import EpisodicStore
from refold.replay import replay
from refold.replay.comparing import Comparison
from refold.replay.core_replay import COMMANDS, admitted_otherwise
from refold.resilience import CircuitBreaker
from refold.stores import InMemoryStore

GOLDEN = Path(__file__).parents[2] / "golden"

ONLY_CONSEQUENCES: set[type] = {episodic.EpisodesEvicted, working_memory.ItemsForgotten}


def functions_of(core: Any) -> PureCore[Any, Any, Any]:
    functions: PureCore[Any, Any, Any] = getattr(core, "functions", core)
    return functions


def test_the_commands_of_a_session_can_be_made_again() -> None:
    made = {made_by for event, made_by in COMMANDS.items() if event in get_args(SessionEvent)}
    assert made == set(get_args(SessionCommand))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "session"])
def test_the_command_of_every_stimulus_can_be_made_again(kind: str) -> None:
    _, of_commands, of_events = types_of(type(functions_of(KINDS[kind].core)))
    assert set(get_args(of_events)) - COMMANDS.keys() == ONLY_CONSEQUENCES & set(get_args(of_events))
    made = {COMMANDS[event] for event in get_args(of_events) if event in COMMANDS}
    by_functions = {breaker.EndCall, breaker.TakeUp, breaker.NoteSharedState} if kind == "breaker" else set[Any]()
    assert {each for each in made if isinstance(each, type)} | by_functions == set(get_args(of_commands))


@pytest.mark.parametrize(
    ("event", "changes", "found"),
    [
        (episodic.EpisodeAdded, {"tags": ()}, 'memory/main@2: admit.tags[0]: "tea" -> (nothing)'),
        (episodic.EpisodesRecalled, None, "memory/main@"),
        (working_memory.ItemSet, {"value": "L"}, 'working/main@2: admit.value: "Lisbon" -> "L"'),
        (semantic.EntryPut, {"embedding": None}, "knowledge/main@2: admit.embedding: "),
        (graph.EntityRemoved, {"relationships": 0}, "graph/main@9: admit.relationships: 1 -> 0"),
        (breaker.CircuitOpened, {"failures": 9}, "breaker/weather@2: admit.failures: 2 -> 9"),
        (breaker.ProbeReleased, None, "breaker/weather@4: admit: "),
        (deduplicator.WorkReleased, None, "dedup/payments@4: admit: "),
        (tool.ToolDefined, None, "tool/look@1: admit: "),
        (runtime.RuntimeClosed, {"open_runs": 7}, "runtime/log@2: admit.open_runs: 0 -> 7"),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
async def test_a_changed_admit_is_a_divergence_at_its_first_stimulus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: type[Any], changes: dict[str, Any] | None, found: str
) -> None:
    core = next(
        functions
        for kind in KINDS.values()
        for functions in [functions_of(kind.core)]
        if event in get_args(types_of(type(functions))[2])
    )
    unchanged = type(core).admit

    def admit(self: Any, state: Any, command: Any) -> Any:
        made = unchanged(self, state, command)
        if not isinstance(made, event):
            return made
        return Recorded(0) if changes is None else msgspec.structs.replace(made, **changes)

    monkeypatch.setattr(type(core), "admit", admit)
    report = await replay(Path(shutil.copy(GOLDEN / "format-1-core-4-stores.db", tmp_path)), level="core")
    assert report.divergence is not None
    assert report.divergence.differs == "admit"
    assert str(report.divergence).startswith(found)


def breaker_commands(state: breaker.BreakerState, chance: random.Random) -> breaker.BreakerCommand:
    at = chance.randrange(1, 9)
    permit = breaker.Permit(state.generation - chance.randrange(2), chance.choice([state.probe, 0]))
    error, failures = chance.choice(["no", "gone"]), chance.randrange(1, 6)
    commands: list[breaker.BreakerCommand] = [
        *(breaker.EndCall(permit=permit, end=end, error=error, ended_at=at) for end in get_args(breaker.CallEnd)),
        breaker.EndCall(permit=permit, end="failed", error=error, ended_at=at, key=str(chance.random())),
        breaker.BeginProbe(generation=state.generation, probe=state.probe + 1, decided_at=at),
        breaker.TakeUp(failures=failures, error=error, opened_at=chance.choice([0, at])),
        breaker.ConfigureBreaker(threshold=failures, recovery_us=1, probe_us=1),
    ]
    return chance.choice(commands)


def test_any_life_of_a_breaker_is_admitted_again_the_same() -> None:
    core, stimuli = breaker.BREAKER_CORE, set[type]()
    for seed in range(150):
        chance, state, again = random.Random(seed), core.initial(), core.initial()
        for at in range(1, 20):
            planned = plan(core, state, breaker_commands(state, chance), at)
            if isinstance(planned, Recorded):
                continue
            state, stimulus = planned.state, planned.events[0]
            stimuli.add(type(stimulus))
            assert admitted_otherwise(core, again, stimulus, Comparison()) is None, (seed, stimulus)
            again = evolve_all(core, planned.events, again)
    assert stimuli == set(get_args(breaker.BreakerEvent)) - {breaker.SharedStateSeen}


def agent(*objects: Any, memory: EpisodicStore | None = None) -> Agent:
    return Agent(
        config=AgentConfig(model="m"), provider=ScriptedProvider([say("Hello.")]), objects=objects, memory=memory
    )


async def test_what_an_event_does_not_hold_of_its_command_is_no_difference() -> None:
    store, memory, circuit = InMemoryStore(), EpisodicStore(), CircuitBreaker("weather", threshold=3)

    async def broken() -> None:
        raise ConnectionError("gone")

    for _ in range(2):  # Before there is a log, so that the breaker takes it up.
        with suppress(ConnectionError):
            await circuit.call(broken)
    async with AgentRuntime(agent(circuit, memory=memory), log=store):
        for _ in range(2):
            await memory.add_episode("agent", "tea is green", 1, ("tea", "tea", "leaf"), key="once")
        assert [each.tags for each in await memory.recall("agent", "tea", 2)] == [("tea", "leaf")]
        with suppress(ConnectionError):
            await circuit.call(broken)
    report = await replay(store, level="core")
    report.raise_for_divergence()
    recorded = breaker.BREAKER_CORE.codec.decode_all(await store.read_stream(StreamName("breaker/weather")))
    names = [type(event).__name__ for event in recorded]
    assert names == ["BreakerConfigured", "FailureCounted", "CircuitOpened"]


async def test_what_became_the_same_in_a_bundle_is_not_compared_and_a_key_without_its_words_is(tmp_path: Path) -> None:
    memory = EpisodicStore(scope="agent")
    async with AgentRuntime(agent(memory=memory), log=tmp_path / "events.db") as running:
        await memory.add_episode("agent", "Hi, said Ann", 0.5, ("Ann",), key="of Ann")
        await memory.add_episode("agent", "Hi, said Bob", 0.5, ("Ann", "Bob"))
        await (await running.session("s")).send("Hi")
    await bundle_session(tmp_path / "events.db", "s", tmp_path / "s.refold", redact=[re.compile("Ann|Bob")])
    report = await replay(tmp_path / "s.refold", level="core")
    why = "what it is about was taken out when the bundle was made"
    assert (report.diverged, report.missing()) == (0, [f"admit: 1 not compared, first memory/main@2: {why}"])
