"""Distributions of lengths, and those with a name; light, as the command line reads them before it parses."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from roll_scheduler.simulator.errors import SimulationError

__all__ = ["TRACES", "LengthDistribution"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthDistribution:
    """Lognormal lengths: `median * exp(prompt_spread * z + completion_spread * y)`, z common to a group.

    Attributes:
        median: Tokens, >= 1.
        prompt_spread: Standard deviation of the logarithm between prompts, >= 0.
        completion_spread: The same between completions of one prompt, >= 0.
        cap: Longer ones are cut to this many tokens, >= 1.
    """

    median: float
    prompt_spread: float
    completion_spread: float
    cap: int = 16_384

    def __post_init__(self) -> None:
        for name, value, least in (
            ("median", self.median, 1),
            ("prompt_spread", self.prompt_spread, 0),
            ("completion_spread", self.completion_spread, 0),
            ("cap", self.cap, 1),
        ):
            if not math.isfinite(value) or value < least:
                raise SimulationError(f"LengthDistribution.{name}: got {value!r}, allowed is >= {least}")


TRACES: Mapping[str, LengthDistribution] = {
    "A": LengthDistribution(median=1500, prompt_spread=0.6, completion_spread=0.5),
    "B": LengthDistribution(median=1500, prompt_spread=0.8, completion_spread=0.7),
    "C": LengthDistribution(median=800, prompt_spread=0.9, completion_spread=0.8),
    "D": LengthDistribution(median=530, prompt_spread=0.65, completion_spread=0.85),
}
"""A, B and C differ in their tail. D is fitted to what RollPacker (arXiv 2509.21009) tells of Qwen2.5-14B at
16k tokens, 128 prompts x 8: 75th percentile 755 to 1,100 tokens, the longest 25 to 32 times the median (a
batch of D: about 1,070 and 28; how much of the spread a prompt has in common is not told, 0.37 is chosen)."""
