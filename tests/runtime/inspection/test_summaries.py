"""Every event has words, and they say what it says."""

from typing import Any, get_args

import msgspec
import pytest

from refold import AgentConfig, Middleware, ModelResponse, Summarising, TextBlock, say
from refold.events.core import content
from refold.events.core.event import Event
from refold.events.core.ids import PayloadHash, RunId, ToolCallId
from refold.events.core.pure_core import Effect, WaitUntil
from refold.events.kinds.runtime import RuntimeClosed
from refold.events.model.configuration import RunOptions
from refold.events.model.messages import Prepared, RequestReference, Rewritten, Splice, SystemAddition, Usage
from refold.events.model.refused import Part, RefusedParts
from refold.events.session import events as ev
from refold.events.session.react import CallModel, RunTool
from refold.inspection.session_view import view_session
from refold.inspection.summaries import (
    block_words,
    call_words,
    content_words,
    effect_words,
    event_words,
    request_words,
    usage_words,
)
from refold.inspection.transcript import NoteEntry
from refold.stores import InMemoryStore
from tests.runtime.talking import talking

RUN, CALL = RunId("run_3"), ToolCallId("call_6_0")
TEXT = (content.TextBlock(text="hello"),)
REQUEST = RequestReference(configured=2, messages=1)


def responded(**fields: object) -> ev.ModelResponded:
    settings = {"content": TEXT, "stop_reason": "end_turn", "request": REQUEST}
    return ev.ModelResponded(run=RUN, turn=1, **{**settings, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (ev.InputQueued(content=TEXT), "hello"),
        (ev.InputQueued(content=TEXT, cancelled=True), "hello (cancelled before it was accepted)"),
        (ev.InputQueued(content=TEXT, joins=RUN), "hello (joins run_3)"),
        (ev.InputQueued(content=TEXT, reminder=3), "hello (the reminder of version 3)"),
        (
            ev.InputQueued(content=TEXT, options=RunOptions(model="small", output_instruction="…")),
            'hello (model="small")',
        ),
        (
            ev.TimerSet(timer="input:3", due_at=0, content=TEXT, every=ev.Repeat(interval_us=3_600_000_000)),
            "hello (for 1970-01-01 00:00:00.000Z, then every 3,600 s)",
        ),
        (
            ev.TimerSet(timer="input:3", due_at=0, content=TEXT, every=ev.Repeat(cron="0 9 * * 1-5")),
            "hello (for 1970-01-01 00:00:00.000Z, then 0 9 * * 1-5 in UTC)",
        ),
        (
            ev.TimerFired(timer="input:3", next_at=0),
            "the time of input:3 has come; it comes again at 1970-01-01 00:00:00.000Z",
        ),
        (
            ev.TimerFired(timer="input:3", next_at=0, put_off="no such zone"),
            "the time of input:3 has come; it waits until 1970-01-01 00:00:00.000Z: no such zone",
        ),
        (ev.ModelRequested(run=RUN, turn=2), "run_3, turn 2"),
        (ev.RequestBuilt(run=RUN, turn=2, asked=5, request=REQUEST), "turn 2 is asked, with 1 message"),
        (
            ev.RequestBuilt(run=RUN, turn=2, asked=5, request=REQUEST, summary=True),
            "a summary is asked for, with 1 message",
        ),
        (responded(), "hello"),
        (responded(content=()), "(empty)"),
        (responded(stop_reason="max_tokens"), "hello (max_tokens)"),
        (ev.ModelInterrupted(turn=1, content=TEXT), "the answer of turn 1 was cut after: hello"),
        (
            ev.ModelFailed(run=RUN, turn=1, kind="server", message="oops", status=500),
            "the model call failed (server, HTTP 500): oops",
        ),
        (
            ev.RetryScheduled(run=RUN, turn=1, attempt=2, due_at=1_500_000),
            "after 2 failed attempts, the model is asked again in 1.5 s",
        ),
        (
            ev.RetryScheduled(run=RUN, turn=1, attempt=1, due_at=1_500_000, call=CALL),
            "after 1 failed attempt, call_6_0 is tried again in 1.5 s",
        ),
        (ev.ToolCallStarted(run=RUN, call=CALL), "call_6_0"),
        (ev.ToolCallStarted(run=RUN, call=CALL, attempt=2), "call_6_0, attempt 2"),
        (
            ev.ToolAttemptFailed(call=CALL, attempt=1, kind="transient", content=TEXT),
            "attempt 1 at call_6_0 failed (transient): hello",
        ),
        (ev.RunFailed(run=RUN, kind="max_turns", message="enough"), "run_3 (max_turns): enough"),
        (ev.RunParked(run=RUN, reason="thrice"), "run_3 was parked: thrice"),
        (ev.RunCompleted(run=RUN), "run_3"),
        (ev.ToolApprovalRequested(run=RUN, call=CALL, tool="pay", input={"to": "bob"}), 'call_6_0 pay(to="bob")'),
        (ev.ToolApprovalDecided(call=CALL, allowed=False, reason="no"), "call_6_0 denied: no"),
        (ev.ToolApprovalDecided(call=CALL, allowed=True, input={"x": 5}), 'call_6_0 allowed with {"x":5}'),
        (ev.ToolCallFailed(call=CALL, kind="timeout", content=TEXT), "call_6_0 (timeout): hello"),
        (ev.SessionDescribed(user="anna", metadata={"plan": "pro"}), "user anna, plan=pro"),
        (ev.SessionDescribed(metadata={"plan": "pro"}), "no user, plan=pro"),
        (
            ev.QuestionAsked(run=RUN, call=CALL, number=1, question="Which?", answer_schema={}),
            "call_6_0.1 asks: Which?",
        ),
        (
            ev.QuestionAsked(
                run=RUN, call=CALL, number=1, question="it", answer_schema={}, gives_result=True, expires_at=0
            ),
            "call_6_0.1 waits for its result: it (until 1970-01-01 00:00:00.000Z)",
        ),
        (ev.QuestionAnswered(call=CALL, number=1, answer={"a": "\n"}), 'call_6_0.1: {"a":"\\n"}'),
        (ev.QuestionAnswered(call=CALL, number=1, error="late"), "call_6_0.1: (no answer) late"),
        (ev.ToolCallWaiting(call=CALL, waits=True), "call_6_0 waits for a person"),
        (ev.ToolCallWaiting(call=CALL, waits=False), "call_6_0 goes on"),
        (ev.ToolResultLate(call=CALL, content=TEXT), "call_6_0 had ended when this came: hello"),
        (ev.HistoryImported(messages=(content.Message("user", TEXT),)), "1 message"),
        (ev.ContextPrepared(run=RUN, replaced=9, summary=()), "a summary stands for the oldest 9 messages"),
        (ev.TimerFired(timer="retry:3"), "the time of retry:3 has come"),
        (RuntimeClosed(open_runs=2), '{"open_runs":2}'),
    ],
)
def test_an_event_says_what_it_holds(event: Event, words: str) -> None:
    assert event_words(event) == words


@pytest.mark.parametrize("event_type", [cls for cls in get_args(ev.SessionEvent) if cls is not ev.AgentConfigured])
def test_every_session_event_has_words(event_type: type[ev.SessionEvent]) -> None:
    text = "x"
    values: dict[str, object] = {}
    known = {"version": 1, "turn": 1, "attempt": 1, "due_at": 1, "input": {}, "replaced": 1, "request": REQUEST}
    for field in msgspec.structs.fields(event_type):
        if field.required:
            values[field.name] = known.get(field.name, () if field.name in ("content", "messages", "summary") else text)
    if event_type is ev.RunStarted:
        values["input"] = 1
    assert event_words(event_type(**values))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (content.TextBlock(text="hi"), "hi"),
        (content.ThinkingBlock(thinking="hm"), "hm"),
        (content.ImageBlock(media_type="image/png", data=b"12345"), "[image/png of 5 bytes]"),
        (
            content.StoredBlock(hash=PayloadHash("ab" * 32), bytes=70_000, holds="text"),
            "[text of 70,000 bytes, payload abababababab]",
        ),
        (content.ToolUseBlock(id=CALL, name="f", input={"a": [1, None], "b c": "é"}), 'f(a=[1,null], "b c"="é")'),
        (content.ToolUseBlock(id=CALL, name="f", input={}, malformed_input='{"a'), 'f({"a)'),
        (content.ToolResultBlock(tool_use_id=CALL, content=TEXT), "hello"),
    ],
)
def test_a_block_is_its_text_or_what_kind_of_thing_it_is(block: content.TextBlock, words: str) -> None:
    assert block_words(block) == words


def test_reasoning_is_no_part_of_what_a_content_says() -> None:
    assert (
        content_words((content.ThinkingBlock(thinking="hm"), content.TextBlock(text="a"), content.TextBlock(text="b")))
        == "a b"
    )


@pytest.mark.parametrize(
    ("effect", "words"),
    [
        (CallModel(key="model:5", causation=5, correlation=3, turn=1), "model call of turn 1"),
        (RunTool(key="t", causation=7, correlation=3, call=CALL, name="f", input={"a": 1}), "f(a=1)"),
        (WaitUntil(key="retry", causation=7, correlation=3, due_at=0), "wait until 1970-01-01 00:00:00.000Z"),
        (Effect(key="other", causation=1, correlation=1), "other"),
    ],
)
def test_an_effect_is_said_in_words(effect: Effect, words: str) -> None:
    assert effect_words(effect) == words


def test_calls_and_usage_are_short() -> None:
    assert call_words("f", {}) == "f()"
    assert usage_words(Usage(input_tokens=1_200, output_tokens=30)) == "1,200 tokens in, 30 out"
    assert usage_words(Usage(input_tokens=5, output_tokens=1, cache_read_tokens=4)) == "5 tokens in (4 cached), 1 out"


# What was done to a request.


PLAIN = RequestReference(configured=2, messages=9)


@pytest.mark.parametrize(
    ("reference", "lines"),
    [
        (None, []),
        (PLAIN, []),
        (msgspec.structs.replace(PLAIN, recalled=("memory_1",)), ["1 remembered item entered the request"]),
        (
            msgspec.structs.replace(PLAIN, prepared_payload=PayloadHash("abcdef0123456789")),
            ["what else was done to the request is payload abcdef012345"],
        ),
        (
            msgspec.structs.replace(
                PLAIN,
                prepared=Prepared(
                    refused=RefusedParts(parts=(Part(3, 1), Part(4, 0)), reason="no"),
                    kept=((0, 1), (4, 9)),
                    added=(SystemAddition("recall", "tea"), SystemAddition("working_memory", "notes")),
                    rewritten=Rewritten(system_prompt="x", messages=Splice()),
                    answer=(),
                    notes=("nothing was recalled (torn)",),
                ),
            ),
            [
                "the model was asked without 2 parts of the history that the provider had refused",
                "the model was shown 6 of 9 messages",
                "the working memory stood behind the system prompt",
                "middleware changed the request: system prompt, messages",
                "middleware changed the answer",
                "nothing was recalled (torn)",
            ],
        ),
    ],
    ids=["none", "plain", "recalled", "payload", "all"],
)
def test_what_was_done_is_said_line_by_line(reference: RequestReference | None, lines: list[str]) -> None:
    assert request_words(reference) == lines
    if reference is not None and lines:
        assert (
            event_words(responded(content=(TextBlock(text="Hi."),), request=reference)) == f"Hi. ({'; '.join(lines)})"
        )


class Signing(Middleware):
    def on_user_message(self, context: object, content: object) -> str:
        return "changed " + "x" * 200

    def on_post_llm(self, context: object, response: ModelResponse) -> ModelResponse:
        return msgspec.structs.replace(response, content=(*response.content, TextBlock(text=" A.")))


async def test_a_conversation_shows_what_was_changed_and_summarised() -> None:
    log = InMemoryStore()
    script = [say("Hi " + "y" * 200), say("They met."), say("Yes.")]
    options: dict[str, Any] = {"middleware": [Signing()], "context": Summarising(130), "log": log}
    async with talking(*script, config=AgentConfig(model="m", system_prompt=""), **options) as (session, _):
        await session.send("first")
        await session.send("second")
    view = await view_session(log, "s")
    notes = [entry.what for entry in view.transcript if isinstance(entry, NoteEntry)]
    assert notes == [
        "middleware changed the input, which was: first",
        "middleware changed the answer",
        "middleware changed the input, which was: second",
        "a summary stands for the oldest 2 messages",
        "Summary of the conversation so far:\n\nThey met.",
        "middleware changed the answer",
    ]
