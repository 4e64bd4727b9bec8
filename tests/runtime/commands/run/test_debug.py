"""`refold debug`: one recorded step runs again under Python's debugger, and nothing before it does."""

from pathlib import Path

import pytest

from tests.runtime.command_line import error_of, run


@pytest.fixture
def log(folder: Path) -> Path:
    """A session that looked, in versions 7 and 8, and one that paid after it was allowed to."""
    assert run("run", "agents:desk_decided", "look here", "--log", "desk.db", "--session", "ann").exit_code == 0
    assert run("run", "agents:desk_decided", "pay", "--log", "desk.db", "--session", "bob").exit_code == 0
    return folder / "desk.db"


@pytest.mark.parametrize(
    ("arguments", "typed", "said", "code"),
    [
        (["ann", "--at", 8, "--agent", "agents:desk"], "p name\nc\n",
         ["(Pdb) 'it'", "session/ann@8: body of the tool look", 'now:\n  "seen"\n'], 0),
        (["bob", "--at", 10, "--agent", "agents:desk", "--side-effects"], "p amount\nc\n",
         ["(Pdb) 3", 'now:\n  "paid 3"\n'], 0),
        (["ann", "--at", 8, "--agent", "agents:desk_strict", "--hooks"], "p call.input\nc\n",
         ["(Pdb) {'name': 'it'}", 'session/ann@8: call.refused: (nothing) -> "not today"', "not as recorded"], 1),
        (["ann", "--at", 6, "--agent", "agents:desk_watched"], "p call.tool\nc\n", ["(Pdb) 'look'", "as recorded"], 0),
        (["ann", "--at", 8, "--agent", "agents:desk"], "q\n", ["(Pdb) "], 0),
    ],
)  # fmt: skip
def test_the_debugger_stops_where_the_users_code_begins(
    log: Path, arguments: list[object], typed: str, said: list[str], code: int
) -> None:
    result = run("debug", log, *arguments, stdin=typed)
    assert result.exit_code == code, result.output
    assert result.stdout.count("\n-> ") == 1, "it stops once"
    for words in said:
        assert words in result.stdout


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["bob", "--at", 10, "--agent", "agents:desk"], "the effect of the tool pay is 'once', so its body"),
        (["ann", "--at", 3, "--agent", "agents:desk"], "has no hook, policy or prompt function to stop in"),
        (["ann", "--at", 99, "--agent", "agents:desk"], "session/ann has 11 events, and none of version 99"),
        (["ann", "--at", 7, "--agent", "agents:desk"], "name the event that ends it"),
        (["ann", "--at", 8, "--agent", "agents:plain"], "the session is one of the agent 'desk', and not of 'agent'"),
        (["carl", "--at", 8, "--agent", "agents:desk"], "no session 'carl'"),
    ],
)  # fmt: skip
def test_what_is_not_run_again_is_refused(log: Path, arguments: list[object], why: str) -> None:
    result = run("debug", log, *arguments, stdin="c\n")
    assert result.exit_code == 2
    assert why in error_of(result)
