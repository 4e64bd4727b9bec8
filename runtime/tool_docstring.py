"""What a Google-style docstring tells of a tool: its first paragraph, and the "Args:" section by parameter.

Docstrings are given as `inspect.getdoc` cleans them.
"""

import re

from refold.events.cleaning import clean_text

ARGUMENT_HEADINGS = frozenset({"Args:", "Arguments:", "Parameters:"})

_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\(.*?\))?\s*:\s*(.*)")


def first_paragraph(docstring: str | None) -> str:
    """Return the text before the first blank line or "Args:", as one line; empty if there is none."""
    lines: list[str] = []
    for line in _lines(docstring):
        if not line.strip() or line.strip() in ARGUMENT_HEADINGS:
            break
        lines.append(line.strip())
    return " ".join(lines)


def parameter_descriptions(docstring: str | None) -> dict[str, str]:
    """Return what the "Args:" section says, each as one line, by parameter."""
    lines = _lines(docstring)
    heading = next((place for place, line in enumerate(lines) if line.strip() in ARGUMENT_HEADINGS), None)
    if heading is None:
        return {}
    # Cleaning a docstring that begins with its section takes the indentation of what follows.
    section_indent = _indent(lines[heading]) if heading > 0 else -1
    described: dict[str, list[str]] = {}
    entry_indent: int | None = None
    current: list[str] = []
    for line in lines[heading + 1 :]:
        if not line.strip():
            continue
        if _indent(line) <= section_indent:
            break
        entry_indent = _indent(line) if entry_indent is None else entry_indent
        entry = _ENTRY.fullmatch(line.strip()) if _indent(line) <= entry_indent else None
        if entry is None:
            current.append(line.strip())
        else:
            current = described[entry[1]] = [entry[2]] if entry[2] else []
    return {name: " ".join(parts) for name, parts in described.items() if parts}


def _lines(docstring: str | None) -> list[str]:
    return clean_text(docstring).splitlines() if docstring else []


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
