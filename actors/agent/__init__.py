"""The shells of an agent's actors: session, model, tool, approval.

Read `session` first.
"""
