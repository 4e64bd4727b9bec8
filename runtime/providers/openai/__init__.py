"""The wire of OpenAI's Chat Completions API.

Read `provider` first.
"""
