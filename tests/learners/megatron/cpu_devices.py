"""Megatron-Core on the CPU, for tests alone: what it asks of CUDA is answered by the CPU.

Megatron-Core 0.16 asks `torch.cuda` for devices, streams and random states wherever it runs, and tells the
dtype of a parameter by the name of its CUDA type. With these answers its own code runs over gloo. No product
code imports this file; a test's process does, before it makes a learner with the device "cpu".
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

FACTORIES = ("arange", "empty", "full", "ones", "rand", "randn", "tensor", "zeros")


class NoStream:
    """A stream, or an event, of a device that does all things in order."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., NoStream]:
        return lambda *_, **__: self


@contextlib.contextmanager
def no_stream(*_: object, **__: object) -> Iterator[None]:
    yield


def on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The factory, which makes on the CPU what is asked for on CUDA."""

    @functools.wraps(factory)
    def make(*arguments: Any, **options: Any) -> torch.Tensor:
        options.pop("pin_memory", None)
        if "cuda" in str(options.get("device", "")):
            options["device"] = "cpu"
        return factory(*arguments, **options)

    return make


def redirect() -> None:
    """Redirects the calls, in this process, for good."""
    if getattr(torch.cuda, "_redirected", False):
        return
    torch.cuda._redirected = True  # type: ignore[attr-defined]
    cuda: Any = torch.cuda
    cpu = torch.device("cpu")
    cuda.current_device = lambda: cpu
    cuda.device_count = lambda: 1
    for name in ("set_device", "synchronize", "empty_cache", "init"):
        setattr(cuda, name, lambda *_, **__: None)
    cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()
    cuda.set_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    cuda.manual_seed = torch.manual_seed
    cuda.random.get_rng_state = cuda.get_rng_state
    cuda.default_generators = (torch.default_generator,)
    cuda.Stream = cuda.Event = NoStream
    cuda.stream = no_stream
    cuda.current_stream = lambda *_: NoStream()
    cuda.nvtx.range_push = cuda.nvtx.range_pop = lambda *_: None
    for name in FACTORIES:
        setattr(torch, name, on_cpu(getattr(torch, name)))
    exchange = torch.distributed.all_to_all_single

    def all_to_all(
        output: torch.Tensor,
        given: torch.Tensor,
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        **options: Any,
    ) -> Any:
        # What is on the CPU already is not made into numbers by Megatron-Core.
        sizes = [
            each.tolist() if isinstance(each, torch.Tensor) else each
            for each in (output_split_sizes, input_split_sizes)
        ]
        return exchange(output, given, *sizes, **options)

    torch.distributed.all_to_all_single = all_to_all
    tensor: Any = torch.Tensor
    tensor.cuda = lambda self, *_, **__: self
    tensor.record_stream = lambda self, *_: None
    kind = tensor.type

    def type_name(self: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        named = kind(self, *arguments, **options)
        return named.replace("torch.", "torch.cuda.") if isinstance(named, str) else named

    tensor.type = type_name
