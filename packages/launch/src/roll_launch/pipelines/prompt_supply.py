"""Which prompt a stage uses next: all in turn, by shares of domains, or by how hard they are now.

The RLVR pipeline makes one a stage; its scheduler takes the prompts and tells it the scores.
"""

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Protocol

from roll_scheduler import (
    Curriculum,
    Mixture,
    MixtureDomain,
    PromptList,
    PromptLog,
    PromptSource,
    PromptTraits,
)

from roll_launch.config import CurriculumConfig, DomainConfig, MixtureData
from roll_launch.plan import RlvrPlan
from roll_launch.prompts import Prompt


class Supply(Protocol):
    """Prompts without end, as a scheduler takes them."""

    def __iter__(self) -> Iterator[Prompt]: ...

    def __next__(self) -> Prompt: ...

    def traits(self, prompt: Prompt) -> PromptTraits:
        """What the scheduler may know of a prompt."""
        ...

    def domain(self, prompt: Prompt) -> str:
        """Where it comes from."""
        ...

    def observe(self, prompt: Prompt, values: Sequence[float]) -> None:
        """The scores of a group that ended."""
        ...

    def state(self, first: int) -> dict[str, Any]:
        """What a resume at occurrence `first` needs, as JSON."""
        ...

    def metrics(self) -> dict[str, float]:
        """What there is to say of it."""
        ...


class PromptSupply:
    """The prompts of a stage, without end.

    Without mixture and curriculum the prompt of an occurrence follows from its number alone, and there is no
    state. Otherwise the draws that a resume wants again are part of the state.

    Args:
        plan: Of the stage.
        first: Occurrence to begin with.
        state: What `state` gave before a resume; None at the beginning.

    Raises:
        SchedulerError: The state is of other prompts.
    """

    def __init__(self, plan: RlvrPlan, *, first: int = 0, state: Mapping[str, Any] | None = None) -> None:
        self._curricula: dict[str, Curriculum[Prompt]] = {}
        self._log: PromptLog[Prompt] | None = None
        self._prompts: Iterator[Prompt]
        if isinstance(plan.stage.data, MixtureData) or plan.stage.curriculum is not None:
            self._log = PromptLog(self._source(plan))
            if state:
                self._log.restore(state)
                self._log.rewind(first)
            self._prompts = map(attrgetter("prompt"), self._log)
        else:
            self._prompts = plan.prompts.endless(plan.seed, first=first)

    def __iter__(self) -> Iterator[Prompt]:
        return self

    def __next__(self) -> Prompt:
        return next(self._prompts)

    @staticmethod
    def traits(prompt: Prompt) -> PromptTraits:
        """What the scheduler may know of a prompt."""
        return PromptTraits(key=prompt.key, prompt_tokens=len(prompt.token_ids))

    @staticmethod
    def domain(prompt: Prompt) -> str:
        """Where it comes from."""
        return prompt.row.domain

    def observe(self, prompt: Prompt, values: Sequence[float]) -> None:
        """The scores of a group that ended, filtered or not; a curriculum learns from them."""
        if self._log is not None and self._curricula:
            rates = [min(1.0, max(0.0, value)) for value in values]
            self._log.observe(prompt.key, sum(rates) / len(rates), len(rates))

    def state(self, first: int) -> dict[str, Any]:
        """What a resume at occurrence `first` needs, as JSON; what is older is forgotten."""
        if self._log is None:
            return {}
        self._log.forget_before(first)
        return self._log.state()

    def metrics(self) -> dict[str, float]:
        """Prompts of each curriculum by where they are: `curriculum/inside`, `curriculum/math/unseen`."""
        return {
            "/".join(filter(None, ("curriculum", domain, where))): float(count)
            for domain, curriculum in self._curricula.items()
            for where, count in curriculum.counts().items()
        }

    def _source(self, plan: RlvrPlan) -> PromptSource[Prompt]:
        data, prompts = plan.stage.data, plan.prompts.prompts
        if not isinstance(data, MixtureData):
            return self._domain("", prompts, plan)
        return Mixture(
            {domain.name: self._share(domain, plan) for domain in data.domains},
            batch=plan.stage.rollout.prompts_per_step,
        )

    def _share(self, domain: DomainConfig, plan: RlvrPlan) -> MixtureDomain[Prompt]:
        prompts = [prompt for prompt in plan.prompts.prompts if prompt.row.domain == domain.name]
        return MixtureDomain(
            source=self._domain(domain.name, prompts, plan),
            weight=domain.weight,
            least=domain.least,
            most=domain.most,
        )

    def _domain(self, name: str, prompts: Sequence[Prompt], plan: RlvrPlan) -> PromptSource[Prompt]:
        settings = plan.stage.curriculum
        if settings is None:
            return PromptList(prompts, seed=plan.seed, domain=name)
        self._curricula[name] = _curriculum(settings, prompts, plan.seed, name)
        return self._curricula[name]


def _curriculum(
    settings: CurriculumConfig, prompts: Sequence[Prompt], seed: int, domain: str
) -> Curriculum[Prompt]:
    return Curriculum(
        prompts,
        low=settings.low,
        high=settings.high,
        explore=settings.explore,
        fade=settings.fade,
        seed=seed,
        domain=domain,
    )
