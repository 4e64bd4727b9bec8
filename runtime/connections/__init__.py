"""A log that another process owns, as `connect` gives it: its sessions, their runs, and what waits for people.

Read `connection` first.
"""
