"""How vLLM is started: which versions this adapter was written for, and what it takes of vLLM's options."""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roll_rollout.capabilities import EngineCapabilities
from roll_rollout.errors import EngineError, EngineLibraryError
from roll_rollout.media import MediaKind
from roll_rollout.releases import check_release, spelled
from roll_rollout.stop_strings import Decode

SUPPORTED_VERSIONS = ((0, 32), (0, 34))
"""vLLM from the first of these on, and before the second."""

WORKER_EXTENSION = "roll_rollout.vllm_engine.worker.CpuWorkerExtension"

_OURS = {
    "model": "path",
    "tokenizer": "tokenizer",
    "dtype": "dtype",
    "max_num_seqs": "max_batch",
    "max_model_len": "max_context",
    "logprobs_mode": "what the engine promises",
    "generation_config": "what the engine promises",
    "skip_tokenizer_init": "tokenizer",
}


def check_library() -> None:
    """Returns if vLLM is installed in a version that this adapter was written for.

    Raises:
        EngineLibraryError: It is not; names both.
    """
    allowed = spelled(SUPPORTED_VERSIONS)
    try:
        from vllm import __version__
    except ImportError as error:
        install = 'pip install "roll-rollout[vllm]"'
        raise EngineLibraryError(
            f"the vLLM engine needs vLLM {allowed} ({install}), and importing it failed: {error}"
        ) from error
    check_release("vLLM", __version__, SUPPORTED_VERSIONS)


def runs_on_cpu() -> bool:
    """Returns whether vLLM was built for CPUs."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def engine_arguments(
    path: Path,
    *,
    tokenizer: Path | None,
    dtype: str,
    max_batch: int,
    max_context: int | None,
    options: Mapping[str, Any],
) -> Any:
    """Returns vLLM's `AsyncEngineArgs`.

    Args:
        path: Model directory.
        tokenizer: Directory of the tokenizer; None starts vLLM without one.
        dtype: Of weights and activations.
        max_batch: Most sequences at once.
        max_context: Most tokens of prompt and completion.
        options: More of vLLM's own arguments.

    Raises:
        EngineError: An option is unknown to vLLM, or set by an argument of the engine; names the nearest.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs

    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    for name in options:
        if name in _OURS:
            raise EngineError(f"vLLM option {name!r} is set by the engine, from {_OURS[name]}")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f", the nearest is {near[0]!r}" if near else ""
            raise EngineError(f"vLLM option {name!r} is unknown to vLLM{hint}")
    settings: dict[str, Any] = {"enable_prefix_caching": True, "enable_log_requests": False}
    settings |= options
    if runs_on_cpu():
        settings["worker_extension_cls"] = WORKER_EXTENSION
        if settings.get("enable_lora"):
            # Tokens without an adapter are given the last slot there (vLLM 0.32), which so stays empty.
            settings["max_loras"] = int(settings.get("max_loras", 1)) + 1
    return AsyncEngineArgs(
        **settings,
        model=str(path),
        tokenizer=None if tokenizer is None else str(tokenizer),
        skip_tokenizer_init=tokenizer is None,
        dtype=dtype,
        max_num_seqs=max_batch,
        max_model_len=max_context,
        # After temperature and filters: the distribution that tokens are drawn from.
        logprobs_mode="processed_logprobs",
        # The model's own sampling defaults and end tokens stay out: requests say it all.
        generation_config="vllm",
    )


def offered(options: Mapping[str, Any], *, stop_strings: bool) -> EngineCapabilities:
    """Returns what an engine can do that was started with these options of vLLM."""
    limits: Mapping[str, Any] = options.get("limit_mm_per_prompt") or {}
    kinds: tuple[MediaKind, ...] = ("image", "video", "audio")
    return EngineCapabilities(
        stop_strings=stop_strings,
        refreshes_kv=True,
        shared_prefill=bool(options.get("enable_prefix_caching", True)),
        continuation="fresh",
        streaming=True,
        pause_modes=("keep", "abort", "wait"),
        sleep_levels=(1, 2) if options.get("enable_sleep_mode") else (),
        prefix_cache=True,
        adapters=bool(options.get("enable_lora")),
        media=tuple(kind for kind in kinds if limits.get(kind)),
        routed_experts=bool(options.get("enable_return_routed_experts")),
        health=True,
    )


def decoder(tokenizer: Any) -> Decode:
    """Returns the function from ids to text of vLLM's tokenizer, special tokens included."""

    def decode(token_ids: Sequence[int] | np.ndarray) -> str:
        return str(tokenizer.decode(np.asarray(token_ids).tolist(), skip_special_tokens=False))

    return decode
