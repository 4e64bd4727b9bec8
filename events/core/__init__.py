"""What every core is made of: events, content, identifiers, errors, codec, the contract of four pure functions.

Read `pure_core` first.
"""
