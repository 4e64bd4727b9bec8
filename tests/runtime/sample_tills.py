"""A kind of actors of a user, and changes of its code, which tests of commands load as the module `tills`."""

from collections.abc import Sequence

from refold.events import CommandRejected, Effect, Event, KeyedCommand, KeyedEvent, PureCore, State, WaitUntil


class Pay(KeyedCommand, frozen=True, kw_only=True):
    amount: int


class Paid(KeyedEvent, frozen=True, kw_only=True, tag="till.paid.v1"):
    amount: int


class Emptied(Event, frozen=True, kw_only=True, tag="till.emptied.v1"):
    amount: int


class Till(State):
    amount: int = 0


class TillCore(PureCore[Till, Pay, Paid | Emptied]):
    """A till that is emptied as soon as it holds more than 100."""

    def admit(self, state: Till, command: Pay) -> Paid:
        if command.amount < 0:
            raise CommandRejected("a till takes money")
        return Paid(amount=command.amount)

    def evolve(self, state: Till, event: Paid | Emptied) -> Till:
        state.amount += event.amount if isinstance(event, Paid) else -event.amount
        return state

    def react(self, state: Till, event: Paid | Emptied) -> Sequence[Emptied]:
        return [Emptied(amount=state.amount)] if isinstance(event, Paid) and state.amount > 100 else ()

    def pending(self, state: Till) -> list[Effect]:
        return [WaitUntil(key=f"count:{state.amount}", due_at=2**60)] if state.amount > 50 else []


class LaterEmptied(TillCore):
    """The same with one line changed."""

    def react(self, state: Till, event: Paid | Emptied) -> Sequence[Emptied]:
        return [Emptied(amount=state.amount)] if isinstance(event, Paid) and state.amount > 110 else ()


class LessEmptied(TillCore):
    def react(self, state: Till, event: Paid | Emptied) -> Sequence[Emptied]:
        return [Emptied(amount=state.amount - 1)] if super().react(state, event) else ()


class WaitsLess(TillCore):
    def pending(self, state: Till) -> list[Effect]:
        return []


class Fails(TillCore):
    def evolve(self, state: Till, event: Paid | Emptied) -> Till:
        if isinstance(event, Emptied):
            raise KeyError("emptied")
        return super().evolve(state, event)


class GrownEvents(PureCore[Till, Pay, Paid]):
    """Knows one of the two events."""

    def admit(self, state: Till, command: Pay) -> Paid:
        return Paid(amount=1)

    def evolve(self, state: Till, event: Paid) -> Till:
        return state


NO_CORE = "nothing"


class AdmitsNothing(TillCore):
    def admit(self, state: Till, command: Pay) -> Paid:
        raise CommandRejected("closed")
