"""Where prompts come from and what is known of them."""
