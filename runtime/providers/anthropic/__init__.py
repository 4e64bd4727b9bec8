"""The wire of Anthropic's Messages API.

Read `provider` first.
"""
