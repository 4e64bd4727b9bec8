"""The command `refold simulate` and what it prints.

Read `command` first.
"""
