"""Devices: how many an engine gets, and when the trainer has them."""
