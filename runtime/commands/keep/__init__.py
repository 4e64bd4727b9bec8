"""Commands that keep a log: they copy it, save what is whole of it, and take out what is to be kept no longer.

Read `backup` first.
"""
