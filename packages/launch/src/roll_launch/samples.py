"""From one package's record to the next: the only place where a completion becomes a training sample."""

from roll_learners.sample import Sample
from roll_rollout import Completion


def sample_from_completion(completion: Completion, *, reward: float, group: int) -> Sample:
    """The training sample of a completion: its own token ids, untouched, with the engine's log-probs."""
    return Sample.from_completion(
        completion.prompt_ids,
        completion.token_ids,
        completion.logprobs,
        reward=reward,
        group=group,
        version=completion.oldest_version,
        truncated=completion.finish_reason == "length",
    )
