"""How many tokens each completion has: drawn from a distribution, or those of a real run.

Every completion has its length whether it is finished or not, so all policies face the same work.
"""

import json
from pathlib import Path
from typing import Protocol

import numpy as np

from roll_scheduler.simulator.errors import SimulationError
from roll_scheduler.simulator.noise import BLOCK, NoiseTable
from roll_scheduler.simulator.traces import LengthDistribution

__all__ = ["Lengths", "LognormalLengths", "RecordedLengths"]

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
