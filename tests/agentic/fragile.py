"""Environments that break in their process; made by name in the tests of environments in processes."""

import os
import time


class Fragile:
    """Answers; `hang`, `exit`, `raise` and `print` do what they say."""

    def __init__(self, greeting: str = "hello") -> None:
        self.greeting = greeting

    def reset(self, *, seed: int) -> tuple:
        return f"{self.greeting} {seed}", {"pid": os.getpid(), "pair": (1, 2)}

    def step(self, action: str, /) -> tuple:
        if action == "hang":
            time.sleep(3600)
        if action == "exit":
            os._exit(7)
        if action == "raise":
            raise ValueError("told to")
        if action == "print":
            print('{"answer": "not from the protocol"}', flush=True)
        return action, 1.0, action == "stop", False, {"data": b"x"}
