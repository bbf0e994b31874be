"""How many tokens each completion has: distributions with names, and lengths of a real run.

Every completion has its length whether it is finished or not, so all policies face the same work.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from roll_scheduler.simulator.errors import SimulationError
from roll_scheduler.simulator.noise import BLOCK, NoiseTable

__all__ = [
    "TRACES",
    "LengthDistribution",
    "Lengths",
    "LognormalLengths",
    "RecordedLengths",
]

REQUIRED_KEYS = ("group", "member", "tokens")


class Lengths(Protocol):
    """Where lengths come from."""

    @property
    def cap(self) -> int:
        """Greatest number of tokens of a completion."""
        ...

    def tokens(self, group: int, member: int) -> int:
        """Tokens of a completion, 1 to `cap`; the same at every call."""
        ...


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


class LognormalLengths:
    """Lengths drawn from a distribution.

    Args:
        distribution: The distribution.
        seed: Any integer >= 0.
        prompts: Number of different prompts; group g is of prompt g % prompts and shares its part of the
            length with the other groups of that prompt. None: every group has a prompt of its own.
    """

    def __init__(
        self, distribution: LengthDistribution, *, seed: int = 0, prompts: int | None = None
    ) -> None:
        if prompts is not None and prompts < 1:
            raise SimulationError(f"LognormalLengths.prompts: got {prompts}, allowed is >= 1 or None")
        self.distribution = distribution
        self._prompts = prompts
        self._common = NoiseTable(seed, "prompt")
        self._own = NoiseTable(seed, "completion")
        self._blocks: dict[int, np.ndarray] = {}

    @property
    def cap(self) -> int:
        """Greatest number of tokens of a completion."""
        return self.distribution.cap

    def tokens(self, group: int, member: int) -> int:
        """Tokens of a completion; see `Lengths.tokens`."""
        block, offset = divmod(group, BLOCK)
        drawn = self._blocks.get(block)
        if drawn is None or drawn.shape[0] <= member:
            drawn = self._blocks[block] = self._draw(block, max(16, member + 1))
        return int(drawn[member, offset])

    def _draw(self, block: int, width: int) -> np.ndarray:
        what = self.distribution
        groups = np.arange(block * BLOCK, (block + 1) * BLOCK)
        prompts = groups if self._prompts is None else groups % self._prompts
        common = self._common.columns(prompts, 1)
        own = self._own.columns(groups, width)
        raw = what.median * np.exp(what.prompt_spread * common + what.completion_spread * own)
        return np.clip(raw, 1, what.cap).astype(np.int32)


class RecordedLengths:
    """Lengths of a real run, in its order of groups; used again from the beginning when they are used up.

    Args:
        groups: Tokens of the members of each group; neither is empty.
    """

    def __init__(self, groups: list[list[int]]) -> None:
        if not groups or not all(groups):
            raise SimulationError("RecordedLengths: got no group or an empty one, allowed are groups of >= 1")
        self._groups = groups
        self.cap = max(max(group) for group in groups)

    @property
    def group_count(self) -> int:
        """Number of groups that were recorded."""
        return len(self._groups)

    def tokens(self, group: int, member: int) -> int:
        """Tokens of a completion; see `Lengths.tokens`."""
        recorded = self._groups[group % len(self._groups)]
        return recorded[member % len(recorded)]

    @classmethod
    def read(cls, path: Path) -> "RecordedLengths":
        """Lengths from a rollouts file: JSON lines with `group`, `member`, `tokens` and maybe `step`.

        Raises:
            SimulationError: If the file cannot be read, or a line is not such an object.
        """
        members: dict[tuple[int, int], dict[int, int]] = {}
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SimulationError(f"lengths: cannot read {path}: {error}") from error
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                step, group, member, tokens = _recorded(line, f"{path}:{number}")
                members.setdefault((step, group), {})[member] = tokens
        if not members:
            raise SimulationError(f"lengths: got no rollout in {path}, allowed is at least one line")
        return cls([[group[member] for member in sorted(group)] for _, group in sorted(members.items())])


def _recorded(line: str, where: str) -> tuple[int, int, int, int]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise SimulationError(f"lengths: {where} is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise SimulationError(f"lengths: {where}: got {type(record).__name__}, allowed is an object")
    values = [record.get("step", 0), *(record.get(key) for key in REQUIRED_KEYS)]
    for key, value, least in zip(("step", *REQUIRED_KEYS), values, (0, 0, 0, 1), strict=True):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise SimulationError(f"lengths: {where}: {key} is {value!r}, allowed is an integer >= {least}")
    step, group, member, tokens = values
    return step, group, member, tokens
