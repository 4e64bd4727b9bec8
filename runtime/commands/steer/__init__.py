"""Commands that tell a running session something: approve, cancel, send.

Read `delivery` first.
"""
