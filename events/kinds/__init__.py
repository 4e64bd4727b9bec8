"""The cores of the other kinds of stream: memories, graph, breaker, deduplicator, tool, runtime.

Read `breaker` first; each module holds one kind, whole.
"""
