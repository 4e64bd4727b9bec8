"""The simulated world: a deterministic loop, processes, disks, stores, tools, models.

Read `loop` first, then `life`.
"""
