"""`roll-launch doctor logprobs`: engine and learner of a stage, built in this process and compared."""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from roll_launch import checkpoint_store as store
from roll_launch.config import StageModel
from roll_launch.errors import RollLaunchError
from roll_launch.inputs import load_inputs
from roll_launch.plan import RlvrPlan, StagePlan, plan_stages
from roll_launch.roles import ModelSpec
from roll_launch.run_directory import RunDirectory, write_json


class DoctorError(RollLaunchError):
    """There is nothing to examine."""


def doctor_logprobs(
    target: Path, overrides: Sequence[str], *, stage: str | None, json_path: Path | None
) -> int:
    """Prints whether engine and learner agree, and why not; returns 0 if they do, else 1.

    Of a configuration the weights that a stage begins with are taken (those of the first stage's model, where
    it comes from an earlier stage); of a run those of its newest checkpoint or of its finished model.

    Args:
        target: A configuration or a run directory.
        overrides: Values to change.
        stage: Its name; None takes the last one that generates.
        json_path: Where the findings are written; None writes `doctor/logprobs.json` into the run directory,
            and nothing for a configuration.

    Raises:
        RollLaunchError: Bad input.
    """
    messages = Console(stderr=True)
    run = RunDirectory.reopen(target) if target.is_dir() else None
    if run is not None:
        started_in, _ = run.origin()
        os.chdir(started_in)
    loaded = load_inputs(run.config if run is not None else target, overrides, messages)
    directory = run or RunDirectory(root=loaded.config.directory.absolute() / "checked")
    plans = plan_stages(loaded.config, directory)
    plan = _chosen(plans, stage)
    model = _weights(plans, plan) if run is None else _weights_of_run(run, plan)
    messages.print(
        f"stage {plan.stage.name}: weights of {_named(model)}, in this process", markup=False, soft_wrap=True
    )
    console = Console(file=sys.stdout, soft_wrap=True, highlight=False)
    logged = _logged(run, plan.stage.name) if run is not None else {}
    if logged:
        console.print(
            "logged by the run: "
            + ", ".join(f"{name.rpartition('_')[2]} {value:.2g}" for name, value in logged.items())
            + " (training/rollout_probs_diff_*, largest over all steps)",
            markup=False,
        )
    # torch and transformers load here.
    from roll_launch.doctor.examined import diagnose_stage
    from roll_launch.doctor.report import as_json, print_report

    diagnosis = asyncio.run(diagnose_stage(plan, model))
    print_report(diagnosis, console)
    if json_path is None and run is not None:
        (run.root / "doctor").mkdir(exist_ok=True)
        json_path = run.root / "doctor" / "logprobs.json"
    if json_path is not None:
        write_json(json_path, {"stage": plan.stage.name, "logged": logged, **as_json(diagnosis)})
        messages.print(f"written to {json_path}", markup=False, soft_wrap=True)
    return 0 if diagnosis.cause is None else 1


def _chosen(plans: Sequence[StagePlan], stage: str | None) -> RlvrPlan:
    found = [plan for plan in plans if isinstance(plan, RlvrPlan)]
    names = [plan.stage.name for plan in found]
    if not found:
        raise DoctorError(
            "doctor logprobs: no stage generates; allowed is a configuration with an rlvr stage"
        )
    if stage is None:
        return found[-1]
    if stage not in names:
        raise DoctorError(f"doctor logprobs: --stage is {stage!r}; allowed are {', '.join(names)}")
    return found[names.index(stage)]


def _weights(plans: Sequence[StagePlan], plan: StagePlan) -> ModelSpec:
    """The model of a stage; where an earlier stage will make it, the one which that stage begins with."""
    model = plan.stage.model
    if not isinstance(model, StageModel):
        return plan.model
    return _weights(plans, next(each for each in plans if each.stage.name == model.stage))


def _weights_of_run(run: RunDirectory, plan: RlvrPlan) -> ModelSpec:
    name = plan.stage.name
    newest = store.newest(run.checkpoints(name))
    for path in (run.model(name), newest, plan.model.path):
        if path is not None and (path / "config.json").is_file():
            return replace(plan.model, path=path)
    if plan.model.path is None:
        return plan.model
    raise DoctorError(f"doctor logprobs: stage {name} of {run.root} has no weights yet")


def _named(model: ModelSpec) -> str:
    return str(model.path) if model.path is not None else f"a new {model.architecture} (seed {model.seed})"


def _logged(run: RunDirectory, stage: str) -> dict[str, float]:
    """The largest training/rollout_probs_diff_* of a stage's steps."""
    found: dict[str, float] = {}
    try:
        lines = run.metrics.read_text(encoding="utf-8").splitlines()
    except OSError:
        return found
    for line in lines:
        try:
            values = json.loads(line)
        except ValueError:
            continue
        if not isinstance(values, dict) or values.get("stage") != stage:
            continue
        for name, value in values.items():
            if name.startswith("training/rollout_probs_diff_") and isinstance(value, float | int):
                found[name] = max(found.get(name, 0.0), float(value))
    return found
