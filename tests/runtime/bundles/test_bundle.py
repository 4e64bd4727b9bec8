"""A bundle replays to the verdict of the log, and has no secret in any form."""

import asyncio
import json
import os
import re
import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import pytest

from refold import (
    Agent,
    AgentConfig,
    AgentRuntime,
    ConfigError,
    Deny,
    LogFormatError,
    Message,
    RefoldError,
    ScriptedProvider,
    Tool,
    guardrail,
    say,
)
from refold.bundles import bundle_session
from refold.events.secrets.redaction import FieldPath
from refold.inspection.check import check_log
from refold.memory import EpisodicStore
from refold.replay import read_manifest, replay
from refold.replay.manifest import MANIFEST
from tests.conformance.recovery.test_decide_replay import Office, office, recorded
from tests.runtime.command_line import error_of, run

GOLDEN = sorted((Path(__file__).parents[2] / "golden").glob("*.db"))
SAID = re.compile(
    r"twice|seen|luck|[Tt]ea\b|Lisbon|story|true|paid|Book it|reset|4111|page|x{9,}|4242|Hello|Hurry|pay one|And now"
)
"""What was said in golden logs, and no word of Refold's own."""

SECRET = re.compile("Lisbon|till is|hot")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("office") / "events.db"
    asyncio.run(recorded(path))
    return path


@pytest.fixture(scope="module")
def bundle(log: Path) -> Path:
    path = log.with_name("bug.refold")
    manifest = asyncio.run(bundle_session(log, "s", path, redact=[SECRET], agent=office()))
    assert (manifest.redacted, manifest.verdict.kinds, manifest.verdict.missing, manifest.log_verdict) == (
        True, (), (), None
    )  # fmt: skip
    assert [each.agent for each in manifest.recorded_with] == ["boss", "clerk"]
    return path


def unpacked(path: Path) -> str:
    with zipfile.ZipFile(path) as archive:
        return "\n".join(archive.read(name).decode() for name in archive.namelist())


async def test_nothing_of_a_secret_is_in_it_and_it_is_sound(log: Path, bundle: Path) -> None:
    assert not SECRET.search(unpacked(bundle))
    assert (await check_log(bundle)).problems == ()
    again = bundle.with_name("again.refold")
    await bundle_session(log, "s", again, redact=[SECRET], agent=office())
    assert unpacked(again) == unpacked(bundle)
    assert read_manifest(bundle) == read_manifest(again)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"middleware": [Office(pre="?")]},
        {"policy": None},
        {"config": {"system_prompt": "Reign.", "max_turns": 1}},
        {"clerk_prompt": "Bow."},
    ],
)
async def test_a_replay_of_it_comes_to_the_verdict_of_the_log(log: Path, bundle: Path, changed: dict[str, Any]) -> None:
    of_log, of_bundle = [await replay(path, agent=office(**changed)) for path in (log, bundle)]
    assert [(kind.differs, kind.path, kind.first) for kind in of_bundle.kinds] == [
        (kind.differs, kind.path, kind.first) for kind in of_log.kinds
    ]
    assert of_bundle.missing() == of_log.missing()
    assert (await replay(bundle)).divergences == ()


@pytest.mark.parametrize(
    ("rule", "what"),
    [(re.compile("xylophone"), "input"), (re.compile("tea is"), "recall"), (FieldPath("input.what"), "summary")],
)
async def test_what_follows_from_what_was_taken_out_is_not_compared(log: Path, rule: Any, what: str) -> None:
    path = log.with_name(f"{what}.refold")
    manifest = await bundle_session(log, "s", path, redact=[rule], agent=office())
    assert (manifest.verdict.kinds, manifest.log_verdict is None) == ((), False)
    (why,) = manifest.verdict.missing
    assert why.startswith(f"{what}: ")
    assert why.endswith("what it is about was taken out when the bundle was made")
    assert (await replay(path, agent=office())).missing() == [why]


async def test_a_pattern_that_says_the_secret_itself_is_not_told(log: Path) -> None:
    told = (r"look [a-z]{20}", r"[\w.]+@[\w.]+", r"\d{16}|pin: \d+", r"\$\d+")
    untold = (r"\bLisbon\b", r"^(?:the )?till is$", r"\(hot\)\.", r"(?<=t)ea|w[i]ne", r"lu[c]k[!.]")
    path = log.with_name("told.refold")
    assert (await bundle_session(log, "s", path, redact=[*map(re.compile, (*told, *untold))])).patterns == told
    assert not any(each in unpacked(path) for each in untold)


async def test_what_json_escapes_in_a_payload_is_found_and_the_applications_version_is_clean(tmp_path: Path) -> None:
    schema: dict[str, object] = {"type": "object"}
    tell = Tool.from_schema(name="tell", description='Say "PIN":\n5555.', input_schema=schema, handler=len)
    agent = Agent(config=AgentConfig(model="m"), provider=ScriptedProvider([say("Yes.")]), tools=[tell])
    async with AgentRuntime(agent, log=tmp_path / "events.db", app_version="build-PIN 6666") as runtime:
        await (await runtime.session("s")).send("x" * 70_000 + 'My "PIN":\n4444')
    rules = [re.compile(r'"PIN":\s\d+|PIN \d+')]
    made = await bundle_session(tmp_path / "events.db", "s", tmp_path / "s.refold", redact=rules, agent=agent)
    assert not re.search("4444|5555|6666", unpacked(tmp_path / "s.refold"))
    assert (made.log_verdict, made.verdict.kinds, made.verdict.missing) == (None, (), ())


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"patterns": ["a{99999999999}"]}, "repetition number is too large"),
        ({"patterns": ["("]}, "unterminated"),
        ({"fields": ["a..b"]}, "a field path is names"),
        ({"format": 2}, "newer Refold"),
        ({"patterns": ["(.+)+\\0"]}, "is gone at 'patterns of the bundle': it gave no answer"),
        (None, "while decompressing"),
    ],
)
async def test_a_bundle_that_was_made_to_do_harm_does_none(
    bundle: Path, tmp_path: Path, changed: dict[str, Any] | None, why: str
) -> None:
    path = tmp_path / "bad.refold"
    with zipfile.ZipFile(bundle) as good, zipfile.ZipFile(path, "w") as bad:
        for name in good.namelist():
            told = json.loads(good.read(name)) | (changed or {}) if name == MANIFEST else None
            bad.writestr(name, good.read(name) if told is None else json.dumps(told), zipfile.ZIP_DEFLATED)
    if changed is None:
        data = path.read_bytes()
        begin = data.index(MANIFEST.encode()) + len(MANIFEST)
        path.write_bytes(data[:begin] + bytes(byte ^ 0xFF for byte in data[begin : begin + 90]) + data[begin + 90 :])
    with pytest.raises(RefoldError, match=why):
        await replay(path, agent=office(), answer_s=0.1)


async def test_a_guardrail_that_tripped_on_what_was_taken_out_is_not_compared(tmp_path: Path) -> None:
    @guardrail
    def asked(context: object, message: Message) -> Deny | None:
        return Deny("a card number") if "4111" in message.text else None

    @guardrail
    def told(context: object, answer: str) -> Deny | None:
        return Deny("a card number") if "4111" in answer else None

    provider = ScriptedProvider([say("Your card is 4111.")])
    guarded = Agent(
        config=AgentConfig(model="m"), provider=provider, input_guardrails=[asked], output_guardrails=[told]
    )
    async with AgentRuntime(guarded, log=tmp_path / "events.db") as runtime:
        session = await runtime.session("s")
        for said in ("My card is 4111.", "Which card have I?"):
            await (await session.submit(said)).result()
    made = await bundle_session(tmp_path / "events.db", "s", tmp_path / "s.refold", redact=[re.compile("4111")])
    report = await replay(tmp_path / "s.refold", agent=guarded)
    assert (made.log_verdict, report.kinds) == (None, ())
    assert [line.partition(":")[0] for line in report.missing()] == ["guardrail", "answer"]


async def sessions_in(path: Path) -> list[str]:
    with sqlite3.connect(path) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM streams WHERE name LIKE 'session/%'")]
    connection.close()
    return [name.removeprefix("session/") for name in names]


@pytest.mark.parametrize(
    "golden",
    [path if "core-5" in path.stem else pytest.param(path, marks=pytest.mark.slow) for path in GOLDEN],
    ids=lambda path: path.stem,
)
async def test_digests_of_a_redacted_golden_log_are_right(golden: Path, tmp_path: Path) -> None:
    redacted = 0
    for number, session in enumerate(await sessions_in(golden)):
        made = await bundle_session(golden, session, tmp_path / f"{number}.refold", redact=[SAID])
        assert made.log_verdict is None, session
        redacted += made.redacted
        assert (await check_log(tmp_path / f"{number}.refold")).problems == (), session
    assert redacted


async def test_a_secret_in_a_name_is_refused_and_a_users_part_of_a_memory_is_renamed(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    memory = EpisodicStore()
    async with AgentRuntime(office(script=(), memory=memory), log=path) as runtime:
        await memory.of(user="ann@example.com").add_episode("boss", "tea is green")
        await (await runtime.session("s", user="ann@example.com")).send("Hello ann@example.com")
        await (await runtime.session("ann@example.com")).send("Hello")
    secret = ["ann@example.com"]
    await bundle_session(path, "s", tmp_path / "s.refold", redact=secret)
    assert "ann@example" not in unpacked(tmp_path / "s.refold")
    assert '"stream":"memory/main/user/[redacted]"' in unpacked(tmp_path / "s.refold")
    with pytest.raises(ConfigError, match=r"the name of the session .* holds what is to be redacted"):
        await bundle_session(path, "ann@example.com", tmp_path / "x.refold", redact=secret)
    with pytest.raises(ConfigError, match=r"ends in \.refold"):
        await bundle_session(path, "s", tmp_path / "x.zip")
    assert not any(name.startswith("x.") for name in os.listdir(tmp_path))


@pytest.mark.parametrize("content", [b"PK\x03\x04", b"{}", None])
def test_what_is_no_bundle_is_refused_in_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "bad.refold"
    if content is None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("other", "x")
    else:
        path.write_bytes(content)
    for command in (["replay"], ["show", "s"], ["check"]):
        assert "is no bundle" in error_of(run(command[0], path, *command[1:]))
    with pytest.raises(LogFormatError):
        read_manifest(path)
