"""What callers do with a session: send, stream, subscribe, read, checkpoint.

Read `session` first.
"""
