"""The commands behind `refold`: one module each, in `run`, `look`, `steer` and `keep`.

Read `cli` first, which puts them together; `execution` runs a command and turns errors into exit codes, `output` writes
text and JSON.
"""
