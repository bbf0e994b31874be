"""What goes wrong: replicas that are slow or die, prompts that kill them, waits without an end."""
