"""How long completions will be."""
