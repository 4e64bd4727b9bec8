"""The actor that passes waiting calls on to a handler: each wait ends once, and a failing handler ends none."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from refold.actors import Actor, ActorSystem, ManualClock
from refold.actors.agent.approval import ApprovalActor, StartApproval
from refold.actors.effects import CancelEffect, EffectEnded
from refold.events.core.ids import RunId, SessionId, ToolCallId
from refold.events.session.commands import DecideApproval
from refold.events.session.events import REASON_CHARACTERS_MAX, Allow, Deny, ToolApprovalRequested

UNHASHABLE: Any = []
"""A key that breaks whoever looks it up."""


class Recipient(Actor):
    """Stands where a session would, and keeps what it is told."""

    def __init__(self, told: list[tuple[str, EffectEnded]]) -> None:
        self.told = told

    def on_receive(self, message: EffectEnded) -> None:
        self.told.append((self.address, message))


class Setup:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.system = ActorSystem(clock=self.clock)
        self.told: list[tuple[str, EffectEnded]] = []
        self.asked: list[tuple[str, ToolApprovalRequested]] = []
        self.answers: list[asyncio.Future[Any]] = []
        self.system.register("session", lambda _: Recipient(self.told))
        self.system.register("approval", lambda _: ApprovalActor(self.ask))
        self.system.register("nobody", lambda _: ApprovalActor(None))

    async def ask(self, session: SessionId, request: ToolApprovalRequested) -> object:
        self.asked.append((session, request))
        self.answers.append(asyncio.get_running_loop().create_future())
        answer: object = await self.answers[-1]
        return answer

    async def start(self, key: str = "approval:7", session: str = "s", actor: str = "approval/agent") -> None:
        request = ToolApprovalRequested(
            run=RunId("run_3"), call=ToolCallId("call_6_0"), tool="pay", input={"amount": 1}
        )
        message = StartApproval(
            key=key, session=SessionId(session), reply_to=self.system.ref(f"session/{session}"), request=request
        )
        self.system.ref(actor).tell(message)
        await self.clock.settle()

    async def cancel(self, key: str = "approval:7", session: str = "s", actor: str = "approval/agent") -> None:
        self.system.ref(actor).tell(CancelEffect(f"session/{session}", key))
        await self.clock.settle()

    async def answer(self, answer: object, place: int = -1) -> None:
        self.answers[place].set_result(answer)
        await self.clock.settle()

    @property
    def ended(self) -> list[EffectEnded]:
        return [message for _, message in self.told]


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    made = Setup()
    yield made
    await made.system.close()


@pytest.mark.parametrize(
    ("answer", "decision"),
    [
        (Allow(), {"allowed": True}),
        (Allow(always=True), {"allowed": True, "always": True}),
        (Deny(), {"allowed": False}),
        (Deny("no"), {"allowed": False, "reason": "no"}),
        (Deny("\ud83d"), {"allowed": False, "reason": "�"}),
        (Deny("x" * 99_999), {"allowed": False, "reason": "x" * REASON_CHARACTERS_MAX}),
    ],
)
async def test_an_answer_becomes_a_decision_and_ends_the_wait(
    answer: object, decision: dict[str, Any], setup: Setup
) -> None:
    await setup.start()
    await setup.answer(answer)
    assert setup.ended == [
        EffectEnded(key="approval:7", command=DecideApproval(call=ToolCallId("call_6_0"), **decision))
    ]


async def test_without_a_handler_a_wait_ends_only_when_it_is_cancelled(setup: Setup) -> None:
    await setup.start(actor="nobody/agent")
    assert setup.told == []
    await setup.cancel(actor="nobody/agent")
    assert setup.ended == [EffectEnded(key="approval:7")]
    await setup.cancel(actor="nobody/agent")
    assert len(setup.told) == 1


async def test_a_cancelled_wait_ends_at_once_and_its_handler_with_it(setup: Setup) -> None:
    await setup.start()
    await setup.cancel()
    assert setup.ended == [EffectEnded(key="approval:7")]
    assert setup.answers[0].cancelled()


async def test_a_wait_that_begins_twice_is_asked_about_once(setup: Setup) -> None:
    await setup.start()
    await setup.start()
    assert len(setup.asked) == 1
    await setup.answer(Allow())
    assert len(setup.told) == 1


async def test_waits_of_two_sessions_under_one_key_are_two(setup: Setup) -> None:
    await setup.start(session="a")
    await setup.start(session="b")
    assert [session for session, _ in setup.asked] == ["a", "b"]
    await setup.cancel(session="a")
    await setup.answer(Deny("no"))
    assert [address for address, _ in setup.told] == ["session/a", "session/b"]
    assert setup.ended[0].command is None
    assert setup.ended[1].command == DecideApproval(call=ToolCallId("call_6_0"), allowed=False, reason="no")


async def test_where_the_actor_fails_its_waits_end_without_decision_so_that_they_begin_anew(setup: Setup) -> None:
    await setup.start()
    setup.system.ref("approval/agent").tell(CancelEffect("session/s", UNHASHABLE))
    await setup.clock.settle()
    assert setup.ended == [EffectEnded(key="approval:7")]
    assert setup.answers[0].cancelled()
    await setup.clock.advance(1)  # Until it has been restarted.
    await setup.start()
    await setup.answer(Allow())
    assert setup.ended[1].command == DecideApproval(call=ToolCallId("call_6_0"), allowed=True)
