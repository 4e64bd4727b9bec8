"""What every core is made of: events, content, identifiers, errors, codec, the contract of four pure functions.

Read `contract` first, which says what the four functions are; `codec` and `records` are how events enter a store.
"""
