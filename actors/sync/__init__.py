"""Callers without an event loop: a loop in a thread, and what makes methods that block of those that are awaited.

Read `loop_thread` first.
"""
