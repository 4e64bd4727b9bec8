"""Other processes and a running runtime: the inbox of a log, its owner, its clients.

Read `protocol` first.
"""
