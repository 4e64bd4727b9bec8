"""The graph store: every operation equals networkx, what has no meaning is refused, and the log says what is in it."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold import AgentConfig, AgentRuntime, ConfigError, ScriptedProvider, say
from refold.actors.kernel.reply import ActorFuture
from refold.inspection.check import check_log
from refold.memory import Entity, GraphError, GraphFacts, GraphPath, GraphStore, Relationship
from refold.replay import replay

Edge = tuple[str, str, str, float]

IDS = ["a", "b", "c", "d", "é", "z z"]
weights = st.one_of(st.integers(0, 3), st.floats(0, 1e6, allow_subnormal=False))
edges = st.lists(
    st.tuples(st.sampled_from(IDS), st.sampled_from(["likes", "knows"]), st.sampled_from(IDS), weights), max_size=24
)
graphs = st.tuples(st.lists(st.sampled_from(IDS), unique=True, min_size=1), edges)


def stored(ids: Sequence[str], given_edges: Sequence[Edge]) -> GraphStore:
    """Return a graph of the edges between some of `ids`."""
    graph = GraphStore(scope="agent")
    for entity in ids:
        graph.add_entity(entity)
    for source, kind, target, weight in given_edges:
        graph.add_relationship(source, kind, target, weight)
    return graph


def expected(ids: Sequence[str], given_edges: Sequence[Edge]) -> "nx.MultiDiGraph[str]":
    """Return the same graph as networkx has it; the last weight of a relationship counts."""
    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    graph.add_nodes_from(sorted(ids))
    known = {(source, target, kind): weight for source, kind, target, weight in given_edges}
    for (source, target, kind), weight in sorted(known.items()):
        if source in graph and target in graph:
            graph.add_edge(source, target, kind, weight=weight)
    return graph


def runtime_of(log: Path | str, graph: GraphStore, *script: Any, tools: Any = ()) -> AgentRuntime:
    provider = ScriptedProvider(script)
    return AgentRuntime(AgentConfig(model="m"), provider=provider, tools=tools, graph=graph, log=log, inbox_poll_s=0)


@given(graphs)
def test_walks_and_paths_are_those_of_networkx(drawn: tuple[list[str], list[Edge]]) -> None:
    graph, known = stored(*drawn), expected(*drawn)
    for start in known:
        assert graph.bfs(start).get() == (start, *(reached for _, reached in nx.bfs_edges(known, start)))
        assert graph.dfs(start).get() == tuple(nx.dfs_preorder_nodes(known, start))
        lengths: Mapping[str, float] = nx.single_source_dijkstra_path_length(known, start)
        for target in known:
            path = graph.shortest_path(start, target).get()
            assert (path.weight if path is not None else None) == lengths.get(target)
            if path is not None:
                check_path(path, start, target, known)


def check_path(path: GraphPath, start: str, target: str, known: "nx.MultiDiGraph[str]") -> None:
    """Fail unless a path is a way through the graph of the weight that it says."""
    assert (path.entities[0], path.entities[-1]) == (start, target)
    assert [(step.source, step.target) for step in path.relationships] == list(
        zip(path.entities, path.entities[1:], strict=False)
    )
    total = 0.0
    for step in path.relationships:
        total += step.weight
        assert known[step.source][step.target][step.kind]["weight"] == step.weight
    assert total == path.weight


@given(graphs)
def test_what_is_said_of_the_whole_is_what_networkx_says(drawn: tuple[list[str], list[Edge]]) -> None:
    graph, known = stored(*drawn), expected(*drawn)
    closure = nx.transitive_closure(known)
    assert graph.transitive_closure().get() == {entity: tuple(sorted(closure[entity])) for entity in sorted(known)}
    assert graph.degree_centrality().get() == nx.degree_centrality(known)
    assert graph.betweenness_centrality().get() == pytest.approx(nx.betweenness_centrality(known))
    assert graph.has_cycle().get() == (not nx.is_directed_acyclic_graph(known))
    cycle = graph.find_cycle().get()
    assert (cycle is not None) == graph.has_cycle().get()
    if cycle is not None:
        assert [step.source for step in cycle] == [cycle[-1].target, *(step.target for step in cycle[:-1])]
        assert all(known.has_edge(step.source, step.target, step.kind) for step in cycle)
    communities = graph.communities().get()
    assert sorted(entity for community in communities for entity in community) == sorted(known)
    either_way: nx.MultiGraph[str] = nx.MultiGraph()
    either_way.add_nodes_from(known)
    either_way.add_edges_from((source, target) for source, target in known.edges())
    if known.number_of_edges():
        alone: Any = nx.community.modularity(either_way, [{entity} for entity in known], weight=None)
        assert nx.community.modularity(either_way, [set(one) for one in communities], weight=None) >= alone - 1e-9
    part = sorted(known)[::2]
    inside = graph.subgraph(part).get()
    assert [entity.id for entity in inside.entities] == part
    assert {(one.source, one.target, one.kind) for one in inside.relationships} == set(
        known.subgraph(part).edges(keys=True)
    )


@given(graphs)
def test_facts_are_what_networkx_counts(drawn: tuple[list[str], list[Edge]]) -> None:
    graph, known = stored(*drawn), expected(*drawn)
    facts = graph.facts().get()
    every = [(source, target, kind) for source, target, kind in known.edges(keys=True)]
    assert (facts.entities, facts.relationships) == (known.number_of_nodes(), known.number_of_edges())
    assert facts.relationship_kinds == {k: n for k in ("knows", "likes") if (n := sum(e[2] == k for e in every))}
    assert {(one.source, one.target, one.kind) for one in facts.self_loops} == {e for e in every if e[0] == e[1]}
    assert set(facts.mutual) == {(a, b) for a, b, _ in every if a < b and known.has_edge(b, a)}
    assert facts.isolated == tuple(sorted(nx.isolates(known)))
    assert facts.degrees == dict(known.degree())
    assert facts.total_degree == sum(dict(known.degree()).values())
    assert facts.mean_degree == facts.total_degree / facts.entities
    total = sum(float(one["weight"]) for _, _, one in known.edges(data=True))
    assert facts.mean_weight == pytest.approx(total / len(every) if every else 0)
    for entity in known:
        assert graph.neighbours(entity).get() == tuple(sorted({*known.successors(entity), *known.predecessors(entity)}))
        assert graph.neighbours(entity, "out").get() == tuple(sorted(known.successors(entity)))
        assert graph.neighbours(entity, "in").get() == tuple(sorted(known.predecessors(entity)))
        assert {r.target for r in graph.relationships(entity).get()} == set(known.successors(entity))
        assert {r.source for r in graph.relationships(target=entity).get()} == set(known.predecessors(entity))
        for other in known:
            assert {r.kind for r in graph.relationships(entity, other).get()} == set(known[entity].get(other, {}))
    likes = graph.relationships(kind="likes").get()
    assert {(one.source, one.target, one.kind) for one in likes} == {e for e in every if e[2] == "likes"}


@given(graphs, st.randoms(use_true_random=False))
def test_answers_do_not_depend_on_the_order_in_which_the_graph_came(
    drawn: tuple[list[str], list[Edge]], random: Any
) -> None:
    ids, every = drawn
    last = {edge[:3]: edge for edge in every}
    shuffled, ids_too = [*last.values()], [*ids]
    random.shuffle(shuffled)
    random.shuffle(ids_too)
    one, other = stored(ids, every), stored(ids_too, shuffled)
    for ask in EVERYTHING:
        assert ask(one).get() == ask(other).get()
    for start in ids:
        assert (one.bfs(start).get(), one.dfs(start).get()) == (other.bfs(start).get(), other.dfs(start).get())
        assert all(one.shortest_path(start, end).get() == other.shortest_path(start, end).get() for end in ids)


EVERYTHING: list[Callable[[GraphStore], ActorFuture[Any]]] = [
    GraphStore.transitive_closure,
    GraphStore.degree_centrality,
    GraphStore.betweenness_centrality,
    GraphStore.communities,
    GraphStore.find_cycle,
    GraphStore.facts,
    GraphStore.entities,
    GraphStore.relationships,
]


def test_case_l03_a_path_that_a_negative_weight_would_make_wrong_cannot_come_about() -> None:
    graph = stored(["1", "2", "3", "5"], [])
    for source, target, weight in [("1", "2", -1), ("1", "3", -1), ("2", "5", -1), ("3", "5", -2)]:
        with pytest.raises(GraphError, match=f"'{source}' -next-> '{target}' has the weight {weight}"):
            graph.add_relationship(source, "next", target, weight).get()
    assert graph.shortest_path("1", "5").get() is None
    for source, target, weight in [("1", "2", 2), ("1", "3", 2), ("2", "5", 2), ("3", "5", 1)]:
        graph.add_relationship(source, "next", target, weight)
    path = graph.shortest_path("1", "5").get()
    assert path is not None
    assert (path.entities, path.weight) == (("1", "3", "5"), 3)


async def test_what_has_no_meaning_is_refused_in_a_runtime_too_and_leaves_no_event() -> None:
    graph = stored(["anna"], [])
    async with runtime_of(":memory:", graph) as runtime:
        refusals: list[tuple[Callable[[], ActorFuture[Any]], str]] = [
            (lambda: graph.add_relationship("anna", "likes", "tea"), "no entity 'tea' for 'anna' -likes-> 'tea'"),
            (
                lambda: graph.add_relationship("anna", "likes", "anna", float("nan")),
                "-likes-> 'anna' has the weight nan",
            ),
            (lambda: graph.add_relationship("anna", "likes", "anna", -1), "has the weight -1"),
            (lambda: graph.remove_relationship("anna", "likes", "anna"), "no relationship 'anna' -likes-> 'anna'"),
            (lambda: graph.remove_entity("tea"), "no entity 'tea'"),
            (lambda: graph.add_entity("tea", properties={"x": object()}), "properties of entity 'tea'.*x is of type"),
            (lambda: graph.bfs("tea"), "no entity 'tea'"),
            (lambda: graph.dfs("tea"), "no entity 'tea'"),
            (lambda: graph.shortest_path("anna", "tea"), "no entity 'tea'"),
            (lambda: graph.shortest_path("tea", "anna"), "no entity 'tea'"),
            (lambda: graph.subgraph(["anna", "tea"]), "no entity 'tea'"),
            (lambda: graph.neighbours("tea"), "no entity 'tea'"),
            (lambda: graph.relationships("anna", "tea"), "no entity 'tea'"),
            (lambda: graph.bfs("\ud800"), r"lone surrogate"),
            (lambda: graph.get(""), "must not be empty"),
        ]
        for refused, named in refusals:
            future = refused()
            with pytest.raises(GraphError, match=named):
                await future
        head = await runtime.store.head(graph.stream)
        assert head is not None
        assert head.version == 1


def test_an_empty_graph_answers() -> None:
    graph = GraphStore()
    assert graph.count().get() == 0
    assert graph.get("a").get() is None
    assert graph.communities().get() == ()
    assert graph.find_cycle().get() is None
    assert graph.betweenness_centrality().get() == graph.degree_centrality().get() == {}
    counts: dict[str, Any] = dict.fromkeys(
        ("entities", "relationships", "total_degree", "mean_degree", "mean_weight"), 0
    )
    kinds: dict[str, Any] = {"entity_kinds": {}, "relationship_kinds": {}, "degrees": {}}
    assert graph.facts().get() == GraphFacts(**counts, **kinds, self_loops=(), mutual=(), isolated=())


def test_what_is_added_again_is_replaced_and_keeps_the_rest() -> None:
    graph = stored(["a", "b"], [("a", "likes", "b", 2)])
    assert graph.add_relationship("a", "likes", "b", 3).get()
    assert not graph.add_relationship("a", "likes", "b", 3).get()
    assert graph.add_entity("a", "person", {"age": 3}).get()
    assert graph.get("a").get() == Entity("a", "person", {"age": 3})
    assert graph.entities("person").get() == (Entity("a", "person", {"age": 3}),)
    assert graph.relationships().get() == (Relationship("a", "likes", "b", 3),)


def test_of_several_kinds_a_path_takes_the_least_weight() -> None:
    graph = stored(["a", "b"], [("a", "walks", "b", 9), ("a", "drives", "b", 2), ("a", "flies", "b", 2)])
    assert graph.shortest_path("a", "b").get() == GraphPath(("a", "b"), (Relationship("a", "drives", "b", 2),), 2)
    assert graph.shortest_path("b", "a").get() is None
    assert graph.shortest_path("a", "a").get() == GraphPath(("a",), (), 0)
    assert graph.degree_centrality().get() == {"a": 3, "b": 3}


def test_an_entity_takes_its_relationships_with_it_and_answers_follow_every_change() -> None:
    graph = stored(["a", "b", "c"], [("a", "k", "b", 1), ("b", "k", "c", 1), ("b", "l", "b", 1), ("a", "k", "c", 9)])
    before = graph.shortest_path("a", "c").get()
    assert graph.remove_entity("b").get()
    after = graph.shortest_path("a", "c").get()
    assert before is not None
    assert after is not None
    assert (before.weight, after.weight) == (2, 9)
    assert graph.relationships().get() == (Relationship("a", "k", "c", 9),)
    graph.add_entity("b")
    assert graph.facts().get().isolated == ("b",)
    graph.remove_relationship("a", "k", "c")
    assert graph.shortest_path("a", "c").get() is None


def test_two_friendly_groups_are_two_communities() -> None:
    clique = [(x, "knows", y, 1.0) for group in ("abc", "def") for x in group for y in group if x < y]
    graph = stored("abcdef", [*clique, ("c", "knows", "d", 1)])
    assert graph.communities().get() == (("a", "b", "c"), ("d", "e", "f"))


@pytest.mark.parametrize("close", [("ab", "cd"), ("ad", "bc")])
def test_every_kind_counts_for_communities(close: tuple[str, str]) -> None:
    ring = [(x, "knows", y, 1.0) for x, y in ("ab", "bc", "cd", "da")]
    more = [(pair[0], kind, pair[1], 1.0) for pair in close for kind in "klmn"]
    assert stored("abcd", [*ring, *more]).communities().get() == tuple((pair[0], pair[1]) for pair in close)


def test_weights_are_costs_and_say_nothing_about_communities() -> None:
    clique = [(x, "knows", y, 0.0) for group in ("abc", "def") for x in group for y in group if x < y]
    assert stored("abcdef", clique).communities().get() == (("a", "b", "c"), ("d", "e", "f"))


async def test_after_a_restart_the_graph_is_the_same_and_the_log_replays(tmp_path: Path) -> None:
    log, odd = tmp_path / "events.db", "ünï/\n" + "🌍" * 100
    graph = stored(["a", odd], [("a", odd, odd, 0.1), (odd, "k", "a", 0.2)])
    async with runtime_of(log, graph):
        await graph.add_entity("c", odd, {"deep": [{"x": 1.5}], odd: None})
        await graph.add_relationship("a", "k", "c", 0.1 + 0.2)
        await graph.remove_relationship(odd, "k", "a")
        await graph.add_entity("gone")
        await graph.add_relationship("gone", "k", "a")
        await graph.remove_entity("gone", key="once")
        live = await graph.read(lambda state: state)
        answers = [await ask(graph) for ask in EVERYTHING]
    again = GraphStore()
    async with runtime_of(log, again) as runtime:
        assert await again.read(lambda state: state) == live
        assert [await ask(again) for ask in EVERYTHING] == answers
        assert not await again.remove_entity("gone", key="once")
        assert (await check_log(runtime.store)).problems == ()
        (await replay(runtime.store)).raise_for_divergence()


def test_from_plain_code_the_answers_are_waited_for_by_get(tmp_path: Path) -> None:
    graph = stored(["a"], [])
    with runtime_of(tmp_path / "events.db", graph):
        assert graph.add_entity("b").get()
        assert graph.add_relationship("a", "k", "b").get()
        assert graph.bfs("a").get() == ("a", "b")
        assert graph.count().get() == 2


async def test_many_questions_and_changes_at_once_each_see_one_state() -> None:
    graph = stored([f"{number:03}" for number in range(40)], [])
    async with runtime_of(":memory:", graph):
        changes, questions = list[ActorFuture[bool]](), list[ActorFuture[tuple[str, ...]]]()
        for number in range(39):
            changes.append(graph.add_relationship(f"{number:03}", "next", f"{number + 1:03}"))
            questions.append(graph.bfs("000"))
        found = await asyncio.gather(*questions)
        assert [len(one) for one in found] == list(range(2, 41))
        assert all([await change for change in changes])


async def test_a_session_notes_how_many_entities_its_agent_knows_when_it_begins(tmp_path: Path) -> None:
    log, graph = tmp_path / "events.db", stored(["a", "b"], [])
    async with runtime_of(log, graph, say("Hello."), say("Hello again."), say("And you.")) as runtime:
        first = await runtime.session("first")
        assert await first.metadata() is None
        await first.send("Hello")
        graph.add_entity("c")
        await graph.count()
        await first.send("Hello again")
        second = await runtime.session("second")
        await second.send("Hello")
        counts = [await session.metadata() for session in (first, second)]
        assert [noted.graph_entities for noted in counts if noted is not None] == [2, 3]
        assert (await check_log(runtime.store)).problems == ()
    plain = AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([say("Hi.")]), log=log, inbox_poll_s=0)
    async with plain as runtime:
        third = await runtime.session("third")
        await third.send("Hi")
        noted = await third.metadata()
        assert noted is not None
        assert (noted.session, noted.agent, noted.graph_entities) == ("third", "agent", None)


def test_two_graphs_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 objects of the agent are the stream graph/main"):
        AgentRuntime(AgentConfig(model="m"), provider=ScriptedProvider([]), graph=GraphStore(), objects=[GraphStore()])


def run_python(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONASYNCIODEBUG": "", **environment},
    )
    return done.stdout


def test_networkx_is_loaded_by_the_first_question_that_needs_it() -> None:
    program = (
        "import sys; from refold.memory import GraphStore; graph = GraphStore(); graph.add_entity('a'); "
        "graph.facts().get(); print('networkx' in sys.modules); graph.bfs('a').get(); print('networkx' in sys.modules)"
    )
    assert run_python(program).split() == ["False", "True"]


ANSWERS = """
import random
from refold.memory import GraphStore
graph, draw = GraphStore(), random.Random(7)
names = [f"name {number} {draw.random()}" for number in range(60)]
for name in names:
    graph.add_entity(name)
for _ in range(200):
    graph.add_relationship(draw.choice(names), draw.choice("klm"), draw.choice(names), draw.choice([0, 1, 1, 2]))
print(graph.communities().get(), graph.find_cycle().get(), graph.betweenness_centrality().get())
print(graph.transitive_closure().get(), graph.degree_centrality().get(), graph.facts().get())
print([graph.bfs(name).get() + graph.dfs(name).get() for name in names])
print([graph.shortest_path(names[0], name).get() for name in names])
"""


@pytest.mark.slow
def test_answers_do_not_depend_on_the_hash_seed() -> None:
    answers = {run_python(ANSWERS, PYTHONHASHSEED=seed) for seed in ("1", "2", "3")}
    assert len(answers) == 1
