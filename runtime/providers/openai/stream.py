"""A streamed answer of the Chat Completions API, read event by event.

Each event is a `chat.completion.chunk`; the last one is `[DONE]`, which some servers leave out. An answer is complete
where a chunk had a `finish_reason`, or where the server said `[DONE]` and no call is in want of arguments. Anything
else was cut, and may be asked for again. What comes behind a `finish_reason` still counts: usage, which is in a chunk
without choices, and what some servers send late. Time and room are in proportion to the events, whose number and size
whoever receives them bounds.
"""

from collections.abc import Sequence

from refold.events.core.content import is_json_object
from refold.events.model.messages import Delta, ModelResponse
from refold.providers.http.wire import WireEvent, decoded
from refold.providers.openai.answer import AnswerAssembly, first_choice, malformed, raise_error_in
from refold.providers.openai.errors import failure_inside
from refold.providers.openai.names import ToolNames

DONE = "[DONE]"


class OpenAIReader:
    """Puts one streamed answer together.

    Args:
        names: the names under which tools were offered.
    """

    def __init__(self, provider: str, names: ToolNames) -> None:
        self._provider = provider
        self._assembly = AnswerAssembly(provider, names)
        self._done = False

    def read(self, event: WireEvent) -> Sequence[Delta]:
        data = event.data.strip()
        if self._done or not data:
            return ()
        if data == DONE:
            self._done = True
            return ()
        try:
            chunk = decoded(data)
        except ValueError as error:
            if event.event == "error":
                raise failure_inside(self._provider, data) from None
            raise malformed(f"an event of the stream is not JSON ({error!s:.100})") from None
        if event.event == "error":
            raise failure_inside(self._provider, chunk)
        if not is_json_object(chunk):
            raise malformed("an event of the stream is not a JSON object")
        choice = first_choice(chunk)
        raise_error_in(self._provider, chunk, choice)
        self._assembly.note_model(chunk.get("model"))
        deltas: list[Delta] = []
        if choice is not None:
            delta = choice.get("delta")
            message = choice.get("message")
            if is_json_object(delta):
                deltas += self._assembly.add(delta)
            elif is_json_object(message) and not self._assembly.said_something:  # A server that does not stream.
                deltas += self._assembly.add(message, whole=True)
            self._assembly.finish(choice.get("finish_reason"))
            deltas += self._assembly.add_usage(choice.get("usage"))  # Moonshot puts it here.
        deltas += self._assembly.add_usage(chunk.get("usage"))
        return deltas

    def finished(self) -> bool:
        return self._done

    def answer(self) -> ModelResponse:
        assembly = self._assembly
        if assembly.finish_reason is None:
            if not self._done:
                raise malformed("the stream ended before the answer did")
            if not assembly.said_something:
                raise malformed("the stream holds no answer")
            if not assembly.calls_are_whole:
                raise malformed("the stream ended inside the arguments of a call")
        return assembly.answer()
