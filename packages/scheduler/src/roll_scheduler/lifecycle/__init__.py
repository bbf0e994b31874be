"""The state machine: what happens to tickets and groups from their admission to their end."""
