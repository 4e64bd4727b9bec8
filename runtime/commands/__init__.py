"""The commands behind `refold`: one module each, put together in `refold.commands.cli`.

`execution` runs a command and turns errors into exit codes; `output` writes text and JSON.
"""
