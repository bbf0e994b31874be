"""Which start of which environment a stage plays from next."""

from collections.abc import Iterator, Sequence
from typing import Any

from roll_scheduler import PromptTraits

from roll_launch.agentic_plan import AgenticPlan, EpisodeStart, start_seed
from roll_launch.data import PromptOrder
from roll_launch.prompts import Prompt

GOLDEN = 0.6180339887498949
"""Multiples of the golden ratio, modulo 1, spread evenly however many there are."""


class EpisodeSupply:
    """The starts of a stage, without end: the start of an occurrence follows from its number alone.

    Args:
        plan: Of the stage.
        first: Occurrence to begin with.
    """

    def __init__(self, plan: AgenticPlan, *, first: int = 0) -> None:
        self._seed = plan.seed
        self._environments = plan.stage.environments
        self._occurrence = first
        total = sum(environment.weight for environment in self._environments)
        self._shares = [environment.weight / total for environment in self._environments]
        self._orders = {
            environment.title: PromptOrder(environment.starts, plan.seed)
            for environment in self._environments
            if environment.starts is not None
        }

    def __iter__(self) -> Iterator[Prompt]:
        return self

    def __next__(self) -> Prompt:
        occurrence = self._occurrence
        self._occurrence += 1
        return self.start(occurrence)

    def start(self, occurrence: int) -> EpisodeStart:
        """The start of an occurrence, counted from 0."""
        place = (occurrence * GOLDEN) % 1.0
        environment = self._environments[-1]
        for each, share in zip(self._environments, self._shares, strict=True):
            if place < share:
                environment = each
                break
            place -= share
        order = self._orders.get(environment.title)
        number = occurrence if order is None else order.row(occurrence)
        return EpisodeStart.of(environment.title, start_seed(self._seed, environment.title, number))

    @staticmethod
    def traits(prompt: Prompt) -> PromptTraits:
        """What the scheduler may know of a start."""
        return PromptTraits(key=prompt.key, prompt_tokens=0)

    @staticmethod
    def domain(prompt: Prompt) -> str:
        """Its environment."""
        return prompt.row.domain

    def observe(self, prompt: Prompt, values: Sequence[float]) -> None:
        """Rewards change nothing: starts are drawn as they come."""

    def state(self, first: int) -> dict[str, Any]:
        """Nothing beyond the number of the occurrence."""
        return {}

    def metrics(self) -> dict[str, float]:
        """Nothing."""
        return {}
