"""The order book of examples/: its own properties, a kill in the middle, and replay and check as its user runs them."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.order_book import Book, Cancel, Cancelled, Order, OrderBook, Place, Placed, Traded
from refold.actors import EventSourcedSystem
from refold.events import CommandRejected, EventCodec
from refold.inspection.check import check_log
from refold.replay import replay, state_at
from refold.scenarios.core_exploration import explore_core
from refold.stores import InMemoryStore
from tests.examples.conftest import QUIET, ROOT, assert_sound, refold

BookEvent = Placed | Cancelled | Traded
CODEC: EventCodec[BookEvent] = EventCodec([Placed, Cancelled, Traded])

orders = st.builds(Order, st.sampled_from(["buy", "sell"]), st.integers(1, 5), st.integers(1, 5))
steps = st.lists(
    st.one_of(
        st.builds(Place, order=orders, key=st.none() | st.sampled_from("abc")),
        st.builds(Cancel, number=st.integers(1, 12), key=st.none() | st.sampled_from("abc")),
        st.just("reopen"),
    ),
    max_size=25,
)


class Market:
    """A matching engine written another way: two lists, kept in the order in which they trade."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, Order]] = []
        self.trades: list[Traded] = []

    def place(self, number: int, order: Order) -> None:
        left = order.quantity
        others = [item for item in self.waiting if item[1].side != order.side]
        others.sort(key=lambda item: (item[1].price if order.side == "buy" else -item[1].price, item[0]))
        for resting, other in others:
            if not left or (other.price > order.price if order.side == "buy" else other.price < order.price):
                break
            quantity = min(left, other.quantity)
            left -= quantity
            self.trades.append(Traded(resting=resting, taking=number, price=other.price, quantity=quantity))
            self.waiting.remove((resting, other))
            if other.quantity > quantity:
                self.waiting.append((resting, Order(other.side, other.price, other.quantity - quantity)))
        if left:
            self.waiting.append((number, Order(order.side, order.price, left)))


def is_not_crossed(book: Book) -> bool:
    buy, sell = book.best("buy"), book.best("sell")
    return buy is None or sell is None or book.orders[buy].price < book.orders[sell].price


async def recorded(store: InMemoryStore) -> list[BookEvent]:
    events = CODEC.decode_all(await store.read_stream("book/ACME"))
    return [msgspec.structs.replace(event, at=0) for event in events]


async def live(store: InMemoryStore, given_steps: Sequence[Place | Cancel | str]) -> Book:
    """Send commands to an order book, begun anew where a step says so; return its last live state."""
    waiting = list(given_steps)
    while True:
        async with EventSourcedSystem(store) as system:
            books = await system.host("book", OrderBook)
            while waiting:
                step = waiting.pop(0)
                if isinstance(step, str):
                    break
                try:
                    await books.ask("ACME", step)
                except CommandRejected:
                    assert step.key is not None or isinstance(step, Cancel)
                assert await books.read("ACME", is_not_crossed)
            else:
                return await books.read("ACME", lambda book: book)


@given(steps)
def test_whatever_happens_trades_are_those_of_another_engine_and_nothing_is_lost(
    given_steps: list[Place | Cancel | str],
) -> None:
    async def check() -> None:
        store, market = InMemoryStore(), Market()
        book = await live(store, given_steps)
        events = await recorded(store)
        for version, event in enumerate(events, 1):
            if isinstance(event, Placed):
                market.place(version, event.order)
            elif isinstance(event, Cancelled):
                market.waiting = [item for item in market.waiting if item[0] != event.number]
        assert [event for event in events if isinstance(event, Traded)] == market.trades
        assert sorted(book.orders.items(), key=str) == sorted(market.waiting, key=str)
        keys = [event.command.key for event in events if not isinstance(event, Traded) and event.command is not None]
        assert len(keys) == len(set(keys))
        if events:
            assert await state_at(store, "book/ACME", OrderBook) == book
        (await replay(store, kinds={"book": OrderBook})).raise_for_divergence()
        assert (await check_log(store, kinds={"book": OrderBook})).problems == ()

    asyncio.run(check())


def moves(book: Book) -> Iterator[Place | Cancel]:
    for order in (Order("buy", 1, 1), Order("buy", 2, 2), Order("sell", 1, 2), Order("sell", 2, 1)):
        yield Place(order=order)
    for number in (*book.orders, 99):
        yield Cancel(number=number)


def test_every_life_of_four_commands_keeps_the_book_uncrossed() -> None:
    found = explore_core(OrderBook, moves, holds=is_not_crossed, commands_max=4)
    assert found.counterexample is None, found.counterexample
    assert (found.states, found.batches) > (100, 200)


def test_a_book_that_matches_once_only_is_found_crossed() -> None:
    class MatchesOnce(OrderBook):
        def react(self, state: Book, event: BookEvent) -> list[Traded]:
            return [] if isinstance(event, Traded) else super().react(state, event)

    found = explore_core(MatchesOnce, moves, holds=is_not_crossed, commands_max=4)
    assert found.counterexample is not None
    assert len(found.counterexample.commands) == 3


SELLER = """
import asyncio, sys
from examples.order_book import EventSourcedSystem, Order, OrderBook, Place

async def main():
    async with EventSourcedSystem(sys.argv[1]) as system:
        books = await system.host("book", OrderBook)
        for number in range(int(sys.argv[2])):
            side = "sell" if number % 3 else "buy"
            done = await books.ask("ACME", Place(order=Order(side, 100 + number % 7, 1 + number % 4), key=f"k{number}"))
            print(number, done.version, done.new, flush=True)

asyncio.run(main())
"""


def seller(log: Path, count: int) -> "subprocess.Popen[str]":
    environment = {**QUIET, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", "-c", SELLER, str(log), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.slow
def test_killed_in_the_middle_it_has_all_that_it_acknowledged_and_takes_nothing_twice(tmp_path: Path) -> None:
    log = tmp_path / "books.db"
    with seller(log, 1_000_000) as killed:
        assert killed.stdout is not None
        acknowledged = [killed.stdout.readline().split() for _ in range(25)]
        killed.send_signal(signal.SIGKILL)
    with seller(log, 40) as again:
        assert again.stdout is not None
        lines = [line.split() for line in again.stdout]
    assert again.returncode == 0
    assert [[number, version] for number, version, _ in lines[:25]] == [line[:2] for line in acknowledged]
    assert {new for _, _, new in lines[:25]} == {"False"}
    kind = "book=examples.order_book:OrderBook"
    assert_sound(log, "--kind", kind)
    shown = refold("replay", log, "--kind", kind, "--stream", "book/ACME", "--at", 1, "--json")
    assert msgspec.json.decode(shown.stdout)["state"]["orders"] == {"1": {"side": "buy", "price": 100, "quantity": 1}}
