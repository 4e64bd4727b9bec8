"""`--provider` and what belongs to it: `refold run` and `refold chat` with a model behind HTTP, here on loopback."""

import asyncio
import json
from pathlib import Path

import pytest

from refold.events.model.configuration import AgentConfiguration
from refold.events.session.events import AgentConfigured
from tests.providers.anthropic_messages import events_of as anthropic_events
from tests.providers.anthropic_messages import message
from tests.providers.chat_completions import chunk
from tests.providers.loopback import Loopback, Step, event_stream, json_answer
from tests.runtime.command_line import events_of, run, started
from tests.runtime.terminal import Terminal

KEY = "sk-test-0123456789abcdef"
AGENTS = """
from refold import Agent, AgentConfig, ScriptedProvider, tool

@tool(tier="observe", effect="pure")
def weather(city: str) -> str:
    "Forecast."
    return f"sunny in {city}"

config = AgentConfig(model="its-own", system_prompt="Be brief.")
agent = Agent(config=config, provider=ScriptedProvider([]), tools=[weather])
"""


@pytest.fixture
def weathermen(folder: Path) -> Path:
    """A working directory with the module `weathermen`."""
    folder.joinpath("weathermen.py").write_text(AGENTS)
    return folder


def logged(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.glob("refold.db*")]


async def process(folder: Path, *arguments: str, given: str = "", **environment: str) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr of a command, none of which, like the log, holds the key."""
    with started(*arguments, cwd=folder, **environment) as command:
        said, told = await asyncio.to_thread(command.communicate, given)
    for data in (said.encode(), told.encode(), *logged(folder)):
        assert KEY.encode() not in data
    return command.returncode, said, told


def asked(server: Loopback, model: str, path: str = "/v1", provider: str = "openai") -> list[str]:
    """Return the options that have a command ask a model of this server in the session `s`."""
    return ["--provider", provider, "--model", model, "--base-url", f"{server.url}{path}", "--session", "s"]


async def configured_in(folder: Path) -> AgentConfiguration:
    events = await asyncio.to_thread(events_of, folder / "refold.db")
    return [event for event in events if isinstance(event, AgentConfigured)][-1].configuration


def openai_answer(*pieces: str | asyncio.Event) -> list[Step]:
    steps: list[Step] = [
        piece if isinstance(piece, asyncio.Event) else f"data: {json.dumps(chunk({'content': piece}))}\n\n".encode()
        for piece in pieces
    ]
    return event_stream(*steps, f"data: {json.dumps(chunk(finish='stop'))}\n\n".encode(), b"data: [DONE]\n\n")


def openai_call(name: str, **arguments: str) -> dict[str, object]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    said = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}
    return {"id": "x", "choices": [{"index": 0, "message": said, "finish_reason": "tool_calls"}]}


def openai_whole(text: str) -> dict[str, object]:
    said = {"role": "assistant", "content": text}
    return {"id": "x", "choices": [{"index": 0, "message": said, "finish_reason": "stop"}]}


def anthropic_answer(text: str) -> list[Step]:
    events = anthropic_events(message({"type": "text", "text": text, "citations": None}))
    return event_stream(*(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events))


async def test_run_asks_openai_s_api_without_an_agent(folder: Path) -> None:
    async with Loopback([openai_answer("Hel", "lo.")]) as server:
        options = [*asked(server, "gpt-x"), "--system", "Say hello", "--max-tokens", "7"]
        code, said, told = await process(folder, "run", "Hi", *options, OPENAI_API_KEY=KEY)
    assert (code, said, told) == (0, "Hello.\n", "session s in refold.db\n")
    [request] = server.requests
    assert (request.path, request.headers["authorization"]) == ("/v1/chat/completions", f"Bearer {KEY}")
    body = request.json()
    assert (body["model"], body["stream"], body["max_tokens"]) == ("gpt-x", True, 7)
    assert [part["role"] for part in body["messages"]] == ["system", "user"]
    assert "Say hello" in json.dumps(body["messages"][0])
    assert "tools" not in body
    configuration = await configured_in(folder)
    assert (configuration.model, configuration.max_tokens, configuration.streaming) == ("gpt-x", 7, True)


async def test_run_asks_anthropic_s_api_without_an_agent(folder: Path) -> None:
    async with Loopback([anthropic_answer("Hello.")]) as server:
        options = asked(server, "claude-x", "", "anthropic")
        code, said, told = await process(folder, "run", "Hi", *options, ANTHROPIC_API_KEY=KEY)
    assert (code, said, told) == (0, "Hello.\n", "session s in refold.db\n")
    [request] = server.requests
    assert (request.path, request.headers["x-api-key"]) == ("/v1/messages", KEY)
    assert (request.json()["model"], request.json()["stream"]) == ("claude-x", True)
    assert (await configured_in(folder)).model == "claude-x"


async def test_an_agent_keeps_its_tools_and_its_prompt_with_another_provider(weathermen: Path) -> None:
    script = [json_answer(openai_call("weather", city="Faro")), json_answer(openai_whole("Sunny."))]
    async with Loopback(script) as server:
        options = asked(server, "gpt-x")
        code, said, told = await process(weathermen, "run", "weathermen:agent", "Faro?", *options)
    assert (code, said) == (0, "Sunny.\n")
    assert told.splitlines()[1:] == ['-> weather(city="Faro")', "<- weather: sunny in Faro"]
    first, second = (request.json() for request in server.requests)
    assert "authorization" not in server.requests[0].headers
    assert [each["function"]["name"] for each in first["tools"]] == ["weather"]
    assert "Be brief." in json.dumps(first["messages"][0])
    assert "stream" not in first or first["stream"] is False
    assert "sunny in Faro" in json.dumps(second["messages"][-1])
    assert (await configured_in(weathermen)).model == "gpt-x"


async def test_react_asks_for_tools_in_text(weathermen: Path) -> None:
    script = [
        json_answer(openai_whole('Thought: I look.\nAction: weather\nAction Input: {"city": "Faro"}')),
        json_answer(openai_whole("Thought: I know.\nFINAL_ANSWER: Sunny.")),
    ]
    async with Loopback(script) as server:
        options = [*asked(server, "small"), "--react"]
        code, said, told = await process(weathermen, "run", "weathermen:agent", "Faro?", *options)
    assert (code, said) == (0, "Sunny.\n"), told
    assert all("tools" not in request.json() for request in server.requests)
    assert (await configured_in(weathermen)).protocol == "react"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "chat"])
async def test_a_busy_provider_is_asked_again_and_that_is_told(folder: Path, command: str) -> None:
    busy = json_answer({"error": {"message": "Slow down", "type": "tokens"}}, status=429, headers={"retry-after": "0"})
    async with Loopback([busy, openai_answer("Hello.")]) as server:
        options = asked(server, "gpt-x")
        arguments, given = (["Hi"], "") if command == "run" else ([], "Hi\n")
        code, said, told = await process(folder, command, *arguments, *options, given=given)
    assert (code, said) == (0, "Hello.\n")
    assert told.splitlines()[1:] == [
        ".. asked again in 1 s: ProviderError: openai answered with status 429 (tokens): Slow down"
    ]
    assert len(server.requests) == 2


async def test_a_refused_key_is_one_line_that_does_not_show_it(folder: Path) -> None:
    refusal = {"error": {"message": f"Incorrect API key provided: {KEY}", "code": "invalid_api_key"}}
    async with Loopback([json_answer(refusal, status=401), openai_answer("Hello.")]) as server:
        options = asked(server, "gpt-x")
        code, said, told = await process(folder, "chat", *options, given="Hi\nHi\n", OPENAI_API_KEY=KEY)
    assert (code, said) == (1, "Hello.\n")
    [line] = [line for line in told.splitlines() if line.startswith("refold: ")]
    assert "[redacted]" in line


async def test_chat_writes_an_answer_while_it_comes(folder: Path) -> None:
    go = asyncio.Event()
    async with Loopback([openai_answer("First", go, " and last."), openai_answer("More.")]) as server:
        options = asked(server, "gpt-x")
        terminal = Terminal(folder, "chat", *options, OPENAI_API_KEY=KEY)
        with terminal:
            assert "with gpt-x" in await asyncio.to_thread(terminal.until, "> ")
            terminal.write("Hi\n")
            await asyncio.to_thread(terminal.until, "First")
            go.set()
            assert await asyncio.to_thread(terminal.until, "> ") == " and last.\n> "
            terminal.write("And?\n")
            assert "More.\n> " in await asyncio.to_thread(terminal.until, "\n> ")
            terminal.write("\x04")
            assert (await asyncio.to_thread(terminal.end))[0] == 0
    assert [part["role"] for part in server.requests[1].json()["messages"]] == ["system", "user", "assistant", "user"]


async def test_ctrl_c_while_an_answer_comes_leaves_nothing_of_it_in_the_conversation(folder: Path) -> None:
    never = asyncio.Event()
    async with Loopback([openai_answer("Half", never), openai_answer("Whole.")]) as server:
        options = asked(server, "gpt-x")
        with Terminal(folder, "chat", *options) as terminal:
            await asyncio.to_thread(terminal.until, "> ")
            terminal.write("Hi\n")
            await asyncio.to_thread(terminal.until, "Half")
            terminal.write("\x03")
            await asyncio.to_thread(terminal.until, "was cancelled\n> ")
            terminal.write("Again\n")
            await asyncio.to_thread(terminal.until, "Whole.\n> ")
    assert "Half" not in json.dumps(server.requests[1].json())
    assert server.left == 1


@pytest.mark.usefixtures("folder")
def test_a_key_that_cannot_be_one_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret with spaces")
    result = run("run", "hi", "--provider", "openai", "--model", "m")
    assert result.exit_code == 2
    assert "--provider openai: a secret consists of printable ASCII" in result.stderr
    assert "sk-secret" not in result.output
