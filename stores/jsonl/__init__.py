"""A log as JSON Lines: export, import, and the check of such a text.

Read `format` first.
"""
