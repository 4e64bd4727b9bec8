"""The commands of the documents are commands: each of them is read, and in full each that can is run on a log."""

import re
import shlex
from pathlib import Path

import pytest

from tests.runtime.command_line import COMMANDS, run
from tests.test_docs import BLOCKS, DOCUMENTS, FENCE, ROOT
from tests.test_docs import run as run_story

PAGES = [*DOCUMENTS, *(ROOT / "examples").rglob("*.md"), ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]

DESK = """
from refold import Agent, AgentConfig, ModelRequest, Price, ScriptedProvider, ToolResultBlock, ToolUse, tool, use


@tool(tier="observe", effect="pure")
def weather(city: str) -> str:
    "Forecast for a city."
    return f"{city}: sunny"


def step(request: ModelRequest) -> ToolUse | str:
    told = any(isinstance(block, ToolResultBlock) for block in request.messages[-1].content)
    return "Sunny." if told else use("weather", {"city": "Lisbon"})


config = AgentConfig(model="m", prices={"m": Price(input=1, output=1)})
agent = support = changed = Agent(config=config, provider=ScriptedProvider([step] * 100), tools=[weather])
test_shop = 7
"""

ACTOR = next(block for block in BLOCKS if block.document.name == "actors.md")

ELSEWHERE = {"tutorial.md", "upgrading.md", "rehearsal.md"}
"""Pages whose commands tests of their own run."""

PARSED_ONLY = {"chat", "debug", "demo", "inspect", "simulate", "tail", "--provider", "--otlp", "--try"}
"""What talks with a person, a browser or another host, does not end, or takes long and has a test of its own."""

ANOTHER_LOG = {
    "refold timeline events.db --around 4711 --window 20",
    "refold show events.db memory/main --at 9",
    "refold replay shows.db --kind show=app.shows:Show --stream show/hamlet --at 7",
    "refold import archives/events.db-20300101T000000.000000Z.jsonl.gz old.db",
    "refold replay events.db --agent app.agents:support --level model",
}
"""Commands that the log of this test refuses: it has no such place or archive, and no budget was given."""


def commands(page: Path) -> list[list[str]]:
    """Return the words of each command of Refold in what a page shows of a terminal."""
    text = page.read_text(encoding="utf-8")
    shown = [fence["body"] for fence in FENCE.finditer(text) if fence["words"].split()[:1] in (["sh"], ["console"])]
    lines = re.findall(r"^(?:\$ |.* && )?(?:POWER=fails )?(refold .*)$", "\n".join(shown), re.M)
    lines += re.findall(r"^    (refold .*)$", text, re.M)
    return [shlex.split(line, comments=True) for line in lines]


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.name)
def test_every_command_and_option_exists(page: Path) -> None:
    for name, *words in commands(page):
        with COMMANDS.make_context(name, words) as context:
            found, command, rest = COMMANDS.resolve_command(context, [*context._protected_args, *context.args])  # type: ignore[attr-defined]
            command.make_context(found, rest, parent=context)


def write_programs(folder: Path) -> None:
    """Write what the commands name besides logs."""
    for made in ("app", "archives"):
        (folder / made).mkdir(parents=True)
    for module in ("app/__init__.py", "app/agents.py", "desk.py"):
        (folder / module).write_text(DESK, encoding="utf-8")
    (folder / "app" / "shows.py").write_text(ACTOR.code.replace("asyncio.run(main())", ""), encoding="utf-8")
    (folder / "new.txt").write_text("Be brief.", encoding="utf-8")
    (folder / "chat.json").write_text('[{"role": "user", "content": "Hello"}]', encoding="utf-8")


@pytest.mark.slow
def test_every_command_does_something_on_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "a-password")
    pages = [page for page in PAGES if commands(page) and page.name not in ELSEWHERE]
    logs = tmp_path / "logs"
    write_programs(logs)
    run_story([ACTOR], monkeypatch, logs)
    for session in ["alice", "ann", "anna", "home", "lisbon"] * 2:
        assert run("run", "desk:agent", "Sunny?", "--log", "events.db", "--session", session).exit_code == 0
    refused: dict[str, str] = {}
    for page in pages:
        write_programs(tmp_path / page.name)
        monkeypatch.chdir(tmp_path / page.name)
        for log in ("events", "metrics", "shop", "shows"):
            source = logs / ("shows.db" if log == "shows" else "events.db")
            assert run("backup", source, f"{log}.db").exit_code == 0
        for name, *words in commands(page):
            if PARSED_ONLY.isdisjoint(words):
                done = run(*words)
                if done.exit_code == 2:
                    refused[" ".join([name, *words])] = f"{page.name}: {done.output}"
    assert refused.keys() == ANOTHER_LOG, refused
