"""The shells of an agent's actors: session, model, tool, approval, breaker.

Read `session` first.
"""
