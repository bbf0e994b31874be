"""A teacher's work: its distributions over given tokens, or its log-probs of those that were sampled.

In the trainer's process it is called directly; as a role of its own it lives in an actor, or on a thread.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from roll_learners import DistillationTeacher, LocalScorer, LogprobSource, Teacher, TopLogits
from roll_learners.sample import Sample
from roll_rollout import Completion
from torch import Tensor
from transformers.utils.logging import disable_progress_bar

from roll_launch.models import load_model
from roll_launch.samples import sample_from_completion
from roll_launch.side_roles import TeacherSpec


class TeacherWorker:
    """One teacher. Methods block; call them from one thread at a time."""

    def __init__(self, spec: TeacherSpec) -> None:
        if spec.own:
            torch.set_num_threads(spec.threads)
            disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers leaves it without annotations
        self._spec = spec
        self.scorer = LocalScorer(
            load_model(spec.model),
            micro_batch_tokens=spec.micro_batch_tokens,
            temperature=spec.temperature,
            device=spec.device,
        )
        self._kept = KeptLogits() if spec.once else None

    def top_logits(self, samples: Sequence[Sample]) -> list[TopLogits]:
        """The greatest logits at each trained token; of samples that came before, what was kept."""
        k = self._spec.top_k
        if k is None:
            raise ValueError("a teacher without top_k was asked for its greatest logits")
        if self._kept is None:
            return self.scorer.top_logits(samples, k)
        new = self._kept.unknown(samples)
        if new:
            self._kept.keep(new, self.scorer.top_logits(new, k))
        return self._kept.of(samples)

    def logprobs(self, completions: Sequence[Completion]) -> list[npt.NDArray[np.floating]]:
        """Log-probs of the sampled tokens, [N] over each whole sequence."""
        samples = [sample_from_completion(each, reward=0.0, group=0) for each in completions]
        return self.scorer.logprobs(samples)


class KeptLogits:
    """Top logits of samples, 8 x K bytes for each trained token."""

    def __init__(self) -> None:
        self._parts: dict[bytes, tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]] = {}

    def unknown(self, samples: Sequence[Sample]) -> list[Sample]:
        """Those that nothing is kept of, each once."""
        return list({key: s for s in samples if (key := _key(s)) not in self._parts}.values())

    def keep(self, samples: Sequence[Sample], top: Sequence[TopLogits]) -> None:
        """Remembers the trained tokens'."""
        for sample, each in zip(samples, top, strict=True):
            mask = sample.response_mask
            kept = (each.ids[mask].astype(np.int32), each.logits[mask].astype(np.float32))
            self._parts[_key(sample)] = kept

    def of(self, samples: Sequence[Sample]) -> list[TopLogits]:
        """As they were computed, 0 where no token is trained."""
        found = []
        for sample in samples:
            ids, logits = self._parts[_key(sample)]
            shape = (len(sample.token_ids), ids.shape[1])
            whole = TopLogits(ids=np.zeros(shape, np.int64), logits=np.zeros(shape, np.float32))
            whole.ids[sample.response_mask], whole.logits[sample.response_mask] = ids, logits
            found.append(whole)
        return found


class GivenLogits:
    """`roll_learners.DistributionSource` of logits that a role of its own has computed for one batch."""

    def __init__(self, top: Sequence[TopLogits]) -> None:
        self._top = list(top)

    def top_logits(self, samples: Sequence[Sample], k: int) -> list[TopLogits]:
        """Those that were given."""
        return self._top

    def states(self, samples: Sequence[Sample]) -> list[npt.NDArray[np.floating]]:
        """Never asked for: a role of its own sends its greatest logits."""
        raise ValueError("a teacher in a process of its own sends no states")

    def logits(self, states: Tensor) -> Tensor:
        """Never asked for."""
        raise ValueError("a teacher in a process of its own sends no states")


class WorkerLogits:
    """`roll_learners.DistributionSource` of a teacher in this process."""

    def __init__(self, worker: TeacherWorker) -> None:
        self._worker = worker

    def top_logits(self, samples: Sequence[Sample], k: int) -> list[TopLogits]:
        """Of the worker, kept where it keeps them."""
        return self._worker.top_logits(samples)

    def states(self, samples: Sequence[Sample]) -> list[npt.NDArray[np.floating]]:
        """See `LocalScorer`."""
        return self._worker.scorer.states(samples)

    def logits(self, states: Tensor) -> Tensor:
        """See `LocalScorer`."""
        return self._worker.scorer.logits(states)


class GivenLogprobs:
    """`roll_learners.LogprobSource` of log-probs that a role of its own has computed for one batch."""

    def __init__(self, samples: Sequence[Sample], columns: Sequence[npt.NDArray[np.floating]]) -> None:
        self._columns = {_key(sample): column for sample, column in zip(samples, columns, strict=True)}

    def logprobs(self, samples: Sequence[Sample]) -> list[npt.NDArray[np.floating]]:
        """Those that were given, of some of the samples."""
        return [self._columns[_key(sample)] for sample in samples]


class KeptLogprobs:
    """`roll_learners.LogprobSource` that computes each sample once, and lets go of its model when told."""

    def __init__(self, source: LogprobSource) -> None:
        self._source: LogprobSource | None = source
        self._columns: dict[bytes, npt.NDArray[np.floating]] = {}

    def logprobs(self, samples: Sequence[Sample]) -> list[npt.NDArray[np.floating]]:
        """The log-prob of each trained token; see `LocalScorer.logprobs`."""
        new = list({key: s for s in samples if (key := _key(s)) not in self._columns}.values())
        if new:
            if self._source is None:
                raise ValueError(f"the reference is gone, but {len(new)} samples were not prepared")
            self._columns |= zip(map(_key, new), self._source.logprobs(new), strict=True)
        return [self._columns[_key(sample)] for sample in samples]

    def release(self) -> None:
        """Lets go of the model: only samples that were computed can be asked for."""
        self._source = None


def policy_teachers(
    specs: Sequence[TeacherSpec],
    local: Sequence[TeacherWorker],
    samples: Sequence[Sample],
    given: Sequence[Sequence[npt.NDArray[np.floating]]],
) -> list[Teacher]:
    """The teachers of a policy step, in order: those of this process, and what the others have computed."""
    own, here = iter(given), iter(local)
    return [
        Teacher(
            source=GivenLogprobs(samples, next(own)) if spec.own else next(here).scorer,
            coef=spec.weight,
            estimator=spec.estimator,
            tags=spec.domains,
        )
        for spec in specs
    ]


def distillation_teachers(
    specs: Sequence[TeacherSpec], local: Sequence[TeacherWorker], given: Sequence[Sequence[TopLogits]]
) -> list[DistillationTeacher]:
    """The teachers of a distillation step, in order."""
    own, here = iter(given), iter(local)
    return [
        DistillationTeacher(
            source=GivenLogits(next(own)) if spec.own else WorkerLogits(next(here)),
            weight=spec.weight,
            tags=spec.domains,
        )
        for spec in specs
    ]


def _key(sample: Sample) -> bytes:
    """Of equal tokens and masks the same."""
    parts = sample.token_ids.tobytes(), sample.response_mask.tobytes()
    return hashlib.blake2b(b"".join(parts), digest_size=16).digest()
