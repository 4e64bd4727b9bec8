"""Dialogues with `refold chat`: golden text of a terminal, whose typed parts are typed again.

`tests/golden/text/dialogues.txt` has sections as the transcripts have them. `$ terminal AGENT` begins a chat at a
terminal of its own, which lasts up to its exit code in brackets. What a person types stands in «»: a line, `^C` or
`^D`. `«SIGTERM»` is the signal, and `«$ refold …»` a command that another process runs meanwhile. All else is what is
shown, where `…` stands for anything. The commands between chats are those of a transcript.
"""

import re
import shlex
from pathlib import Path

from tests.runtime.command_line import started
from tests.runtime.terminal import COMMAND, Terminal
from tests.runtime.transcripts import played


def held(text: str, folder: Path) -> str:
    """Hold the dialogues of a section; return the section with what is shown today of the commands between them."""
    parts: list[str] = []
    for agent, dialogue, code, commands in re.findall(
        r"^\$ terminal (.*)\n((?:.*\n)*?)\[(\d+)\]\n((?:(?!\$ terminal).*\n)*)", text, re.MULTILINE
    ):
        agent_name, _, target = agent.partition(" > ")
        elsewhere = f"import sys; sys.stdout = open({target!r}, 'w'); {COMMAND}" if target else COMMAND
        with Terminal(folder, "chat", agent_name, "--session", "s", program=elsewhere) as terminal:
            _talk(terminal, dialogue)
            ended, rest = terminal.end()
        assert ended == int(code)
        assert not rest.strip() or dialogue.endswith("…\n"), rest
        parts.append(f"$ terminal {agent}\n{dialogue}[{code}]\n{played(commands, folder)}")
    return "".join(parts)


def _talk(terminal: Terminal, dialogue: str) -> None:
    exact, echo = True, ""
    for part in re.split(r"(«.*?»|…)", dialogue):
        if part == "…":
            exact = False
        elif part.startswith("«"):
            typed = part.strip("«»")
            _type(terminal, typed)
            echo = "" if typed in ("SIGTERM", "^D", "^C") or typed.startswith("$ ") else typed
        elif part.strip():
            expected = echo + part.rstrip("\n") if exact else part.strip("\n")
            shown = terminal.until(expected)
            assert shown == expected or not exact, f"{shown!r} is not {expected!r}"
            exact, echo = True, ""


def _type(terminal: Terminal, typed: str) -> None:
    if typed == "SIGTERM":
        terminal.terminate()
    elif typed.startswith("$ refold "):
        with started(*shlex.split(typed)[2:]) as other:
            assert other.wait() == 0
    else:
        keys = typed.replace("^C", "\x03").replace("^D", "\x04")
        terminal.write(keys if keys.endswith(("\x03", "\x04")) else keys + "\n")
