"""A rollout replica's work: one engine."""

from concurrent.futures import Executor

import torch
from roll_rollout.transformers_engine import TransformersEngine
from transformers.utils.logging import disable_progress_bar

from roll_launch.models import load_model, load_tokenizer
from roll_launch.roles import ActorSpec


def build_engine(spec: ActorSpec, executor: Executor | None = None) -> TransformersEngine:
    """The engine of `spec`, with the weights that its model spec names; it computes on `executor`."""
    torch.set_num_threads(spec.threads)
    disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers leaves it without annotations
    model = load_model(spec.model)
    model.to(spec.engine.device)  # type: ignore[arg-type]  # transformers types `to` for a bound module
    return TransformersEngine(
        model,
        tokenizer=load_tokenizer(spec.model.tokenizer),
        max_batch=spec.engine.max_batch,
        max_context=spec.max_context,
        executor=executor,
    )
