"""What was done to a request is said in words, and shown where the conversation is."""

from typing import Any

import msgspec
import pytest

from refold import AgentConfig, Middleware, ModelResponse, Summarising, TextBlock, say
from refold.events.core.ids import PayloadHash
from refold.events.model.messages import Prepared, RequestReference, Rewritten, Splice, SystemAddition
from refold.events.model.refused import Part, RefusedParts
from refold.events.session.events import ModelResponded
from refold.inspection.session_view import view_session
from refold.inspection.summaries import event_words, request_words
from refold.inspection.transcript import NoteEntry
from refold.stores import InMemoryStore
from tests.runtime.talking import talking

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
        event = ModelResponded(
            run="run_3",  # type: ignore[arg-type]
            turn=1,
            content=(TextBlock(text="Hi."),),
            stop_reason="end_turn",
            request=reference,
        )
        assert event_words(event) == f"Hi. ({'; '.join(lines)})"


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
        "Summary of the conversation so far: They met.".replace(": ", ":\n\n"),
        "middleware changed the answer",
    ]
