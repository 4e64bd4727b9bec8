"""Uses hostile logs. The code is in `rehearsal`: a spawned process does not import a `__main__` module."""

import os
import sys

from refold.actors.kernel.clock import SystemClock
from tests.selfcheck.hostile.rehearsal import main

if __name__ == "__main__":
    os.environ.setdefault("COLUMNS", "120")
    sys.exit(main(sys.argv[1:], sys.stdout, SystemClock()))
