"""Damages logs. The code is in `rehearsal`: a spawned process does not import a `__main__` module."""

import sys

from tests.selfcheck.damage.rehearsal import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], sys.stdout))
