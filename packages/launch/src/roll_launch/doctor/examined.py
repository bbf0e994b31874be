"""Builds what a stage's workers would build, in this process, and examines it. Imports torch."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch
from roll_rollout import Engine

from roll_launch.doctor.diagnosis import Diagnosis, Examination
from roll_launch.doctor.subject import Learned, Subject
from roll_launch.doctor.witness import Witness
from roll_launch.models import load_model, load_tokenizer
from roll_launch.pipelines import specs
from roll_launch.plan import RlvrPlan
from roll_launch.processors import processors
from roll_launch.roles import ModelSpec
from roll_launch.weight_sync import tolerance_of
from roll_launch.workers.actor import start_engine
from roll_launch.workers.learners import build_learner

PROMPTS = 8
MOST_TOKENS = 48
"""Of each fixed completion, so that a diagnosis takes seconds on a small model."""


async def diagnose_stage(plan: RlvrPlan, model: ModelSpec) -> Diagnosis:
    """Returns whether engine and learner of a stage agree, and why not.

    Args:
        plan: Of the stage.
        model: The weights of both.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="doctor") as executor:
        engine, learner = await _built(plan, model, executor)

        async def float32() -> tuple[Engine, Learned]:
            return await _built(plan, replace(model, dtype="float32"), executor)

        subject = Subject(
            engine=engine,
            learner=learner,
            witness=Witness(load_model(model)),
            tokenizer=load_tokenizer(model.tokenizer),
            directory=model.path or model.tokenizer,
            prompts=[prompt.token_ids for prompt in plan.prompts.prompts[:PROMPTS]],
            sampling=replace(plan.sampling, max_tokens=min(MOST_TOKENS, plan.sampling.max_tokens)),
            tolerance=tolerance_of(plan.stage.rollout, model.dtype),
            float32=None if model.dtype == "float32" else float32,
        )
        try:
            return await Examination(subject).run()
        finally:
            await engine.close()


async def _built(plan: RlvrPlan, model: ModelSpec, executor: ThreadPoolExecutor) -> tuple[Engine, Learned]:
    here = processors()
    torch.set_num_threads(here)
    engine = await start_engine(replace(specs.actor(plan, processors=here), model=model), executor)
    return engine, build_learner(replace(specs.policy_trainer(plan, processors=here), model=model))
