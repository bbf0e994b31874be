"""roll_launch."""
