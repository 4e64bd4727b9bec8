"""Canaries: secrets that come in every way in which anything comes into a log, and are looked for everywhere.

Everywhere is: the bytes of all files that a life leaves (log, WAL, shared memory, inbox, lock, backup, exports, the
program's log), and what every command writes about the log.
"""

import asyncio
import base64
import json
import logging
import os
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import refold
from refold import Message, ProviderError, ToolUse
from refold.events.core.pure_core import KeyedCommand, KeyedEvent, PureCore, State
from refold.memory import EpisodicStore, SemanticStore, WorkingMemory, memory_tools
from refold.providers import Secret
from refold.replay import replay
from refold.scenarios import Say, Scenario, Simulator, faults
from tests.runtime.command_line import run

KEY = "sk-proj-ABCdef0123456789/canary_QQ"
"""What the environment has as a provider's key."""
PHRASE = 'correct "horse" battery'
CARD = "4242 4242 4242 4242"
PIN = "PIN-98765"
MASKED = "what middleware hides"
CANARIES = (KEY, PHRASE, CARD, PIN, MASKED)
RULES: tuple[Any, ...] = (PHRASE, re.compile(r"\b\d{4}(?: \d{4}){3}\b"), refold.FieldPath("pin"))
ESCAPED = "".join(f"\\u{ord(letter):04x}" for letter in KEY)
SPELLED = (
    *CANARIES,
    KEY[:16],
    PHRASE[:16],
    ESCAPED,
    json.dumps(PHRASE)[1:-1],
    base64.b64encode(KEY.encode()).decode()[:40],
)
"""No byte of these may be anywhere; the beginnings are what a cut would leave."""


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


class Hides(refold.Middleware):
    def on_tool_result(self, context: refold.HookContext, result: refold.ToolResultBlock) -> Any:
        texts = [block.text for block in result.content if isinstance(block, refold.TextBlock)]
        if not any(MASKED in text for text in texts):
            return None
        content = tuple(refold.TextBlock(text=text.replace(MASKED, "***")) for text in texts)
        return msgspec.structs.replace(result, content=content)


@refold.tool(tier="observe", effect="pure")
def leak(how: str, given: str = "", context: refold.ToolContext[object] | None = None) -> Any:
    """Give away what the process knows."""
    assert context is not None
    assert KEY not in given
    context.progress({"doing": KEY})
    match how:
        case "raises":
            raise RuntimeError(f"cannot use {KEY} or {PHRASE}")
        case "fails":
            raise refold.ToolError(f"{'x' * 10_000} {KEY}")
        case "tells":
            return {"pin": PIN, "card": CARD, "environment": dict(os.environ), "masked": MASKED}
        case "draws":
            return refold.DocumentBlock(media_type="text/plain", data=f"a {KEY}".encode())
        case "spills":
            return "long " * 30_000 + KEY + " long" * 30_000
        case _:
            return base64.b64encode(f"user:{KEY}".encode()).decode()


@refold.tool(tier="confirm")
def pay(card: str) -> str:
    return f"paid with {card}"


class Model:
    """Says what the latest input asks for, in small pieces."""

    async def complete(self, request: refold.ModelRequest) -> refold.ModelResponse:
        assert not any(canary in repr(request) for canary in (KEY, CARD, PIN)), "secrets never enter a prompt"
        said = request.messages[-1].text
        if request.messages[-1].content and isinstance(request.messages[-1].content[0], refold.ToolResultBlock):
            return refold.say(f"Done. The key is {KEY}, the card {CARD}")
        if "error" in said:
            raise ProviderError(f"{'x' * 100} bad header: Bearer {KEY}", kind="auth", status=401)
        if "break" in said:
            raise RuntimeError(f"cannot connect to https://example.com/?key={KEY}")
        if "pay" in said:
            return refold.ModelResponse(content=(ToolUse(name="pay", input={"card": CARD}),), stop_reason="tool_use")
        if "all" not in said:
            return refold.say(f"{KEY} {PHRASE}")
        ways = ("raises", "fails", "tells", "draws", "spills", "")
        calls = [ToolUse(name="leak", input={"how": how, "given": f"{KEY} {CARD}"}) for how in ways]
        return refold.ModelResponse(
            content=(
                refold.ThinkingBlock(thinking=f"I remember {PHRASE}", signature="c2ln"),
                *calls,
                ToolUse(name="leak", input=f'{{"how": "tells", "pin": "{PIN}", "given": "{ESCAPED}'),
                ToolUse(name="remember", input={"content": f"my card is {CARD}", "kind": KEY}),
                ToolUse(name=KEY, input={"pin": PIN}),
            ),
            stop_reason="tool_use",
            stop_details={"pin": PIN, "why": KEY},
        )

    async def stream(self, request: refold.ModelRequest) -> AsyncIterator[refold.Delta | refold.ModelResponse]:
        answer = await self.complete(request)
        for block in answer.content:
            text = block.text if isinstance(block, refold.TextBlock) else ""
            for place in range(0, len(text), 3):
                yield refold.TextDelta(text[place : place + 3])
            if isinstance(block, ToolUse):
                whole = block.input if isinstance(block.input, str) else json.dumps(block.input)
                for place in range(0, len(whole), 7):
                    yield refold.ToolInputDelta(1, block.name, whole[place : place + 7])
        if "cut" in request.messages[-1].text:
            raise ProviderError(f"the connection with {KEY} is gone", kind="connection")
        yield answer


class Note(KeyedCommand, frozen=True, kw_only=True):
    text: str
    pin: str = PIN


class Noted(KeyedEvent, frozen=True, kw_only=True, tag="diary.noted.v1"):
    text: str
    pin: str


class Page(State):
    texts: list[str] = []


class Diary(PureCore[Page, Note, Noted]):
    fold_version = 1

    def admit(self, state: Page, command: Note) -> Noted:
        return Noted(text=command.text, pin=command.pin)

    def evolve(self, state: Page, event: Noted) -> Page:
        return msgspec.structs.replace(state, texts=[*state.texts, event.text])


def agent(**changed: Any) -> refold.Agent:
    memory, working, knowledge = (
        EpisodicStore(scope="agent"),
        WorkingMemory(5, scope="agent"),
        SemanticStore(scope="agent"),
    )
    memory.add_episode("agent", f"The owner's password is {PHRASE}", importance=0.9)
    parts: dict[str, Any] = {
        "config": refold.AgentConfig(model="m", system_prompt=f"Never tell {PHRASE}.", streaming=True),
        "provider": Model(),
        "tools": [leak, pay, *memory_tools(episodic=memory)],
        "middleware": [Hides()],
        "memory": memory,
        "working_memory": working,
        "semantic": knowledge,
        "redact": RULES,
    }
    return refold.Agent(**(parts | changed))


AGENT = agent()


def kept(folder: Path, files: dict[str, bytes]) -> None:
    """Keep the bytes of all files as they are now, such as those of the WAL, which is gone in the end."""
    for path in folder.iterdir():
        if path.is_file():
            files[f"{path.name} {len(files)}"] = path.read_bytes()


async def live(log: Path, files: dict[str, bytes]) -> list[Any]:
    """Let a log live through everything, and return what was told to those who followed it."""
    described = agent()
    seen: list[Any] = []
    async with refold.AgentRuntime(described, log=log, snapshot_every=10) as runtime:
        session = await runtime.session("s")
        await session.import_history([Message("user", (refold.TextBlock(text=f"I am {KEY}"),))])
        for said in (f"all {KEY} {PHRASE}", "error", "break", f"cut {CARD}", f"say {CARD}"):
            async for item in session.stream(said):
                seen.append(item)
        task = asyncio.create_task(session.send(f"pay {CARD}"))
        async for recorded in session.follow(after_version=0):
            if isinstance(getattr(recorded, "event", None), refold.ToolApprovalRequested):
                break
        waiting = await session.approvals()
        seen.append(waiting)
        await session.decide(waiting[0].call, allow=False, reason=f"not with {KEY}")
        seen.append(await task)
        await session.cancel(reason=f"because {KEY}")
        with pytest.raises(refold.CommandRejected):
            await session.send("hello", key=f"request {KEY}")
        with pytest.raises(refold.RefoldError):
            await (await runtime.session(f"session {KEY}")).send("hello")
        assert isinstance(described.working_memory, WorkingMemory)
        await described.working_memory.set("password", PHRASE)
        assert described.semantic is not None
        await described.semantic.put(KEY, f"{PHRASE} {CARD}")
        diary = await runtime.host("diary", Diary)
        for _ in range(12):
            await diary.ask("mine", Note(text=f"Dear diary, {KEY} {PHRASE}"))
        assert set(await diary.read("mine", lambda page: page.texts)) == {"Dear diary, [redacted] [redacted]"}
        before = await session.history()
        kept(log.parent, files)
        seen.append(await refold.connect(log).session("s").send(f"from elsewhere {KEY} {PHRASE}"))
        kept(log.parent, files)
    async with refold.AgentRuntime(agent(), log=log, snapshot_every=None) as runtime:
        after = await (await runtime.session("s")).history()
    assert after[: len(before)] == before, "the log gives back the state that there was"
    return [*seen, after]


def searched(where: str, data: bytes) -> Iterator[str]:
    """Give the canaries that are in some bytes."""
    for canary in SPELLED:
        if canary.encode() in data:
            yield f"{canary!r} is in {where}"


def test_no_canary_is_anywhere_after_a_life_with_everything(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "events.db"
    handler = logging.FileHandler(tmp_path / "program.log")
    handler.setFormatter(logging.Formatter("%(name)s %(message)s"))
    root, level = logging.getLogger(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    files: dict[str, bytes] = {}
    try:
        seen = asyncio.run(live(log, files))
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
        handler.close()
    said = commands(log, tmp_path)
    kept(tmp_path, files)
    names = {name.partition(" ")[0] for name in files}
    assert {"events.db", "events.db-wal", "events.db.inbox", "copy.db", "lines.jsonl", "program.log"} <= names
    assert "reports {'doing': '[redacted]'}" in (tmp_path / "program.log").read_text()
    found = [leak for name, data in files.items() for leak in searched(name, data)]
    found += [leak for words, output in said.items() for leak in searched(f"the output of {words}", output)]
    found += [leak for item in seen for leak in searched(f"what was told: {type(item).__name__}", repr(item).encode())]
    printed = capfd.readouterr()
    found += searched("what was printed", (printed.out + printed.err).encode())
    assert not found, "\n".join(found)
    asyncio.run(replay(log, kinds={"diary": Diary})).raise_for_divergence()
    report = asyncio.run(replay(log, agent=agent(), session="s"))
    report.raise_for_divergence(allow_missing=["Agent(keep_originals=True)"])
    assert [each.not_compared[0].why for each in report.compared if each.what == "result" and each.not_compared] == [
        "middleware changed what the tool gave, which the log does not have; Agent(keep_originals=True) keeps it"
    ]


def commands(log: Path, folder: Path) -> dict[str, bytes]:
    """Return what each command writes."""
    said: dict[str, bytes] = {}
    for words in (
        ("sessions", log),
        ("show", log, "s"),
        ("show", log, "s", "--events"),
        ("show", log, "s", "--json"),
        ("show", log, "s", "--events", "--json"),
        ("show", log, "s", "--request", 9),
        ("tail", log, "--no-follow", "-n", 1000),
        ("tail", log, "--no-follow", "-n", 1000, "--json"),
        ("stats", log),
        ("metrics", log),
        ("replay", log, "--kind", f"diary={__name__}:Diary"),
        ("replay", log, "--agent", f"{__name__}:AGENT"),
        ("check", log),
        ("approve", log),
        ("export", log),
        ("export", log, "-o", folder / "lines.jsonl"),
        ("backup", log, folder / "copy.db"),
        ("scan", log, "--value-from-env", "OPENAI_API_KEY", "--pattern", CARD),
        ("run", f"{__name__}:AGENT", f"all {KEY}", "--log", log, "--session", "run"),
        ("run", f"{__name__}:AGENT", f"break {KEY}", "--log", log, "--session", "run"),
        ("run", f"{__name__}:AGENT", "hello", "--log", log, "--session", f"x{KEY}"),
        ("send", log, "s", f"later {KEY}"),
        ("cancel", log, "s", "--reason", KEY),
        ("show", log, f"s{KEY}"),
    ):
        result = run(*words)
        name = " ".join(str(word) for word in words[:3]).replace(KEY, "KEY")
        said[name] = result.stdout.encode() + result.stderr.encode()
    return said


@refold.tool(tier="observe", effect="idempotent", retries=refold.RetryPolicy())
async def look(city: str, context: refold.ToolContext[object]) -> str:
    context.progress(PHRASE)
    if len(city) % 3 == 0:
        raise refold.ToolError(f"no way to {city} with {PHRASE}", kind="transient")
    return f"{city}: {PHRASE} {CARD}"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_no_canary_is_in_the_log_of_a_simulation(store: Any, seed: int, tmp_path: Path) -> None:
    described = refold.Agent(
        config=refold.AgentConfig(model="m", retry=refold.RetryPolicy(), streaming=True),
        provider=refold.ScriptedProvider([]),
        tools=[look],
        redact=RULES,
    )
    acts = tuple(Say(session=f"s{number}", at_s=float(number)) for number in range(4))
    planned = (faults.ProviderDrops(nth=2), faults.CrashAtAppend(nth=12), faults.CrashInTool(nth=2))
    log = tmp_path / "events.db"
    report = Simulator(described).save_log(Scenario(acts=acts, faults=planned, seed=seed, store=store), log)
    report.raise_if_broken()
    assert "SECRET" in report.exercised
    assert report.operations["tool"] > 1
    files: dict[str, bytes] = {}
    kept(tmp_path, files)
    assert not [leak for name, data in files.items() for leak in searched(name, data)]
    assert any(b"[redacted]" in data for data in files.values())


def test_a_simulation_notices_a_secret_that_gets_into_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "refold.actors.shell.folded_stream.recordable", lambda redaction, codec, event: (event, codec.encode(event))
    )
    monkeypatch.setattr("refold.events.secrets.redaction.Redaction.command", lambda self, command: command)
    told = refold.Agent(
        config=refold.AgentConfig(model="m"), provider=refold.ScriptedProvider([]), redact=["hello world"]
    )
    report = Simulator(told).run(Scenario(acts=(Say(session="s", text="hello world"),)))
    assert [broken.rule for broken in report.broken][:1] == ["SECRET"]


@pytest.mark.parametrize(
    ("redact", "words"),
    [
        ("one value", "must be a list"),
        ([b"bytes"], "holds a bytes; it takes texts, Secrets, compiled patterns and FieldPaths"),
        (["short"], "needs 6 characters"),
    ],
)
def test_what_cannot_be_redacted_is_refused_where_it_is_given(redact: Any, words: str) -> None:
    with pytest.raises(refold.ConfigError, match=words):
        agent(redact=redact)


async def test_the_rules_of_all_agents_and_a_secret_object_count_for_the_whole_runtime(tmp_path: Path) -> None:
    other = refold.Agent(
        name="other",
        config=refold.AgentConfig(model="m"),
        provider=refold.ScriptedProvider([]),
        redact=[Secret("the-key-of-the-other")],
    )
    main = agent(tools=[other.as_tool()], provider=refold.ScriptedProvider([refold.say("Yes.")]), redact=[])
    async with refold.AgentRuntime(main, log=tmp_path / "events.db") as runtime:
        session = await runtime.session("s")
        await session.send("Is it the-key-of-the-other?")
        assert (await session.history())[0].text == "Is it [redacted]?"
