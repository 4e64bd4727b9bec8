"""`refold debug`: one recorded step runs again under Python's debugger, and nothing before it does."""

from pathlib import Path

import pytest

from tests.runtime.command_line import run


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


ACTING = """
from pathlib import Path
from agents import desk_of, pay
from refold import Middleware, tool

@tool(name="look", effect="pure", tier="observe")
async def writing(name: str) -> str:
    \"\"\"Look.\"\"\"
    breakpoint()
    Path("acted").write_text(name)
    return "seen"

@tool(name="look", effect="pure", tier="observe")
def printing(name: str) -> str:
    \"\"\"Look.\"\"\"
    breakpoint()
    return name

class Acting(Middleware):
    def on_post_llm(self, context, response):
        try:
            Path("acted").write_text("")
        except Exception:
            pass

writes = desk_of(tools=[writing, pay])
prints = desk_of(tools=[printing, pay])
hooks = desk_of(middleware=[Acting()])
"""


@pytest.mark.parametrize(
    ("arguments", "typed", "said", "code"),
    [
        (["--at", 8, "--agent", "acting:writes"], "c\nc\n", ["not done: it needs something outside: open for wri"], 0),
        (["--at", 8, "--agent", "acting:prints"], "c\np name * 3\nc\n", ["(Pdb) 'ititit'", 'now:\n  "it"\n'], 0),
        (["--at", 6, "--agent", "acting:hooks"], "c\n", ["not compared: it needs something outside: open for"], 1),
        (["--at", 6, "--agent", "acting:hooks"], "q\n", [], 0),
        (["--at", 8, "--agent", "acting:prints"], "", [], 0),
    ],
)
def test_what_is_debugged_acts_nowhere_and_stops_at_its_own_breakpoints(
    log: Path, arguments: list[object], typed: str, said: list[str], code: int
) -> None:
    (log.parent / "acting.py").write_text(ACTING)
    result = run("debug", log, "ann", *arguments, stdin=typed)
    assert result.exit_code == code, result.output
    for words in said:
        assert words in result.stdout
    assert ("left; the step" in result.stderr) == (not said)
    assert not (log.parent / "acted").exists()
