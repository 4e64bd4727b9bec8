"""`refold scan` finds keys of known formats and named values wherever they are, shows none, and bears hostile logs."""

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.inspection.scan import SoughtSecrets
from tests.runtime.command_line import error_of, run

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9"
KEYS = {
    "Anthropic key": "sk-ant-api03-" + "aB3_" * 20,
    "OpenAI key": "sk-proj-" + "aB3_" * 20,
    "AWS access key": "AKIA" + "ABCD2345" * 2,
    "AWS secret key": "aws_secret_access_key = " + "aB3/" * 10,
    "Google key": "AIza" + "aB3_-" * 7,
    "GitHub token": "ghp_" + "aB34" * 9,
    "Slack token": "xoxb-" + "1234567890-abc",
    "Stripe key": "sk_live_" + "aB34" * 6,
    "private key": "-----BEGIN RSA PRIVATE KEY-----",
    "JSON Web Token": JWT,
    "bearer header": "Authorization: Bearer " + "aB3._" * 6,
}
HARMLESS = (
    "a task-sk-ant for a bearer of news, eyJust. eyJune, ghp_short, AKIAshort, sk-learn is a library, skin-deep",
    "The risk-adjusted-return-on-capital-of-the-desk-in-2024 is fine; see BEGIN PUBLIC KEY and xoxb-1",
)


@pytest.mark.parametrize("kind", KEYS)
def test_a_key_of_a_known_format_is_found_and_masked(kind: str) -> None:
    written = [KEYS[kind].replace("-", each) for each in ("\\u002d", "%2D", "%252d", "\\x2d")]
    for text in (KEYS[kind], f'"{KEYS[kind]}"', f"x={KEYS[kind]}, then", *written):
        found = dict(SoughtSecrets({}, {}).in_text(text))
        assert set(found) == {kind}, text
        assert KEYS[kind][9:] not in found[kind]


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_looks_alike_is_not_found(text: str) -> None:
    assert list(SoughtSecrets({}, {}).in_text(text)) == []


@pytest.mark.parametrize("word", ["eyJ", "-eyJ", "aws secret ", "bearer ", "sk-", "\\u0073"])
def test_no_text_makes_it_go_back_over_what_it_has_read(word: str) -> None:
    """Where it did, this would last for hours."""
    found = {kind for kind, _ in SoughtSecrets({"a value": "a value that is long"}, {}).in_text(word * 200_000)}
    assert found <= {"OpenAI key"}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of today, which holds keys: nothing was known to be one."""
    path = tmp_path / "events.db"

    @refold.tool(tier="observe", effect="pure")
    def keys() -> object:
        return {kind: key for kind, key in KEYS.items() if kind != "private key"}

    @refold.tool(tier="observe", effect="pure")
    def large() -> str:
        return "x" * 100_000 + KEYS["private key"]

    async def live() -> None:
        script: list[Any] = [
            [refold.use("keys", {}), refold.use("large", {})],
            refold.say("My password is hunter2-hunter2"),
        ]
        provider = refold.ScriptedProvider(script)
        async with refold.AgentRuntime(
            refold.AgentConfig(model="m"), provider=provider, tools=[keys, large], log=path
        ) as runtime:
            await (await runtime.session("s")).send("Go")

    asyncio.run(live())
    return path


def test_a_log_is_scanned_with_its_payloads_its_inbox_and_its_free_pages(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSWORD", "hunter2-hunter2")
    run("send", log, "new", f"the token is {KEYS['GitHub token']}", "--new")
    connection = sqlite3.connect(log)
    connection.execute("PRAGMA secure_delete = OFF")
    connection.execute("CREATE TABLE gone (text)")
    connection.execute("INSERT INTO gone VALUES (?)", (KEYS["Slack token"] * 200,))
    connection.execute("DROP TABLE gone")
    connection.commit()
    connection.close()
    result = run("scan", log, "--value-from-env", "PASSWORD", "--pattern", "My [a-z]+ is", "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    places = {(found["kind"], found.get("stream") or found.get("file") or "a payload") for found in report["findings"]}
    assert {(kind, "session/s") for kind in KEYS if kind != "private key"} <= places
    assert {
        ("private key", "a payload"),
        ("value of PASSWORD", "session/s"),
        ("pattern My [a-z]+ is", "session/s"),
        ("GitHub token", "events.db.inbox"),
        ("Slack token", "events.db"),
    } <= places
    assert (report["events"], report["payloads"], report["not_read"]) == (17, 3, [])
    shown = run("scan", log, "--value-from-env", "PASSWORD", columns=400)
    assert shown.exit_code == 1
    for secret in (*KEYS.values(), "hunter2"):
        assert secret[-6:] not in result.stdout + shown.stdout.replace("PRIVATE KEY-----", "") or secret.endswith(
            "-----"
        )
    assert "value of PASSWORD  session/s@" in shown.stdout


def test_a_clean_log_and_an_export_of_a_log(tmp_path: Path, log: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    assert run("export", log, "-o", lines).exit_code == 0
    assert run("scan", lines).exit_code == 1
    clean = tmp_path / "clean.db"
    asyncio.run(_clean(clean))
    result = run("scan", clean)
    assert (result.exit_code, result.stdout.startswith("nothing found: 1 stream, ")) == (0, True)


async def _clean(path: Path) -> None:
    async with refold.AgentRuntime(refold.AgentConfig(model="m"), provider=refold.ScriptedProvider([]), log=path):
        pass


def test_bytes_are_scanned_where_the_log_cannot_be_read(tmp_path: Path) -> None:
    damaged = tmp_path / "events.db"
    damaged.write_bytes(b"\0" * (1024 * 1024 - 30) + KEYS["OpenAI key"].encode() + b"\0" * 5000)
    result = run("scan", damaged, columns=400)
    assert result.exit_code == 1
    assert "OpenAI key  events.db: in its bytes  sk-proj-… (88 characters)" in result.stdout
    assert "not read, apart from its bytes" in result.stdout


def test_a_value_that_is_too_short_is_not_looked_for(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHORT", "x")
    assert "needs 6 characters" in error_of(run("scan", log, "--value-from-env", "SHORT"))
