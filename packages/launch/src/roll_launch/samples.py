"""From one package's record to the next: the only place where a completion becomes a training sample."""

from roll_learners.sample import Sample
from roll_rollout import Completion

from roll_launch.errors import RollLaunchError


class SampleError(RollLaunchError):
    """A completion cannot be trained on."""


def sample_from_completion(completion: Completion, *, reward: float, group: int) -> Sample:
    """The training sample of a completion: its own token ids, untouched, with the engine's log-probs.

    Raises:
        SampleError: Its ids are not those that were sampled.
    """
    if not completion.exact:
        raise SampleError(
            f"completion {completion.request_id} holds ids that were not sampled: its engine gave text, "
            "which is no ground for training"
        )
    return Sample.from_completion(
        completion.prompt_ids,
        completion.token_ids,
        completion.logprobs,
        reward=reward,
        group=group,
        version=completion.oldest_version,
        truncated=completion.finish_reason == "length",
    )
