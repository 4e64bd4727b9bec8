"""What is asked of a model and what it may cost: messages, configuration, requests, windows, retries, prices.

Read `configuration` first.
"""
