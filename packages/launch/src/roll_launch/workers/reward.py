"""A reward worker's work: decode, grade under a deadline, write rollouts for people to read."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from roll_rewards import (
    ConversationQueue,
    ConversationScorer,
    Grader,
    Score,
    grade_with_deadline,
    make_grader,
)
from roll_rollout import Completion

from roll_launch.config import placed_options
from roll_launch.data import PromptEncoder
from roll_launch.roles import RewardSpec, RolloutRecord
from roll_launch.workers.placed_models import PlacedModels
from roll_launch.workers.rollout_lines import finite, write_lines


class RewardJudge:
    """Grades completions with one grader."""

    def __init__(self, spec: RewardSpec) -> None:
        self._encoder = PromptEncoder(spec.tokenizer)
        self._placed = PlacedModels()
        self._grader = _made(spec, self._placed)
        self._deadline_s = spec.deadline_s
        # Taken before the clock of a grading starts: a queue is not the grader's time.
        self._turns = asyncio.Semaphore(spec.concurrency)

    async def grade(self, completion: Completion, reference: object, columns: Mapping[str, object]) -> Score:
        """The score of one completion's text."""
        text = self._encoder.decode(completion.token_ids)
        columns = {"tokens": len(completion.token_ids), **columns}
        if self._grader is None:
            return Score(value=0.0)
        async with self._turns:
            return await grade_with_deadline(
                self._grader, text, reference, deadline_s=self._deadline_s, **columns
            )

    def serve_models(self, models: Mapping[str, Sequence[ConversationScorer]]) -> None:
        """Takes on who answers for placed reward models from now on."""
        self._placed.serve(models)

    def record(
        self, path: Path, records: Sequence[RolloutRecord], completions: Sequence[Completion], offset: int
    ) -> int:
        """Writes one JSON line a rollout, from byte `offset` on; returns the file's new length.

        Raises:
            OSError: The file is shorter than `offset`, or cannot be written.
        """
        rows = (
            self._line(record, completion) for record, completion in zip(records, completions, strict=True)
        )
        return write_lines(path, rows, offset=offset)

    def _line(self, record: RolloutRecord, completion: Completion) -> dict[str, object]:
        return {
            "step": record.step,
            "group": record.group,
            "member": record.member,
            "seed": record.seed,
            "prompt": record.prompt,
            "response": self._encoder.decode(completion.token_ids),
            "reference": record.reference,
            "score": finite(record.score),
            "reward": finite(record.reward),
            "parsed": record.parsed,
            "tokens": record.tokens,
            "finish": record.finish,
            "logprob": finite(float(completion.logprobs.sum())),
            "versions": list(completion.versions),
        }


def _made(spec: RewardSpec, placed: PlacedModels) -> Grader | None:
    """The grader, whose reward models are those of the stage where it names one."""
    if spec.grader is None:
        return None
    loaded: dict[str, ConversationScorer] = {
        name: ConversationQueue(
            model.path,
            device=model.device,
            dtype=model.dtype,
            max_tokens=model.max_tokens,
            batch_size=model.max_batch,
            wait_s=model.wait_s,
        )
        for name, model in spec.models.items()
    }
    scorers = {name: {"scorer": loaded.get(name) or placed.scorer(name)} for name in spec.model_names}
    options = placed_options({"name": spec.grader.name, "options": spec.grader.options}, scorers)
    return make_grader(spec.grader.name, **options["options"])
