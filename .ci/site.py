"""Pages of the site that are made from the repository: a hook of MkDocs, named in `mkdocs.yml`.

The home page is README.md. A document may link to any file here: Markdown becomes a page, a module a page with its
text. A WebP picture has a dark one beside it, `NAME-dark.webp`. The reference is made from the packages' public names,
the commands' help, and the events of the golden logs.
"""

import importlib
import inspect
import json
import pkgutil
import posixpath
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import refold
from refold.events.core.event import Event

ROOT = Path(__file__).resolve().parent.parent
PICTURE = re.compile(r"(!\[[^\]]*\]\([^()\s#]*)(\.webp)\)")
LINK = re.compile(r"(?<=\]\()([^()\s#]*)(#[^()\s]*)?(?=\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put a page for each package below the reference's first one."""
    for section in config.nav or []:
        if pages := section.get("Reference"):
            pages[1:1] = [{"Packages": [f"reference/{name}.md" for name, _ in packages()]}]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that no file of `docs/` holds."""
    pages = {"index.md": (ROOT / "README.md").read_text(encoding="utf-8"), **dict(reference())}
    for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", *linked_files(files)):
        pages[page_of(name)] = text_of(name)
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links that lead out of `docs/` to the pages of those files; a link to a folder becomes its words alone."""
    here = source_of(page.file.src_uri)

    def moved(link: re.Match[str]) -> str:
        if not (found := named(here, link[1])):
            return link[0]
        target = page_of(found.relative_to(ROOT).as_posix())
        return posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or ".") + (link[2] or "")

    without_folders = re.sub(
        r"\[([^\]]+)\]\(([^()\s#]+)\)",
        lambda link: link[1] if (folder := named(here, link[2])) and folder.is_dir() else link[0],
        markdown,
    )
    return PICTURE.sub(r"\1\2#only-light)\1-dark\2#only-dark)", LINK.sub(moved, without_folders))


def named(document: Path, target: str) -> Path | None:
    """Return the file or folder of the repository that a document's link names, if it names one."""
    path = (document.parent / target).resolve()
    return path if target and ":" not in target and path.is_relative_to(ROOT) and path.exists() else None


def source_of(uri: str) -> Path:
    """Return the file of the repository that a page is made of; a page of the reference is made of none."""
    if uri == "index.md":
        return ROOT / "README.md"
    return ROOT / "docs" / uri if (ROOT / "docs" / uri).exists() else ROOT / uri


def page_of(name: str) -> str:
    """Return the page that shows a file of the repository."""
    if name == "README.md":
        return "index.md"
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    return name if name.endswith(".md") else f"source/{name}.md"


def text_of(name: str) -> str:
    text = (ROOT / name).read_text(encoding="utf-8")
    return text if name.endswith(".md") else f"# {name}\n\n````python\n{text}````\n"


def linked_files(files: Files) -> list[str]:
    """Return the files outside of `docs/` that documents link to, and those that these link to."""
    found: set[str] = set()
    waiting = [ROOT / "README.md", *(ROOT / "docs" / file.src_uri for file in files.documentation_pages())]
    while waiting:
        document = waiting.pop()
        for link in LINK.finditer(document.read_text(encoding="utf-8")):
            path = named(document, link[1])
            if path is None or path.is_dir() or path.is_relative_to(ROOT / "docs") or path == ROOT / "README.md":
                continue
            if (name := path.relative_to(ROOT).as_posix()) not in found:
                found.add(name)
                waiting += [path] if path.suffix == ".md" else []
    return sorted(name for name in found if Path(name).suffix in {".md", ".py"})


def packages() -> list[tuple[str, ModuleType]]:
    """Return every package that exports names, by its name."""
    names = [module.name for module in pkgutil.walk_packages(refold.__path__, "refold.") if module.ispkg]
    found = [(name, importlib.import_module(name)) for name in ["refold", *names]]
    return [(name, package) for name, package in found if getattr(package, "__all__", ())]


def reference() -> Iterator[tuple[str, str]]:
    """Make the pages of the reference: the packages, the commands, the types of events."""
    rows = ""
    for name, package in packages():
        what = inspect.cleandoc(package.__doc__ or "").partition("\n")[0]
        public = sorted(word for word in package.__all__ if not word.startswith("__"))
        directives = "\n\n".join(f"::: {name}.{word}" for word in public)
        rows += f"| [`{name}`]({name}.md) | {what} |\n"
        yield f"reference/{name}.md", f"# {name}\n\n{inspect.cleandoc(package.__doc__ or '')}\n\n{directives}\n"
    yield "reference/index.md", f"# Public names\n\n| package | what it is |\n|---|---|\n{rows}"
    yield "reference/commands.md", commands_page()
    yield "reference/events.md", events_page()


def commands_page() -> str:
    """Return the help of every command."""
    from refold.commands.cli import app

    group: Any = typer.main.get_command(app)
    context = group.make_context("refold", [], resilient_parsing=True)
    parts = ["# Commands\n\nWhat `refold COMMAND --help` says.\n"]
    for name in sorted(group.list_commands(context)):
        command = group.get_command(context, name)
        inner = type(context)(command, info_name=name, parent=context)
        parts.append(f"## refold {name}\n\n```text\n{command.get_help(inner).rstrip()}\n```\n")
    return "\n".join(parts)


def events_page() -> str:
    """Return every type of event with what it says, and the JSON of one that `tests/golden` keeps."""
    importlib.import_module("refold.inspection.kinds")  # and with it the events of every kind

    kept = recorded_events()
    parts = ["# Types of events\n\nWhat a log holds, each with one that was recorded.\n"]
    types = {str(event.__struct_config__.tag): event for event in events_below(Event)}
    for tag, event in sorted(types.items(), key=lambda item: (not item[0].startswith("session."), item[0])):
        said = inspect.cleandoc(event.__doc__ or "")
        example = json.dumps(kept[tag], ensure_ascii=False, indent=2)
        parts.append(f"## {event.__name__}\n\n`{tag}`\n\n{said}\n\n```json\n{example}\n```\n")
    return "\n".join(parts)


def events_below(base: type[Event]) -> Iterator[type[Event]]:
    for event in base.__subclasses__():
        yield from events_below(event) if event.__subclasses__() else [event]


def recorded_events() -> dict[str, Any]:
    """Return one event of every type that the golden texts and logs hold, by its tag."""
    golden = ROOT / "tests" / "golden"
    lines: list[str | bytes] = (golden / "text" / "recorded_events.jsonl").read_text(encoding="utf-8").splitlines()
    for path in sorted(golden.glob("*.db"), reverse=True):
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as log:
            lines += [data for (data,) in log.execute("SELECT data FROM events ORDER BY position")]
    found: dict[str, Any] = {}
    for event in map(json.loads, lines):
        found.setdefault(event["type"], event)
    return found
