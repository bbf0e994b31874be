"""What the rollout scheduler may do: filters, over-provisioning, asynchrony, order, placement."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field
from roll_scheduler import ROUTERS

from roll_launch.config.schema.kinds import Count, NonNegative, Seconds
from roll_launch.config.section import Finding, Section


class FiltersConfig(Section):
    """Which complete groups are left out of training and replaced by others."""

    zero_spread: bool = Field(
        default=False,
        description="Leave out groups whose rewards are all the same.",
        json_schema_extra={"also": ["dynamic_sampling", "filter_groups"]},
    )
    mean_outside: tuple[float, float] | None = Field(
        default=None, description="Leave out groups whose mean reward is not between these two, [low, high]."
    )

    truncated_share: Annotated[float, Field(ge=0, lt=1)] | None = Field(
        default=None, description="Leave out groups of which more than this share was cut at the limit."
    )
    most_uncertain: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None,
        description="Keep this share of the groups, those whose rewards spread most (StarPO-S keeps 0.25):"
        " a step generates 1 / share times its prompts.",
    )

    def findings(self) -> Iterator[Finding]:
        if self.mean_outside is not None and not self.mean_outside[0] < self.mean_outside[1]:
            yield Finding(
                path=("mean_outside",),
                message="keeps no group: the first number must be below the second",
                got=f"{list(self.mean_outside)}",
            )


class OverProvisionConfig(Section):
    """More prompts and responses than a step needs; the quickest make the step, the rest is aborted.

    That shortens the tail of a rollout, and favours short responses unless prompts are deferred: compare
    `scheduler/kept_s` with `scheduler/aborted_s`.
    """

    prompts: NonNegative = Field(
        default=0,
        description="Prompts beyond prompts_per_step.",
        json_schema_extra={"also": ["max_additional_running_prompts"]},
    )
    responses: NonNegative = Field(default=0, description="Responses of each prompt beyond group_size.")
    defer: bool = Field(
        default=False,
        description="Keep the prompts that a step did without for a later step of their own, without"
        " over-provisioning (RollPacker's tail rounds): each is trained on once an epoch all the same.",
    )

    adaptive: bool = Field(
        default=False,
        description="Send out only as many more as pay, by the lengths seen so far; prompts and responses are"
        " then the most.",
    )

    def findings(self) -> Iterator[Finding]:
        if self.prompts + self.responses == 0:
            yield Finding(
                path=(),
                message="over-provisions nothing",
                got="0 prompts and 0 responses",
                allowed="more of one",
            )


class AsynchronyConfig(Section):
    """Completions are generated while the policy is trained, within a bound on how old they may be."""

    max_staleness: Annotated[float, Field(gt=0)] = Field(
        default=1.0,
        description="Policy versions between the oldest token of a sample and its training, at most."
        " A fraction bounds the share of a step too: at 0.5 at most half of its prompts are a version old.",
        json_schema_extra={
            "also": [
                "async_generation_ratio",
                "max_off_policy_steps",
                "staleness_threshold",
                "max_head_offpolicyness",
            ]
        },
    )
    stale: Literal["drop", "requeue"] = Field(
        default="drop",
        description="What becomes of a prompt whose samples got too old: `drop` leaves it out and counts it,"
        " `requeue` generates it again under the present policy.",
    )
    in_flight: Literal["keep", "abort", "stop"] = Field(
        default="keep",
        description="What running completions do when new weights arrive: `keep` goes on under them (each"
        " token remembers its version), `abort` begins them anew, `stop` ends them for the time of the sync"
        " and goes on from their tokens.",
    )
    carry: bool = Field(
        default=False,
        description="Generate nothing while the policy is trained: what is not done when a step is complete"
        " is stopped, and goes on in the next one from its tokens (partial rollouts). Trainer and engines may"
        " then share processors.",
    )
    max_versions: Count = Field(
        default=2,
        description="Policy versions that a completion may span with `stop` or carry; one that would span"
        " more begins anew.",
    )


class StragglersConfig(Section):
    """What is done about completions that would end sooner on another replica, while slots are free there."""

    action: Literal["duplicate", "move"] = Field(
        default="duplicate",
        description="`duplicate` generates them there too, from the same seed; who ends first counts, the"
        " other is aborted. `move` goes on there with the tokens that they have; it needs asynchrony with"
        " carry, or in_flight=stop.",
    )
    gain: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.3, description="Part of the time that is expected to be left which has to be saved."
    )
    every_s: Seconds = Field(default=1.0, description="Seconds between two looks.")
    most: Count = Field(default=64, description="Duplicates at a time, at most.")


class SchedulingConfig(Section):
    """Order of the completions that wait, and the replica that each of them gets."""

    order: Literal["fifo", "longest_first"] = Field(
        default="fifo",
        description="`longest_first` starts those first that are predicted to be the longest, from what their"
        " prompt, its other completions and the whole run have shown.",
    )
    router: str = Field(
        default="least_loaded", description=f"How a replica is chosen: one of {', '.join(sorted(ROUTERS))}."
    )
    kv_tokens: Count | None = Field(
        default=None,
        description="Tokens of KV cache that a replica has; as many completions run there as are predicted to"
        " fit. null leaves that to the engine.",
    )
    weigh_health: bool = Field(default=False, description="Whether replicas that are slow or fail get less.")
    stragglers: StragglersConfig | None = Field(
        default=None,
        description="Completions on slow or stuck replicas are sent to others too; null leaves them.",
    )
    wait_deadline_s: Seconds = Field(
        default=3600.0,
        description="Seconds for which a step may wait while nothing runs, for replicas that drain or are to"
        " return, say; then the run ends with the reason.",
    )
    quarantine_after: NonNegative = Field(
        default=3,
        description="Losses of replicas a prompt is blamed for, after which it is left out; 0 for never.",
    )

    def findings(self) -> Iterator[Finding]:
        if self.router not in ROUTERS:
            yield Finding(
                path=("router",),
                message="unknown router",
                got=self.router,
                allowed=", ".join(sorted(ROUTERS)),
            )
        if self.quarantine_after == 1:
            yield Finding(
                path=("quarantine_after",),
                message="the first loss of a replica blames all that ran on it",
                got="1",
                allowed="0 for never, or int >= 2",
            )
