"""What providers over HTTP share: client, exchange with retries, server-sent events, secrets.

Read `provider` first.
"""
