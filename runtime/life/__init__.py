"""The life of a runtime: it opens, owns its log or visits the owner, and ends.

Read `lifecycle` first; `owner` is what it does while it owns its log, and `takeover` what it does for the one before.
"""
