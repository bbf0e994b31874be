"""Batches: what is admitted for one, which groups it takes, and how much more than it needs is sent out."""
