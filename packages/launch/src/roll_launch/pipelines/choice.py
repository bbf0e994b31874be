"""The pipeline for a plan."""

from roll_launch.agentic_plan import AgenticPlan
from roll_launch.history import StageHistory
from roll_launch.offline_plan import OfflinePlan
from roll_launch.pipelines.agentic import AgenticPipeline
from roll_launch.pipelines.offline import OfflinePipeline
from roll_launch.pipelines.rlvr import RlvrPipeline
from roll_launch.pipelines.sft import SftPipeline
from roll_launch.pipelines.stage import RunContext
from roll_launch.plan import SftPlan, StagePlan


def pipeline_of(
    plan: StagePlan, context: RunContext, history: StageHistory | None
) -> SftPipeline | RlvrPipeline | AgenticPipeline | OfflinePipeline:
    """The pipeline that runs `plan`, or goes on from its history.

    Each has `run()`, and a `result` that is true at every step boundary.
    """
    if isinstance(plan, SftPlan):
        return SftPipeline(plan, context, history)
    if isinstance(plan, OfflinePlan):
        return OfflinePipeline(plan, context, history)
    if isinstance(plan, AgenticPlan):
        return AgenticPipeline(plan, context, history)
    return RlvrPipeline(plan, context, history)
