"""The shape of a low-rank adapter. Torch-free, for checking configurations."""

from __future__ import annotations

from dataclasses import dataclass

from roll_learners.errors import LearnerError

ALL_LINEAR = "all-linear"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """LoraSettings(rank=16, alpha=32, target_modules=("q_proj", "v_proj")).

    There is no dropout: log-probs must not depend on a random state.

    Attributes:
        rank: Inner width of the two matrices, at least 1.
        alpha: Their product is scaled by alpha / rank, or alpha / sqrt(rank); above 0.
        target_modules: Names, or ends of names, of the linear layers that get one; ("all-linear",) is all but
            the head.
        rank_stabilised: Whether the scale has the square root (rsLoRA).
        seed: Of the first matrix; the second begins with zeros.
    """

    rank: int = 16
    alpha: float = 32.0
    target_modules: tuple[str, ...] = (ALL_LINEAR,)
    rank_stabilised: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise LearnerError(f"lora.rank is {self.rank}: at least 1")
        if not self.alpha > 0:
            raise LearnerError(f"lora.alpha is {self.alpha}: allowed is above 0")
        if not self.target_modules or (ALL_LINEAR in self.target_modules and len(self.target_modules) > 1):
            raise LearnerError(
                f"lora.target_modules is {list(self.target_modules)}: allowed are names of modules, or "
                f"{ALL_LINEAR!r} alone"
            )

    @property
    def scale(self) -> float:
        """What the product of the matrices is multiplied with.

        Source: arXiv 2106.09685, section 4.1; with the root arXiv 2312.03732.
        """
        root: float = self.rank**0.5 if self.rank_stabilised else self.rank
        return self.alpha / root

    def peft_targets(self) -> str | list[str]:
        """As PEFT takes them."""
        return ALL_LINEAR if ALL_LINEAR in self.target_modules else list(self.target_modules)
