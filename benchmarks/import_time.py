"""CPU milliseconds that importing takes of what every user imports, over bare Python.

Run: python -P benchmarks/import_time.py

Best of ten child processes each: `pass`, the libraries that Refold stands on, and Refold itself.
"""

import json
import os
import resource
import subprocess
import sys

PROGRAMS = {
    "bare_python": "pass",
    "pykka_msgspec_sqlite3": "import pykka, msgspec, sqlite3",
    "refold": "import refold",
    "refold_agent": "from refold import AgentRuntime, AgentConfig, tool",
}
ROUNDS = 10


def measured(rounds: int) -> dict[str, float]:
    """Return the CPU milliseconds of bare Python, and of the others over it."""
    compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    best = dict.fromkeys(PROGRAMS, float("inf"))
    for _ in range(rounds):
        for name, program in PROGRAMS.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-P", "-c", program], env=compiled, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            best[name] = min(best[name], spent * 1000)
    bare = best["bare_python"]
    return {name: round(value - bare * (name != "bare_python"), 1) for name, value in best.items()}


def main() -> None:
    print(json.dumps(measured(ROUNDS), indent=2))


if __name__ == "__main__":
    main()
