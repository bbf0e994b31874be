"""The loss of a student that follows the distributions of teachers on given tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from roll_learners.aggregation import token_mean
from roll_learners.distillation import Distillation
from roll_learners.errors import LearnerError
from roll_learners.forward import EntropyUse, LogitsTerm
from roll_learners.objective import Metric, Terms, TokenBatch
from roll_learners.registry import DIVERGENCES


class DistillationObjective:
    """(1 - weight) x negative log-likelihood + weight x the divergences to the teachers, over all tokens.

    Columns of teacher i: "teacher_weight_i", one number a sample; and "teacher_states_i" [N, H], or with
    `top_k` "teacher_ids_i" and "teacher_logits_i" [N, K].
    """

    entropy: EntropyUse = "none"

    def __init__(self, distillation: Distillation, heads: Sequence[Callable[[Tensor], Tensor]]) -> None:
        """Args:
        distillation: What is computed.
        heads: Of each teacher, from its states[n, H] to logits[n, V]; not called with `top_k`.
        """
        self.distillation = distillation
        self._heads = heads
        self._divergence = DIVERGENCES.bind(distillation.divergence, distillation.options)

    @property
    def logits_term(self) -> LogitsTerm | None:
        """The weighted sum of divergences."""
        return self._divergences

    def terms(self, tokens: TokenBatch) -> Terms:
        """See `Objective`."""
        if tokens.from_logits is None:
            raise LearnerError("DistillationObjective needs a learner that evaluates its logits_term")
        weight = self.distillation.weight
        nll = token_mean(-tokens.logprobs, tokens.totals)
        kd = token_mean(tokens.from_logits, tokens.totals)
        loss = (1 - weight) * nll + weight * kd
        return Terms(
            loss=loss, metrics={"nll": Metric(nll.detach(), "sum"), "kd_loss": Metric(kd.detach(), "sum")}
        )

    def _divergences(self, logits: Tensor, columns: Mapping[str, Tensor]) -> Tensor:
        total = logits.new_zeros(len(logits))
        for i, head in enumerate(self._heads):
            if self.distillation.top_k is None:
                student, teacher = self._full(logits, head(columns[f"teacher_states_{i}"]))
            else:
                ids = columns[f"teacher_ids_{i}"].long()
                student, teacher = self._top(logits, ids, columns[f"teacher_logits_{i}"])
            value: Tensor = self._divergence(student=student, teacher=teacher)
            total = total + columns[f"teacher_weight_{i}"] * value
        return total

    def _full(self, student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
        rule = self.distillation
        if rule.vocabulary is None and student.shape[-1] != teacher.shape[-1]:
            raise LearnerError(
                f"the student has {student.shape[-1]} logits and the teacher {teacher.shape[-1]}: set "
                "distillation.vocabulary to the size of the tokenizer they share"
            )
        shared = slice(rule.vocabulary)
        return tempered(student[..., shared], rule.temperature), tempered(
            teacher[..., shared], rule.temperature
        )

    def _top(self, logits: Tensor, ids: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
        rule = self.distillation
        if rule.top_mass == "student_full":
            student = tempered(logits, rule.temperature).gather(-1, ids)
        else:
            student = tempered(logits.gather(-1, ids), rule.temperature)
        return student, tempered(teacher.to(logits.dtype), rule.temperature)


def tempered(logits: Tensor, temperature: float) -> Tensor:
    """[N, V], log softmax(logits / temperature)."""
    return torch.log_softmax(logits / temperature, -1)
