"""The exhaustive check of the session's core: everything that can happen, in every order, within a small scope.

    python -m tests.selfcheck.exhaustive             what every test run does, in seconds
    python -m tests.selfcheck.exhaustive --full      more inputs, turns, calls and tools at once, in minutes
    ... --stop-at-first                                  end with the first violation
    ... --scope=NAME                                     one scope only

Read `tests.selfcheck.exhaustive.exploration` for how it searches, `scope` for what is bounded, `canonical_state` for
why so few states are enough. It prints the size of each scope and a verdict for each rule: `hold`, `violated`, or
`not exercised` where there was nothing to judge, since what was never put to the test has not been shown. It exits
with 1 if a rule is violated, and shows the shortest commands that violate it.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TextIO

import msgspec

from refold.actors.kernel.clock import Clock, SystemClock
from refold.scenarios.as_code import expression
from tests.selfcheck.exhaustive.exploration import Exploration, explore
from tests.selfcheck.exhaustive.rules import RULES, Rule
from tests.selfcheck.exhaustive.scope import EVERYDAY, FULL, Scope


def main(arguments: Sequence[str], out: TextIO, clock: Clock) -> int:
    """Explore, print what was found, and return the exit code: 0, or 1 if a rule is violated."""
    parser = argparse.ArgumentParser("tests.selfcheck.exhaustive")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--stop-at-first", action="store_true")
    parser.add_argument("--scope", action="append", choices=sorted({scope.name for scope in (*EVERYDAY, *FULL)}))
    options = parser.parse_args(arguments)
    scopes = [scope for scope in (FULL if options.full else EVERYDAY) if scope.name in (options.scope or [scope.name])]
    out.write(f"{'scope':<16}{'states':>10}{'moves':>12}{'transitions':>13}{'depth':>7}{'seconds':>9}\n")
    found: list[tuple[Scope, Exploration]] = []
    for scope in scopes:
        began = clock.monotonic_s()
        result = explore(scope, stop_at_first=options.stop_at_first)
        seconds = clock.monotonic_s() - began
        out.write(
            f"{scope.name:<16}{result.states:>10,}{result.moves:>12,}{result.transitions:>13,}"
            f"{result.depth:>7}{seconds:>9.1f}\n"
        )
        out.flush()
        found.append((scope, result))
        if options.stop_at_first and result.counterexamples:
            break
    _print_verdicts([result for _, result in found], out)
    for scope, result in found:
        _print_counterexamples(scope, result, out)
    return int(any(result.counterexamples for _, result in found))


def _print_verdicts(found: Sequence[Exploration], out: TextIO) -> None:
    met: Counter[Rule] = Counter()
    for result in found:
        met.update(result.met)
    out.write(f"\n{'rule':<10}{'verdict':<15}{'judged':>11}  what it says\n")
    for rule, text in RULES.items():
        violated = any(rule in result.counterexamples for result in found)
        verdict = "violated" if violated else "hold" if met[rule] else "not exercised"
        out.write(f"{rule:<10}{verdict:<15}{met[rule]:>11,}  {text}\n")


def _print_counterexamples(scope: Scope, result: Exploration, out: TextIO) -> None:
    for rule, example in result.counterexamples.items():
        out.write(f"\n{rule} is violated in scope {scope.name!r}: {example.message}\nafter\n")
        out.writelines(f"  {expression(command)}\n" for command in example.commands)
        for version, event in enumerate(example.log, 1):
            out.write(f"{version:>4}  {expression(msgspec.structs.replace(event, at=0))}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], sys.stdout, SystemClock()))
