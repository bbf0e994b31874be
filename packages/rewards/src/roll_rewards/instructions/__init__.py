"""Checkers of verifiable instructions, one function for each; `graders.ifeval` puts them together."""
