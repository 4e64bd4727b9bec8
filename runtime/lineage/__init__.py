"""Where a session comes from and how it went: forks, where two sessions part, causes of an event, what was around it.

Read `fork` first; `refold.stores.forked` says how a fork lies in the log.
"""
