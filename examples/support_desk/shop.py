"""The shop that both desks serve: its people, its orders, and what an answer is. It knows nothing of agents.

Real people sign in; here a bearer token is a name, and `sam` works for the shop.
"""

import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from typing import Annotated, Literal

from fastapi import Depends, HTTPException
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, Field

PEOPLE = {"alice-token": "alice", "bob-token": "bob", "sam-token": "sam"}
STAFF = {"sam"}

PROMPT = "You answer {user}, a customer of a shop for teapots. Look orders up; refund only what was paid."


class Answer(BaseModel):
    """What a customer is told."""

    text: str
    refunded_cents: int = Field(default=0, ge=0)


class Question(BaseModel):
    """What a customer says."""

    text: str = Field(min_length=1)


class Decision(BaseModel):
    """What a person of the shop decides about a call."""

    allow: bool
    arguments: dict[str, object] | None = None
    """All arguments that the call is to run with; None = those of the model."""
    reason: str = ""


class Waiting(BaseModel):
    """A call that waits for a decision."""

    chat: str
    call: str
    tool: str
    arguments: dict[str, object]


class Happened(BaseModel):
    """One event of a run as a client gets it: a piece of the answer, a wait, or the end."""

    kind: Literal["text", "waiting", "answer", "failed"]
    data: object


def signed_in(token: Annotated[HTTPAuthorizationCredentials, Depends(HTTPBearer())]) -> str:
    """Return whose request it is."""
    if (name := PEOPLE.get(token.credentials)) is None:
        raise HTTPException(401, "sign in first")
    return name


User = Annotated[str, Depends(signed_in)]


def of_the_shop(user: User) -> str:
    """Return which person of the shop asks."""
    if user not in STAFF:
        raise HTTPException(403, "only for people of the shop")
    return user


Person = Annotated[str, Depends(of_the_shop)]


class Shop:
    """Its database: orders and refunds, for tools that run in threads."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def orders(self, customer: str) -> list[dict[str, object]]:
        """Return what a customer has ordered."""
        rows = self._connection.execute("SELECT id, item, paid_cents FROM orders WHERE customer = ?", (customer,))
        return [{"order": number, "item": item, "paid_cents": paid} for number, item, paid in rows]

    def refund(self, customer: str, order: int, cents: int, key: str) -> str:
        """Pay money back, once for each key, however often it is asked to."""
        paid = {each["order"]: each["paid_cents"] for each in self.orders(customer)}
        if not 0 < cents <= int(str(paid.get(order, 0))):
            return f"refused: {customer} has not paid {cents} cents for order {order}"
        with self._connection:
            self._connection.execute("INSERT OR IGNORE INTO refunds VALUES (?, ?, ?)", (key, order, cents))
        return f"refunded {cents} cents of order {order}"

    def refunds(self) -> list[tuple[int, int]]:
        """Return what was refunded: order and cents."""
        return list(self._connection.execute("SELECT order_id, cents FROM refunds"))


@asynccontextmanager
async def open_shop() -> AsyncGenerator[Shop]:
    """Open the database, which is made where there is none."""
    with closing(sqlite3.connect("shop.db", check_same_thread=False)) as connection:
        connection.executescript(
            """
            CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, customer TEXT, item TEXT, paid_cents INTEGER);
            CREATE TABLE IF NOT EXISTS refunds (key TEXT PRIMARY KEY, order_id INTEGER, cents INTEGER);
            INSERT OR IGNORE INTO orders VALUES (7, 'alice', 'a blue teapot', 5000), (8, 'bob', 'a red teapot', 4000);
            """
        )
        yield Shop(connection)


def scripted_step(question: str, results: list[str], system_prompt: str) -> tuple[str, dict[str, object]] | Answer:
    """Stand in for a model: return a call of a tool, or an answer.

    Args:
        question: what the customer said last.
        results: what tools have given since.
        system_prompt: what the model is told, memories among it.
    """
    words = question.removesuffix(".").split()
    if results:
        refunded = [
            int(words[words.index("cents") - 1]) for result in results if "refunded" in (words := result.split())
        ]
        return Answer(text=" ".join(results), refunded_cents=sum(refunded))
    if words[0] == "Refund":  # Refund 5000 cents of order 7.
        return "refund", {"order": int(words[5]), "cents": int(words[1])}
    if words[0] == "Remember":
        return "remember", {"content": " ".join(words[1:])}
    if words[-1] == "ordered?":
        return "orders", {}
    known = [line.strip("- ") for line in system_prompt.splitlines() if line.startswith("- ")]
    return Answer(text=" ".join(known) or "I do not know.")
