"""What a stage's learner has against the stage: a warm-up without end, micro-batches that hold nothing."""

from collections.abc import Iterator

from roll_launch.config.nodes import KeyPath
from roll_launch.config.schema.learner import LearnerConfig, OptimizerConfig
from roll_launch.config.section import Finding


def warmup_findings(
    optimizer: OptimizerConfig, steps: int, path: KeyPath = ("learner", "optimizer")
) -> Iterator[Finding]:
    """A warm-up that the stage's optimizer steps do not hold; a schedule needs one step after it."""
    most = steps if optimizer.schedule == "constant" else steps - 1
    if optimizer.warmup_steps > most:
        yield Finding(
            path=(*path, "warmup_steps"),
            message=f"the stage has {steps} optimizer step{'' if steps == 1 else 's'}",
            got=f"{optimizer.warmup_steps}",
            allowed=f"0 to {most}",
        )


def micro_batch_findings(learner: LearnerConfig, longest: int, what: str) -> Iterator[Finding]:
    """A micro-batch that does not hold the longest sequence; its last token is only predicted, never read."""
    if learner.micro_batch_tokens < longest - 1:
        yield Finding(
            path=("learner", "micro_batch_tokens"),
            message=f"less than the longest sequence, {longest} tokens ({what})",
            got=f"{learner.micro_batch_tokens}",
            allowed=f"int >= {longest - 1}",
        )
