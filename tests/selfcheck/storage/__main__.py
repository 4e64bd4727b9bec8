"""Runs the rehearsal of storage. Its code is in `rehearsal`: a spawned process does not import a `__main__` module."""

import typer

from tests.selfcheck.storage.rehearsal import command

if __name__ == "__main__":
    typer.run(command)
