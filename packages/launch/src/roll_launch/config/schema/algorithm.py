"""An algorithm of roll_learners: a preset, and those of its fields that differ.

The keys are the fields of `roll_learners.algorithm.Algorithm`, taken from that class, so that a field added
there can be configured here at once.
"""

import dataclasses
import re
import typing
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import Field, create_model, model_serializer
from roll_learners.algorithm import PRESETS, Algorithm, KlPenalty, make_algorithm
from roll_learners.correction import Correction
from roll_learners.critic_rule import CriticRule
from roll_learners.errors import LearnerError

from roll_launch.config.section import Finding, Section

_NOT_CONFIGURED = frozenset({"name", "rhythm"})
"""Of an algorithm: its name, and the rule of a role that no pipeline places."""
ALSO = {
    "clip_low": ["clip_ratio_low", "epsilon", "eps_clip", "clip_ratio"],
    "clip_high": ["clip_ratio_high", "epsilon_high", "eps_clip_high"],
    "dual_clip": ["clip_ratio_c"],
    "coef": ["kl_coef", "beta", "kl_loss_coef", "init_kl_coef"],
    "advantage": ["adv_estimator", "advantage_estimator"],
    "aggregation": ["loss_agg_mode", "loss_type"],
    "entropy_coef": ["entropy_coeff", "entropy_loss_coef"],
    "mask_truncated": ["mask_truncated_completions"],
}


class _Partial(Section):
    """Fields of which only those that were written count, whatever the class says of the others."""

    @model_serializer(mode="plain")
    def _written_only(self) -> dict[str, Any]:
        return {
            name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set
        }


class _Preset(_Partial):
    """A preset with fields replaced; how roll_learners reads it."""

    preset: str = Field(description=f"One of {', '.join(PRESETS)}.")

    def overrides(self) -> dict[str, Any]:
        """The fields that were written, as `make_algorithm` takes them."""
        return {name: value for name, value in self.model_dump().items() if name != "preset"}

    def algorithm(self) -> Algorithm:
        """The algorithm.

        Raises:
            LearnerError: A name or a value that roll_learners does not take; a loaded configuration has none.
        """
        return make_algorithm(self.preset, **self.overrides())

    def findings(self) -> Iterator[Finding]:
        refusal = _refusal(self.preset, {})
        if refusal is not None:
            yield Finding(path=("preset",), message=refusal)
            return
        overrides = self.overrides()
        together = _refusal(self.preset, overrides)
        if together is not None:
            # The key that is refused just as well alone is the one to name; else it is how they combine.
            alone = [
                key for key, value in overrides.items() if _refusal(self.preset, {key: value}) == together
            ]
            yield Finding(path=(alone[0],) if alone else (), message=together)
            return
        # Of critics, teachers and turns the stage knows.
        needs = self.algorithm().needs - {"critic", "teacher", "turn_states"}
        if needs:
            yield Finding(
                path=("advantage",) if "advantage" in overrides else ("preset",),
                message=f"needs {', '.join(sorted(needs))}, which this pipeline does not provide",
            )


def _refusal(preset: str, overrides: dict[str, Any]) -> str | None:
    try:
        make_algorithm(preset, **overrides)
    except LearnerError as error:
        return str(error)
    return None


def _fields(
    record: type, exclude: frozenset[str] = frozenset(), sections: Mapping[type, type] = MappingProxyType({})
) -> dict[str, Any]:
    """Optional pydantic fields for those of a dataclass, described by the `Attributes` of its docstring;
    those that are records themselves are sections."""
    hints = typing.get_type_hints(record)
    described = dict(re.findall(r"^ +(\w+): (.+(?:\n {9,}.+)*)", record.__doc__ or "", re.MULTILINE))
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        if field.name in exclude:
            continue
        annotation = sections.get(hints[field.name], hints[field.name])
        description = " ".join(described.get(field.name, "").split())
        also: dict[str, Any] | None = {"also": ALSO[field.name]} if field.name in ALSO else None
        fields[field.name] = (
            annotation,
            Field(default=None, description=description, json_schema_extra=also),
        )
    return fields


if TYPE_CHECKING:

    class KlConfig(_Partial):
        """A penalty for distance from the policy that the stage starts with."""

    class CorrectionConfig(_Partial):
        """For an engine that samples from other probabilities than the learner computes."""

    class CriticRuleConfig(_Partial):
        """How critics learn and what their agreement decides."""

    class AlgorithmConfig(_Preset):
        """An algorithm of roll_learners."""

else:

    def _section(name: str, about: str, record: type) -> type[_Partial]:
        return create_model(name, __base__=_Partial, __module__=__name__, __doc__=about, **_fields(record))

    KlConfig = _section(
        "KlConfig", "A penalty for distance from the policy that the stage starts with.", KlPenalty
    )
    CorrectionConfig = _section(
        "CorrectionConfig",
        "For an engine that samples from other probabilities than the learner computes.",
        Correction,
    )
    CriticRuleConfig = _section(
        "CriticRuleConfig", "How critics learn and what their agreement decides.", CriticRule
    )
    AlgorithmConfig = create_model(
        "AlgorithmConfig",
        __base__=_Preset,
        __module__=__name__,
        __doc__="A preset of roll_learners; keys that are left out are as the preset has them.",
        **_fields(
            Algorithm,
            exclude=_NOT_CONFIGURED,
            sections={KlPenalty: KlConfig, Correction: CorrectionConfig, CriticRule: CriticRuleConfig},
        ),
    )
