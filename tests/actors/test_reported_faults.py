"""Faults that users of other actor libraries reported; the numbers are those of the collection of cases.

Most of the cases stand with their themes, under `test_case_h…`.
"""

import asyncio
import threading
from typing import Any

from refold import AgentConfig, AgentRuntime, ScriptedProvider
from refold.actors import Actor, ActorFailure, ActorSystem
from refold.events.core.ids import StreamName
from refold.events.kinds.runtime import RUNTIME_CODEC, RUNTIME_STREAM, ActorFailed


class Adding(Actor):
    """Adds numbers up, and fails on everything else."""

    def __init__(self) -> None:
        self.sum = 0

    def on_receive(self, message: Any) -> int:
        self.sum += message
        return self.sum


async def test_case_h04_an_error_under_tell_does_not_end_the_actor_and_is_in_the_log() -> None:
    runtime = AgentRuntime(AgentConfig(model="scripted"), provider=ScriptedProvider([]))
    async with runtime:
        ref = await runtime.system.start(Adding, address="adding/1")
        ref.tell("not a number")
        assert await ref.ask(1, block=False) == 1
        await runtime.system.ref(RUNTIME_STREAM).ask(_fact(runtime.system.failures[0]), block=False)
        stored = await runtime.store.read_stream(StreamName(RUNTIME_STREAM))
        failed = [event for event in RUNTIME_CODEC.decode_all(stored) if isinstance(event, ActorFailed)]
    assert {(event.address, event.error, event.stopped) for event in failed} == {
        ("adding/1", "builtins.TypeError", False)
    }


def _fact(failure: ActorFailure) -> ActorFailed:
    return ActorFailed(
        address=failure.address, error=failure.error_type, message=failure.message, restarts=0, stopped=failure.stopped
    )


async def test_case_h11_twenty_thousand_actors_take_no_thread_and_no_task() -> None:
    asyncio.get_running_loop().set_debug(False)  # It would keep a traceback of each of the stops at the end.
    threads = set(threading.enumerate())
    async with ActorSystem(live_max=None) as system:
        system.register("adding", lambda _: Adding())
        for number in range(20_000):
            system.ref(f"adding/{number}").tell(number)
        assert await system.ref("adding/19999").ask(1, block=False) == 20_000
        assert len(system.live()) == 20_000
        assert len(asyncio.all_tasks()) == 1
        assert set(threading.enumerate()) <= threads
