"""Runs the rehearsal of storage. Its code is in `rehearsal`: a spawned process does not import a `__main__` module."""

import sys

from tests.selfcheck.storage.rehearsal import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], sys.stdout))
