"""The work of each role, in whichever process it runs: no Ray, no asyncio loop of its own."""
