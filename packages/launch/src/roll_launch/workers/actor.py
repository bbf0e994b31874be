"""A rollout replica's work: one engine."""

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from pathlib import Path

import torch
from roll_rollout import Engine, RecordingEngine
from roll_rollout.transformers_engine import TransformersEngine
from transformers.utils.logging import disable_progress_bar

from roll_launch.config import (
    OpenaiEngineConfig,
    ReplayEngineConfig,
    ScriptedEngineConfig,
    SglangEngineConfig,
    TransformersEngineConfig,
    VllmEngineConfig,
)
from roll_launch.models import load_model, load_tokenizer, save_pretrained
from roll_launch.roles import ActorSpec, ModelSpec
from roll_launch.workers.engines_elsewhere import replay_engine, scripted_engine, start_openai, start_sglang


async def start_engine(spec: ActorSpec, executor: Executor) -> Engine:
    """The engine of `spec`, with the weights that its model spec names; it computes on `executor`, if it
    computes in this process. What it generates is written down where `spec` says."""
    engine = await _started(spec, executor)
    if spec.record is None:
        return engine
    # One file a start, in the order of the starts: what a replacement adds is not mixed into what was there.
    return RecordingEngine(engine, spec.record / f"{time.time_ns():020d}-{os.getpid()}.jsonl")


async def _started(spec: ActorSpec, executor: Executor) -> Engine:
    config = spec.engine
    if isinstance(config, SglangEngineConfig):
        return await start_sglang(spec, config)
    if isinstance(config, OpenaiEngineConfig):
        return await start_openai(spec, config)
    if isinstance(config, ReplayEngineConfig):
        return replay_engine(config)
    if isinstance(config, ScriptedEngineConfig):
        return scripted_engine(spec, config)
    torch.set_num_threads(spec.threads)
    disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers leaves it without annotations
    if isinstance(config, VllmEngineConfig):
        return await _start_vllm(spec, config)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(executor, _build_transformers, spec, config, executor)


def _build_transformers(
    spec: ActorSpec, config: TransformersEngineConfig, executor: Executor
) -> TransformersEngine:
    torch.set_num_threads(spec.threads)
    model = load_model(spec.model)
    model.to(config.device)  # type: ignore[arg-type]  # transformers types `to` for a bound module
    return TransformersEngine(
        model,
        tokenizer=load_tokenizer(spec.model.tokenizer),
        max_batch=config.max_batch,
        max_context=spec.max_context,
        executor=executor,
    )


async def _start_vllm(spec: ActorSpec, config: VllmEngineConfig) -> Engine:
    from roll_rollout.vllm_engine import VLLMEngine

    # Its processes take these over; on a CPU they would claim processors one by one otherwise.
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ["OMP_NUM_THREADS"] = str(spec.threads)
    async with _as_directory(spec.model) as path:
        return await VLLMEngine.start(
            path,
            dtype=spec.model.dtype,
            tokenizer=spec.model.tokenizer,
            max_batch=config.max_batch,
            max_context=spec.max_context,
            options=config.options,
        )


@asynccontextmanager
async def _as_directory(model: ModelSpec) -> AsyncIterator[Path]:
    """A Hugging Face directory of the model; of new weights one that is there while the body runs."""
    if model.path is not None:
        yield model.path
        return
    with tempfile.TemporaryDirectory(prefix="roll-model-") as scratch:
        save_pretrained(load_model(model), load_tokenizer(model.tokenizer), Path(scratch))
        yield Path(scratch)
