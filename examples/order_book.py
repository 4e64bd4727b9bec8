"""Order books, one event-sourced actor for each symbol, and no agent. Orders match by price, then by age.

From the top folder:
python examples/order_book.py
refold replay books.db --kind book=examples.order_book:OrderBook
"""

import asyncio
from typing import Literal

import msgspec

from refold.actors import EventSourcedSystem
from refold.events import CommandRejected, Event, KeyedCommand, KeyedEvent, PureCore, State


class Order(msgspec.Struct, frozen=True):
    side: Literal["buy", "sell"]
    price: int
    quantity: int


class Place(KeyedCommand, frozen=True, kw_only=True):
    order: Order


class Cancel(KeyedCommand, frozen=True, kw_only=True):
    number: int


class Placed(KeyedEvent, frozen=True, kw_only=True, tag="book.placed.v1"):
    order: Order


class Cancelled(KeyedEvent, frozen=True, kw_only=True, tag="book.cancelled.v1"):
    number: int


class Traded(Event, frozen=True, kw_only=True, tag="book.traded.v1"):
    resting: int
    taking: int
    price: int
    quantity: int


class Book(State):
    orders: dict[int, Order] = {}  # Those that wait, by number: the version of the event that placed them.

    def best(self, side: str) -> int | None:
        better = 1 if side == "sell" else -1
        waiting = [(order.price * better, number) for number, order in self.orders.items() if order.side == side]
        return min(waiting)[1] if waiting else None


class OrderBook(PureCore[Book, Place | Cancel, Placed | Cancelled | Traded]):
    def admit(self, state: Book, command: Place | Cancel) -> Placed | Cancelled:
        match command:
            case Place(order=order):
                if order.price <= 0 or order.quantity <= 0:
                    raise CommandRejected("price and quantity must be above 0")
                return Placed(order=order)
            case Cancel(number=number):
                if number not in state.orders:
                    raise CommandRejected(f"order {number} does not wait: it is filled or cancelled, or never was")
                return Cancelled(number=number)

    def evolve(self, state: Book, event: Placed | Cancelled | Traded) -> Book:
        match event:
            case Placed(order=order):
                state.orders[state.version] = order
            case Cancelled(number=number):
                del state.orders[number]
            case Traded(resting=resting, taking=taking, quantity=quantity):
                for number in (resting, taking):
                    order = state.orders.pop(number)
                    if order.quantity > quantity:
                        state.orders[number] = Order(order.side, order.price, order.quantity - quantity)
        return state

    def react(self, state: Book, event: Placed | Cancelled | Traded) -> list[Traded]:
        buy, sell = state.best("buy"), state.best("sell")
        if buy is None or sell is None or state.orders[buy].price < state.orders[sell].price:
            return []
        resting, taking = min(buy, sell), max(buy, sell)
        quantity = min(state.orders[buy].quantity, state.orders[sell].quantity)
        return [Traded(resting=resting, taking=taking, price=state.orders[resting].price, quantity=quantity)]


async def main() -> None:
    async with EventSourcedSystem("books.db") as system:
        books = await system.host("book", OrderBook)
        for _ in range(2):  # Sent twice, placed once: it has a key.
            await books.ask("ACME", Place(order=Order("sell", 101, 5), key="ann-1"))
        await books.ask("ACME", Place(order=Order("buy", 102, 3), key="bob-1"))
        print(await books.read("ACME", lambda book: book.orders))


if __name__ == "__main__":
    asyncio.run(main())
