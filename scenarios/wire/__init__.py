"""A simulated network and the servers of providers behind it.

Read `network` first.
"""
