"""Tasks of reasoning-gym, one question an episode. Needs the extra `reasoning-gym`."""

from typing import Any

from roll_agentic.environment import Reset, Step
from roll_agentic.environments.answer import marked_answer
from roll_agentic.errors import AgenticError

_INSTRUCTIONS = "Answer the question. Give the final answer in <answer> </answer>."
_EPISODES = 2**31 - 1


class ReasoningGym:
    """A question of a reasoning-gym dataset; the reward is the dataset's score of the answer.

    Args:
        dataset: Name of the dataset, such as `leg_counting`.
        **config: Passed to `reasoning_gym.create_dataset`.

    Raises:
        AgenticError: reasoning-gym is not installed or has no such dataset.
    """

    def __init__(self, dataset: str, **config: object) -> None:
        try:
            import reasoning_gym  # type: ignore[import-untyped]  # no types
        except ImportError as error:
            raise AgenticError(
                "these tasks need reasoning-gym: pip install 'roll-agentic[reasoning-gym]'"
            ) from error
        options: Any = {"size": _EPISODES, **config, "seed": 0}
        try:
            self._dataset: Any = reasoning_gym.create_dataset(dataset, **options)
        except (ValueError, TypeError, AssertionError) as error:
            raise AgenticError(f"reasoning-gym cannot make {dataset!r}: {error}") from error
        self._size = len(self._dataset)
        self._entry: Any = None

    def reset(self, *, seed: int) -> Reset:
        """Ask the question whose index is the seed, within the dataset's size."""
        self._entry = self._dataset[seed % self._size]
        question = str(self._entry["question"])
        return question, {"instructions": _INSTRUCTIONS, "state": question}

    def step(self, action: str, /) -> Step:
        """Score the answer.

        Raises:
            AgenticError: No episode is going on.
        """
        if self._entry is None:
            raise AgenticError("ReasoningGym has no episode going on; call reset before step")
        entry, self._entry = self._entry, None
        answer = marked_answer(action)
        score = float(self._dataset.score_answer(answer=answer, entry=entry))
        return "", score, True, False, {"action_is_valid": bool(answer), "answer": entry["answer"]}
