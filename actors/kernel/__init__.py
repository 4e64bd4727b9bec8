"""Actors on one asyncio loop, with the references of pykka: mailboxes, asks, supervision, passivation.

Read `actor` first, then `cell`.
"""
