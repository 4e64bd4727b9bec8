"""The child process in which a replay runs an application's code: it can write nothing and reach nothing.

Read `process` first: it forks the child and feeds it the log. `confinement` takes from the child what it could act
with, as far as the kernel allows; `acts` refuses the rest in Python, and says what was tried and where.
"""
