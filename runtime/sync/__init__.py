"""The runtime for callers without a loop: faces that block, before a loop in a thread (`refold.actors.loop_thread`).

Read `session` first, which has the faces of sessions; `refold.agent_runtime` has that of a runtime.
"""
