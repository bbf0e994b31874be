"""Reward functions written for other libraries, run unchanged: found by signature, called their way."""
