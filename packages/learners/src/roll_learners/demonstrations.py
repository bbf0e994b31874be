"""Samples of supervised training, from token ids: ends, limits, and what is left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from roll_learners.errors import LearnerError
from roll_learners.sample import Sample


class Demonstrations(NamedTuple):
    """Attributes:
    samples: Those with a response.
    empty: How many had none and were left out.
    """

    samples: list[Sample]
    empty: int


def demonstrations(
    rows: Iterable[tuple[Sequence[int], Sequence[int]]], *, end_token_id: int
) -> Demonstrations:
    """A sample of each prompt and response, whose end token is trained; a missing one is appended once.

    Args:
        rows: Token ids of prompts, each at least one, and of responses.
        end_token_id: What the model must learn to stop with.

    Raises:
        LearnerError: A prompt is empty: nothing would predict the response's first token.
    """
    samples, empty = [], 0
    for prompt, response in rows:
        if not len(response):
            empty += 1
            continue
        ended = [*response] if response[-1] == end_token_id else [*response, end_token_id]
        samples.append(
            Sample.from_completion(np.array(prompt, np.int32), np.array(ended, np.int32), reward=1.0)
        )
    return Demonstrations(samples=samples, empty=empty)


def keep_end(sample: Sample, longest: int) -> Sample:
    """The last `longest` tokens of a sample, of which the first is not trained: nothing is left before it.

    Args:
        sample: Without turn rewards or states, whose turns a cut would change.
        longest: At least 1.

    Raises:
        LearnerError: A limit below 1, or a sample with turn rewards or states.
    """
    if longest < 1 or sample.turn_rewards is not None or sample.turn_states is not None:
        raise LearnerError(
            f"keep_end: longest {longest}, turn_rewards {sample.turn_rewards}, turn_states "
            f"{sample.turn_states}: allowed are at least 1 token and neither of the others"
        )
    if len(sample.token_ids) <= longest:
        return sample
    mask = sample.response_mask[-longest:].copy()
    mask[0] = False
    behavior = sample.behavior_logprobs
    return replace(
        sample,
        token_ids=sample.token_ids[-longest:],
        response_mask=mask,
        behavior_logprobs=None if behavior is None else behavior[-longest:],
    )
