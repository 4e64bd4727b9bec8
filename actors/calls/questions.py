"""What a tool's body needs from outside while it runs: answers to its questions, or its result itself, later.

Theory of operation: no body is kept in memory while days pass. A body that asks ends there, as if its task had been
cancelled, and the session records the question. With the answer the call starts again from its beginning, in this
process or another one, and is handed the answers that there are, in the order of its questions; so it comes as far as
its next question, or to its end. The rule: a question is known by its place among those of its call, so a body asks
the same ones in the same order each time.
"""

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from refold.events.core.cleaning import clean_text
from refold.events.core.content import ErrorKind, JsonObject
from refold.events.core.errors import ConfigError, ToolError, quoted
from refold.events.core.ids import ToolCallId
from refold.events.session.commands import RecordQuestion
from refold.events.session.events import QuestionAnswered

T = TypeVar("T")

QUESTION_CHARACTERS_MAX = 10_000
"""A question is cut after so many characters before it is recorded."""

EXPIRES_S_MAX = 3_660 * 86_400.0
"""The longest time for an answer: ten years, in seconds."""


class AnswerType(Protocol):
    """The type of an answer, as `refold.tools.data_type` describes it."""

    schema: JsonObject

    def read(self, data: str | bytes, path: str = "$") -> Any:
        """Return the value that a JSON text is; raise msgspec.ValidationError where it does not fit."""
        ...


class CallFailed(ToolError):
    """A call had no result, for a reason that no failure of a tool's own has; of Refold's own tools.

    Attributes:
        result_kind: of the call's result.
    """

    def __init__(self, message: str, *, result_kind: ErrorKind) -> None:
        super().__init__(message)
        self.result_kind: ErrorKind = result_kind


class NoAnswer(CallFailed):
    """What a tool asked was not answered: a person said why, or the time was over.

    A tool that does not catch it fails with it.

    Attributes:
        expired: whether the time was over.
    """

    def __init__(self, message: str, *, expired: bool) -> None:
        super().__init__(message, result_kind="timeout" if expired else "permanent")
        self.expired = expired


class DeferredResult(msgspec.Struct, frozen=True):
    """A tool that returns this has no result yet: it comes from outside, later, by `Session.answer`.

    Nothing of the call runs meanwhile, and it waits over restarts. Its id (`ToolContext.call`) names it.
    """

    what: str = ""
    """What is waited for, in words for those who look at what waits."""
    type: Any = None
    """What the result must be; None = any JSON value. A text is the model's result unchanged, anything else as JSON."""
    expires_s: float | None = None
    """After so many seconds the call fails with the kind `timeout`; None = it waits for ever."""


class AwaitedAnswer(Generic[T]):
    """An answer that may be there: `await` it on the loop; `get()` it in a tool that is a plain function."""

    def __init__(
        self, answered: Callable[[], T], suspend: Callable[[], bool], until_over: Callable[[], "asyncio.Future[None]"]
    ) -> None:
        self._answered = answered
        self._suspend = suspend
        self._until_over = until_over

    def __await__(self) -> Generator[Any, None, T]:
        if not self._suspend():
            return self._answered()
        # The body's task has been cancelled on its loop, and so has what it waits for; another task of it waits here.
        yield from self._until_over().__await__()
        raise _no_answer_yet()

    def get(self) -> T:
        """Return the answer, or end the body until it is there; in the thread of a plain tool.

        Raises:
            NoAnswer: there will be none.
            ConfigError: the body has ended, and this is what it has left behind.
        """
        if self._suspend():
            raise _no_answer_yet()
        return self._answered()


def _no_answer_yet() -> asyncio.CancelledError:
    return asyncio.CancelledError("the call waits for an answer")


def call_is_over(call: ToolCallId) -> ConfigError:
    """Return the error of what goes on with the context of a call whose body has ended."""
    return ConfigError(
        f"the call {call} is over, and its context can neither ask nor finish any more; a tool awaits what does that"
    )


class Questions:
    """The questions of one call, as one attempt at it asks them."""

    def __init__(
        self,
        call: ToolCallId,
        attempt: int,
        answers: Sequence[QuestionAnswered],
        *,
        describe: Callable[[object], AnswerType],
        now_us: Callable[[], int],
        end_body: Callable[[], None],
    ) -> None:
        """Take what came of the call's first questions, on its body's loop; `end_body` ends that, from any thread."""
        self._call, self._attempt, self._answers = call, attempt, answers
        self._describe, self._now_us, self._end_body = describe, now_us, end_body
        self._asked = 0
        self.open: RecordQuestion | None = None
        """What the body has asked that has no answer yet."""
        self._over = False
        self._loop = asyncio.get_running_loop()
        self._waiting: list[asyncio.Future[None]] = []
        """Tasks of the body that wait until it has ended."""

    def end(self) -> None:
        """Take note that the body has ended: what it has left behind gets no answer, and is told so."""
        self._over = True
        for each in self._waiting:
            if not each.done():
                each.set_exception(call_is_over(self._call))
        self._waiting.clear()

    def ask(self, question: str, type_of: object, expires_s: float | None) -> AwaitedAnswer[Any]:
        """Return the answer to the next question, which may not be there."""
        wanted, expires_at = self._describe(type_of), self._expires_at(expires_s)
        self._asked += 1
        number = self._asked

        def suspend() -> bool:
            if number <= len(self._answers):
                return False
            if self._over:
                raise call_is_over(self._call)
            if self.open is None:
                self.open = self._command(number, question, wanted.schema, expires_at)
                self._end_body()
            return True

        return AwaitedAnswer(lambda: self._read(number, wanted), suspend, self._until_over)

    def _until_over(self) -> "asyncio.Future[None]":
        """Return what is cancelled with the body's task, or fails where another task waits for it."""
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if over.get_loop() is self._loop:
            self._waiting.append(over)
        else:
            over.cancel()  # A loop in a thread of the body, which ends by what is raised there.
        return over

    def deferred(self, result: DeferredResult) -> RecordQuestion:
        schema = self._describe(result.type).schema if result.type is not None else {}
        command = self._command(len(self._answers) + 1, result.what, schema, self._expires_at(result.expires_s))
        return msgspec.structs.replace(command, gives_result=True)

    def _command(self, number: int, question: str, schema: JsonObject, expires_at: int | None) -> RecordQuestion:
        return RecordQuestion(
            call=self._call,
            number=number,
            question=clean_text(str(question))[:QUESTION_CHARACTERS_MAX],
            answer_schema=schema,
            expires_at=expires_at,
            attempt=self._attempt,
        )

    def _read(self, number: int, wanted: AnswerType) -> Any:
        answered = self._answers[number - 1]
        if answered.error is not None:
            raise NoAnswer(answered.error, expired=answered.expired)
        try:
            return wanted.read(msgspec.json.encode(answered.answer))
        except msgspec.ValidationError as error:  # The tool changed after it was answered.
            raise ToolError(f"The answer to question {number} does not fit what is asked for now: {error}") from error

    def _expires_at(self, expires_s: float | None) -> int | None:
        if expires_s is None:
            return None
        is_number = isinstance(expires_s, int | float) and not isinstance(expires_s, bool)
        if not (is_number and 0 < expires_s <= EXPIRES_S_MAX):
            raise ConfigError(
                f"expires_s is a number of seconds above 0, at most ten years, not {quoted(expires_s, 60)}"
            )
        return self._now_us() + round(expires_s * 1_000_000)
