"""`refold chat [AGENT]`: a conversation in the terminal, durable from its first event.

Read `refold.commands.run.chat_session` for the other side, which has the event loop in a thread of its own: this thread
waits for the person, or reads a pipe. The rules: Ctrl-C, which is raised in this thread, never ends more than what it
is pressed at, a reading or a run; and however the command ends, the log says where the conversation stands.
"""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from refold.commands.execution import (
    EXIT_FOUND,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_TERMINATED,
    run_blocking_command,
    tell_result,
)
from refold.commands.output import (
    console,
    counted,
    exact_json,
    exact_line,
    exact_text,
    shell_word,
    tell,
    tell_error,
)
from refold.commands.run.options import (
    DEFAULT_LOG,
    NO_CHOICE,
    AgentArgument,
    LogOption,
    ModelChoice,
    SessionOption,
    chosen_agent,
    with_model_options,
)
from refold.commands.steer.delivery import UserOption, answer_line, approve_line

if TYPE_CHECKING:
    from refold.actors.loop_thread import LoopThread
    from refold.commands.run.chat_session import ApprovalAnswer, ChatSession, Ended, PersonNeeded
    from refold.commands.run.input_history import InputHistory
    from refold.commands.run.shown import ForPerson
    from refold.events.session.events import QuestionAsked, ToolApprovalRequested

CONTINUES: Final = "\\"
"""At the end of a line that a person writes, it says that the next one belongs to it."""


class Lines:
    """Lines of stdin; at a terminal with a prompt, and with editing and a history where stdout is one too.

    Args:
        keeps_history: whether what is written is there again in later chats.
    """

    def __init__(self, *, keeps_history: bool) -> None:
        self.from_terminal = sys.stdin is not None and sys.stdin.isatty()
        """Whether a person writes them."""
        self.is_edited = self.from_terminal and sys.stdout.isatty()
        """Whether that person reads the answers on the same terminal."""
        self._history: InputHistory | None = None
        if isinstance(sys.stdin, TextIOWrapper):
            # What is no text in the terminal's encoding is shown as such, instead of ending the conversation.
            sys.stdin.reconfigure(errors="replace")  # pyright: ignore[reportUnknownMemberType]
        if self.is_edited:
            from refold.commands.run import input_history

            file = input_history.history_file() if keeps_history else None
            self._history = input_history.InputHistory(file)

    def message(self, prompt: str, more: str) -> str | None:
        """Return the next message, without the end of its line; None = there are no more.

        A person writes one of several lines by ending each but the last with a backslash, or pastes them.
        """
        parts: list[str] = []
        while True:
            part = self.line(more if parts else prompt)
            if part is None:
                return "\n".join(parts) if parts else None
            if self._history is not None and prompt == PROMPT:
                self._history.add(part)
            if not self.from_terminal or not part.endswith(CONTINUES):
                return "\n".join([*parts, part])
            parts.append(part.removesuffix(CONTINUES))

    def line(self, prompt: str) -> str | None:
        """Return the next line, without its end; None = there are no more."""
        if self.is_edited:
            try:
                return input(prompt)
            except EOFError:
                typer.echo()
                return None
        if self.from_terminal:
            typer.echo(prompt, nl=False, err=True)
        line = sys.stdin.readline() if sys.stdin is not None else ""
        if line:
            return line.rstrip("\r\n")
        if self.from_terminal:
            typer.echo(err=True)
        return None


PROMPT: Final = "> "
MORE: Final = "| "
"""Stands before the further lines of a message."""
ANSWER: Final = "answer: "
EXCHANGES_SHOWN: Final = 3
"""So many of the last exchanges are shown to a person who is back."""
REST: Final = "`refold approve LOG --json` shows all"

COMMANDS: Final = {
    "/help": "show this",
    "/history": "show the conversation so far",
    "/session": "say which session this is, and how to come back to it",
    "/cancel": "end a run that is open, such as a parked one",
    "/quit": "leave; Ctrl-D does too",
}
HELP: Final = "\n".join(
    [
        *(f"{name:10}{words}" for name, words in COMMANDS.items()),
        "A line that ends with a backslash goes on in the next one. Ctrl-C cancels the run under way.",
    ]
)


@with_model_options
def chat(
    agent: AgentArgument = None,
    choice: ModelChoice = NO_CHOICE,
    log: LogOption = DEFAULT_LOG,
    session: SessionOption = None,
    user: UserOption = None,
    no_history: Annotated[
        bool, typer.Option("--no-history", help="Neither bring back nor keep what you write at the prompt.")
    ] = False,
) -> None:
    """Talk with an agent, or with a model of a provider, in the terminal.

    Answers are written as they come where the agent's configuration streams, and those of a bare --provider do; tool
    calls are shown on stderr. Where a call waits for approval and the agent has no handler for that, you are asked, and
    so you are what a tool asks with `context.ask`. Ctrl-C cancels the run under way, a second one leaves at once; at a
    question it lets that wait, at the prompt two leave. Ctrl-D or /quit leaves, /help tells what else there is. With
    the same --session the conversation goes on, its last exchanges are shown, and a run that was left open goes on
    first. What you write at the prompt is kept for later chats in ~/.local/state/refold/chat_history, which is yours
    alone; no answer to a question is, and no secret that the agent or the environment knows.

    Without a terminal, each line of the input is sent, without a prompt; a call that waits for a person ends it.

    Exits 1, without a terminal, if a run failed or waits for a person; 130 if two Ctrl-C left; 143 if SIGTERM did.
    """
    run_blocking_command(lambda: _chat(agent, choice, log, session, user, keeps_history=not no_history))


def _chat(
    name: str | None,
    choice: ModelChoice,
    log: Path,
    session_id: str | None,
    user: str | None,
    *,
    keeps_history: bool,
) -> int:
    from refold.actors.loop_thread import LoopThread
    from refold.commands.run.chat_session import ChatSession

    session = ChatSession(chosen_agent(name, choice), log, session_id, user)
    thread = LoopThread(session, name="refold-chat", patience_s=PATIENCE_S)
    talk = Talk(session, thread, Lines(keeps_history=keeps_history))
    with _signals_handled({signal.SIGINT: talk.interrupted, signal.SIGTERM: talk.terminated}):
        try:
            thread.start()
            try:
                code = talk.run()
            finally:
                thread.stop()
        except Terminated:
            code = EXIT_TERMINATED
    if code == EXIT_TERMINATED and talk.is_under_way:
        tell_error("SIGTERM; the run is left open")
    return code


PATIENCE_S: Final = 20.0
"""How long the runtime may take to close: more than its graces together."""


class Terminated(BaseException):
    """SIGTERM came; only the command itself catches it."""


class Talk:
    """What is said on this side, line by line."""

    def __init__(self, session: "ChatSession", thread: "LoopThread", lines: Lines) -> None:
        self.is_under_way = False
        """Whether something that was begun has not ended."""
        self._session = session
        self._thread = thread
        self._lines = lines
        self._is_reading = False
        self._is_cancelled = False
        """Whether what is under way was cancelled."""
        self._is_left = False
        """Whether what is under way is to wait on for an answer."""
        self._code = EXIT_OK

    def run(self) -> int:
        """Talk to the end, and return the exit code."""
        self._tell_session()
        if self._session.messages and self._lines.is_edited:
            self._write_history(last=EXCHANGES_SHOWN)
        goes_on = self._take_turn(None)
        was_interrupted = False
        while goes_on:
            try:
                text = self._read(PROMPT, MORE)
            except KeyboardInterrupt:
                if was_interrupted or not self._lines.from_terminal:
                    return EXIT_INTERRUPTED
                was_interrupted = True
                typer.echo(err=True)
                tell("Ctrl-C again leaves, as Ctrl-D and /quit do")
                continue
            was_interrupted = False
            if text is None or text.strip() == "/quit":
                break
            if text.strip() and not self._obeys(text.strip()):
                goes_on = self._take_turn(text)
        return EXIT_OK if self._lines.from_terminal else self._code

    def interrupted(self) -> None:
        """Take Ctrl-C.

        Raises:
            KeyboardInterrupt: it is not for a run.
        """
        if self._is_reading or not self.is_under_way:
            raise KeyboardInterrupt
        if self._is_cancelled:
            os._exit(EXIT_INTERRUPTED)
        self._cancel()

    def terminated(self) -> None:
        """Take SIGTERM; the next one ends the process.

        Raises:
            Terminated: always.
        """
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        tell("closing; SIGTERM again leaves at once")
        raise Terminated

    def _cancel(self) -> None:
        self._is_cancelled = True
        tell("cancelling; Ctrl-C again leaves at once")
        self._thread.begin(self._session.cancel)

    def _read(self, prompt: str, more: str | None = None) -> str | None:
        """Return what the person, or the pipe, says next.

        Raises:
            KeyboardInterrupt: Ctrl-C instead.
        """
        try:
            self._is_reading = True
            return self._lines.line(prompt) if more is None else self._lines.message(prompt, more)
        finally:
            self._is_reading = False

    def _take_turn(self, text: str | None) -> bool:
        """Send a text, or only let a run go on that is open; tell if there may be another turn."""
        from refold.commands.run.chat_session import Ended, Idle, LeftOpen, WorkFailed

        self._is_cancelled = self._is_left = False
        self.is_under_way = True
        self._thread.run(lambda: self._session.begin(text))
        goes_on = True
        while True:
            match self._thread.run(self._session.next):
                case Ended() as ended:
                    self._tell_end(ended)
                case LeftOpen(run=run, why=why):
                    self._code = EXIT_FOUND
                    goes_on = self._lines.from_terminal
                    then = "; it goes on before your next message, and /cancel ends it" if goes_on else ""
                    tell_error(f"{run} {why}{then}")
                case WorkFailed(error=error):
                    self._tell_broken(error)
                    break
                case Idle():
                    break
                case waiting:
                    if not self._told(waiting):
                        return False
        self.is_under_way = False
        return goes_on and (self._lines.from_terminal or not self._is_cancelled)

    def _tell_end(self, ended: "Ended") -> None:
        from refold.sessions.outcome import Completed

        result = ended.result
        if not isinstance(result.outcome, Completed):
            self._code = tell_result(result, False)
            return
        if not ended.written:
            tell_result(result, False)
        if result.stop_reason == "max_tokens":
            tell("the answer was cut at its length limit")

    def _tell_broken(self, error: BaseException) -> None:
        """Say why an input failed, and go on where the next one may not.

        Raises:
            BaseException: the next one would fail, too.
        """
        from refold.events.core.errors import BackpressureShed, CommandRejected, LogFormatError, PersistenceError

        if not isinstance(error, CommandRejected | BackpressureShed | PersistenceError) or isinstance(
            error, LogFormatError
        ):
            raise error
        self._code = EXIT_FOUND
        tell_error(str(error))

    def _told(self, waiting: "PersonNeeded") -> bool:
        """Have a call told what it waits for, a decision or an answer; tell if the talk goes on."""
        from refold.events.core.errors import CommandRejected
        from refold.events.session.events import QuestionAsked
        from refold.events.session.state import question_id
        from refold.inspection.summaries import call_words

        request, log = waiting.request, self._session.log
        if isinstance(request, QuestionAsked):
            words, name = exact_line(exact_text(request.question), REST), question_id(request.call, request.number)
            waits = f"waits for an answer as {name}"
            line = answer_line(log, waiting.session, name, request.answer_schema)
        else:
            words = exact_line(exact_json(call_words(request.tool, request.input)), REST)
            waits, line = f"waits for approval as {request.call}", approve_line(log, waiting.session, request.call)
        if waiting.session != self._session.id:
            words = f"{words} of {exact_text(waiting.session)}"
        while not (self._is_cancelled or self._is_left) and self._thread.run(lambda: self._session.waits(waiting)):
            if not self._lines.from_terminal:
                tell_error(f"{words} {waits}; the run is left open", exact=True)
                typer.echo(line, err=True)
                self._code = EXIT_FOUND
                return False
            try:
                said = self._ask(waiting, words)
            except KeyboardInterrupt:
                typer.echo(err=True)
                self._turn_away(request)
                return True
            if said is None:
                tell(f"{words} {waits}; the run is left open", exact=True)
                return False
            try:
                self._thread.run(said)
            except CommandRejected as error:  # It does not fit; or another process was quicker, or the time is over.
                tell_error(str(error))
            else:
                return True
        return True

    def _turn_away(self, request: "ForPerson") -> None:
        """Let a question wait on, and end a run whose call waits for approval."""
        from refold.events.session.events import QuestionAsked

        if not isinstance(request, QuestionAsked):
            self._cancel()
            return
        self._is_left = True
        self._thread.run(self._session.leave_open)

    def _ask(self, waiting: "PersonNeeded", words: str) -> "Callable[[], Coroutine[None, None, None]] | None":
        """Return what tells a call what a person says; None = the person has left.

        Raises:
            KeyboardInterrupt: Ctrl-C instead.
        """
        from refold.events.session.events import QuestionAsked

        request = waiting.request
        if isinstance(request, QuestionAsked):
            answer = self._ask_question(request, words)
            return partial(self._session.answer, waiting, answer[0]) if answer is not None else None
        decision = self._ask_approval(request, words)
        return partial(self._session.decide, waiting, decision) if decision is not None else None

    def _ask_approval(self, request: "ToolApprovalRequested", words: str) -> "ApprovalAnswer | None":
        from refold.commands.run.chat_session import ApprovalAnswer

        why = f" ({exact_text(request.reason)})" if request.reason else ""
        means = f"; always means {exact_text(request.action)}" if request.action else ""
        tell(f"{words} waits for approval{why}{means}", exact=True)
        while (answer := self._read("allow it? [y/n/always/edit] ")) is not None:
            match answer.strip().lower():
                case "y" | "yes":
                    return ApprovalAnswer(allow=True)
                case "a" | "always":
                    return ApprovalAnswer(allow=True, always=True)
                case "n" | "no":
                    reason = self._read("why not? (for the model; may be empty) ")
                    return None if reason is None else ApprovalAnswer(allow=False, reason=reason.strip())
                case "e" | "edit":
                    given = self._read_json("arguments, as JSON: ", text_is_meant=False)
                    if given is None:
                        return None
                    if isinstance(given[0], dict):
                        return ApprovalAnswer(allow=True, arguments=cast("dict[str, object]", given[0]))
                    tell_error("the arguments of a call are a JSON object")
                case _:
                    continue
        return None

    def _ask_question(self, asked: "QuestionAsked", words: str) -> tuple[object] | None:
        import msgspec

        is_text = asked.answer_schema.get("type") == "string"
        schema = exact_json(msgspec.json.encode(asked.answer_schema).decode())
        tell(words if is_text else f"{words}; answer with JSON that fits {exact_line(schema, REST)}", exact=True)
        while is_text:
            text = self._read(ANSWER, MORE)
            if text is None or text.strip():
                return None if text is None else (text,)
        return self._read_json(ANSWER, text_is_meant=True)

    def _read_json(self, prompt: str, *, text_is_meant: bool) -> tuple[object] | None:
        """Return what a person says as JSON, which may have several lines; None = there are no more.

        Args:
            text_is_meant: what does not look like JSON is the text itself.
        """
        import msgspec

        while (text := self._read(prompt, MORE)) is not None:
            while text.strip():
                try:
                    return (msgspec.json.decode(text),)
                except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
                    looks_like_it = text.lstrip()[0] in '{["'
                    if text_is_meant and not looks_like_it:
                        return (text,)
                    more = self._read(MORE) if looks_like_it and "truncated" in str(error) else ""
                    if more is None:
                        return None
                    if not more:
                        tell_error(f"that is no JSON: {error}")
                    text = f"{text}\n{more}" if more else ""
        return None

    def _obeys(self, text: str) -> bool:
        """Do what a command says; tell if the text was one."""
        match text:
            case "/help":
                typer.echo(HELP, err=True)
            case "/history":
                self._write_history()
            case "/session":
                self._tell_session(how_to_return=True)
            case "/cancel":
                if not self._thread.run(self._session.cancel_open_run):
                    tell("no run is open")
            case _ if self._lines.from_terminal and text.startswith("/") and text[1:].isalpha():
                tell_error(f"there is no {text}; /help tells what there is")
            case _:
                return False
        return True

    def _write_history(self, *, last: int | None = None) -> None:
        from refold.commands.run.conversation import write_conversation
        from refold.events.core.errors import ConfigError

        try:
            view = self._thread.run(self._session.view)
        except ConfigError:
            tell("nothing has been said yet")
            return
        write_conversation(console(), view, last=last)

    def _tell_session(self, *, how_to_return: bool = False) -> None:
        session, log = shell_word(self._session.id), shell_word(str(self._session.log))
        before = f", {counted(self._session.messages, 'message')} before" if self._session.messages else ""
        words = f"session {session} in {log} with {self._session.agent.config.model}{before}"
        if how_to_return:
            words += f"; to come back: --log {log} --session {session}"
        elif self._lines.from_terminal:
            words += "; /help tells what there is"
        tell(words)


INTERRUPTS: Final = signal.SIGURG
"""Means nothing, and is ignored without a handler."""

ATTEMPTS_MAX: Final = 100
ATTEMPT_S: Final = 0.05
"""How long a handler may take to be called before the main thread is interrupted, and again."""


@contextmanager
def _signals_handled(handlers: Mapping[signal.Signals, Callable[[], None]]) -> Generator[None, None, None]:
    """Call the handlers of signals in this thread, the main one, as long as the block lasts; they may raise.

    Python calls handlers between two steps of its own, so a signal that comes just before a read begins to block would
    wait until there is something to read. So another thread interrupts the read, with a signal that means nothing,
    until the handler has been called.
    """
    called = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        called.set()
        handlers[signal.Signals(number)]()

    received, sends = socket.socketpair()
    sends.setblocking(False)
    before = {number: signal.signal(number, handle) for number in handlers}
    before[INTERRUPTS] = signal.signal(INTERRUPTS, lambda number, frame: None)
    fd_before = signal.set_wakeup_fd(sends.fileno(), warn_on_full_buffer=False)
    numbers = frozenset(map(int, handlers))
    main = threading.get_ident()
    watching = threading.Thread(target=_insist, args=(received, numbers, called, main), name="signals", daemon=True)
    watching.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(fd_before)
        sends.close()
        called.set()
        watching.join()
        received.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _insist(received: socket.socket, numbers: frozenset[int], called: threading.Event, main: int) -> None:
    """Interrupt the main thread until handlers are called, as long as signals can be received."""
    while data := received.recv(1024):
        if numbers.isdisjoint(data):
            continue
        for _ in range(ATTEMPTS_MAX):
            if called.wait(ATTEMPT_S):
                break
            signal.pthread_kill(main, INTERRUPTS)
        called.clear()
