"""The pipeline for a plan."""

from roll_launch.pipelines.rlvr import RlvrPipeline
from roll_launch.pipelines.sft import SftPipeline
from roll_launch.pipelines.stage import RunContext
from roll_launch.plan import SftPlan, StagePlan


def pipeline_of(plan: StagePlan, context: RunContext) -> SftPipeline | RlvrPipeline:
    """The pipeline that runs `plan`; each has `run()` and a `result` that is true at every step boundary."""
    return SftPipeline(plan, context) if isinstance(plan, SftPlan) else RlvrPipeline(plan, context)
