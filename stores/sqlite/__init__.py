"""The event log in one SQLite file, with its lock and the inbox beside it.

Read `store` first; `append` and `read` hold the SQL, `file` what a log file must be.
"""
