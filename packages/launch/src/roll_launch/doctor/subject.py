"""What the doctor looks at: an engine, a learner, the plainest computation, and sequences to compare."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from roll_learners.sample import Sample
from roll_rollout import Completion, Engine, GenerateRequest, SamplingParams
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from roll_launch.doctor.witness import Witness

FORCED_TOKENS = 24
"""Ids of no sense that forced sequences begin with, after their prompt."""


class Learned(Protocol):
    """What is asked of a learner."""

    def logprobs(self, samples: Sequence[Sample]) -> Sequence[np.ndarray]:
        """The log-prob of each trained token: an array [N] for each sample."""
        ...

    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Name and tensor of each weight, as engines take them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An engine and a learner that should agree.

    Attributes:
        engine: As a stage has it.
        learner: As the stage has it.
        witness: The learner's weights in the plainest computation.
        tokenizer: Of the policy.
        directory: Of the tokenizer, where a generation_config.json may be.
        prompts: int32[P] each, of the stage's data.
        sampling: Of the stage, shortened.
        tolerance: Most nats by which one token may differ.
        version: Policy version that the engine's weights have.
        float32: Makes an engine and a learner of the same weights in float32; None where they are already.
    """

    engine: Engine
    learner: Learned
    witness: Witness
    tokenizer: PreTrainedTokenizerFast
    directory: Path
    prompts: Sequence[np.ndarray]
    sampling: SamplingParams
    tolerance: float
    version: int = 0
    float32: Callable[[], Awaitable[tuple[Engine, Learned]]] | None = None

    def requests(self) -> list[GenerateRequest]:
        """Returns the fixed requests: two seeds a prompt, and forced beginnings after half of the prompts."""
        found = [
            GenerateRequest(id=f"doctor/{index}/{seed}", prompt_ids=prompt, seed=seed, sampling=self.sampling)
            for index, prompt in enumerate(self.prompts)
            for seed in (11, 12)
        ]
        known = np.unique(np.concatenate(list(self.prompts)))
        short = replace(self.sampling, max_tokens=min(8, self.sampling.max_tokens), stop=())
        for index, prompt in enumerate(self.prompts[::2]):
            forced = np.random.default_rng(index).choice(known, FORCED_TOKENS)
            ids = np.concatenate([prompt, forced]).astype(np.int32)
            found.append(
                GenerateRequest(id=f"doctor/forced/{index}", prompt_ids=ids, seed=13, sampling=short)
            )
        return found


async def sampled(engine: Engine, requests: Sequence[GenerateRequest]) -> list[Completion]:
    """Returns the completions of requests that are sent together; those without a token are left out."""
    completions = await asyncio.gather(*[engine.generate(request) for request in requests])
    return [completion for completion in completions if len(completion)]


def by_learner(learner: Learned, completions: Sequence[Completion]) -> list[np.ndarray]:
    """Returns what a learner gives each token of completions that it scores together: float[T] each."""
    samples = [
        Sample.from_completion(
            each.prompt_ids, each.token_ids, np.nan_to_num(each.logprobs), reward=0.0, group=0, version=0
        )
        for each in completions
    ]
    scored = learner.logprobs(samples)
    return [
        np.asarray(row)[len(each.prompt_ids) : len(each.prompt_ids) + len(each)]
        for row, each in zip(scored, completions, strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Differences of log-probs over all tokens: `Gap(largest=0.41, mean=0.02, tokens=512)`, in nats."""

    largest: float
    mean: float
    tokens: int

    @classmethod
    def between(cls, first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> "Gap":
        """That of two opinions on the same tokens. What is not finite on one side alone is infinite."""
        one, other = np.concatenate(list(first)), np.concatenate(list(second))
        with np.errstate(invalid="ignore"):
            gaps = np.abs(one.astype(np.float64) - other)
        gaps = np.where(np.isnan(gaps), np.inf, gaps)
        return cls(largest=float(gaps.max(initial=0.0)), mean=float(gaps.mean()), tokens=gaps.size)
