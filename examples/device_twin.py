"""Device twins: what each lamp should do, kept beside what it last said that it does. No agent.

Run it from the top folder:

    python examples/device_twin.py

What is wanted and not yet reported is sent to the lamp, again after a growing pause where that fails, and after any
crash: `pending` says so, and nothing else need remember it. Stop the program at any point and start it again.
"""

import asyncio

import msgspec

from refold.actors import EventSourcedSystem
from refold.events import SECOND_US, Effect, Event, KeyedCommand, KeyedEvent, PureCore, RecordedEvent, State, WaitUntil


class SetLevel(KeyedCommand, frozen=True, kw_only=True):
    level: int


class LampSays(msgspec.Struct, frozen=True, kw_only=True):
    level: int


class LampFails(msgspec.Struct, frozen=True, kw_only=True):
    reason: str


class TryAgain(msgspec.Struct, frozen=True, kw_only=True):
    pass


class LevelSet(KeyedEvent, frozen=True, kw_only=True, tag="lamp.level_set.v1"):
    level: int


class LampSaid(Event, frozen=True, kw_only=True, tag="lamp.said.v1"):
    level: int


class LampFailed(Event, frozen=True, kw_only=True, tag="lamp.failed.v1"):
    reason: str


class TriedAgain(Event, frozen=True, kw_only=True, tag="lamp.tried_again.v1"):
    pass


Command = SetLevel | LampSays | LampFails | TryAgain
Change = LevelSet | LampSaid | LampFailed | TriedAgain


class Send(Effect, frozen=True, kw_only=True):
    level: int


class Twin(State):
    wanted: int = 0
    reported: int = 0
    sending: int = 0  # Version of the event that began the present attempt: a key that no other attempt has.
    failures: int = 0
    again_at: int = 0  # Microseconds since the epoch; 0 = now.


class Lamp(PureCore[Twin, Command, Change]):
    def admit(self, state: Twin, command: Command) -> Change:
        match command:
            case SetLevel(level=level):
                return LevelSet(level=level)
            case LampSays(level=level):
                return LampSaid(level=level)
            case LampFails(reason=reason):
                return LampFailed(reason=reason)
            case TryAgain():
                return TriedAgain()

    def evolve(self, state: Twin, event: Change) -> Twin:
        match event:
            case LevelSet(level=level):
                state.wanted, state.sending, state.failures, state.again_at = level, state.version, 0, 0
            case LampSaid(level=level):
                state.reported = level
            case LampFailed():
                state.failures += 1
                state.again_at = event.at + SECOND_US * 2 ** min(state.failures, 6)
            case TriedAgain():
                state.sending, state.again_at = state.version, 0
        return state

    def pending(self, state: Twin) -> list[Effect]:
        if state.wanted == state.reported:
            return []
        if state.again_at:
            return [WaitUntil(key=f"again:{state.sending}", due_at=state.again_at)]
        return [Send(key=f"send:{state.sending}", level=state.wanted)]

    def due(self, effect: WaitUntil) -> TryAgain:
        return TryAgain()

    def failed(self, effect: Effect, error: Exception) -> LampFails:
        return LampFails(reason=str(error))


sent: list[str] = []


async def send(effect: Send) -> LampSays:
    """Tell a lamp, here one that is off line at first; what this raises becomes the event `LampFailed`."""
    sent.append(effect.key)
    if len(sent) == 1:
        raise ConnectionError("the lamp does not answer")
    return LampSays(level=effect.level)


async def main() -> None:
    lit = asyncio.Event()

    def show(recorded: RecordedEvent[Change]) -> None:
        print(recorded.version, recorded.event)
        if isinstance(recorded.event, LampSaid):
            lit.set()

    async with EventSourcedSystem("lamps.db") as system:
        lamps = await system.host("lamp", Lamp, perform=send, on_event=show)
        await lamps.ask("hall", SetLevel(level=70, key="evening"))
        if await lamps.read("hall", lambda twin: twin.wanted != twin.reported):
            await lit.wait()
        print("the lamp shines at", await lamps.read("hall", lambda twin: twin.reported))


if __name__ == "__main__":
    asyncio.run(main())
