"""Rehearsal: faults and scenarios.

`exhaustive` tries everything that can happen to a session within a small scope; `session_rules` says what is checked.
`core_exploration` does the same for a core of the user's own.
"""
