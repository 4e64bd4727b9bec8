"""Import time of what every user imports, over bare Python.

Run: python -P benchmarks/import_time.py

Best of ten child processes each: `pass`, the libraries that Refold stands on, and Refold itself.
"""

import json
import subprocess
import sys
import time

PROGRAMS = {
    "bare_python": "pass",
    "pykka_msgspec_sqlite3": "import pykka, msgspec, sqlite3",
    "refold": "import refold",
    "refold_agent": "from refold import AgentRuntime, AgentConfig, tool",
}
ROUNDS = 10


def main() -> None:
    """Measure and print milliseconds over bare Python."""
    best = dict.fromkeys(PROGRAMS, float("inf"))
    for _ in range(ROUNDS):
        for name, program in PROGRAMS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-P", "-c", program], check=True)
            best[name] = min(best[name], (time.perf_counter() - start) * 1000)
    bare = best.pop("bare_python")
    over = {f"{name}_ms": round(value - bare, 1) for name, value in best.items()}
    print(json.dumps({"bare_python_ms": round(bare, 1), **over}, indent=2))


if __name__ == "__main__":
    main()
