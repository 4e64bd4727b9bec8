"""Skills: named instruction packs that a model reads when a task needs them.

    ---
    name: refunds
    description: How to refund an order. Use it before any refund.
    ---
    1. Look the order up with `find_order`. …

    Agent(config=…, provider=…, skills=load_skills("skills"))

A skill is a Markdown file with YAML front matter. By default the system prompt lists names and descriptions only, and
the model reads the instructions of one with the tool `load_skill` when it needs them. What it is told is part of the
system prompt and of the tool's result, so that it is in the log.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

import msgspec

from refold.events.core.cleaning import Unrecordable, clean_json, clean_text, error_words
from refold.events.core.content import JsonObject
from refold.events.core.errors import ConfigError, RefoldError, quoted
from refold.events.model.configuration import AgentConfig
from refold.tools.tool import Tool

if TYPE_CHECKING:
    import yaml

LOAD_SKILL = "load_skill"
"""Name of the tool that reads one."""

NAME_CHARACTERS_MAX = 64
DESCRIPTION_CHARACTERS_MAX = 1024

SKILL_BYTES_MAX = 1024 * 1024
"""Largest file of a skill."""

FRONT_MATTER_BYTES_MAX = 16 * 1024
DEPTH_MAX = 20
"""Deepest nesting of what front matter says."""

_FENCE = re.compile(r"---[ \t]*\n")
_END = re.compile(r"^---[ \t]*(?:\n|\Z)", re.MULTILINE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class Skill(msgspec.Struct, frozen=True, kw_only=True):
    """One instruction pack.

    Raises:
        ConfigError: a field of it cannot work; names the file, if there is one, and the field.
    """

    name: str
    """1 to 64 characters in one line, without white space around; the model asks for it by this."""
    description: str
    """What it is for and when to use it, 1 to 1,024 characters; white space in it counts as one space."""
    instructions: str
    """Markdown, not empty."""
    metadata: JsonObject = {}
    """What else the front matter says; no model is told it."""
    origin: str = ""
    """Path of its file, for errors; empty = it was made in a program."""

    def __post_init__(self) -> None:
        for field, good, wanted in (
            ("name", _is_name(self.name), f"1 to {NAME_CHARACTERS_MAX} characters in one line"),
            (
                "description",
                _is_text(self.description) and len(self.description) <= DESCRIPTION_CHARACTERS_MAX,
                f"1 to {DESCRIPTION_CHARACTERS_MAX:,} characters of valid text",
            ),
            ("instructions", _is_text(self.instructions), "valid text that is not blank"),
            ("metadata", isinstance(self.metadata, dict), "a dict"),
        ):
            if not good:
                given = getattr(self, field)
                hint = "; put it into quotes" if isinstance(given, bool | int | float) else ""
                raise ConfigError(
                    f"{self.origin or 'a skill'}: the field {field} must be {wanted}, not {quoted(given, 60)}{hint}"
                )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Skill":
        """Return the skill in a file, UTF-8 with or without a byte order mark.

        Raises:
            ConfigError: there is no such file, it cannot be read, or it is no skill; names the file and the field.
        """
        shown = os.fspath(path)
        try:
            with open(path, "rb") as file:
                data = file.read(SKILL_BYTES_MAX + 1)
        except (OSError, ValueError) as error:
            raise ConfigError(f"the skill {shown!r} cannot be read: {getattr(error, 'strerror', error)}") from None
        if len(data) > SKILL_BYTES_MAX:
            raise ConfigError(f"the skill {shown!r} has more than {SKILL_BYTES_MAX:,} bytes; put details elsewhere")
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ConfigError(f"the skill {shown!r} is not UTF-8 text: byte {error.start} is not; convert it") from None
        return cls.parse(text, origin=shown)

    @classmethod
    def parse(cls, text: str, *, origin: str = "the text of a skill") -> "Skill":
        """Return the skill that a file's text describes.

        Args:
            text: front matter between two lines `---`, and Markdown.
            origin: what errors call it.

        Raises:
            ConfigError: it is no skill; names `origin` and the field.
        """
        lines = text.replace("\r\n", "\n").replace("\r", "\n")
        begin = _FENCE.match(lines)
        if begin is None:
            raise ConfigError(f"{origin} has no front matter: its first line must be ---, then name and description")
        end = _END.search(lines, begin.end())
        if end is None:
            raise ConfigError(f"{origin} has front matter without an end: write a line --- after it")
        fields = _front_matter(lines[begin.end() : end.start()], origin)
        missing = [field for field in ("name", "description") if fields.get(field) is None]
        if missing:
            raise ConfigError(f"{origin}: the front matter lacks the field {missing[0]}")
        given = {field: fields.pop(field) for field in ("name", "description")}
        return cls(
            name=cast("str", given["name"]),
            description=cast("str", given["description"]),
            instructions=lines[end.end() :].strip("\n"),
            metadata=fields,
            origin=origin,
        )


SkillPrompter: TypeAlias = Callable[[Sequence[Skill]], str]
"""Returns what the system prompt says of the skills, which it gets in name order; empty = nothing."""


def load_skills(folder: str | os.PathLike[str]) -> list[Skill]:
    """Return the skills in a folder, in name order: each `*.md` in it but README.md, and SKILL.md of each folder in it.

    Raises:
        ConfigError: the folder cannot be read, one of the files is no skill, or two have one name.
    """
    shown = os.fspath(folder)
    try:
        entries = sorted(Path(folder).iterdir())
        files = [path for path in entries if path.suffix.lower() == ".md" and path.is_file()]
        files = [path for path in files if path.name.lower() != "readme.md"]
        files += [path / "SKILL.md" for path in entries if (path / "SKILL.md").is_file()]
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", error)
        raise ConfigError(f"the folder of skills {shown!r} cannot be read: {said}") from None
    return list(checked_skills([Skill.load(path) for path in files]))


def checked_skills(skills: Iterable[Skill]) -> tuple[Skill, ...]:
    given = tuple(skills)
    for skill in given:
        if not isinstance(skill, Skill):
            raise ConfigError(f"a skill must be a Skill, not {type(skill).__name__}; load one with Skill.load(path)")
    for name, count in Counter(skill.name for skill in given).items():
        if count > 1:
            origins = [skill.origin for skill in given if skill.name == name and skill.origin]
            where = f" ({', '.join(origins)})" if origins else ""
            raise ConfigError(f"{count} skills have the name {name!r}{where}; give each one of its own")
    return tuple(sorted(given, key=lambda skill: skill.name))


def list_skills(skills: Sequence[Skill]) -> str:
    """Return names and descriptions, and how to read one: what a prompt says of skills by default."""
    lines = [f"- {skill.name}: {' '.join(skill.description.split())}" for skill in skills]
    return (
        f"You have skills: instructions for certain tasks. Where a task fits one of them, first call {LOAD_SKILL} with "
        "its name, and follow what it says.\n" + "\n".join(lines)
    )


def with_skills(config: AgentConfig, skills: Sequence[Skill], prompter: SkillPrompter | None) -> AgentConfig:
    """Return `config` with a system prompt that says which skills there are."""
    if not skills:
        return config
    try:
        said: object = (prompter or list_skills)(checked_skills(skills))
    except RefoldError:
        raise
    except Exception as error:  # The border to user code.
        raise ConfigError(f"the skill prompter failed: {error_words(error)}") from error
    if not isinstance(said, str) or clean_text(said) != said:
        raise ConfigError(f"the skill prompter must return valid text, not {quoted(said, 60)}")
    prompt = "\n\n".join(part for part in (config.fixed_prompt, said) if part)
    return msgspec.structs.replace(config, system_prompt=prompt)


def skill_tool(skills: Sequence[Skill]) -> Tool[..., object]:
    """Return the tool that gives a model the instructions of one of `skills`."""
    instructions = {skill.name: skill.instructions for skill in checked_skills(skills)}

    async def load_skill(arguments: JsonObject) -> str:
        return instructions[str(arguments["name"])]

    names: JsonObject = {"type": "string", "enum": list(instructions), "description": "Name of the skill."}
    made = Tool.from_schema(
        name=LOAD_SKILL,
        description="Read the instructions of a skill.",
        input_schema={"type": "object", "properties": {"name": names}, "required": ["name"]},
        handler=load_skill,
        tier="observe",
        effect="pure",
        result_limit=None,
    )
    return cast("Tool[..., object]", made)


def _front_matter(text: str, origin: str) -> JsonObject:
    import yaml

    if len(text.encode(errors="replace")) > FRONT_MATTER_BYTES_MAX:
        raise ConfigError(f"{origin}: the front matter has more than {FRONT_MATTER_BYTES_MAX:,} bytes")
    try:
        _check_events(yaml.parse(text, yaml.SafeLoader), origin)
        node = yaml.compose(text, yaml.SafeLoader)
        fields: object = yaml.safe_load(text)
        cleaned = clean_json(fields if fields is not None else {})
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 2}: " if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"{origin}: {line}the front matter is no YAML: {problem}") from None
    except (Unrecordable, ValueError) as error:
        raise ConfigError(f"{origin}: the front matter cannot be kept: {error}") from None
    if not isinstance(cleaned, dict) or not isinstance(node, yaml.MappingNode | None):
        raise ConfigError(f"{origin}: the front matter must be fields, such as `name: refunds`")
    keys = Counter(str(key.value) for key, _ in (node.value if node is not None else ()))
    twice = [key for key, count in keys.items() if count > 1]
    if twice:
        raise ConfigError(f"{origin}: the front matter has the field {twice[0]} more than once")
    return cast("JsonObject", cleaned)


def _check_events(events: "Iterable[yaml.Event]", origin: str) -> None:
    """Refuse YAML of which a few lines would take for ever to read, or stand for any amount of data."""
    import yaml

    depth = 0
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            raise ConfigError(f"{origin}: the front matter has an alias (*name); write out what it stands for")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEPTH_MAX:
            raise ConfigError(f"{origin}: the front matter is nested deeper than {DEPTH_MAX} levels")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and clean_text(value) == value


def _is_name(value: object) -> bool:
    if not isinstance(value, str) or not _is_text(value):
        return False
    return value == value.strip() and len(value) <= NAME_CHARACTERS_MAX and not _CONTROL.search(value)
