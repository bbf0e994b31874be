"""What can be told of a scheduler: its numbers, and why something is late."""
