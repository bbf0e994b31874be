"""Tickets that wait for a slot: in which order they get one, and where."""
