"""Rehearsal: faults and scenarios."""
