"""A research agent that keeps what it learns as a graph, and asks it how things hang together. No key, no network.

Run it from the top folder, more than once:

    python examples/graph.py

The graph lives on the agent's log beside its sessions: the second run begins with what the first one learned.
"""

import asyncio

from refold import AgentConfig, AgentRuntime, ScriptedProvider, say, tool, use
from refold.memory import GraphError, GraphStore

graph = GraphStore("services", scope="agent")
for name, kind in [("shop", "service"), ("payments", "service"), ("ledger", "database"), ("mail", "service")]:
    graph.add_entity(name, kind)
graph.add_relationship("shop", "calls", "payments", weight=20)  # A weight is what a step costs: milliseconds here.
graph.add_relationship("payments", "writes", "ledger", weight=5)


@tool(tier="observe", effect="idempotent")
async def learn(source: str, kind: str, target: str, weight: float) -> str:
    """Note that one service depends on another.

    Args:
        source: the service that depends.
        kind: how, such as "calls".
        target: what it depends on.
        weight: milliseconds that a call takes.
    """
    try:
        new = await graph.add_relationship(source, kind, target, weight)
    except GraphError as error:  # The model reads what was wrong, and may correct it.
        return f"Not noted: {error}"
    return "Noted." if new else "Known already."


@tool(tier="observe", effect="pure")
async def path(source: str, target: str) -> str:
    """The quickest chain of dependencies from one service to another."""
    found = await graph.shortest_path(source, target)
    return f"{' -> '.join(found.entities)}, {found.weight:g} ms" if found is not None else "They are not connected."


async def main() -> None:
    runtime = AgentRuntime(
        AgentConfig(model="scripted"),
        provider=ScriptedProvider(
            [
                [
                    use("learn", {"source": "ledger", "kind": "notifies", "target": "mail", "weight": 3}),
                    use("learn", {"source": "shop", "kind": "calls", "target": "mail", "weight": -1}),
                ],
                use("path", {"source": "shop", "target": "mail"}),
                say("The shop reaches mail through payments and the ledger, in 28 ms."),
            ]
        ),
        tools=[learn, path],
        graph=graph,
        log="services.db",
    )
    async with runtime:
        session = await runtime.session()
        result = await session.send("The ledger notifies mail. How does the shop reach mail?")
        print(result.output)
        metadata = await session.metadata()
        assert metadata is not None
        print(metadata.graph_entities, "entities when the session began")
        facts = await graph.facts()
        print(facts.relationship_kinds, "mean weight", round(facts.mean_weight, 2), "cycle:", await graph.has_cycle())
        await graph.remove_entity("payments")
        print("without payments:", await path("shop", "mail"))
        await graph.add_entity("payments", "service")
        await graph.add_relationship("shop", "calls", "payments", weight=20)
        await graph.add_relationship("payments", "writes", "ledger", weight=5)


if __name__ == "__main__":
    asyncio.run(main())
