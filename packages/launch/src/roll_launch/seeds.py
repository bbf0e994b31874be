"""Seeds for the parts of a run, each a function of the run's seed and a name."""

import hashlib


def derived_seed(seed: int, *names: str | int) -> int:
    """A 63-bit seed for what `names` say, equal in every process and on every platform."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
