"""An episodic memory's decisions: what is kept, what goes, and that the log says all of it."""

from collections.abc import Sequence
from contextlib import suppress
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold import AgentMemoryError, CommandRejected, MemoryId
from refold.events.core.contract import Recorded, evolve_all, plan
from refold.events.core.ids import StreamName
from refold.events.core.records import StoredEvent
from refold.events.kinds.episodic import (
    EPISODIC_CORE,
    EVICTED_PER_EVENT,
    AddEpisode,
    ChangeCapacity,
    ClearEpisodes,
    Episodes,
    EpisodesEvicted,
    EpisodicCommand,
    EpisodicCore,
    EpisodicEvent,
    NoteRecalled,
    memory_id,
)
from refold.scenarios.core_exploration import explore_core

STREAM = StreamName("memory/m")
BEGIN_US = 1_750_000_000_000_000
encode = msgspec.msgpack.Encoder().encode


class Life:
    """A memory that is told commands, each a second after the one before, and the log that it leaves."""

    def __init__(self) -> None:
        self.state = Episodes()
        self.at = BEGIN_US
        self.log: list[StoredEvent] = []

    def do(self, command: EpisodicCommand) -> Sequence[EpisodicEvent]:
        self.at += 1_000_000
        planned = plan(EPISODIC_CORE, self.state, command, self.at)
        if isinstance(planned, Recorded):
            return ()
        self.state = planned.state
        for event in planned.events:
            version = len(self.log) + 1
            data = EPISODIC_CORE.codec.encode(event)
            self.log.append(
                StoredEvent(position=version, stream=STREAM, version=version, batch=version, at=event.at, data=data)
            )
        return planned.events

    def add(self, importance: float, agent: str = "a", content: str = "it", key: str | None = None) -> MemoryId:
        self.do(AddEpisode(agent=agent, content=content, importance=importance, key=key))
        return memory_id(key, self.state.version)

    def kept(self, agent: str = "a") -> list[float]:
        own = self.state.agents.get(agent)
        return [self.state.episodes[memory].importance for memory in own.ids] if own is not None else []

    def folded(self) -> Episodes:
        return evolve_all(EPISODIC_CORE, EPISODIC_CORE.codec.decode_all(self.log))


def test_the_least_important_goes_and_of_several_the_oldest() -> None:
    life = Life()
    life.do(ChangeCapacity(capacity=2))
    life.add(0.9)
    oldest = life.add(0.5)
    events = life.do(AddEpisode(agent="a", content="it", importance=0.5))
    assert events[1:] == (EpisodesEvicted(episodes=(oldest,), at=life.at),)
    assert life.kept() == [0.9, 0.5]


def test_a_new_one_that_matters_less_than_all_others_goes_at_once() -> None:
    life = Life()
    life.do(ChangeCapacity(capacity=2))
    for importance in (0.9, 0.5, 0.1):
        life.add(importance)
    assert life.kept() == [0.9, 0.5]


def test_each_agent_has_the_capacity_for_itself() -> None:
    life = Life()
    life.do(ChangeCapacity(capacity=1))
    life.add(0.2, "a")
    life.add(0.1, "b")
    assert (life.kept("a"), life.kept("b")) == ([0.2], [0.1])


def test_a_smaller_capacity_takes_from_those_that_are_there() -> None:
    life = Life()
    for number in range(EVICTED_PER_EVENT + 10):
        life.add(number % 10 / 10)
    events = life.do(ChangeCapacity(capacity=3))
    assert [len(event.episodes) for event in events if isinstance(event, EpisodesEvicted)] == [EVICTED_PER_EVENT, 7]
    assert life.kept() == [0.9] * 3
    life.add(0.95)
    assert life.kept() == [0.9, 0.9, 0.95]
    life.do(ChangeCapacity(capacity=None))
    life.add(0.0)
    assert life.kept() == [0.9, 0.9, 0.95, 0.0]


def test_recalls_are_counted_and_those_of_episodes_that_are_gone_are_not() -> None:
    life = Life()
    one, gone = life.add(0.5), life.add(0.1)
    life.do(ChangeCapacity(capacity=1))
    life.do(NoteRecalled(episodes=(one, gone, one)))
    life.do(NoteRecalled(episodes=(one,)))
    episode = life.state.episodes[one]
    assert (episode.recalls, episode.recalled_at) == (2, life.at)
    assert life.do(NoteRecalled(episodes=(gone,))) == ()


def test_clearing_takes_one_agent_or_all() -> None:
    life = Life()
    for agent in "abc":
        life.add(0.5, agent)
    life.do(ClearEpisodes(agent="a"))
    assert sorted(life.state.agents) == ["b", "c"]
    assert life.do(ClearEpisodes(agent="a")) == ()
    life.do(ClearEpisodes())
    assert not life.state.agents
    assert not life.state.episodes
    assert life.do(ClearEpisodes()) == ()


def test_an_id_comes_from_the_key_or_else_from_the_version() -> None:
    life = Life()
    assert life.add(0.5) == "episode-1"
    keyed = life.add(0.5, key="k")
    assert keyed in life.state.episodes
    assert keyed != life.add(0.5, key="another")
    life.do(AddEpisode(agent="a", content="it", importance=0.5, key="k"))
    assert len(life.state.episodes) == 3
    with pytest.raises(CommandRejected, match="used for another command"):
        life.do(AddEpisode(agent="a", content="something else", importance=0.5, key="k"))


@pytest.mark.parametrize("importance", [float("nan"), float("inf"), -0.1, 1.1, 10**400])
def test_an_importance_outside_of_0_to_1_is_refused(importance: float) -> None:
    life = Life()
    with pytest.raises(AgentMemoryError, match="importance of an episode of 'a' must be a number from 0 to 1"):
        life.do(AddEpisode(agent="a", content="it", importance=importance))
    assert life.state == Episodes()


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (AddEpisode(agent="", content="it", importance=0.5), "needs the name of an agent"),
        (AddEpisode(agent="a", content="", importance=0.5), "of 'a' needs a text"),
        (AddEpisode(agent="a", content="it", importance=0.5, tags=("",)), "tags of an episode of 'a'"),
        (ChangeCapacity(capacity=0), "at least 1 episode, not 0"),
    ],
)
def test_what_cannot_be_remembered_is_refused(command: EpisodicCommand, problem: str) -> None:
    with pytest.raises(AgentMemoryError, match=problem):
        Life().do(command)


importances = st.sampled_from([0.0, 0.1, 0.5, 1.0]) | st.floats(0, 1)
agents = st.sampled_from(["a", "b"])
commands = st.one_of(
    st.builds(
        AddEpisode,
        agent=agents,
        content=st.text(min_size=1, max_size=4),
        importance=importances,
        key=st.none() | st.sampled_from(["k1", "k2"]),
        tags=st.lists(st.sampled_from(["x", "y"]), max_size=2).map(tuple),
    ),
    st.builds(
        NoteRecalled, episodes=st.lists(st.integers(1, 12).map(lambda n: memory_id(None, n)), max_size=3).map(tuple)
    ),
    st.builds(ClearEpisodes, agent=st.none() | agents),
    st.builds(ChangeCapacity, capacity=st.none() | st.integers(1, 4)),
)


@given(st.lists(commands, max_size=25))
def test_a_capacity_is_never_exceeded_and_the_folded_state_is_the_live_one(
    given_commands: list[EpisodicCommand],
) -> None:
    life = Life()
    for command in given_commands:
        with suppress(CommandRejected):  # A key on another command.
            life.do(command)
        capacity = life.state.capacity
        assert all(capacity is None or len(own.ids) <= capacity for own in life.state.agents.values())
        assert sum(len(own.ids) for own in life.state.agents.values()) == len(life.state.episodes)
    folded = life.folded()
    assert folded == life.state
    assert encode(folded) == encode(life.state)


@given(st.lists(st.floats(0, 1), unique=True, min_size=1, max_size=12), st.integers(1, 6), st.randoms())
def test_what_is_kept_does_not_depend_on_the_order_of_insertion(
    given_importances: list[float], capacity: int, random: Random
) -> None:
    shuffled = list(given_importances)
    random.shuffle(shuffled)
    lives = []
    for order in (given_importances, shuffled):
        life = Life()
        life.do(ChangeCapacity(capacity=capacity))
        for importance in order:
            life.add(importance)
        lives.append(sorted(life.kept(), reverse=True))
    assert lives[0] == lives[1] == sorted(given_importances, reverse=True)[:capacity]


def test_every_short_life_holds() -> None:
    def tried(state: Episodes) -> list[EpisodicCommand]:
        return [
            AddEpisode(agent="a", content="it", importance=0.5),
            AddEpisode(agent="a", content="it", importance=0.9, key="k"),
            AddEpisode(agent="b", content="it", importance=0.5),
            NoteRecalled(episodes=tuple(state.episodes)[:1]),
            ClearEpisodes(agent="a"),
            ClearEpisodes(),
            ChangeCapacity(capacity=1),
            ChangeCapacity(capacity=0),
        ]

    found = explore_core(EpisodicCore, tried, commands_max=4)
    assert found.counterexample is None, found.counterexample
    assert found.states > 100
