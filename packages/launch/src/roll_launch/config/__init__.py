"""A run's configuration: YAML, command line and environment, strictly checked before anything starts."""

from roll_launch.config.derived import Derived, derive, derived_rows, evaluation_steps
from roll_launch.config.document import Document
from roll_launch.config.dump import dump_config, dump_data, leaves, masked_keys
from roll_launch.config.existence import check_existence
from roll_launch.config.load import LoadedConfig, load_config, load_text
from roll_launch.config.problems import ConfigError, Problem
from roll_launch.config.schema.alarms import (
    AllMaskedConfig,
    EntropyCollapseConfig,
    EqualScoresConfig,
    FailureRateJumpConfig,
    KlExplosionConfig,
    LengthRewardConfig,
    ParseRateDropConfig,
    PolicyAlarmsConfig,
    RatioExplosionConfig,
    SkippedUpdateConfig,
    SupervisedAlarmsConfig,
    ZeroAdvantagesConfig,
)
from roll_launch.config.schema.algorithm import AlgorithmConfig, KlConfig
from roll_launch.config.schema.checkpoint import CheckpointConfig, PolicyDeadlines, SupervisedDeadlines
from roll_launch.config.schema.critics import CriticsConfig
from roll_launch.config.schema.data import (
    CurriculumConfig,
    DataConfig,
    DomainConfig,
    HfData,
    JsonlData,
    MixtureData,
    ParquetData,
    PromptDataConfig,
    PythonData,
    ReasoningGymData,
)
from roll_launch.config.schema.distillation import (
    DistillationStage,
    PolicyTeacherConfig,
    TeacherConfig,
)
from roll_launch.config.schema.engines import EngineConfig, TransformersEngineConfig, VllmEngineConfig
from roll_launch.config.schema.health import HealthConfig
from roll_launch.config.schema.learner import (
    LearnerConfig,
    OptimizerConfig,
    PolicyLearnerConfig,
    SupervisedLearnerConfig,
)
from roll_launch.config.schema.model import ModelConfig, PretrainedModel, RandomModel, StageModel
from roll_launch.config.schema.offline import GenerationConfig, OfflineEvaluationConfig
from roll_launch.config.schema.preference import PreferenceColumns, PreferenceStage, RewardModelRule
from roll_launch.config.schema.reward_roles import RewardModelConfig, placed_options
from roll_launch.config.schema.rewards import (
    AdaptiveDeadlineConfig,
    GraderConfig,
    OverlongConfig,
    RewardsConfig,
)
from roll_launch.config.schema.rollout import RolloutConfig, SamplingConfig
from roll_launch.config.schema.run import (
    LocalRuntimeConfig,
    PreparationConfig,
    RayRuntimeConfig,
    RunConfig,
    RuntimeConfig,
    TrackingConfig,
)
from roll_launch.config.schema.scheduling import (
    AsynchronyConfig,
    FiltersConfig,
    OverProvisionConfig,
    SchedulingConfig,
)
from roll_launch.config.schema.stages import EvaluationConfig, RlvrStage, SftStage, StageConfig
from roll_launch.config.section import Finding, Section

__all__ = [
    "AdaptiveDeadlineConfig",
    "AlgorithmConfig",
    "AllMaskedConfig",
    "AsynchronyConfig",
    "CheckpointConfig",
    "ConfigError",
    "CriticsConfig",
    "CurriculumConfig",
    "DataConfig",
    "Derived",
    "DistillationStage",
    "Document",
    "DomainConfig",
    "EngineConfig",
    "EntropyCollapseConfig",
    "EqualScoresConfig",
    "EvaluationConfig",
    "FailureRateJumpConfig",
    "FiltersConfig",
    "Finding",
    "GenerationConfig",
    "GraderConfig",
    "HealthConfig",
    "HfData",
    "JsonlData",
    "KlConfig",
    "KlExplosionConfig",
    "LearnerConfig",
    "LengthRewardConfig",
    "LoadedConfig",
    "LocalRuntimeConfig",
    "MixtureData",
    "ModelConfig",
    "OfflineEvaluationConfig",
    "OptimizerConfig",
    "OverProvisionConfig",
    "OverlongConfig",
    "ParquetData",
    "ParseRateDropConfig",
    "PolicyAlarmsConfig",
    "PolicyDeadlines",
    "PolicyLearnerConfig",
    "PolicyTeacherConfig",
    "PreferenceColumns",
    "PreferenceStage",
    "PreparationConfig",
    "PretrainedModel",
    "Problem",
    "PromptDataConfig",
    "PythonData",
    "RandomModel",
    "RatioExplosionConfig",
    "RayRuntimeConfig",
    "ReasoningGymData",
    "RewardModelConfig",
    "RewardModelRule",
    "RewardsConfig",
    "RlvrStage",
    "RolloutConfig",
    "RunConfig",
    "RuntimeConfig",
    "SamplingConfig",
    "SchedulingConfig",
    "Section",
    "SftStage",
    "SkippedUpdateConfig",
    "StageConfig",
    "StageModel",
    "SupervisedAlarmsConfig",
    "SupervisedDeadlines",
    "SupervisedLearnerConfig",
    "TeacherConfig",
    "TrackingConfig",
    "TransformersEngineConfig",
    "VllmEngineConfig",
    "ZeroAdvantagesConfig",
    "check_existence",
    "derive",
    "derived_rows",
    "dump_config",
    "dump_data",
    "evaluation_steps",
    "leaves",
    "load_config",
    "load_text",
    "masked_keys",
    "placed_options",
]
