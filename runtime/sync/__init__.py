"""The runtime for synchronous callers: a loop in a thread and faces that block.

Read `runtime` first.
"""
