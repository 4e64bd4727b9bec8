"""The runtime for callers without a loop: a loop in a thread, and faces that block.

Read `loop_thread` first; `session` has the faces of sessions, and `refold.agent_runtime` that of a runtime.
"""
