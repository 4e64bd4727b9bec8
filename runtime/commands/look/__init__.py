"""Commands that read a log: sessions, show, tail, check, replay, export, import.

Read `show` first.
"""
