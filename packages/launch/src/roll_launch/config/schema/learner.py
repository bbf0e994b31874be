"""How the policy is updated."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field
from roll_learners.errors import LearnerError
from roll_learners.fsdp2.layout import Layout

from roll_launch.config.schema.kinds import Count, Device, NonNegative, Threads
from roll_launch.config.section import Finding, Section

Precision = Literal["float32", "bfloat16"]
Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Section):
    """AdamW and its schedule, over the optimizer steps of the whole stage."""

    learning_rate: float = Field(
        ge=0,
        description="The highest rate; 0 trains nothing, for a control run.",
        json_schema_extra={"also": ["lr", "actor_learning_rate"]},
    )
    betas: tuple[Beta, Beta] = Field(default=(0.9, 0.999), description="Decay of the two running means.")
    weight_decay: float = Field(
        default=0.0, ge=0, description="Of matrices; norms and biases are not decayed."
    )
    eps: float = Field(default=1e-8, gt=0, description="AdamW's.")
    max_grad_norm: Annotated[float, Field(gt=0)] | None = Field(
        default=1.0,
        description="A longer gradient is scaled down to this; null leaves it.",
        json_schema_extra={"also": ["clip_grad", "grad_clip"]},
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant",
        description="Of the rate after the warm-up.",
        json_schema_extra={"also": ["lr_scheduler_type", "lr_scheduler"]},
    )
    warmup_steps: NonNegative = Field(
        default=0,
        description="Optimizer steps in which the rate rises to learning_rate.",
        json_schema_extra={"also": ["lr_warmup_steps", "num_warmup_steps"]},
    )
    min_lr_ratio: float = Field(
        default=0.0, ge=0, le=1, description="Where linear and cosine end, as a share of learning_rate."
    )

    def findings(self) -> Iterator[Finding]:
        if self.min_lr_ratio > 0 and self.schedule == "constant":
            yield Finding(
                path=("min_lr_ratio",),
                message="has no effect with schedule constant",
                got=f"{self.min_lr_ratio}",
                hint="choose schedule linear or cosine, or leave it out",
            )


class LoraConfig(Section):
    """An adapter that is trained in place of the model's weights."""

    rank: Count = Field(
        default=16, description="Inner width of its matrices.", json_schema_extra={"also": ["r", "lora_rank"]}
    )
    alpha: float = Field(
        default=32.0,
        gt=0,
        description="Their product is scaled by alpha / rank.",
        json_schema_extra={"also": ["lora_alpha"]},
    )
    target_modules: tuple[str, ...] = Field(
        default=("all-linear",),
        min_length=1,
        description="Linear layers that get one, by the ends of their names; all-linear is all but the head.",
        json_schema_extra={"also": ["lora_target"]},
    )
    rank_stabilised: bool = Field(
        default=False,
        description="Scale by alpha / sqrt(rank).",
        json_schema_extra={"also": ["use_rslora"]},
    )

    def findings(self) -> Iterator[Finding]:
        if "all-linear" in self.target_modules and len(self.target_modules) > 1:
            yield Finding(
                path=("target_modules",),
                message="names modules beside all-linear, which is all of them",
                got=f"{list(self.target_modules)}",
            )


class _LocalLearner(Section):
    """One process on one device."""

    backend: Literal["local"] = Field(default="local", description="What trains: `local`, one process.")
    optimizer: OptimizerConfig = Field(description="AdamW and its schedule.")
    micro_batch_tokens: Count = Field(
        default=16384,
        description="Most tokens (with padding) in one pass; the gradient does not depend on it.",
        json_schema_extra={
            "also": ["micro_batch_size", "micro_batch_size_per_gpu", "per_device_train_batch_size"]
        },
    )
    device: Device = Field(default="cpu", description="`cpu`, or one device such as `cuda:0`.")
    threads: Threads | None = Field(default=None, description="CPU threads; null takes all processors.")
    packing: bool = Field(
        default=False,
        description="Lay samples back to back in a pass, without padding; see docs/learners.md for models.",
        json_schema_extra={"also": ["use_sequence_packing", "sequence_packing", "use_remove_padding"]},
    )
    gradient_checkpointing: bool = Field(
        default=False,
        description="Keep only the input of each layer, and compute it again in the backward pass.",
        json_schema_extra={"also": ["recompute", "enable_gradient_checkpointing"]},
    )
    master_weights: bool = Field(
        default=True, description="Of a model in half precision: float32 copies that the optimizer updates."
    )
    autocast: bool = Field(default=False, description="Multiply in bfloat16; the model's dtype is float32.")
    compile: bool = Field(default=False, description="Run the decoder through torch.compile.")
    offload: tuple[Literal["optimizer", "parameters"], ...] = Field(
        default=(),
        description="What waits in host memory between the phases of a step; not on device cpu.",
    )
    router_aux_loss: float = Field(
        default=0.0,
        ge=0,
        description="Of a mixture of experts: weight of a loss that spreads tokens over the experts.",
        json_schema_extra={"also": ["router_aux_loss_coef", "moe_aux_loss_coeff"]},
    )
    lora: LoraConfig | None = Field(default=None, description="Train an adapter; null trains all weights.")

    def findings(self) -> Iterator[Finding]:
        if self.packing and self.compile:
            yield Finding(path=("compile",), message="not with packing", got="true", allowed="false")
        if self.offload and self.device == "cpu":
            yield Finding(
                path=("offload",),
                message="has no effect on device cpu",
                got=f"{list(self.offload)}",
                allowed="[]",
            )


class SupervisedLearnerConfig(_LocalLearner):
    """The learner of a supervised stage."""

    mini_batches: ClassVar[int] = 1
    """A supervised batch is one mini-batch ..."""
    epochs: ClassVar[int] = 1
    """... and is passed once."""


class PolicyLearnerConfig(_LocalLearner):
    """The learner of a reinforcement-learning stage."""

    mini_batches: Count = Field(
        default=1,
        description="Optimizer steps that a step's samples are divided into, as evenly as they go.",
        json_schema_extra={"also": ["ppo_mini_batch_size", "num_mini_batches"]},
    )
    epochs: Count = Field(
        default=1,
        description="Passes over a step's samples.",
        json_schema_extra={"also": ["ppo_epochs", "num_ppo_epochs", "num_iterations"]},
    )


class _Fsdp2Learner(Section):
    """A group of processes that hold the model in shards."""

    backend: Literal["fsdp2"] = Field(description="`fsdp2`: several processes; docs/distributed.md.")
    ranks: Count = Field(
        description="Processes in all.", json_schema_extra={"also": ["world_size", "n_gpus_per_node"]}
    )
    replicas: Count = Field(default=1, description="Copies of the model, each in shards of its own (HSDP).")
    context: Count = Field(
        default=1,
        description="Ranks that divide each sequence (Ulysses).",
        json_schema_extra={"also": ["ulysses_sequence_parallel_size", "context_parallel_size", "cp_size"]},
    )
    tensor: Count = Field(
        default=1,
        description="Ranks that divide each matrix product.",
        json_schema_extra={"also": ["tensor_parallel_size", "tp_size"]},
    )
    expert: Count = Field(
        default=1,
        description="Ranks that divide the experts of each sparse layer.",
        json_schema_extra={"also": ["expert_parallel_size", "ep_size"]},
    )
    precision: Precision | None = Field(
        default=None,
        description="Of the passes; null is the model's own, in which weights and optimizer stay anyway.",
    )
    reduce_precision: Precision = Field(default="float32", description="Of gradient sums, with `precision`.")
    reshard_after_forward: bool = Field(
        default=True, description="Gather a layer's weights again for the backward pass; saves memory."
    )
    offload: bool = Field(
        default=False, description="Keep weights and optimizer on the host; not on device cpu, which is it."
    )
    recompute: bool = Field(
        default=False,
        description="Keep only the input of each layer, and compute it again in the backward pass.",
        json_schema_extra={"also": ["gradient_checkpointing", "enable_gradient_checkpointing"]},
    )
    packing: bool = Field(default=False, description="Lay samples back to back in a pass, without padding.")
    optimizer: OptimizerConfig = Field(description="AdamW and its schedule.")
    micro_batch_tokens: Count = Field(
        default=16384,
        description="Most tokens (with padding) in one pass of a rank; the gradient does not depend on it.",
    )
    device: Device = Field(
        default="cpu", description="`cpu`, or the first rank's, such as `cuda:0`; the others take the next."
    )
    threads: Threads | None = Field(default=None, description="CPU threads of a rank; null shares them.")

    def findings(self) -> Iterator[Finding]:
        try:
            self.layout()
        except LearnerError as error:
            yield Finding(path=("ranks",), message=str(error), got=f"{self.ranks}")
        if self.offload and self.device == "cpu":
            yield Finding(path=("offload",), message="has no effect on device cpu", got="true")
        if self.packing and self.context > 1:
            yield Finding(
                path=("packing",), message=f"not with context {self.context}", got="true", allowed="false"
            )
        if self.reduce_precision != "float32" and self.precision is None:
            yield Finding(
                path=("reduce_precision",), message="has no effect without precision", got="bfloat16"
            )

    def layout(self) -> Layout:
        """Who holds what.

        Raises:
            LearnerError: Sizes whose product does not divide the ranks.
        """
        return Layout(
            ranks=self.ranks,
            replicas=self.replicas,
            context=self.context,
            tensor=self.tensor,
            expert=self.expert,
        )


class SupervisedFsdp2Config(_Fsdp2Learner):
    """The learner of a supervised stage on several ranks."""

    mini_batches: ClassVar[int] = 1
    """As of the local learner ..."""
    epochs: ClassVar[int] = 1
    """... of a supervised stage."""


class PolicyFsdp2Config(_Fsdp2Learner):
    """The learner of a reinforcement-learning stage on several ranks."""

    mini_batches: Count = Field(
        default=1, description="Optimizer steps that a step's samples are divided into, as evenly as they go."
    )
    epochs: Count = Field(default=1, description="Passes over a step's samples.")


LocalLearnerConfig: TypeAlias = SupervisedLearnerConfig | PolicyLearnerConfig
Fsdp2LearnerConfig: TypeAlias = SupervisedFsdp2Config | PolicyFsdp2Config
LearnerConfig: TypeAlias = LocalLearnerConfig | Fsdp2LearnerConfig

AnySupervisedLearner: TypeAlias = Annotated[
    SupervisedLearnerConfig | SupervisedFsdp2Config, Field(discriminator="backend")
]
AnyPolicyLearner: TypeAlias = Annotated[
    PolicyLearnerConfig | PolicyFsdp2Config, Field(discriminator="backend")
]
