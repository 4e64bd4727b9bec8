"""The bell beside a log: how the processes of one machine hear of each other at once.

Read `owner_end` first.
"""
