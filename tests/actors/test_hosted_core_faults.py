"""What the writer of a first core gets wrong, hosted: each mistake is said in words of that core, and costs nothing.

All that a core may not do is in `tests/events/core/test_checked_core.py`; here is what comes of it for those who ask.
"""

import asyncio
from typing import Any

import msgspec
import pytest

from refold import events
from refold.actors import ActorFailure, EventSourcedSystem, Hosted, ManualClock, Performed
from refold.events.core.errors import LogFormatError
from refold.stores import InMemoryStore


class Withdraw(events.KeyedCommand, frozen=True, kw_only=True):
    amount: Any


class Ring(msgspec.Struct, frozen=True):
    pass


class Withdrawn(events.KeyedEvent, frozen=True, kw_only=True, tag="account.withdrawn.v1"):
    amount: int


class Rang(events.KeyedEvent, frozen=True, kw_only=True, tag="account.rang.v1"):
    pass


class Account(events.State):
    balance: int = 1_500
    at: int = 0
    rung: bool = False


class UnsayableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot be said")


class Bank(events.PureCore[Account, Withdraw | Ring, Withdrawn | Rang]):
    """Withdraws money, and rings five seconds later."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def admit(self, state: Account, command: Withdraw | Ring) -> Any:
        if isinstance(command, Ring):
            return Rang()
        if self.fault == "admit raises":
            raise KeyError("a fault")
        if self.fault == "admit exits":
            raise SystemExit(3)
        if self.fault == "admit changes and refuses":
            state.balance += 1_000_000
            raise events.CommandRejected("no")
        return Withdrawn(amount=command.amount)

    def evolve(self, state: Account, event: Withdrawn | Rang) -> Account:
        if self.fault == "evolve raises":
            raise ZeroDivisionError("a fault")
        if self.fault == "evolve is cancelled":
            raise asyncio.CancelledError
        if self.fault == "evolve cannot say":
            raise UnsayableError
        if isinstance(event, Withdrawn):
            state.balance -= event.amount
            state.at = event.at
        else:
            state.rung = True
        return state

    def react(self, state: Account, event: Withdrawn | Rang) -> Any:
        if self.fault == "react raises":
            raise RecursionError("a fault")
        return [Rang()] if self.fault == "react circles" else ()

    def pending(self, state: Account) -> Any:
        if not state.at or state.rung:
            return []
        if self.fault == "pending raises":
            raise KeyError("a fault")
        return [events.WaitUntil(key="ring", due_at=state.at + 5 * events.SECOND_US)]

    def due(self, effect: events.WaitUntil) -> Any:
        if self.fault == "due raises":
            raise KeyError("a fault")
        return Ring()


class World:
    """A log in memory, a clock that stands still, and the faults that were reported."""

    def __init__(self) -> None:
        self.store, self.clock, self.failures = InMemoryStore(), ManualClock(), list[ActorFailure]()

    def system(self) -> EventSourcedSystem:
        return EventSourcedSystem(self.store, clock=self.clock, on_failure=self.failures.append, close_grace_s=0)

    async def reopened(self) -> tuple[int, int]:
        """Return version and balance as a new system folds them with a sound core."""
        async with self.system() as system:
            accounts = await system.host("account", Bank)
            return await accounts.read("one", lambda account: (account.version, account.balance))


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("admit raises", "Bank.admit fails on the Withdraw: KeyError: 'a fault'"),
        ("evolve raises", "Bank.evolve fails on the Withdrawn of version 1: ZeroDivisionError: a fault"),
        ("react raises", "Bank.react fails on the Withdrawn of version 1: RecursionError: a fault"),
        ("pending raises", "Bank.pending fails on the Account of version 1: KeyError: 'a fault'"),
        ("react circles", "Bank.react is circling: a Withdrawn has more than 100,000 consequences"),
        ("admit changes and refuses", "Bank.admit changes the state on the Withdraw; only evolve may"),
        ("admit exits", "Bank.admit fails on the Withdraw: SystemExit: 3"),
        ("evolve is cancelled", "Bank.evolve fails on the Withdrawn of version 1: CancelledError"),
        ("evolve cannot say", "version 1: UnsayableError: (its text cannot be had: RuntimeError)"),
    ],
)
async def test_a_mistake_is_the_askers_error_in_the_words_of_the_core_and_changes_nothing(
    world: World, fault: str, said: str
) -> None:
    async with world.system() as system:
        accounts: Hosted[Account, Withdraw | Ring] = await system.host("account", Bank(fault))
        for _ in range(1 if fault == "react circles" else 10):  # More often than a failing actor is restarted.
            with pytest.raises(events.CoreFailed) as raised:
                await accounts.ask("one", Withdraw(amount=500, key="k"))
            assert said in str(raised.value)
            assert ("raises" in fault) == isinstance(
                raised.value.__cause__, KeyError | ArithmeticError | RecursionError
            )
        assert await accounts.read("one", lambda account: (account.version, account.balance)) == (0, 1_500)
        assert "account/one" in system.live()
        if fault != "react circles":
            accounts.tell("one", Withdraw(amount=500, key="k"))
            await world.clock.settle()
            assert said in system.parked[-1].reason
    assert {failure.stopped for failure in world.failures} == {False}
    assert await world.reopened() == (0, 1_500)


async def test_a_time_that_becomes_no_command_is_reported_and_comes_again(world: World) -> None:
    async with world.system() as system:
        accounts = await system.host("account", Bank("due raises"))
        await accounts.ask("one", Withdraw(amount=500))
        await world.clock.advance(6)
        assert len(world.failures) == 3
        world.clock.jump(1)
        assert await accounts.ask("one", Withdraw(amount=500)) == Performed(2, True)
    assert {failure.message for failure in world.failures} == {"Bank.due fails on the WaitUntil: KeyError: 'a fault'"}
    async with world.system() as system:
        accounts = await system.host("account", Bank)
        await world.clock.advance(5)
        assert await accounts.read("one", lambda account: account.rung)


class Forgetful(events.PureCore[Account, Withdraw, Rang]):
    """Bank, without the event that it recorded."""

    def admit(self, state: Account, command: Withdraw) -> Rang:
        return Rang()

    def evolve(self, state: Account, event: Rang) -> Account:
        return state


async def test_an_event_that_the_core_has_lost_is_said_to_be_the_cores(world: World) -> None:
    async with world.system() as system:
        await (await system.host("account", Bank)).ask("one", Withdraw(amount=500))
    async with world.system() as system:
        accounts = await system.host("account", Forgetful)
        with pytest.raises(LogFormatError) as raised:
            await accounts.ask("one", Withdraw(amount=500))
    said = "account/one@1 has the type 'account.withdrawn.v1', which the core Forgetful does not know"
    assert said in str(raised.value)
