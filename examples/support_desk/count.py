"""Print how many lines of code each desk has: python examples/support_desk/count.py.

Blank lines, comments and docstrings are not counted, nor is what both share (shop.py) or the scripted models.
"""

import ast
import io
import tokenize
from pathlib import Path

HERE = Path(__file__).parent
CODE = {tokenize.NAME, tokenize.NUMBER, tokenize.OP, tokenize.STRING}


def code_lines(source: str) -> int:
    """Count the lines that have code on them."""
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):  # A docstring, also of a constant.
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def counts() -> dict[str, int]:
    """Return how many lines each desk has."""
    files = {"Refold": HERE / "desk.py", "LangGraph": HERE / "in_langgraph" / "desk.py"}
    return {name: code_lines(path.read_text(encoding="utf-8")) for name, path in files.items()}


if __name__ == "__main__":
    for name, lines in counts().items():
        print(f"{name}: {lines} lines")
