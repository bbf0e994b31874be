"""What `roll-launch check` says of teachers, reward models, and stages that train on given rows."""

from roll_launch.offline_plan import OfflinePlan
from roll_launch.pipelines import specs
from roll_launch.plan import RlvrPlan

Lines = list[tuple[str, str]]


def offline_data_rows(plan: OfflinePlan) -> Lines:
    """Rows, epochs and what is held out."""
    stage = plan.stage
    epochs = stage.steps * stage.batch_size / len(plan.rows)
    what = "pairs" if len(plan.rows[0]) == 2 else "responses"
    left_out = f"{plan.dropped:,} too long, {plan.empty:,} empty or equal"
    lines = [(what, f"{len(plan.rows):,} ({left_out}), {epochs:.2f} epochs")]
    if plan.heldout:
        lines.append((f"held-out {what}", f"{len(plan.heldout):,}"))
    if plan.generation is not None and plan.generation.heldout is not None:
        lines.append(("held-out prompts", f"{len(plan.generation.heldout.prompts):,}"))
    return lines


def offline_layout_rows(plan: OfflinePlan, where: str, *, processors: int) -> Lines:
    """Each role of a stage on given rows.

    Args:
        plan: Of the stage.
        where: What a role is, such as "Ray actor".
        processors: Of this machine.
    """
    spec = specs.offline_trainer(plan, processors=processors)
    device, threads = plan.stage.learner.device, spec.trainer.threads
    lines = [("trainer", f"1 {where} on {device}, {threads} threads")]
    for number, teacher in enumerate(spec.teachers):
        placed = f"{where} on {teacher.device}, {teacher.threads} threads"
        lines.append((f"teacher {number}", placed if teacher.own else "in the trainer's process"))
    if plan.generation is not None:
        rollout = plan.generation.stage.rollout
        lines.append(
            ("actors", f"{rollout.replicas} {where}(s), {rollout.engine.kind} engine, for evaluations")
        )
        lines += side_layout_rows(plan.generation, where, processors=processors)
    return lines


def side_layout_rows(plan: RlvrPlan, where: str, *, processors: int) -> Lines:
    """Teachers and reward models of a stage of reinforcement learning."""
    lines = []
    for number, teacher in enumerate(specs.policy_trainer(plan, processors=processors).teachers):
        placed = f"{where} on {teacher.device}, {teacher.threads} threads"
        lines.append((f"teacher {number}", placed if teacher.own else "in the trainer's process"))
    for model in plan.stage.rewards.models:
        placed = f"{model.replicas} {where}(s) on {model.device}"
        lines.append((f"reward model {model.name}", placed if model.placement == "own" else "in each worker"))
    return lines
