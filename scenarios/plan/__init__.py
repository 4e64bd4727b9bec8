"""What a scenario is: its agent, its faults, its world, drawn or written.

Read `scenario` first.
"""
