"""A log as people have them: a desk that books journeys, with a crash, retries, a denied call and one that waits."""

from pathlib import Path

from refold.events import SESSION_CODEC, fold
from refold.events.core.codec import EventCodec
from refold.events.core.content import AnswerContent, TextBlock, ToolUseBlock
from refold.events.core.ids import RunId, StreamName, ToolCallId
from refold.events.kinds.breaker import FailureCounted
from refold.events.kinds.working_memory import ItemSet
from refold.events.model.messages import RequestReference, Usage
from refold.events.model.spending import Price
from refold.events.session import commands
from refold.events.session import events as ev
from refold.events.session.events import Verdict
from tests.runtime.log_builder import LogBuilder, log_of, use

PRICES = {"test-model": Price(input=3.0, output=15.0)}

HELD_CODEC = EventCodec((FailureCounted, ItemSet))

HOSTILE_NAME = "hostile <script>document.title='hacked'</script><img src=x onerror=\"\u202e"

HOSTILE = (
    "<script>document.title='hacked'</script><img src=x onerror=\"document.title='hacked'\">"
    "</script><svg onload=document.title='hacked'> javascript:document.title='hacked' "
    "\u202egnihtemos\u202c \x1b[2J\x1b]0;hacked\x07 \u200b\ufeff {{constructor.constructor('x')()}} & &lt;b&gt;"
)


class Desk(LogBuilder):
    """Tells sessions what happens, with times that look like those of a real one."""

    def pass_time(self, seconds: float) -> None:
        """Let the next batch be so much later."""
        self._now += int((seconds - 1) * 1_000_000)

    async def said(self, session: str, *content: AnswerContent, tokens: tuple[int, int] = (900, 60)) -> None:
        """Record what the model answers, with its tokens."""
        state = fold(SESSION_CODEC.decode_all(await self.store.read_stream(f"session/{session}")))
        assert state.run is not None
        calls = [block for block in content if isinstance(block, ToolUseBlock)]
        await self.tell(
            session,
            commands.RecordModelResponse(
                run=state.run.id,
                turn=state.run.turns,
                content=content,
                stop_reason="tool_use" if calls else "end_turn",
                usage=Usage(input_tokens=tokens[0], output_tokens=tokens[1]),
                request=RequestReference(configured=state.configured, messages=len(state.messages)),
                verdicts=(Verdict(),) * len(calls),
            ),
        )


async def build(desk: Desk) -> None:
    """A session with everything, and some others."""
    await desk.open("lisbon", prices=PRICES)
    await desk.tell("lisbon", commands.DescribeSession(user="maria", metadata={"channel": "web"}))
    await desk.send("lisbon", "Is the weather in Lisbon good enough for a terrace on Friday? Then book one for four.")
    desk.pass_time(2.4)
    await desk.said(
        "lisbon",
        TextBlock(text="I look at the forecast first."),
        use("weather", city="Lisbon", days=3),
        use("weather", city="Cascais", days=3),
        tokens=(1240, 84),
    )
    desk.pass_time(0.9)
    await desk.result("lisbon", "call_7_0", "Lisbon: sunny, 24 °C, light wind")
    for stream, event in (
        ("working/desk/session/lisbon", ItemSet(name="terrace", value="Lisbon, Friday, four people")),
        ("breaker/weather", FailureCounted(failures=1, error="Cascais does not answer")),
    ):
        await desk.append(StreamName(stream), [HELD_CODEC.encode(event)])
    desk.pass_time(4.5)
    await desk.tell("lisbon", commands.ResumeRun(tools=("weather",)))
    desk.pass_time(1.6)
    await desk.result("lisbon", "call_7_1", "Cascais: sunny, 22 °C, windy")
    desk.pass_time(1.1)
    await desk.tell("lisbon", failure("the server is busy"))
    state = fold(SESSION_CODEC.decode_all(await desk.store.read_stream("session/lisbon")))
    assert state.run is not None
    desk.pass_time(2.2)
    await desk.tell("lisbon", ev.TimerFired(timer=f"retry:{state.run.asked}"))
    desk.pass_time(3.1)
    await desk.said("lisbon", use("pay", amount=40, to="Terrace Graça"), tokens=(1510, 52))
    desk.pass_time(8)
    state = fold(SESSION_CODEC.decode_all(await desk.store.read_stream("session/lisbon")))
    assert state.turn is not None
    call = state.turn.calls[0].id
    await desk.tell("lisbon", commands.DecideApproval(call=ToolCallId(call), allowed=False, reason="at most 30"))
    desk.pass_time(2.6)
    await desk.said(
        "lisbon",
        TextBlock(
            text="Friday will be sunny in Lisbon. I did not pay the deposit of 40, since 30 is the most I may pay."
        ),
        tokens=(1620, 48),
    )
    await desk.open("porto")
    await desk.tell("porto", commands.DescribeSession(user="joão"))
    await desk.send("porto", "Pay the deposit for the boat in Porto.")
    await desk.said("porto", use("pay", amount=25, to="Boat Ribeira"))
    await desk.weather_session("faro")
    await desk.cancelled_session("evora")
    await desk.open("failed", max_turns=1)
    await desk.send("failed", "Plan everything.")
    await desk.answer("failed", use("weather"))
    await desk.result("failed", "call_6_0", "rain")


def failure(message: str) -> commands.RecordModelFailure:
    """Return that a model was too busy to answer a second time."""
    kind = "overloaded"
    return commands.RecordModelFailure(
        run=RunId("run_4"), turn=2, kind=kind, message=message, status=529, retryable=True
    )


async def build_hostile(desk: Desk) -> None:
    """Sessions in which each text tries to act."""
    await desk.open(HOSTILE_NAME)
    await desk.open("hostile")
    await desk.tell("hostile", commands.DescribeSession(user=HOSTILE[:40], metadata={"note": HOSTILE, HOSTILE: "note"}))
    await desk.send("hostile", HOSTILE)
    await desk.said(
        "hostile",
        TextBlock(text=HOSTILE),
        use("weather", city=HOSTILE, days=1234567890123456789),
        use(HOSTILE, **{HOSTILE: HOSTILE}),
    )
    await desk.result("hostile", "call_7_0", HOSTILE + "\n" + "wide " * 3_000)
    await desk.result("hostile", "call_7_1", HOSTILE, "permanent")
    await desk.tell("hostile", failure(HOSTILE))
    state = fold(SESSION_CODEC.decode_all(await desk.store.read_stream("session/hostile")))
    assert state.run is not None
    await desk.tell("hostile", ev.TimerFired(timer=f"retry:{state.run.asked}"))
    for stream, event in (
        (f"working/{HOSTILE_NAME}/session/hostile", ItemSet(name=HOSTILE, value=HOSTILE)),
        (f"breaker/{HOSTILE_NAME}", FailureCounted(failures=1, error=HOSTILE)),
    ):
        await desk.append(StreamName(stream), [HELD_CODEC.encode(event)])
    await desk.said("hostile", TextBlock(text="[a link](javascript:alert(1)) " + HOSTILE))


def page_log(path: Path, *, hostile: bool = True) -> Path:
    """Make the log at a path, with the hostile sessions or without, and return the path."""

    async def all_of_them(builder: LogBuilder) -> None:
        desk = Desk(builder.store)
        await build(desk)
        if hostile:
            await build_hostile(desk)

    return log_of(path, all_of_them)
