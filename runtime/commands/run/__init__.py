"""Commands that run an agent: run, resume, chat.

Read `run` first.
"""
