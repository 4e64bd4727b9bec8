"""How a problem that the rehearsal of storage has found is met again: a command with words that name one piece of it.

`power 86 44` is the cut after operation 44 of the run of seed 86, `normal` and `lying` the same with the other
durability and the other disk; `errors 3 120` is fault 120 of a failing disk with seed 3; `syncs 3 12` is place 12 at
which syncs fail; `kills 7 25 store` and `kills 7 25 runtime` are 25 processes that are killed, which the system's
scheduler has its say in, so that only they may not meet the same again.
"""

from typing import Final

COMMAND: Final = "python -m tests.selfcheck.storage"


def again(*words: object) -> str:
    """Return what is added to a problem: a line with the command that meets it again."""
    return f"\n    again: {COMMAND} --only '{' '.join(map(str, words))}'"
