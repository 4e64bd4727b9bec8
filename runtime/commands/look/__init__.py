"""Commands that read a log: sessions, show, tail, stats, metrics, check, replay, export, import.

Read `show` first.
"""
