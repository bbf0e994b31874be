"""Batches that nothing can be learned from."""

from collections.abc import Mapping

from roll_launch.alarms.detector import Memory, Reading, number
from roll_launch.config import AllMaskedConfig, EqualScoresConfig, ZeroAdvantagesConfig


class EqualScores:
    """The graders give every sample of a batch the same score."""

    name = "equal_scores"
    advice = (
        "Read rollouts/: a grader that never finds an answer teaches nothing, nor do prompts that are "
        "all too hard or all solved."
    )

    def __init__(self, config: EqualScoresConfig) -> None:
        self.steps = config.steps
        self.memory: Memory = []

    def read(self, metrics: Mapping[str, float]) -> Reading | None:
        """A batch of one sample has equal scores without a fault."""
        highest, lowest = number(metrics, "critic/score/max"), number(metrics, "critic/score/min")
        graded = number(metrics, "rewards/graded")
        if highest is None or lowest is None or graded is None:
            return None
        return Reading(
            fault=graded > 1 and highest <= lowest,
            metric="critic/score/max",
            value=highest,
            threshold=lowest,
            said=f"all {graded:.0f} scores of the batch are {highest:.4g}",
        )


class ZeroAdvantages:
    """No sample of a batch is better or worse than those it is compared with, so nothing is updated."""

    name = "zero_advantages"
    advice = (
        "Take prompts of another difficulty, or larger groups; only a KL term or an entropy bonus still "
        "moves the weights."
    )

    def __init__(self, config: ZeroAdvantagesConfig) -> None:
        self.steps = config.steps
        self.memory: Memory = []

    def read(self, metrics: Mapping[str, float]) -> Reading | None:
        """Advantages are absent where no sample counts, which is another alarm's."""
        highest = number(metrics, "critic/advantages/max")
        lowest = number(metrics, "critic/advantages/min")
        if highest is None or lowest is None:
            return None
        return Reading(
            fault=highest == lowest == 0,
            metric="critic/advantages/max",
            value=highest,
            threshold=0.0,
            said="all advantages of the batch are 0",
        )


class AllMasked:
    """No sample of a batch counts: none has a verdict and a token that is trained."""

    name = "all_masked"
    advice = (
        "Look at response_length/clip_ratio and rollout/failed/*: raise max_tokens where `mask_truncated` is "
        "set, and see why graders or engines fail."
    )

    def __init__(self, config: AllMaskedConfig) -> None:
        self.steps = config.steps
        self.memory: Memory = []

    def read(self, metrics: Mapping[str, float]) -> Reading | None:
        """An empty batch is a fault too."""
        counted, left_out = number(metrics, "training/samples"), number(metrics, "training/left_out")
        if counted is None or left_out is None:
            return None
        return Reading(
            fault=counted <= 0,
            metric="training/samples",
            value=counted,
            threshold=0.0,
            said=f"none of {left_out:.0f} samples is trained on: no verdict, no token, or cut at its limit",
        )
