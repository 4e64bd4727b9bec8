"""The documentation is true: every Python block of README.md and of docs/ runs, in an empty folder.

How a block's fence opens says how it runs:

    ```python              by itself, as if pasted into a new file; `await` is allowed at the top level
    ```python continues    after the blocks above it, down from the last one that runs by itself, with their names
    ```python within NAME  between the two texts of that name in tests/surroundings.py (also `continues within NAME`)
    ```python saved        as the file that its first line names, by a test of its page

A block has no `>>>` prompts. What it promises it may say with `assert`.
"""

import ast
import asyncio
import html
import inspect
import pkgutil
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType

import pytest

from refold.stores.clean_log import LOGGERS
from tests.surroundings import SURROUNDINGS

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
DOCUMENTS = [README, *sorted((ROOT / "docs").rglob("*.md"))]

FENCE = re.compile(
    r"^(?P<indent> *)(?P<ticks>`{3,})(?P<words>[^`\n]*)\n(?P<body>.*?)^(?P=indent)(?P=ticks)`* *$", re.M | re.S
)


@dataclass(frozen=True)
class Block:
    """One fenced Python block of a document."""

    document: Path
    line: int
    """Line of the document on which its code begins."""
    code: str
    way: list[str]
    """What follows `python` on the fence."""

    def __str__(self) -> str:
        return f"{self.document.name}:{self.line}"

    def program(self) -> list[CodeType]:
        """Return its code between what stands around it, with the document's own line numbers for tracebacks."""
        before, after = SURROUNDINGS[self.way[-1]] if "within" in self.way else ("", "")
        found: list[CodeType] = []
        for part in (before, "\n" * (self.line - 1) + self.code, after):
            code = compile(part, self.document, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            assert isinstance(code, CodeType)
            found.append(code)
        return found


def python_blocks(text: str, document: Path) -> list[Block]:
    blocks: list[Block] = []
    for fence in FENCE.finditer(text):
        language, *way = fence["words"].split() or [""]
        if language in {"python", "py"}:
            code = re.sub(f"^{fence['indent']}", "", fence["body"], flags=re.M)
            blocks.append(Block(document, text.count("\n", 0, fence.start("body")) + 1, code, way))
    return blocks


def stories(blocks: list[Block]) -> list[list[Block]]:
    """Return the blocks that run, each that runs by itself together with those that continue it."""
    found: list[list[Block]] = []
    for block in blocks:
        match block.way:
            case [] | ["within", _]:
                found.append([block])
            case ["continues"] | ["continues", "within", _]:
                assert found, f"{block} continues nothing"
                assert found[-1][0].document == block.document, f"{block} continues nothing"
                found[-1].append(block)
            case way:
                assert way == ["saved"], f"{block}: how does it run? The top of tests/test_docs.py tells the ways"
                assert re.match(r"# \w+\.py\n", block.code), f"{block} names no file"
    return found


def run(story: list[Block], monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Run a story as `__main__` in `folder`, on one event loop; a block without `await` runs outside of the loop."""
    module = ModuleType("__main__")
    # What is shown of a provider reads its key from the environment.
    monkeypatch.setenv("ANTHROPIC_API_KEY", "a-key")
    # Decorators and type hints look their module up by its name.
    monkeypatch.setitem(sys.modules, "__main__", module)
    monkeypatch.chdir(folder)
    with asyncio.Runner() as runner:
        for code in [code for block in story for code in block.program()]:
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(eval(code, module.__dict__))
            else:
                exec(code, module.__dict__)


BLOCKS = [
    block for path in DOCUMENTS if path.exists() for block in python_blocks(path.read_text(encoding="utf-8"), path)
]


def test_there_is_a_readme_with_code() -> None:
    assert README.exists(), "README.md is missing; it is what people read first"
    assert [block for block in BLOCKS if block.document == README], "README.md shows no Python"


@pytest.mark.parametrize(
    "document",
    [*DOCUMENTS, *(ROOT / "examples").rglob("*.md"), ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"],
    ids=lambda path: path.name,
)
def test_links_lead_to_files_and_headings(document: Path) -> None:
    for target in re.findall(r"\]\(([^()\s]+)\)", document.read_text(encoding="utf-8")):
        if target.startswith(("http://", "https://")):
            continue
        name, _, heading = target.partition("#")
        found = document.parent / name if name else document
        assert found.exists(), f"{document.name}: {target}"
        if heading:
            lines = re.findall(r"^#+ (.+)$", found.read_text(encoding="utf-8"), re.M)
            anchors = [re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines]
            assert heading in anchors, f"{document.name}: {target}"


def test_every_document_has_a_place_in_the_site() -> None:
    listed = re.findall(r"^ +- ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
    documents = {path.name for path in DOCUMENTS if path != README}
    assert documents - set(listed) == set(), "add it to the nav of mkdocs.yml"
    assert len(listed) == len(set(listed))


def test_the_drawing_of_the_architecture_shows_its_text() -> None:
    pictures = ROOT / "docs" / "pictures"
    labels = re.findall(r'label="([^"]+)"', (pictures / "message.dot").read_text(encoding="utf-8"))
    drawn = html.unescape((pictures / "message.svg").read_text(encoding="utf-8"))
    shown = re.findall(r"<text[^>]*>([^<]+)</text>", drawn.replace("\xa0", " "))
    assert sorted(shown) == sorted(line for label in labels for line in label.split("\\n"))


def test_the_readme_shows_the_commands_that_ci_runs() -> None:
    commands = re.findall(
        r"^ *(python3 -m venv \.venv && .+)$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.M
    )
    assert [command.split()[-1] for command in commands] == ["demo", ".venv/bin/pytest"]
    readme = README.read_text(encoding="utf-8")
    assert [command for command in commands if command not in readme] == []


def test_the_readme_names_what_an_installation_brings() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = sorted(re.split(r"[<>=]", needed)[0] for needed in project["dependencies"])
    words = " ".join(README.read_text(encoding="utf-8").split())
    assert f"It brings {', '.join(names[:-1])} and {names[-1]};" in words
    extras = words.partition("extras, as in")[2].partition("## ")[0]
    assert set(re.findall(r"`\[(\w+)\]`", extras)) == set(project["optional-dependencies"])


@pytest.mark.parametrize("story", stories(BLOCKS), ids=lambda story: str(story[0]))
def test_documented_code_runs(story: list[Block], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run(story, monkeypatch, tmp_path)


EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))


def documented_names() -> dict[str, str]:
    """Return every dotted name of ours that a document or an example mentions or imports, and where it is first."""
    found: dict[str, str] = {}
    for path in [*DOCUMENTS, *EXAMPLES]:
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"(?<![\w./-])refold(?:\.[A-Za-z_]\w*)+(?!/)", text):
            found.setdefault(name, path.name)
        sources = [text] if path.suffix == ".py" else [block.code for block in BLOCKS if block.document == path]
        for node in (node for source in sources for node in ast.walk(ast.parse(source))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "refold":
                for alias in node.names:
                    found.setdefault(f"{node.module}.{alias.name}", path.name)
    return {name: place for name, place in found.items() if name not in LOGGERS}


@pytest.mark.parametrize(("name", "place"), documented_names().items())
def test_a_documented_name_can_be_imported(name: str, place: str) -> None:
    assert pkgutil.resolve_name(name) is not None, f"{place} names {name}"


SAMPLE = """
```python
from dataclasses import dataclass

@dataclass
class Found:
    where: "str"

seen = Found("by itself")
```

1. in a list:

   ```python continues
   import asyncio

   await asyncio.sleep(0)
   loop = asyncio.get_running_loop()
   if __name__ == "__main__":
       seen.where += ", continued in a list"
   ```

```sh
exit 1
```

```python continues
async def main():
    raise RuntimeError(f"{seen.where}, and failed")

asyncio.run(main())
```
"""


def test_blocks_run_in_order_with_shared_names_and_the_documents_line_numbers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    [story] = stories(python_blocks(SAMPLE, Path("SAMPLE.md")))
    with pytest.raises(RuntimeError, match="by itself, continued in a list, and failed") as raised:
        run(story, monkeypatch, tmp_path)
    place = raised.traceback[-1]
    assert str(place.path).endswith("SAMPLE.md")
    assert "raise RuntimeError" in SAMPLE.splitlines()[place.lineno]


@pytest.mark.parametrize(
    "text", ["```python continues\nx = 1\n```\n", "```python saved\n# x.py\n```\n```python continues\n```\n"]
)
def test_a_block_must_have_something_to_continue(text: str) -> None:
    with pytest.raises(AssertionError, match="continues nothing"):
        stories(python_blocks(text, Path("SAMPLE.md")))
