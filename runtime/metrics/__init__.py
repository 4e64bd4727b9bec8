"""Figures about agents, folded from the log."""
