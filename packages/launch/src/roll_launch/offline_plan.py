"""The plan of a stage that trains on given rows: preferences, or responses that teachers are asked about.

`plan.py` makes it with the other stages' plans.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from roll_learners.sample import Sample

from roll_launch.config import DistillationStage, PreferenceStage
from roll_launch.data import PromptEncoder, open_rows
from roll_launch.data.preferences import EncodedPreferences, encode_preferences, open_preferences
from roll_launch.digests import digest, model_files
from roll_launch.roles import ModelSpec

if TYPE_CHECKING:
    from roll_launch.plan import RlvrPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflinePlan:
    """A stage with its rows, each of one or two samples.

    Attributes:
        stage: Its configuration.
        model: What is trained.
        rows: Chosen and rejected response, or a single one.
        origins: Where each row is from.
        dropped: Rows that were too long.
        empty: Rows without two different responses, or without one.
        heldout: Rows that are not trained on.
        teachers: Of a distillation, in order.
        generation: How accuracy is measured, as the stage that would measure it; None if it is not.
        seed: Of the order of the rows.
    """

    stage: PreferenceStage | DistillationStage
    model: ModelSpec
    rows: tuple[tuple[Sample, ...], ...]
    origins: tuple[str, ...]
    dropped: int
    empty: int
    heldout: tuple[tuple[Sample, ...], ...]
    teachers: tuple[ModelSpec, ...]
    generation: "RlvrPlan | None"
    seed: int

    def digest(self) -> str:
        """SHA-256 of what the stage begins with: all samples, held-out ones too, and the models' files."""
        teachers = self.stage.teachers if isinstance(self.stage, DistillationStage) else ()
        return digest(
            model_files(self.stage.model),
            *(model_files(teacher.model) for teacher in teachers),
            (
                part
                for row in (*self.rows, *self.heldout)
                for each in row
                for part in (
                    each.token_ids.tobytes(),
                    each.response_mask.tobytes(),
                    np.float64(each.reward).tobytes(),
                    each.tag.encode(),
                )
            ),
            () if self.generation is None else (self.generation.digest().encode(),),
        )


def side_by_side(rows: Sequence[tuple[Sample, ...]]) -> list[Sample]:
    """All first samples of rows, then all second ones."""
    width = len(rows[0]) if rows else 0
    return [row[place] for place in range(width) for row in rows]


def plan_offline(
    stage: PreferenceStage | DistillationStage,
    model: ModelSpec,
    *,
    teachers: tuple[ModelSpec, ...],
    generation: "RlvrPlan | None",
    seed: int,
) -> OfflinePlan:
    """Reads and encodes the rows of a stage.

    Raises:
        DataError: Missing, broken or empty data, or a row over the limit.
    """
    encoder = PromptEncoder(model.tokenizer)
    read = _preferences if isinstance(stage, PreferenceStage) else _demonstrations
    trained = read(stage, encoder, heldout=False)  # type: ignore[arg-type]  # each reads its own kind of stage
    heldout: tuple[tuple[Sample, ...], ...] = ()
    if stage.evaluation is not None and stage.evaluation.data is not None:
        heldout = read(stage, encoder, heldout=True).rows  # type: ignore[arg-type]  # the same
    return OfflinePlan(
        stage=stage,
        model=model,
        rows=trained.rows,
        origins=trained.origins,
        dropped=trained.dropped,
        empty=trained.empty,
        heldout=heldout,
        teachers=teachers,
        generation=generation,
        seed=seed,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    rows: tuple[tuple[Sample, ...], ...]
    origins: tuple[str, ...]
    dropped: int
    empty: int


def _preferences(stage: PreferenceStage, encoder: PromptEncoder, *, heldout: bool) -> _Read:
    evaluation = stage.evaluation
    data = evaluation.data if heldout and evaluation is not None else stage.data
    rows = open_preferences(
        stage.data if data is None else data,
        stage.columns,
        labelled=stage.objective.preset == "kto",
        limit=evaluation.rows if heldout and evaluation is not None else None,
    )
    encoded: EncodedPreferences = encode_preferences(
        rows, encoder, max_tokens=stage.max_tokens, overlong=stage.overlong
    )
    samples = tuple(
        tuple(
            Sample(token_ids=ids, response_mask=mask, reward=float(desirable is not False))
            for ids, mask in responses
        )
        for responses, desirable in encoded.rows
    )
    return _Read(rows=samples, origins=encoded.origins, dropped=encoded.dropped, empty=encoded.empty)


def _demonstrations(stage: DistillationStage, encoder: PromptEncoder, *, heldout: bool) -> _Read:
    evaluation = stage.evaluation
    if heldout and evaluation is not None and evaluation.data is not None:
        rows = open_rows(evaluation.data)[: evaluation.rows]
    else:
        rows = open_rows(stage.data)
    read = _Read(rows=(), origins=(), dropped=0, empty=0)
    # Rows of a mixture come domain after domain.
    for domain, together in itertools.groupby(rows, key=lambda row: row.domain):
        encoded = encoder.encode_supervised(together, max_tokens=stage.max_tokens, overlong=stage.overlong)
        samples = ((Sample(token_ids=ids, response_mask=mask, tag=domain),) for ids, mask in encoded.samples)
        read = _Read(
            rows=(*read.rows, *samples),
            origins=read.origins + encoded.origins,
            dropped=read.dropped + encoded.dropped,
            empty=read.empty + encoded.empty,
        )
    return read
