"""Measures of boxes in pictures."""
