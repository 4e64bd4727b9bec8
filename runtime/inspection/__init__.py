"""What is in a log, for people: lists, transcripts, checks, following.

Read `log_reading` first.
"""
