"""One step on preferences between responses: pairs, single responses, or the scores of a reward model.

Log-probs of all responses are computed first, then the loss with its derivatives, then one update; see
`roll_learners.sequence_objective`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from roll_learners.critic import Critic, ended
from roll_learners.errors import LearnerError
from roll_learners.learner import Learner, LogprobSource
from roll_learners.losses.preference import bradley_terry, kto, kto_baseline, preference_logits
from roll_learners.metrics import prefixed
from roll_learners.preference import Kto, Preference
from roll_learners.registry import PREFERENCE_LOSSES
from roll_learners.sample import Sample
from roll_learners.sequence_objective import SequenceObjective, shares_and_slopes
from roll_learners.update import StepResult, UpdateResult
from roll_learners.value_objective import ScoreObjective


class _Scored(NamedTuple):
    """Responses with a loss, before any update.

    Attributes:
        samples: S of them, as a learner or critic is to compute them.
        losses: Of pairs or of responses; their mean is the loss.
        values: float64[S], the leaf that the losses depend on.
        metrics: By the names that people search for.
    """

    samples: list[Sample]
    losses: Tensor
    values: Tensor
    metrics: dict[str, float]

    def with_loss(self, prefix: str) -> dict[str, float]:
        return {f"{prefix}/sequence_loss": self.losses.detach().mean().item(), **self.metrics}


class Pair(NamedTuple):
    """Two responses to one prompt.

    Attributes:
        chosen: The better one.
        rejected: The other.
    """

    chosen: Sample
    rejected: Sample


def preference_step(
    learner: Learner,
    pairs: Sequence[Pair],
    preference: Preference,
    *,
    reference: LogprobSource | None = None,
) -> StepResult:
    """One update on pairs, each weighing the same.

    Args:
        learner: What is trained; its temperature should be 1.
        pairs: Any pairs with trained tokens in both responses.
        preference: What is computed.
        reference: Needed unless the loss has none.

    Returns:
        actor/sequence_loss; rewards/chosen, rewards/rejected and rewards/margins (log-ratios to the
        reference, or log-probs where there is none, before any beta), rewards/accuracies (the share of pairs
        whose margin is above 0), logps/chosen and logps/rejected; and what each update gives.

    Raises:
        LearnerError: No pair, a response without a trained token, or no reference where one is needed.
    """
    scored = _scored_pairs("preference_step", learner, pairs, preference, reference)
    share, slope = shares_and_slopes(scored.losses, scored.values)
    result = learner.update(scored.samples, SequenceObjective(), share=share.numpy(), slope=slope.numpy())
    return _result(result, "actor", scored.metrics)


def preference_metrics(
    policy: LogprobSource,
    pairs: Sequence[Pair],
    preference: Preference,
    *,
    reference: LogprobSource | None = None,
) -> dict[str, float]:
    """What `preference_step` says of pairs, without an update.

    Args:
        policy: The model.
        pairs: Any pairs with trained tokens in both responses.
        preference: What is computed.
        reference: Needed unless the loss has none.

    Raises:
        LearnerError: As `preference_step`.
    """
    return _scored_pairs("preference_metrics", policy, pairs, preference, reference).with_loss("actor")


def kto_step(
    learner: Learner, samples: Sequence[Sample], rule: Kto, *, reference: LogprobSource
) -> StepResult:
    """One update on single responses; those with a reward above 0 are desirable.

    The baseline is estimated from each prompt with the response of the next sample, so at least two
    samples are needed.

    Args:
        learner: What is trained; its temperature should be 1.
        samples: Each one turn: a prompt and a response.
        rule: What is computed.
        reference: What the policy is compared with.

    Returns:
        actor/sequence_loss, kto/baseline, rewards/desirable and rewards/undesirable (mean log-ratios).

    Raises:
        LearnerError: Fewer than two samples, or one without a trained token.
    """
    scored = _scored_responses("kto_step", learner, samples, rule, reference)
    share, slope = shares_and_slopes(scored.losses, scored.values)
    result = learner.update(samples, SequenceObjective(), share=share.numpy(), slope=slope.numpy())
    return _result(result, "actor", scored.metrics)


def kto_metrics(
    policy: LogprobSource, samples: Sequence[Sample], rule: Kto, *, reference: LogprobSource
) -> dict[str, float]:
    """What `kto_step` says of responses, without an update.

    Args:
        policy: The model.
        samples: At least two, each one turn.
        rule: What is computed.
        reference: What the policy is compared with.

    Raises:
        LearnerError: As `kto_step`.
    """
    return _scored_responses("kto_metrics", policy, samples, rule, reference).with_loss("actor")


def reward_model_step(critic: Critic, pairs: Sequence[Pair], *, margin: float = 0.0) -> StepResult:
    """One update of a reward model on pairs, by the Bradley-Terry loss of their scores.

    Args:
        critic: What is trained; the score of a response is its value after the last token.
        pairs: Any pairs.
        margin: By how much the chosen score should be higher.

    Returns:
        critic/sequence_loss, rewards/chosen, rewards/rejected, rewards/margins and rewards/accuracies.

    Raises:
        LearnerError: No pair, or an empty response.
    """
    scored = _scored_by(critic, pairs, margin)
    share, slope = shares_and_slopes(scored.losses, scored.values)
    result = critic.update(scored.samples, ScoreObjective(), share=share.numpy(), slope=slope.numpy())
    return _result(result, "critic", scored.metrics)


def reward_model_metrics(critic: Critic, pairs: Sequence[Pair], *, margin: float = 0.0) -> dict[str, float]:
    """What `reward_model_step` says of pairs, without an update.

    Args:
        critic: The reward model.
        pairs: Any pairs.
        margin: By how much the chosen score should be higher.

    Raises:
        LearnerError: As `reward_model_step`.
    """
    return _scored_by(critic, pairs, margin).with_loss("critic")


def _scored_pairs(
    name: str,
    policy_model: LogprobSource,
    pairs: Sequence[Pair],
    preference: Preference,
    reference: LogprobSource | None,
) -> _Scored:
    samples = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    _check_trained(name, samples)
    if preference.needs_reference and reference is None:
        raise LearnerError(f"preference loss {preference.loss!r} compares with a reference: one is needed")
    lengths = _lengths(samples)
    sums = _sums(policy_model, samples).requires_grad_()
    scale = lengths if preference.average else torch.ones_like(lengths)
    policy = sums / scale
    ref = torch.zeros_like(policy)
    if preference.needs_reference and reference is not None:
        ref = _sums(reference, samples) / scale
    (chosen, rejected), (ref_chosen, ref_rejected) = policy.chunk(2), ref.chunk(2)
    losses: Tensor = PREFERENCE_LOSSES.bind(preference.loss, preference.options)(
        logits=preference_logits(chosen, rejected, ref_chosen, ref_rejected), chosen=chosen, rejected=rejected
    )
    if preference.nll_coef:
        losses = losses - preference.nll_coef * (sums / lengths).chunk(2)[0]
    gains = (policy - ref).detach().chunk(2)
    metrics = {**_pair_metrics(*gains), "logps/chosen": _mean(chosen), "logps/rejected": _mean(rejected)}
    return _Scored(samples=samples, losses=losses, values=sums, metrics=metrics)


def _scored_responses(
    name: str, policy_model: LogprobSource, samples: Sequence[Sample], rule: Kto, reference: LogprobSource
) -> _Scored:
    _check_trained(name, samples)
    if len(samples) < 2:
        raise LearnerError(f"{name}: {len(samples)} sample: at least 2 are needed for the baseline")
    mismatched = [_with_response(own, samples[i - 1]) for i, own in enumerate(samples)]
    baseline = kto_baseline(_sums(policy_model, mismatched), _sums(reference, mismatched))
    policy, ref = _sums(policy_model, samples).requires_grad_(), _sums(reference, samples)
    desirable = torch.tensor([sample.reward > 0 for sample in samples])
    losses = kto(
        policy,
        ref,
        desirable,
        baseline,
        beta=rule.beta,
        desirable_weight=rule.desirable_weight,
        undesirable_weight=rule.undesirable_weight,
    )
    gains = (policy - ref).detach()
    metrics = {"kto/baseline": baseline.item()}
    for label, chosen in (("desirable", desirable), ("undesirable", ~desirable)):
        if chosen.any():
            metrics[f"rewards/{label}"] = _mean(gains[chosen])
    return _Scored(samples=list(samples), losses=losses, values=policy, metrics=metrics)


def _scored_by(critic: Critic, pairs: Sequence[Pair], margin: float) -> _Scored:
    samples = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    _check_trained("reward_model_step", samples)
    ends = [ended(sample) for sample in samples]
    columns = critic.values(ends)
    scores = torch.tensor([float(column[-1]) for column in columns], dtype=torch.float64).requires_grad_()
    losses = bradley_terry(*scores.chunk(2), margin=margin)
    return _Scored(
        samples=ends, losses=losses, values=scores, metrics=_pair_metrics(*scores.detach().chunk(2))
    )


def _result(result: UpdateResult, prefix: str, metrics: dict[str, float]) -> StepResult:
    skipped = () if result.skipped is None else (result.skipped,)
    return StepResult(
        metrics=prefixed(result.metrics, prefix) | metrics, updates=1 - len(skipped), skipped=skipped
    )


def _pair_metrics(chosen: Tensor, rejected: Tensor) -> dict[str, float]:
    return {
        "rewards/chosen": _mean(chosen),
        "rewards/rejected": _mean(rejected),
        "rewards/margins": _mean(chosen - rejected),
        "rewards/accuracies": _mean((chosen > rejected).double()),
    }


def _mean(values: Tensor) -> float:
    return values.detach().mean().item()


def _lengths(samples: Sequence[Sample]) -> Tensor:
    return torch.tensor([sample.response_tokens for sample in samples], dtype=torch.float64)


def _sums(source: LogprobSource, samples: Sequence[Sample]) -> Tensor:
    """float64[S], log-probs of whole responses; columns are 0 where no token is trained."""
    columns: list[npt.NDArray[np.floating]] = source.logprobs(samples)
    return torch.tensor([column.sum(dtype=np.float64) for column in columns], dtype=torch.float64)


def _with_response(prompt: Sample, response: Sample) -> Sample:
    """The prompt of one sample with what follows the prompt of another."""
    start, other = int(prompt.response_mask.argmax()), int(response.response_mask.argmax())
    return Sample(
        token_ids=np.concatenate([prompt.token_ids[:start], response.token_ids[other:]]),
        response_mask=np.concatenate([prompt.response_mask[:start], response.response_mask[other:]]),
    )


def _check_trained(name: str, samples: Sequence[Sample]) -> None:
    empty = [i for i, sample in enumerate(samples) if not sample.response_tokens]
    if empty or not samples:
        raise LearnerError(
            f"{name}: {len(samples)} responses, of which {empty} have no trained token: each needs one"
        )
