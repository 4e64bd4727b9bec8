"""A session: its events and commands, its state, and the four pure functions over them.

Read `react` first; then `admit`, `evolve` and `state`. `invariants` says what always holds.
"""
