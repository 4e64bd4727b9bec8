"""Runs `refold`'s rehearsal of storage; see `rehearsal`, which processes that are spawned import by its own name."""

import typer

from tests.selfcheck.storage.rehearsal import command

if __name__ == "__main__":
    typer.run(command)
