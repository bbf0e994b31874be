"""Talking to services: one HTTP request, repeated with patience, at a bounded rate."""
