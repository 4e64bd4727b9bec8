"""Kinds of the application's own beside an agent: one log, one system, and tools that ask them."""

from pathlib import Path

import pytest

from examples.order_book import Order, OrderBook, Place
from refold import AgentConfig, AgentRuntime, Completed, ScriptedProvider, say, tool, use
from refold.events import CommandRejected
from refold.events.core.errors import ConfigError
from refold.inspection.check import check_log
from refold.providers.scripted import ScriptItem
from refold.replay import replay


async def test_a_tool_asks_an_order_book_on_the_log_of_its_agent(tmp_path: Path) -> None:
    log = tmp_path / "events.db"

    @tool
    async def sell(symbol: str, price: int, quantity: int) -> str:
        """Sell shares."""
        order = Order("sell", price, quantity)
        performed = await books.ask(symbol, Place(order=order, key="from the agent"))
        return f"order {performed.version}"

    script: list[ScriptItem] = [use("sell", {"symbol": "ACME", "price": 101, "quantity": 5}), say("sold")]
    for _ in range(2):
        runtime = AgentRuntime(AgentConfig(model="scripted"), provider=ScriptedProvider(script), tools=[sell], log=log)
        async with runtime:
            books = await runtime.host("book", OrderBook)
            result = await (await runtime.session("alice")).send("Sell, please.")
            assert (result.outcome, result.text) == (Completed(), "sold")
            with pytest.raises(CommandRejected):
                await books.ask("ACME", Place(order=Order("buy", 0, 1)))
            assert await books.read("ACME", lambda book: book.orders) == {1: Order("sell", 101, 5)}
            with pytest.raises(ConfigError, match="Refold's own"):
                await runtime.host("session", OrderBook)
    (await replay(log, kinds={"book": OrderBook})).raise_for_divergence()
    assert (await check_log(log, kinds={"book": OrderBook})).problems == ()
