"""Skills: how files are read, what the model is told, and that the log has it."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.agents.skill import DESCRIPTION_CHARACTERS_MAX, FRONT_MATTER_BYTES_MAX, NAME_CHARACTERS_MAX, SKILL_BYTES_MAX
from refold.events.session.events import AgentConfigured
from refold.replay import replay
from tests.conformance.sessions import events_of, requests_of, results_of
from tests.runtime.talking import scripted, talking

REFUNDS = "---\nname: refunds\ndescription: How to refund.\n---\nLook the order up.\n\n---\nThen refund it.\n"


def skill(name: str, **fields: Any) -> refold.Skill:
    return refold.Skill(**{"name": name, "description": f"About {name}.", "instructions": f"Do {name}.", **fields})


def test_a_file_has_front_matter_and_instructions(tmp_path: Path) -> None:
    path = tmp_path / "refunds.md"
    path.write_text(REFUNDS)
    loaded = refold.Skill.load(path)
    assert (loaded.name, loaded.description) == ("refunds", "How to refund.")
    assert loaded.instructions == "Look the order up.\n\n---\nThen refund it."
    assert (loaded.metadata, loaded.origin) == ({}, str(path))


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "mark"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "  \t\n"], ids=["LF", "CRLF", "CR", "spaces"])
def test_a_file_may_come_from_any_editor(tmp_path: Path, mark: bytes, end: str) -> None:
    path = tmp_path / "refunds.md"
    path.write_bytes(mark + REFUNDS.replace("---\n", f"---{end}").replace("\n", end.lstrip(" \t")).encode())
    loaded = refold.Skill.load(path)
    assert (loaded.name, loaded.description) == ("refunds", "How to refund.")
    assert loaded.instructions.split("\n")[0] == "Look the order up."
    assert loaded.instructions.endswith("Then refund it.")


def test_what_else_the_front_matter_says_is_kept() -> None:
    text = (
        "---\nname: 'größe 尺寸'\ndescription: |\n  Two\n  lines: 𝄞\nlicense: MIT\nsince: 2026-01-02\n"
        "tags: [a, 1, null, {b: 1.5}]\n---\n# Heading"
    )
    parsed = refold.Skill.parse(text)
    assert (parsed.name, parsed.description, parsed.instructions) == ("größe 尺寸", "Two\nlines: 𝄞\n", "# Heading")
    assert parsed.metadata == {"license": "MIT", "since": "2026-01-02", "tags": ["a", 1, None, {"b": 1.5}]}


def test_a_name_that_yaml_takes_for_something_else_is_said() -> None:
    for name in ("yes", "12", "1.5"):
        with pytest.raises(refold.ConfigError, match=r"the field name must be .*put it into quotes"):
            refold.Skill.parse(f"---\nname: {name}\ndescription: d\n---\ni")
        assert refold.Skill.parse(f"---\nname: '{name}'\ndescription: d\n---\ni").name == name


HEAD = "---\nname: a\ndescription: b\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no front matter"),
        ("Just text.\n", "no front matter"),
        ("\n" + REFUNDS, "no front matter"),
        (" ---\nname: a\n---\n", "no front matter"),
        ("----\nname: a\n----\n", "no front matter"),
        ("---\nname: a\ndescription: b\n", "without an end"),
        ("---\nname: a\ndescription: b\n ---\ntext", "without an end"),
        ("---\n---\ntext", "lacks the field name"),
        ("---\n# only a comment\n---\ntext", "lacks the field name"),
        ("---\nname: a\n---\ntext", "lacks the field description"),
        ("---\ndescription: a\n---\ntext", "lacks the field name"),
        ("---\nname:\ndescription: a\n---\ntext", "lacks the field name"),
        ("---\nName: a\ndescription: a\n---\ntext", "lacks the field name"),
        (HEAD + "---\n", "field instructions"),
        (HEAD + "---\n \n\t\n", "field instructions"),
        ("---\nname: ''\ndescription: b\n---\ntext", "field name"),
        ("---\nname: ' a'\ndescription: b\n---\ntext", "field name"),
        ('---\nname: "a\\nb"\ndescription: b\n---\ntext', "field name"),
        (f"---\nname: {'x' * (NAME_CHARACTERS_MAX + 1)}\ndescription: b\n---\ntext", "field name must be 1 to 64"),
        ("---\nname: [a]\ndescription: b\n---\ntext", "field name"),
        ("---\nname: a\ndescription: {b: c}\n---\ntext", "field description"),
        (f"---\nname: a\ndescription: {'x' * (DESCRIPTION_CHARACTERS_MAX + 1)}\n---\ntext", "field description"),
        ("---\n- name\n- description\n---\ntext", "must be fields"),
        ("---\njust text\n---\ntext", "must be fields"),
        ("---\nname: a: b\n---\ntext", r"line 2: the front matter is no YAML"),
        ("---\nname: a\ndescription: 'b\n---\ntext", "no YAML"),
        ("---\nname: \x07\ndescription: b\n---\ntext", "no YAML"),
        ("---\nname: a\nname: b\ndescription: c\n---\ntext", "field name more than once"),
        (HEAD + "a: &x [1]\nb: *x\n---\ntext", "alias"),
        (HEAD + "a: !!python/object/apply:os.system ['true']\n---\ntext", "no YAML"),
        (HEAD + "a: " + "[" * 3000 + "]" * 3000 + "\n---\ntext", "nested deeper than 20 levels"),
        (HEAD + "a: .nan\n---\ntext", "cannot be kept"),
        (HEAD + f"a: {'x' * FRONT_MATTER_BYTES_MAX}\n---\ntext", "more than 16,384 bytes"),
        (HEAD + "---\n\ud800", "field instructions"),
    ],
)
def test_what_is_no_skill_is_refused_with_the_file_and_the_field(text: str, said: str) -> None:
    with pytest.raises(refold.ConfigError, match=said) as caught:
        refold.Skill.parse(text, origin="skills/mine.md")
    assert "skills/mine.md" in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_file_that_cannot_be_read_or_is_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(refold.ConfigError, match=r"nothing\.md.*No such file"):
        refold.Skill.load(tmp_path / "nothing.md")
    with pytest.raises(refold.ConfigError, match="directory"):
        refold.Skill.load(tmp_path)
    with pytest.raises(refold.ConfigError, match="null byte"):
        refold.Skill.load("a\0b")
    (tmp_path / "latin.md").write_bytes(HEAD.encode() + b"---\n\xe4")
    with pytest.raises(refold.ConfigError, match=r"latin\.md' is not UTF-8 text: byte 31"):
        refold.Skill.load(tmp_path / "latin.md")
    (tmp_path / "huge.md").write_bytes(HEAD.encode() + b"---\n" + b"x" * SKILL_BYTES_MAX)
    with pytest.raises(refold.ConfigError, match=r"huge\.md' has more than 1,048,576 bytes"):
        refold.Skill.load(tmp_path / "huge.md")


def test_a_folder_has_files_and_folders_of_skills(tmp_path: Path) -> None:
    (tmp_path / "zebra.md").write_text(HEAD.replace("a\n", "zebra\n", 1) + "---\nz")
    (tmp_path / "Ant.MD").write_text(HEAD.replace("a\n", "ant\n", 1) + "---\na")
    (tmp_path / "README.md").write_text("Not a skill.")
    (tmp_path / "notes.txt").write_text("Not a skill.")
    (tmp_path / "pdf").mkdir()
    (tmp_path / "pdf" / "SKILL.md").write_text(HEAD.replace("a\n", "pdf\n", 1) + "---\np")
    (tmp_path / "pdf" / "reference.md").write_text("Not a skill.")
    (tmp_path / "empty").mkdir()
    assert [loaded.name for loaded in refold.load_skills(tmp_path)] == ["ant", "pdf", "zebra"]
    assert refold.load_skills(tmp_path / "empty") == []
    (tmp_path / "other.md").write_text(HEAD.replace("a\n", "pdf\n", 1) + "---\np")
    with pytest.raises(refold.ConfigError, match=r"2 skills have the name 'pdf' \(.*other\.md, .*SKILL\.md\)"):
        refold.load_skills(tmp_path)
    with pytest.raises(refold.ConfigError, match=r"missing' cannot be read: No such file"):
        refold.load_skills(tmp_path / "missing")
    with pytest.raises(refold.ConfigError, match="cannot be read: Not a directory"):
        refold.load_skills(tmp_path / "notes.txt")


async def test_a_model_is_told_names_and_descriptions_and_reads_instructions_on_demand(tmp_path: Path) -> None:
    calls = [refold.use("load_skill", {"name": name}) for name in ("refunds", "none")]
    skills = [skill("refunds", instructions="Look\nit up."), skill("mail", description="How\n to   write.")]
    async with talking(*calls, refold.say("Done."), skills=skills, log=tmp_path / "events.db") as (session, runtime):
        assert [item.name for item in runtime.skills] == ["mail", "refunds"]
        assert (await session.send("Refund it.")).text == "Done."
        prompt = requests_of(runtime)[0].system_prompt
        assert prompt.startswith("Be brief.\n\nYou have skills")
        assert prompt.endswith("\n- mail: How to write.\n- refunds: About refunds.")
        assert "Look" not in prompt
        (offered,) = requests_of(runtime)[0].tools
        assert (offered.name, offered.tier, offered.effect) == ("load_skill", "observe", "pure")
        first, second = await results_of(session)
        assert (first.text, first.kind) == ("Look\nit up.", None)
        assert second.kind == "invalid_arguments"
        assert "mail" in second.text
        assert "refunds" in second.text
    report = await replay(tmp_path / "events.db")
    assert report.divergences == ()


async def test_other_skills_are_another_configuration_and_the_same_ones_in_any_order_are_not(tmp_path: Path) -> None:
    log = tmp_path / "events.db"
    a, b, c = skill("a"), skill("b"), skill("c")
    for skills in ([a, b], [b, a], [a, b, c], [a, b, c], []):
        async with talking(refold.say("Hi."), skills=skills, log=log) as (session, _):
            await session.send("Hello")
    async with talking(log=log) as (session, _):
        prints = [event.configuration.fingerprint for event in await events_of(session, AgentConfigured)]
        assert len(prints) == len(set(prints)) == 3


async def test_a_prompter_says_how_skills_enter_the_prompt() -> None:
    def prompter(skills: Sequence[refold.Skill]) -> str:
        return "\n\n".join(f"# {item.name}\n{item.instructions}" for item in skills)

    said = {prompter: "Be brief.\n\n# a\nDo a.\n\n# b\nDo b.", (lambda _: ""): "Be brief."}
    for given, prompt in said.items():
        async with talking(refold.say("Hi."), skills=[skill("b"), skill("a")], skill_prompter=given) as (
            session,
            runtime,
        ):
            await session.send("Hello")
            assert requests_of(runtime)[0].system_prompt == prompt


@pytest.mark.parametrize("returned", [None, 7, b"text", "\ud800", ZeroDivisionError("no")])
async def test_a_prompter_that_fails_keeps_the_runtime_from_opening(returned: Any) -> None:
    def prompter(_: Sequence[refold.Skill]) -> Any:
        if isinstance(returned, Exception):
            raise returned
        return returned

    with pytest.raises(refold.ConfigError, match="the skill prompter"):
        async with talking(skills=[skill("a")], skill_prompter=prompter):
            raise AssertionError("it is open")


async def test_skills_work_with_react_text_and_with_an_output_type() -> None:
    provider = refold.ScriptedProvider(
        [refold.say('Thought: look\nAction: load_skill\nAction Input: {"name": "a"}'), refold.say("FINAL_ANSWER: [1]")]
    )
    config = refold.AgentConfig(model="m", system_prompt="", protocol="react")
    agent = refold.Agent(config=config, provider=provider, skills=[skill("a")], output_type=list[int])
    async with refold.AgentRuntime(agent) as runtime:
        result = await (await runtime.session("s")).send("go")
        assert result.parsed(list[int]) == [1]
    prompt = provider.requests[0].system_prompt
    assert prompt.index("- a: About a.") < prompt.index("JSON Schema")
    assert "Do a." in provider.requests[1].messages[-1].text


async def test_a_long_skill_is_shown_whole() -> None:
    script, long = (
        [refold.use("load_skill", {"name": "a"}), refold.say("Done.")],
        skill("a", instructions="x" * 300_000),
    )
    async with talking(*script, skills=[long]) as (session, runtime):
        await session.send("go")
        (result,) = requests_of(runtime)[1].messages[-1].content
    assert isinstance(result, refold.ToolResultBlock)
    assert result.content == (refold.TextBlock(text="x" * 300_000),)


def test_what_cannot_be_the_skills_of_an_agent_is_refused() -> None:
    @refold.tool
    async def load_skill() -> str:
        return ""

    parts: list[tuple[dict[str, Any], str]] = [
        ({"skills": [skill("a"), skill("a")]}, "2 skills have the name 'a'"),
        ({"skills": ["a.md"]}, "a skill must be a Skill, not str; load one"),
        ({"skills": [skill("a")], "skill_prompter": "text"}, "skill_prompter must be a function"),
        ({"skills": [skill("a")], "tools": [load_skill]}, "load_skill"),
    ]
    for given, said in parts:
        with pytest.raises(refold.ConfigError, match=said):
            refold.AgentRuntime(refold.AgentConfig(model="m"), provider=refold.ScriptedProvider([]), **given)
    with pytest.raises(refold.ConfigError, match="a skill: the field name"):
        skill("")
    with pytest.raises(refold.ConfigError, match="a skill: the field instructions"):
        skill("a", instructions=None)


def test_threads_see_the_skills_too() -> None:
    with scripted(refold.use("load_skill", {"name": "a"}), refold.say("Done."), skills=[skill("a")]) as runtime:
        assert runtime.skills == (skill("a"),)
        session = runtime.session("s")
        assert session.send("go").text == "Done."
        assert refold.Message("assistant", (refold.TextBlock(text="Done."),)) in session.history()


def test_yaml_loads_only_with_the_first_file() -> None:
    script = (
        "import sys\nfrom refold import Agent, AgentConfig, AgentRuntime, ScriptedProvider, Skill\n"
        "skill = Skill(name='a', description='b', instructions='c')\n"
        "AgentRuntime(AgentConfig(model='m'), provider=ScriptedProvider([]), skills=[skill])\n"
        "assert 'yaml' not in sys.modules\nSkill.parse('---\\nname: a\\ndescription: b\\n---\\nc')\n"
        "assert 'yaml' in sys.modules"
    )
    subprocess.run([sys.executable, "-P", "-c", script], check=True)
