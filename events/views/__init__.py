"""Projections of recorded events: steps, statistics, metrics.

Read `steps` first.
"""
