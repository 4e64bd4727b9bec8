"""A state machine over the public API: hypothesis lets people and accidents happen to your agent in any order.

    from refold.scenarios.session_machine import SessionMachine

    class MyMachine(SessionMachine):
        def make_agent(self):
            return Agent(config=..., provider=..., tools=[...])

    TestMyAgent = MyMachine.TestCase        # A unittest test case, which pytest runs too.

Sessions are opened, spoken to, asked again under the same key, cancelled, approved and looked at, while the process
crashes, is deployed anew, and has its clock set; faults are armed for what comes next. All of it happens on the
simulator's loop: time stands still between two rules, and passes where a rule says so. After each rule, INV0 to INV7
and what `refold.scenarios.monitors.expectations` says must hold; in the end faults are over, and all that was accepted
has to end. What fails is shrunk to a few calls that can be pasted into a test. Add rules of your own in the subclass.

It needs hypothesis, which the extra `rehearsal` installs.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, TypeVar

from refold.actors.kernel.errors import ActorStopped
from refold.agent_runtime import AgentRuntime
from refold.agents.agent import Agent
from refold.events.core.content import Message
from refold.events.core.errors import BackpressureShed, CommandRejected, ConfigError, PersistenceError, needed_by
from refold.events.core.ids import ToolCallId, stream_name
from refold.events.session.core import SESSION_CODEC, SESSION_CORE, SESSION_KIND
from refold.events.session.events import InputQueued
from refold.inspection.check import check_log
from refold.publishing.notifications import RecordedSessionEvent
from refold.replay.log_replay import replay
from refold.scenarios import strategies
from refold.scenarios.faults import AnyFault
from refold.scenarios.monitors.expectations import Expectations, Said
from refold.scenarios.monitors.monitor import marked
from refold.scenarios.plan.scenario import Answer, Say, Scenario
from refold.scenarios.world.process import SimulatedProcess, manual_gc
from refold.stores.past_state import past_state

with needed_by("rehearsals", extra="rehearsal"):
    from hypothesis import strategies as st
    from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

T = TypeVar("T")

INSTANT_S = 0.01
"""So much time passes by itself: enough for what takes no time, and too little for a model or a tool."""

ROUNDS_MAX = 500
"""So often is it looked at the end whether all is over; a minute passes in between."""

UNKNOWN = (PersistenceError, BackpressureShed, ActorStopped)
"""A client was told no outcome, and may ask again."""


class SessionMachine(RuleBasedStateMachine):
    """Plays with an agent; subclass it with `make_agent`."""

    sessions: ClassVar[int] = 2
    """How many sessions are spoken to, >= 1."""
    script: ClassVar[tuple[Answer, ...]] = ()
    """What the model answers; empty = what is drawn from a seed. See `Scenario.script`."""

    def __init__(self) -> None:
        super().__init__()
        self.expected = Expectations()
        self.refusal: Exception | None = None
        """The last one that a client met."""
        self._garbage = ExitStack()
        self._garbage.enter_context(manual_gc())

    def make_agent(self) -> Agent:
        """Return the agent, made anew for each life of the process."""
        raise NotImplementedError(f"{type(self).__name__} does not say which agent is to be rehearsed")

    # What people do

    @initialize(seed=st.integers(0, 1_000), deviations=strategies.deviations())
    def begin(self, seed: int, deviations: dict[int, int]) -> None:
        """Start the first process."""
        acts = (Say(session=self._session(0)),)
        scenario = Scenario(acts=acts, seed=seed, deviations=deviations, script=self.script, calm_s=float("inf"))
        self.process = SimulatedProcess(self.make_agent, scenario)
        self.process.start()

    @rule(which=st.integers(0, 9), text=strategies.inputs().filter(bool))
    def send(self, which: int, text: str) -> None:
        """Say something in a session, and wait for what comes of it beside everything else."""
        session = self._session(which)
        self._send(self.expected.say(session, marked(session, text)))

    @precondition(lambda self: self.expected.said)
    @rule(which=st.integers(0, 99))
    def send_again(self, which: int) -> None:
        """Say something again under its key, as a client does that was told nothing."""
        self._send(self.expected.said[which % len(self.expected.said)])

    @precondition(lambda self: self.expected.said)
    @rule(which=st.integers(0, 99))
    def send_other_content(self, which: int) -> None:
        """Say something else under a key that was used, which is refused."""
        said = self.expected.said[which % len(self.expected.said)]

        async def send(runtime: AgentRuntime) -> str:
            session = await runtime.session(said.session)
            try:
                await session.send(f"not {said.text}", key=said.key)
            except CommandRejected:
                return "refused"
            except UNKNOWN:
                return "nothing is known"
            return "taken"

        if said.acknowledged:
            assert self.process.do(send) != "taken", f"{said.key} was taken with two contents"

    @rule(which=st.integers(0, 9))
    def cancel(self, which: int) -> None:
        """Cancel what goes on in a session."""

        async def cancel(runtime: AgentRuntime) -> None:
            await (await runtime.session(self._session(which))).cancel()

        self._attempt(cancel)

    @rule(which=st.integers(0, 9), allow=st.booleans())
    def decide(self, which: int, allow: bool) -> None:
        """Allow or deny what waits for approval in a session."""

        async def decide(runtime: AgentRuntime) -> None:
            session = await runtime.session(self._session(which))
            for waiting in await session.approvals():
                await session.decide(ToolCallId(waiting.call), allow=allow)

        self._attempt(decide)

    @rule(which=st.integers(0, 9))
    def look_back(self, which: int) -> None:
        """Look at a session's history, and at what it was like as of earlier versions and positions."""
        name = self._session(which)

        async def look(runtime: AgentRuntime) -> None:
            session = await runtime.session(name)
            history = await session.history()
            state = await session.state_at()
            if state.version:
                self.expected.check_history(name, history, idle=state.run is None)
                self.expected.check_version(name, state.version, state.messages)
            for version in self.expected.versions(name):
                self.expected.check_version(name, version, (await session.state_at(version)).messages)
                self.expected.check_version(name, version, await self._messages_at_position_of(name, version))

        self._attempt(look)

    @rule(which=st.integers(0, 9))
    def open_again(self, which: int) -> None:
        """Ask for a session that must be in the log."""
        name = self._session(which)

        async def restore(runtime: AgentRuntime) -> bool:
            try:
                await runtime.session(name, restore=True)
            except ConfigError:
                return False
            return True

        before = asyncio.run(self._is_known(name))
        found = self.process.do(restore)
        after = asyncio.run(self._is_known(name))
        assert found in (before, after, None), f"{name} is {'' if after else 'not '}in the log, and was found: {found}"

    async def _is_known(self, session: str) -> bool:
        return await self.process.world.disk.head(stream_name(SESSION_KIND, session)) is not None

    # What happens

    @rule(seconds=st.sampled_from([1.0, 10.0, 120.0]))
    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.process.advance(seconds)

    @precondition(lambda self: any(said.waiting for said in self.expected.said))
    @rule()
    def advance_into_a_tool(self) -> None:
        """Let time pass until the body of a tool runs, if one soon does."""
        for _ in range(40):
            if any(body.running for body in self.process.world.bodies):
                break
            self.process.advance(0.25)

    @rule()
    def crash(self) -> None:
        """Let the process die; the next one starts."""
        self.process.crash()

    @rule()
    def deploy(self) -> None:
        """End the process in order; the next one starts."""
        left = self.process.stop()
        assert not left, f"a closed runtime leaves tasks: {', '.join(left)}"
        self.process.start()

    @rule(seconds=st.sampled_from([5.0, -5.0, 86_400.0, -86_400.0]))
    def set_clock(self, seconds: float) -> None:
        """Set the wall clock forward, or back."""
        self.process.world.clock.jump(seconds)

    @rule(fault=strategies.counted_faults(nth_max=4))
    def go_wrong(self, fault: AnyFault) -> None:
        """Let a fault happen to one of the next operations of its kind."""
        self.process.world.plan.count_down(fault)

    @rule()
    def replay(self) -> None:
        """Decide everything again that the log holds."""
        asyncio.run(self._check_whole_log())

    # What must hold

    @invariant()
    def every_promise_is_kept(self) -> None:
        """INV0 to INV5, INV7 and ONCE, and what follows from what was said and told."""
        if not hasattr(self, "process"):
            return
        self.process.monitor.over()
        assert not self.process.monitor.broken, str(self.process.monitor.broken[0])
        self.expected.check_log(asyncio.run(self.process.world.disk.read_all(limit=10**9)))

    def teardown(self) -> None:
        """Let faults be over and everything end, unless a promise was broken already; then end the process."""
        try:
            if hasattr(self, "process") and sys.exc_info()[0] is None:
                self._end_everything()
        finally:
            if hasattr(self, "process"):
                self.process.end()
            self._garbage.close()

    def _end_everything(self) -> None:
        self.process.calm_down()
        for said in self.expected.said:
            if said.told is None and said.acknowledged:
                self._send(said)
        open_now: Sequence[str] | None = ()
        for _ in range(ROUNDS_MAX):
            open_now = self.process.do(self._see_to_what_waits)
            self.every_promise_is_kept()
            if not open_now and not any(said.waiting for said in self.expected.said):
                break
            self.process.advance(60.0)
        else:
            raise AssertionError(f"LIVENESS: not over after {ROUNDS_MAX} minutes without faults: {open_now}")
        for said in self.expected.said:
            assert said.told is not None or not said.acknowledged, f"the outcome of {said.key} was not told"
            self._send(said)
        self.process.advance(3_600.0)
        assert all(said.told is not None for said in self.expected.said), "an input has no outcome after an hour"
        for number in range(self.sessions):
            self.look_back(number)
        self.every_promise_is_kept()
        self.replay()
        self.deploy()

    async def _see_to_what_waits(self, runtime: AgentRuntime) -> list[str]:
        """See to runs that wait for a person, and return the streams that are not at rest."""
        for number in range(self.sessions):
            session = await runtime.session(self._session(number))
            state = await session.state_at()
            if state.run is not None and state.run.parked:
                await session.resume()
            for waiting in await session.approvals():
                await session.decide(waiting.call, allow=False)
        return [head.stream for head in await self.process.world.disk.list_streams(with_pending=True)]

    async def _messages_at_position_of(self, session: str, version: int) -> Sequence[Message]:
        """Return a session's messages as of the position in the log that one of its versions has."""
        disk, stream = self.process.world.disk, stream_name(SESSION_KIND, session)
        [event] = await disk.read_stream(stream, after_version=version - 1, limit=1)
        then = await past_state(disk, stream, SESSION_CORE, SESSION_CODEC, position=event.position)
        return then.state.messages

    async def _check_whole_log(self) -> None:
        for problem in (await check_log(self.process.world.disk)).problems:
            raise AssertionError(f"CHECK: {problem}")
        for divergence in (await replay(self.process.world.disk)).divergences:
            raise AssertionError(f"INV6: {divergence}")

    # How it is done

    def _session(self, which: int) -> str:
        return f"s{which % self.sessions}"

    def _attempt(self, work: Callable[[AgentRuntime], Coroutine[Any, Any, None]]) -> None:
        async def attempt(runtime: AgentRuntime) -> None:
            try:
                await work(runtime)
            except (CommandRejected, *UNKNOWN) as error:
                self.refusal = error

        self.process.do(attempt)

    def _send(self, said: Said) -> None:
        async def send(runtime: AgentRuntime) -> None:
            session = await runtime.session(said.session)
            try:
                result = await session.send(said.text, key=said.key, on_event=acknowledge)
            except UNKNOWN as error:
                self.refusal = error
            else:
                self.process.monitor.told(said.session, result, self.process.world.life)
                self.expected.tell(said, result)
            finally:
                said.waiting -= 1

        def acknowledge(recorded: RecordedSessionEvent) -> None:
            if isinstance(recorded.event, InputQueued) and recorded.event.key == said.key:
                said.acknowledged = True

        said.waiting += 1
        self.process.begin(send, f"client with {said.key}")
        self.process.advance(INSTANT_S)
