"""One pipeline a kind of run. Each reads like the flow of its step."""
