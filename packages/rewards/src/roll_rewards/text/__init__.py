"""Comparing and describing plain text: overlap, repetition, scripts."""
