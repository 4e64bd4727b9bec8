"""Commands that measure what a log holds: figures, a line for each session, spans.

Read `metrics` first.
"""
