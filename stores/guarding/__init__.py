"""What guards the files of a log: whose they are, whether they are in their place, and whether they hold what they did.

Read `trusted_files` first.
"""
