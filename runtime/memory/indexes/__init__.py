"""In-memory indexes of what memories hold: episodes, vectors, words, graphs.

Read `episodic` first.
"""
