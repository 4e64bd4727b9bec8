"""How what happens in sessions reaches those who follow it.

Read `notifications` first, which says what they are given; then `event_bus`, which gives it, and `subscription`.
"""
