"""Key-value stores for state that is no event log.

Read `backend` first: it is the contract of the others.
"""
