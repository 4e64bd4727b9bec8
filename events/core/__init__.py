"""What every core is made of: its contract, events, content, identifiers, errors, codec.

Read `pure_core` first, which says what the four functions are; `codec` and `records` are how events enter a store.
"""
