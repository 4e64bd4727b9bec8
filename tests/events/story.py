"""Stories of a session: given an agent, when it is told this, then that follows. They stand in `stories/`.

A story is a title and lines of the form `what is told -> what follows from it`:

    # a denied call did not run, and the model reads the reason
    agent max_turns=5
    calls pay
    deny 0 "too much" -> ToolApprovalDecided ToolCallFailed ModelRequested
    results -> denied: too much

What is told is one of the words of `Player.tell`, with texts, settings (`key=k`) and flags (`now`). What follows are
the names of the events of the batch, `known` where it was recorded before, or `refused: REASON`; a refusal changes
nothing. Any other line asks for one or several things, divided by commas: those of `Player.shown`, or a path into the
state. A path that begins with `batch` leads into the events that were told last. The line `agent` is optional. An
answer where no run is under way is one to the input "Hello", which is sent before it.

Each story is played twice, live and with the state folded from the decoded log before every line. After every batch the
invariants are checked, and in the end every recorded stimulus is executed again.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from refold.events import AgentConfig, CommandRejected, Recorded, WaitUntil
from refold.events.core import content
from refold.events.core.ids import RunId, ToolCallId
from refold.events.model.configuration import RetryPolicy
from refold.events.session.commands import AllowTurn, AnswerQuestion, ClearHistory, RecordQuestion, RecordToolResult
from refold.events.session.events import Verdict
from tests.events.conftest import TOOL_NAMES, Session, configuration, encoded, names, say, use

STORIES = Path(__file__).parent / "stories"

FLAGS = ("always", "asked", "broken", "cancelled", "code_changed", "ends_run", "now", "retryable", "stepwise")

VERDICTS = {
    "allow": Verdict(),
    "ask": Verdict(verdict="ask", reason="policy"),
    "deny": Verdict(verdict="deny", reason="not today"),
    "deny_silently": Verdict(verdict="deny", reason=" "),
    "invalid": Verdict(verdict="invalid_arguments", reason="city is missing"),
    "invalid_silently": Verdict(verdict="invalid_arguments"),
    "not_found": Verdict(verdict="not_found", reason="there is no tool of that name"),
    "not_found_silently": Verdict(verdict="not_found", reason="\n"),
    "broken": Verdict(verdict="broken", reason="the policy raised ValueError"),
    "broken_silently": Verdict(verdict="broken", reason=" \n"),
}

SENTENCES = {
    content.CANCELLED_TEXT: "<cancelled>",
    content.CRASHED_TEXT: "<crashed>",
    "The run was ended by another call of the same answer, so this one was not run.": "<ended>",
}
"""How stories write the fixed sentences; `test_content` says what the constants are."""

SETTINGS: Mapping[str, Any] = {"retry": {"even": RetryPolicy(attempts_max=3, base_s=1.0, max_s=60.0, jitter=0.0)}}
"""Values of settings that have a name."""


class Story(NamedTuple):
    title: str
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return self.title


def stories() -> list[Any]:
    """Return the stories of all files, as the rows of a parametrized test."""
    rows = []
    for file in sorted(STORIES.glob("*.txt")):
        told = [part.strip().splitlines() for part in f"\n{file.read_text()}".split("\n# ")[1:]]
        rows += [
            pytest.param(Story(title, tuple(filter(None, lines))), id=f"{file.stem}: {title}") for title, *lines in told
        ]
    return rows


def play(story: Story) -> None:
    for folds in (False, True):
        player = Player(story.lines)
        for player.line in story.lines:
            if folds:
                player.session.restart()
            player.play()
        player.session.restart()
        player.session.replay()


def after(lines: Sequence[str]) -> Session:
    """Return the session that was told some lines."""
    player = Player(lines)
    for player.line in lines:
        player.play()
    return player.session


class Player:
    """Plays one story.

    Args:
        lines: of the story.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        given = lines[0].split()[1:] if lines[0].startswith("agent ") else []
        settings = {name: SETTINGS.get(name, {}).get(value, value) for name, value in _parsed(given)[1].items()}
        self.session = Session(configuration(AgentConfig(model="test-model", **settings)))
        self.line = ""

    def play(self) -> None:
        """Play the line, and check what it says."""
        told, _, expected = self.line.partition(" -> ")
        word, *rest = shlex.split(told.strip())
        if word == "agent":
            return
        before = encoded(self.session.state)
        try:
            is_command = self.tell(word, *_parsed(rest))
        except CommandRejected as refusal:
            is_command, found = True, f"refused: {refusal}"
        else:
            found = _outcome(self.session.outcome)
        if not is_command:
            found = ", ".join(self.shown(asked.strip()) or "(nothing)" for asked in told.split(","))
            assert found == expected.strip(), f"{self.line}: {found}"
        elif found.startswith("refused: "):
            assert expected.startswith("refused: "), f"{self.line}: {found}"
            assert expected.removeprefix("refused: ") in found, f"{self.line}: {found}"
            assert encoded(self.session.state) == before
        elif expected:
            assert found == expected or (expected == "known" and found.startswith("known ")), f"{self.line}: {found}"

    def tell(self, word: str, texts: list[str], settings: dict[str, Any]) -> bool:
        """Tell the session what a line says, and return whether it says something to tell."""
        session = self.session
        if word in ("says", "thinks", "calls", "fails") and session.state.run is None:
            session.send()
        match word:
            case "send":
                session.send(*texts, **settings)
            case "says":
                session.answer(*map(say, texts), **settings)
            case "thinks":
                session.answer(*(content.ThinkingBlock(thinking=text) for text in texts), **settings)
            case "calls":
                self._call_tools(texts, settings)
            case "fails":
                session.fail_model(*texts, **settings)
            case "result":
                session.result(self._call(texts[0]), texts[1] if len(texts) > 1 else "done", **settings)
            case "result_image":
                image = content.ImageBlock(media_type="image/png", data=b"png")
                session.tell(RecordToolResult(call=self._call(texts[0]), content=(image,), **settings))
            case "allow" | "deny":
                session.decide(self._call(texts[0]), word == "allow", *texts[1:], **settings)
            case "asks":
                number = len(session.state.turn.calls[int(texts[0])].answers) + 1 if session.state.turn else 1
                session.tell(
                    RecordQuestion(
                        call=self._call(texts[0]), number=number, question="Which?", answer_schema={}, **settings
                    )
                )
            case "answers":
                session.tell(AnswerQuestion(call=self._call(texts[0]), answer=" ".join(texts[1:]) or None, **settings))
            case "cancel":
                session.cancel(*map(RunId, texts), **settings)
            case "fire":
                session.fire(*texts)
            case "crash":
                session.crash(settings.pop("tools", ",".join(TOOL_NAMES)).split(","), **settings)
            case "step":
                session.tell(AllowTurn(run=RunId(texts[0]) if texts else None))
            case "clear":
                session.tell(ClearHistory(**settings))
            case "pass_seconds":
                session.now += int(texts[0]) * 1_000_000
            case _:
                return False
        return True

    def shown(self, asked: str) -> str:
        """Return what is asked for, as a story writes it."""
        session = self.session
        match asked:
            case "pending":
                return " ".join(session.pending_keys)
            case "pending_count":
                return str(len(session.pending))
            case "time_left_ms":
                waits = [
                    wait.due_at for wait in session.pending if isinstance(wait, WaitUntil) and "deadline" in wait.key
                ]
                return str((waits[0] - session.now) // 1_000) if waits else "not counted"
            case "texts":
                return ", ".join(session.texts)
            case "roles":
                return " ".join(message.role for message in session.history)
            case "results":
                return ", ".join(_result(block) for block in self._last_results())
        value: Any = {"batch": session.outcome} if asked.startswith("batch") else session.state
        for step in asked.split("."):
            if isinstance(value, Mapping):
                value = value[step]
            elif isinstance(value, Sequence):
                value = value[int(step)]
            else:
                value = getattr(value, step)
        return _written(value)

    def _call_tools(self, words: list[str], settings: dict[str, Any]) -> None:
        """Answer with calls, such as `look`, `pay:ask`, `write:ask/ACTION` and `look*102`."""
        calls = [call for word in words for call in [word.partition("*")[0]] * int(word.partition("*")[2] or 1)]
        verdicts = []
        for call in calls:
            verdict, _, action = (call.partition(":")[2] or "allow").partition("/")
            verdicts.append(msgspec.structs.replace(VERDICTS[verdict], action=action))
        self.session.answer(*(use(call.partition(":")[0]) for call in calls), verdicts=verdicts, **settings)

    def _call(self, word: str) -> ToolCallId:
        """Return a call by its id, or by its place in the turn under way."""
        return self.session.calls[int(word)] if word.isdigit() else ToolCallId(word)

    def _last_results(self) -> list[content.ToolResultBlock]:
        results = [
            [block for block in message.content if isinstance(block, content.ToolResultBlock)]
            for message in self.session.history
        ]
        return [*filter(None, results)][-1]


def _parsed(words: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Return texts, and settings with flags."""
    texts, settings = list[str](), dict[str, Any]()
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            settings[name] = float(value) if name.endswith("_s") else int(value) if value.isdigit() else value
        elif word in FLAGS:
            settings[word] = True
        else:
            texts.append(word)
    return texts, settings


def _outcome(outcome: object) -> str:
    return f"known {outcome.version}" if isinstance(outcome, Recorded) else " ".join(names(outcome))  # type: ignore[arg-type]


def _result(block: content.ToolResultBlock) -> str:
    text = SENTENCES.get(block.text, block.text)
    return text if block.kind is None else f"{block.kind}: {text}"


def _written(value: object) -> str:
    if isinstance(value, content.TextBlock):
        return value.text
    if isinstance(value, tuple | list):
        return " ".join(_written(item) for item in value)
    return SENTENCES.get(str(value), str(value))
