"""The page of `refold.page` as a server gives it: what it asks, and who may ask.

Read `routes` first; `doors` lets requests through or refuses them.
"""
