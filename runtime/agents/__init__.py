"""What an agent is: its description, skills, subagents, and how one is loaded by name.

Read `agent` first.
"""
