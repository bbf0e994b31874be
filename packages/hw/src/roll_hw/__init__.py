"""roll_hw."""
