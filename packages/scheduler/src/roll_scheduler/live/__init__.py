"""The scheduler on asyncio: the core's commands as calls of the caller's functions."""
