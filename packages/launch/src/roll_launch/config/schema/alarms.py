"""When a run warns; see docs/alarms.md."""

from typing import Annotated

from pydantic import Field

from roll_launch.config.schema.kinds import Count
from roll_launch.config.section import Section

Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Window = Annotated[int, Field(ge=4)]


class SkippedUpdateConfig(Section):
    """An update whose loss or gradient is not finite, which is not taken."""

    end_after: Count | None = Field(
        default=10,
        description="Steps in a row that take no update for this reason, after which the run ends;"
        " null goes on.",
    )


class EqualScoresConfig(Section):
    """All scores of a batch are equal."""

    steps: Count = Field(default=3, description="Steps in a row that show it.")


class ZeroAdvantagesConfig(Section):
    """All advantages of a batch are zero."""

    steps: Count = Field(default=3, description="Steps in a row that show it.")


class AllMaskedConfig(Section):
    """No sample of a batch has a token that is trained."""

    steps: Count = Field(default=1, description="Steps in a row that show it.")


class EntropyCollapseConfig(Section):
    """The policy's entropy is a small share of what it was at the beginning of the stage."""

    share: Share = Field(default=0.02, description="Of the mean of the first steps; below it is collapse.")
    first_steps: Count = Field(default=5, description="Steps that the mean is taken of.")
    steps: Count = Field(default=5, description="Steps in a row that show it.")


class KlExplosionConfig(Section):
    """The policy moves too far: within a step, or from the reference."""

    update: Positive | None = Field(
        default=0.2,
        description="Highest |actor/ppo_kl|, nats a token between the first and the last weights of a step;"
        " null does not look.",
    )
    reference: Positive | None = Field(
        default=1.0, description="Highest actor/ref_kl, nats a token; null does not look."
    )
    steps: Count = Field(default=1, description="Steps in a row that show it.")


class RatioExplosionConfig(Section):
    """Probability ratios of a step's tokens are far from 1, or most of them are clipped."""

    deviation: Positive | None = Field(
        default=1.0,
        description="Highest actor/ratio_std; at 1 tokens are worth half their number. Null does not look.",
    )
    clipped: Share | None = Field(default=0.7, description="Highest actor/pg_clipfrac; null does not look.")
    steps: Count = Field(default=1, description="Steps in a row that show it.")


class ParseRateDropConfig(Section):
    """Graders find an answer in fewer responses than before."""

    drop: Share = Field(
        default=0.2, description="Below the mean of the steps before; more where chance alone moves it more."
    )
    window: Window = Field(default=20, description="Steps that the mean is taken of.")
    steps: Count = Field(default=1, description="Steps in a row that show it.")


class FailureRateJumpConfig(Section):
    """More completions and gradings than before end without a result."""

    rise: Share = Field(
        default=0.1, description="Above the mean of the steps before; more where chance alone moves it more."
    )
    window: Window = Field(default=20, description="Steps that the mean is taken of.")
    steps: Count = Field(default=1, description="Steps in a row that show it.")


class LengthRewardConfig(Section):
    """The reward rises, and length alone explains it. Compares the older with the newer half of a window."""

    window: Window = Field(default=20, description="Steps that are looked at, at least half of them.")
    growth: Positive = Field(default=0.2, description="Of the mean length, at least, as a share.")
    correlation: Share = Field(
        default=0.4, description="Of reward and length within groups, at least, in the newer half."
    )
    explained: Share = Field(
        default=0.7,
        description="Share of the reward's rise, at least, that is what longer responses of a group earn.",
    )


class SupervisedAlarmsConfig(Section):
    """What a stage warns of; null switches an alarm off. See docs/alarms.md."""

    repeat_every: Count = Field(
        default=20, description="Steps after which an alarm may be told again; metrics.jsonl has every step."
    )
    quiet_steps: Count = Field(
        default=5, description="Steps in a row without the fault, after which an alarm is over."
    )
    skipped_update: SkippedUpdateConfig | None = Field(
        default=SkippedUpdateConfig(), description="Loss or gradient is not finite."
    )


class PolicyAlarmsConfig(SupervisedAlarmsConfig):
    """What a stage warns of; null switches an alarm off. See docs/alarms.md."""

    equal_scores: EqualScoresConfig | None = Field(
        default=EqualScoresConfig(), description="All scores of a batch are equal."
    )
    zero_advantages: ZeroAdvantagesConfig | None = Field(
        default=ZeroAdvantagesConfig(), description="All advantages of a batch are zero."
    )
    all_masked: AllMaskedConfig | None = Field(
        default=AllMaskedConfig(), description="Nothing of a batch is trained on."
    )
    entropy_collapse: EntropyCollapseConfig | None = Field(
        default=EntropyCollapseConfig(), description="The policy has come down to one answer."
    )
    kl_explosion: KlExplosionConfig | None = Field(
        default=KlExplosionConfig(), description="The policy moves too far."
    )
    ratio_explosion: RatioExplosionConfig | None = Field(
        default=RatioExplosionConfig(), description="Probability ratios leave their range."
    )
    parse_rate_drop: ParseRateDropConfig | None = Field(
        default=ParseRateDropConfig(), description="Fewer responses have an answer that can be read."
    )
    failure_rate_jump: FailureRateJumpConfig | None = Field(
        default=FailureRateJumpConfig(), description="More attempts end without a result."
    )
    length_reward: LengthRewardConfig | None = Field(
        default=LengthRewardConfig(), description="The reward rises with length alone."
    )
