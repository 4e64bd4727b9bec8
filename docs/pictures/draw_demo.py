"""Draw `demo.svg`: run `refold demo` and keep what it writes, in the form of a terminal.

python -P docs/pictures/draw_demo.py
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 120

STYLES = {
    r"^Process .*": "bold cyan",
    r"^SIGKILL .*": "bold red",
    r"^ +yes ": "bold green",
    r"^ +no ": "bold red",
    r"^What was found": "bold",
    r"^VERSIONS .*": "dim",
}

# Rich's own frame, without the fonts that it would load from another host.
FRAME = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
    <style>
    .{unique_id}-matrix {{
        font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
        font-size: {char_height}px;
        line-height: {line_height}px;
    }}
    .{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
    {styles}
    </style>
    <defs>
    <clipPath id="{unique_id}-clip-terminal">
      <rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
    </clipPath>
    {lines}
    </defs>
    {chrome}
    <g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
    {backgrounds}
    <g class="{unique_id}-matrix">
    {matrix}
    </g>
    </g>
</svg>
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "shop.db")
        done = subprocess.run(
            [Path(sys.executable).with_name("refold"), "demo", "--log", log],
            env={"COLUMNS": str(COLUMNS), "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        )
    # What a line about a kill says behind the kill is left out, as the picture has no room for it.
    lines = [line.split(": exit code -9;")[0] for line in done.stdout.replace(str(log), "shop.db").splitlines()]
    width = max(len(line) for line in lines if line.startswith(" "))  # The answer, a longer line, is folded.
    console = Console(record=True, width=width, file=sys.stderr, force_terminal=True, color_system="truecolor")
    console.print(Text("$ refold demo --log shop.db", style="bold"))
    for line in lines:
        shown = Text(line)
        for pattern, style in STYLES.items():
            if found := re.match(pattern, line):
                shown.stylize(style, 0, found.end())
        console.print(shown)
    picture = console.export_svg(title="refold demo", code_format=FRAME, unique_id="demo")
    Path(__file__).with_name("demo.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
